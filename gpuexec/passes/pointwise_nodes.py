"""Nodes that compute by elements or rows, or move elements, as passes put them into one operator."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.index_map import Assembled, IndexMap, Picked
from gpuexec.ir.operator import describe
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.region_steps import Given, StepRow, find_map, write_integers, write_number
from gpuexec.passes.known_specs import InputSpecs, Shapes


class PointwiseNodes:
    """A graph, and which of its nodes compute element by element, or row by row, on the device.

    What is asked of a node is found once, and once for all passes that a graph is not changed between.

    Attributes:
        specs: Specs of the values, as far as they follow.
        on_host: Values whose content the host knows.
        made_at: Of each value that a node makes, the position of the node.
    """

    @classmethod
    def of(cls, graph: Graph, inputs: Mapping[str, TensorSpec]) -> PointwiseNodes:
        """Return the nodes of a graph.

        Args:
            graph: The graph.
            inputs: Specs of its inputs, by name.
        """
        known = inputs if isinstance(inputs, InputSpecs) else InputSpecs(inputs)
        return known.derive(graph, cls)

    def __init__(self, graph: Graph, inputs: InputSpecs) -> None:
        shapes = Shapes.of(graph, inputs)
        self.specs, self.on_host = shapes.specs, shapes.on_host
        self.made_at = {value: n for n, node in enumerate(graph.nodes) for value in node.outputs if value is not None}
        self._graph, self._demanded = graph, shapes.find_demanded(graph)
        self._readers, self._outputs = graph.consumers(), set(graph.outputs)
        self._positions = {node: position for position, node in enumerate(graph.nodes)}
        self._free: dict[Node, bool] = {}
        self._pointwise: dict[Node, bool] = {}
        self._row_forms: dict[Node, RowForm | None] = {}
        self._maps: dict[Node, IndexMap | None] = {}
        self._numbers: dict[Node, list[str | None]] = {}

    def is_pointwise(self, node: Node) -> bool:
        """Return whether a node can be a step on elements.

        It makes one value of known shape that the host does not know, and that no shape depends on.
        """
        known = self._pointwise.get(node)
        if known is None:
            is_one = self._is_free(node) and node.operator.as_pointwise(self._list_specs(node)) is not None
            known = self._pointwise[node] = is_one
        return known

    def can_be_step(self, node: Node) -> bool:
        """Return whether a node can be a step on elements of a region.

        A rounding in front of a product is left to the product's kernel, which may do it itself.
        """
        return node.operator.name != ROUND_OPERAND and self.is_pointwise(node)

    def find_row_form(self, node: Node) -> RowForm | None:
        """Return the form of a node that can be a step on rows, in the same way; what it holds is constant."""
        if node not in self._row_forms:
            form = node.operator.as_row(self._list_specs(node)) if self._is_free(node) else None
            read = () if form is None else [node.inputs[place] for place in form.read if place < len(node.inputs)]
            is_constant = all(value is None or value in self._graph.constants for value in read)
            self._row_forms[node] = form if is_constant else None
        return self._row_forms[node]

    def find_map(self, node: Node) -> IndexMap | None:
        """Return the index map of a node that can be a step by it, as `is_pointwise` says of others.

        What the map follows from are constants.
        """
        if not self._is_free(node):
            return None
        specs = self._list_specs(node)
        found = self._find_own_map(node)
        if found is None or isinstance(found, Picked):
            return found
        if any(self._is_computed(node, position) for position in found.contents):
            return None
        if (
            isinstance(found, Assembled)
            and found.filler is not None
            and self._write_contents(node, found)[found.filler] is None
        ):
            filler, filled = specs[found.filler], specs[0]
            return found if filler is not None and filled is not None and filler.dtype == filled.dtype else None
        return found

    def _find_own_map(self, node: Node) -> IndexMap | None:
        if node not in self._maps:
            self._maps[node] = find_map(node.operator, self._list_specs(node))
        return self._maps[node]

    def _is_free(self, node: Node) -> bool:
        """Return whether a node makes one value of known shape, which neither the host knows nor a shape depends on."""
        known = self._free.get(node)
        if known is None:
            known = self._free[node] = self._find_free(node)
        return known

    def _find_free(self, node: Node) -> bool:
        made = [None if value is None else self.specs.get(value) for value in node.outputs]
        if len(made) != 1 or made[0] is None or node.outputs[0] in self.on_host:
            return False
        if any(value is not None and value not in self.specs for value in node.inputs):
            return False
        return self._demanded.isdisjoint(node.outputs)

    def _list_specs(self, node: Node) -> list[TensorSpec | None]:
        return [None if value is None else self.specs.get(value) for value in node.inputs]

    def _is_computed(self, node: Node, position: int) -> bool:
        value = node.inputs[position] if position < len(node.inputs) else None
        return value is not None and value not in self._graph.constants

    def list_readers(self, value: Value) -> list[int]:
        """Return the positions of the nodes that read a value."""
        return [self._positions[reader] for reader in self._readers.get(value, ())]

    def is_output(self, value: Value) -> bool:
        """Return whether the graph gives a value out."""
        return value in self._outputs

    def is_read_beside(self, value: Value, members: Collection[int]) -> bool:
        """Return whether the graph gives a value out, or others than these nodes read it."""
        return value in self._outputs or any(reader not in members for reader in self.list_readers(value))

    def list_operands(self, node: Node) -> list[Value]:
        """Return the values that a node reads, but for numbers."""
        numbers = self.write_numbers(node)
        return [value for value, text in zip(node.inputs, numbers, strict=True) if value is not None and text is None]

    def write_numbers(self, node: Node) -> Sequence[str | None]:
        """Return as text each input that is a constant of one element and stretches nothing, or that forms hold.

        Of a node with an index map those that the map follows from. What goes with rows alone keeps its shape.
        """
        known = self._numbers.get(node)
        if known is None:
            known = self._numbers[node] = self._find_numbers(node)
        return known

    def _find_numbers(self, node: Node) -> list[str | None]:
        found = self._find_own_map(node)
        if found is not None:
            return self._write_contents(node, found)
        form = self.find_row_form(node)
        read = set() if form is None else {node.inputs[place] for place in form.read if place < len(node.inputs)}
        of_rows = () if form is None else form.of_rows
        others = [self.specs[value].rank for value in node.inputs if value is not None and not self._is_number(value)]
        rank = max(others, default=-1)
        return [
            None
            if value is None or position in of_rows
            else write_integers(self._graph.constants[value])
            if value in read
            else self._write_number(value, rank)
            for position, value in enumerate(node.inputs)
        ]

    def write_row(self, node: Node, sources: Mapping[Value, Given]) -> StepRow:
        """Return a node as the row of a step.

        Args:
            node: The node.
            sources: Of each value that is no number, where the step finds it.
        """
        inputs = tuple([
            None if value is None else sources[value] if text is None else text
            for value, text in zip(node.inputs, self.write_numbers(node), strict=True)
        ])  # fmt: skip
        return (*describe(node.operator), inputs)

    def _write_contents(self, node: Node, found: IndexMap) -> list[str | None]:
        """Return those inputs that a map follows from, and its filler where it is known, as text."""
        texts: list[str | None] = [None] * len(node.inputs)
        contents = () if isinstance(found, Picked) else found.contents
        filler = found.filler if isinstance(found, Assembled) else None
        for position, value in enumerate(node.inputs):
            array = None if value is None else self._graph.constants.get(value)
            if array is not None and position in contents:
                texts[position] = write_integers(array)
            elif array is not None and position == filler and node.inputs[0] is not None:
                texts[position] = write_number(array.astype(self.specs[node.inputs[0]].dtype))
        return texts

    def _is_number(self, value: Value) -> bool:
        array = self._graph.constants.get(value)
        return array is not None and array.size == 1

    def _write_number(self, value: Value, rank: int) -> str | None:
        array: Array | None = self._graph.constants.get(value)
        return write_number(array) if array is not None and array.size == 1 and array.ndim <= rank else None


def order_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return nodes in an order in which each finds its inputs, as near as can be to the one given."""
    made_by_node = {value: n for n, node in enumerate(nodes) for value in node.outputs if value is not None}
    before = [{made_by_node[value] for value in node.inputs if value in made_by_node} for node in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for position, makers in enumerate(before):
        for maker in makers:
            after[maker].append(position)
    waits = [len(makers) for makers in before]
    ready = [position for position, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        position = heapq.heappop(ready)
        ordered.append(nodes[position])
        for behind in after[position]:
            waits[behind] -= 1
            if not waits[behind]:
                heapq.heappush(ready, behind)
    assert len(ordered) == len(nodes), "a way leads out of nodes that are one and back"
    return tuple(ordered)

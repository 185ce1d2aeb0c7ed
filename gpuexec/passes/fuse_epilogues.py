"""Epilogue fusion of an operator with the elementwise operators behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuexec.errors import InputError, name_after
from gpuexec.ir.geometry import broadcast
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import build, describe
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.elementwise.epilogue import (
    BINARY_OPERATORS,
    MADE,
    MAX_OPERANDS,
    MAX_STEPS,
    UNARY_OPERATORS,
    VALUE,
    Given,
    count_steps,
    fused_name,
)
from gpuexec.ops.elementwise.fused import PRODUCERS
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.linalg.scaled_matmul import ScaledMatMul
from gpuexec.ops.tensor.layout import Reshape
from gpuexec.passes.known_specs import infer_known

_CLIP = "Clip"
_LIGHT = UNARY_OPERATORS | BINARY_OPERATORS | {_CLIP, Cast.name}
# Producers whose results steps may see under another shape: those that are never images in another memory format.
_RESHAPED = (Gemm.name, MatMul.name, ScaledMatMul.name)


@dataclass(slots=True)
class _Chain:
    """Producer with its epilogue: the values after each node, steps, operands, and the pending reads of its result.

    ``waits_for`` are the nodes whose work the producer needs, as bits. ``length`` is how many steps may be taken: up to
    where the producer's result has no other reader.
    """

    nodes: list[Node]
    values: list[Value]
    rank: int
    position: int
    waits_for: int
    reads_left: int
    steps: list[tuple[str, tuple[tuple[str, object], ...], tuple[Given, ...]]] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    count: int = 0
    length: int = 0

    @property
    def is_reshaped(self) -> bool:
        """Whether the first step is a Reshape, whose shape is the first operand."""
        return bool(self.steps) and self.steps[0][0] == Reshape.name


def fuse_epilogues(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse elementwise operators into the operator with sums before them, where its result has no other reader.

    A second input must be there when the operator runs, by nothing but what the operator waits for as it is: branches
    that may run side by side stay such. It may not stretch the result; if the planner finds that it does, since content
    or another size says so, the operators are launched one after the other. Results stay the same to the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    fusing = _Fusing(graph, specs)
    for position, node in enumerate(graph.nodes):
        fusing.visit(position, node)
    return fusing.finish()


class _Fusing:
    """Walk over a graph, with the chains found by the value that the last step of each makes."""

    def __init__(self, graph: Graph, specs: Mapping[str, TensorSpec]) -> None:
        self._graph, self._inputs = graph, specs
        self._readers, self._outputs = graph.consumers(), set(graph.outputs)
        self._open: dict[Value, _Chain] = {}
        self._chains: list[_Chain] = []
        self._made_at: dict[Value, int] = {}
        # Bit set of the heavy nodes that a value depends on.
        self._origins: dict[Value, int] = {}
        self._known: dict[Value, TensorSpec] | None = None

    def visit(self, position: int, node: Node) -> None:
        """Extend a chain by a node, or begin one with it."""
        if not self._extend(node):
            self._begin(position, node)
        own = 0 if node.operator.name in _LIGHT else 1 << position
        made = [value for value in node.outputs if value is not None]
        self._made_at.update(dict.fromkeys(made, position))
        self._origins.update(dict.fromkeys(made, self._waits_for(node) | own))

    def finish(self) -> Graph:
        """Return the graph with each chain as one node, where its first node stood."""
        taken = {node.name for node in self._graph.nodes}
        fused: dict[Node, Node] = {}
        gone: set[Node] = set()
        for chain in self._chains:
            if chain.length:
                nodes = chain.nodes[: chain.length + 1]
                name = take_free("+".join(node.name for node in nodes), taken)
                fused[nodes[0]] = _make_node(chain, name_after(name, nodes[0].name))
                gone.update(nodes[1:])
        if not fused:
            return self._graph
        return replace(
            self._graph, nodes=tuple(fused.get(node, node) for node in self._graph.nodes if node not in gone)
        )

    def _begin(self, position: int, node: Node) -> None:
        value, *others = node.outputs
        has_others = any(other is not None and (other in self._readers or other in self._outputs) for other in others)
        rank = node.operator.epilogue_rank if node.operator.name in PRODUCERS else None
        if rank is None or value is None or value in self._outputs or has_others:
            return
        chain = _Chain([node], [value], rank, position, self._waits_for(node), len(self._readers.get(value, ())))
        self._open[value] = chain
        self._chains.append(chain)

    def _extend(self, node: Node) -> bool:
        for value in node.inputs:
            chain = self._open.get(value) if value is not None else None
            inputs = None if chain is None else self._read(node, chain)
            if chain is not None and inputs is not None:
                self._add(chain, node, inputs)
                return True
        return False

    def _read(self, node: Node, chain: _Chain) -> tuple[Given, ...] | None:
        """Return the inputs of a step that a node would be, or None where it can't be one."""
        name, value = node.operator.name, chain.values[-1]
        count = _count_steps(node)
        is_first = value is chain.values[0]
        if chain.count + count > MAX_STEPS or (not is_first and len(self._readers[value]) > 1):
            return None
        if name == _CLIP:
            bounds = [self._read_number(bound, None) for bound in node.inputs[1:]]
            is_known = all(bound is None or text is not None for bound, text in zip(node.inputs[1:], bounds))
            return (VALUE, *bounds) if node.inputs[0] is value and is_known else None
        if name in UNARY_OPERATORS:
            return (VALUE,)
        if name == Reshape.name:
            return self._read_shape(node, chain)
        if name == Cast.name:
            return (VALUE,) if self._narrows(node, value) else None
        if name not in BINARY_OPERATORS or sum(given is value for given in node.inputs) != 1:
            return None
        inputs = [self._read_beside(given, chain) if given is not value else VALUE for given in node.inputs]
        added = {given for given in inputs if isinstance(given, int) and given >= len(self._list_inputs(chain))}
        taken = len(chain.operands) - chain.is_reshaped
        return None if None in inputs or taken + len(added) > MAX_OPERANDS else tuple(inputs)

    def _read_shape(self, node: Node, chain: _Chain) -> tuple[Given, ...] | None:
        """Return the inputs of a Reshape to a shape that is known, right behind a product."""
        source, shape = node.inputs
        is_first = not chain.steps and source is chain.values[0] and chain.reads_left == 1
        is_known = shape in self._graph.constants and chain.nodes[0].operator.name in _RESHAPED
        return (VALUE, len(chain.nodes[0].inputs)) if is_first and is_known else None

    def _read_beside(self, given: Value | None, chain: _Chain) -> Given:
        """Return the other operand of a step; None where it is not available when the producer runs."""
        if given is None:
            return None
        if given is chain.values[0]:
            return MADE
        number = self._read_number(given, chain.rank)
        if number is not None:
            return number
        is_there = self._made_at.get(given, -1) < chain.position
        if not is_there or self._origins.get(given, 0) & ~chain.waits_for or not self._fits(given, chain):
            return None
        inputs = self._list_inputs(chain)
        return inputs.index(given, len(chain.nodes[0].inputs)) if given in chain.operands else len(inputs)

    def _narrows(self, node: Node, value: Value) -> bool:
        """Return whether a Cast makes a float half or bfloat16."""
        known = self._infer().get(value)
        is_float = known is not None and known.dtype == np.float32
        return is_float and node.operator.find_dtype([]) in (np.float16, BFLOAT16)

    def _infer(self) -> dict[Value, TensorSpec]:
        if self._known is None:
            self._known = infer_known(self._graph, self._inputs)
        return self._known

    def _read_number(self, given: Value | None, rank: int | None) -> str | None:
        """Return a constant of one float as text; with more than ``rank`` axes it could stretch the value."""
        array = None if given is None else self._graph.constants.get(given)
        if array is None or array.size != 1 or (rank is not None and array.ndim > rank) or not _is_float(array):
            return None
        return repr(float(array.reshape(())[()]))

    def _fits(self, given: Value, chain: _Chain) -> bool:
        """Return whether an operand is known not to broadcast the result; constants hardly ever do."""
        known = self._infer()
        made, beside = known.get(chain.values[int(chain.is_reshaped)]), known.get(given)
        if made is None or beside is None:
            return given in self._graph.constants
        try:
            return broadcast(made.shape, beside.shape) == made.shape
        except InputError:
            return False

    def _waits_for(self, node: Node) -> int:
        found = 0
        for value in node.inputs:
            found |= self._origins.get(value, 0) if value is not None else 0
        return found

    @staticmethod
    def _list_inputs(chain: _Chain) -> tuple[Value | None, ...]:
        return (*chain.nodes[0].inputs, *chain.operands)

    def _add(self, chain: _Chain, node: Node, inputs: tuple[Given, ...]) -> None:
        made, (result, *_) = chain.values[0], node.outputs
        assert result is not None
        name, attributes = describe(node.operator)
        operands = [
            value
            for value, given in zip(node.inputs, inputs)
            if value is not None and isinstance(given, int) and given >= 0 and value not in chain.operands
        ]
        chain.reads_left -= sum(value is made for value in node.inputs)
        del self._open[chain.values[-1]]
        chain.nodes.append(node)
        chain.values.append(result)
        chain.steps.append((name, attributes, inputs))
        chain.operands += operands
        chain.count += _count_steps(node)
        if name == Reshape.name and node.inputs[1] is not None:
            chain.rank = self._graph.constants[node.inputs[1]].size
        if chain.reads_left == 0 and name != Reshape.name:  # which alone is a view
            chain.length = len(chain.steps)
        if result not in self._outputs and name != Cast.name:  # which is the last one: steps are of one type
            self._open[result] = chain


def _count_steps(node: Node) -> int:
    """Return how many steps of a kernel a node is."""
    name = node.operator.name
    return 0 if name in (Cast.name, Reshape.name) else count_steps(name, node.inputs)


def _make_node(chain: _Chain, name: str) -> Node:
    """Return a chain as a node; operands that only steps beyond its length have stay away."""
    producer, steps = chain.nodes[0], tuple(chain.steps[: chain.length])
    last = max((given for _, _, inputs in steps for given in inputs if isinstance(given, int)), default=VALUE)
    inputs = (*producer.inputs, *chain.operands)[: max(len(producer.inputs), last + 1)]
    _, attributes = describe(producer.operator)
    operator = build(fused_name(producer.operator.name), {**dict(attributes), "steps": steps})
    part_of = chain.nodes[0].part_of if len({node.part_of for node in chain.nodes}) == 1 else ""
    return Node(operator, inputs, (chain.values[chain.length],), name, part_of)


def _is_float(array: Array) -> bool:
    return np.issubdtype(array.dtype, np.floating) or array.dtype == BFLOAT16

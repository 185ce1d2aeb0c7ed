"""Composite operators: shapes, NumPy results and kernels derived from the operators they are composed of.

    @composite("BiasGelu", "com.microsoft")
    @dataclass(frozen=True, slots=True)
    class BiasGelu(Composite):
        def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
            return (sketch.add("Gelu", sketch.add("Add", *inputs)),)

While a model is loaded the pass `decompose` puts the parts in the operator's place, so passes, planner and kernels see
nothing new. The parts depend on attributes and on the inputs and outputs that are present; ranks and extents
are not known then, and are the parts' own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue, locate
from gpuexec.ir.graphs import Graph, Node, Value, list_needed
from gpuexec.ir.operator import Array, Derivative, Operator, Out, Tolerance, build, decompose, operator, qualified
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.interpret import compute_graph, infer_graph
from gpuexec.ops.elementwise.elementwise_cast import Identity
from gpuexec.ops.tensor.shape import Constant

Made = tuple[Value | None, ...]
_NODE = "node"  # name of a node whose parts are drawn for their shapes alone


class Sketch:
    """Nodes under construction, in order, that replace one.

    Attributes:
        name: Of the node; names of parts and values begin with it.
        wanted: For each of its outputs, whether it has readers.
    """

    def __init__(self, name: str, wanted: Sequence[bool]) -> None:
        self.name, self.wanted = name, tuple(wanted)
        self.nodes: list[Node] = []

    def wants(self, index: int) -> bool:
        """Return whether an output has readers."""
        return index < len(self.wanted) and self.wanted[index]

    def add(self, part: str | Operator, *inputs: Value | None, **attributes: Any) -> Value:
        """Add an operator, an instance or a qualified name with attributes; return its first output."""
        return self.add_all(part, 1, *inputs, **attributes)[0]

    def add_all(self, part: str | Operator, count: int, *inputs: Value | None, **attributes: Any) -> tuple[Value, ...]:
        """Add an operator and return so many outputs. One that is a composite is drawn in turn."""
        made = build(part, attributes) if isinstance(part, str) else part
        name = f"{self.name}.{made.name.rpartition('.')[2].lower()}{len(self.nodes)}"
        if isinstance(made, Composite):
            inner = Sketch(name, (True,) * count)
            results = made.draw_all(inner, inputs)
            self.nodes += inner.nodes
            found = tuple(value for value in results[:count] if value is not None)
            assert len(found) == count, f"{made.name} has fewer outputs than {count}"
            return found
        outputs = tuple(Value(name if i == 0 else f"{name}.{i}") for i in range(count))
        self.nodes.append(Node(made, _without_absent_end(inputs), outputs, name))
        return outputs

    def ints(self, *numbers: int) -> Value:
        """Return a constant vector of int64."""
        return self.add(Constant(value_ints=numbers))

    def reshape(self, x: Value, *shape: int) -> Value:
        """Reshape, where 0 copies an extent and -1 takes the rest."""
        return self.add("Reshape", x, self.ints(*shape))

    def take(self, x: Value, axis: int, first: int, end: int) -> Value:
        """Return the slices of an axis from ``first`` to before ``end``, as a view."""
        return self.add("Slice", x, self.ints(first), self.ints(end), self.ints(axis))

    def pick(self, x: Value, axis: int, index: int) -> Value:
        """Return one slice of an axis without it, as a view."""
        return self.add("Squeeze", self.take(x, axis, index, index + 1), self.ints(axis))


class Composite(Operator):
    """Base of composite operators; a subclass draws its parts in ``draw``."""

    __slots__ = ()
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    flops_per_output = None  # its parts count, which take its place while a model is loaded
    derivative = Derivative.PARTS
    inputs: ClassVar[int] = 8  # the most there may be

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Draw the parts and return the outputs; ``inputs`` is as long as the operator's signature."""
        raise TypeError(f"{type(self).__name__} lacks draw")

    def draw_all(self, sketch: Sketch, inputs: Sequence[Value | None]) -> Made:
        """Draw the parts for inputs of which the last may be absent."""
        if len(inputs) > self.inputs:
            raise InputError(f"{self.name} takes at most {self.inputs} inputs, got {len(inputs)}.")
        return self.draw(sketch, *inputs, *(None,) * (self.inputs - len(inputs)))

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one part after the other.

        Raises:
            InputError: A part does not take what it is given.
            NeedsHostValue: A shape depends on the content of an input, whose position is the error's ``index``.
        """
        graph, made = self._draw(inputs)
        try:
            inferred = iter(infer_graph(graph, _present(inputs)))
        except NeedsHostValue as need:
            need.index = [index for index, given in enumerate(inputs) if given is not None][need.index]
            raise
        absent = TensorSpec((0,), np.dtype(np.float32))
        return tuple(absent if value is None else next(inferred) for value in made)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute one part after the other."""
        graph, made = self._draw(inputs)
        computed = iter(compute_graph(graph, _present(inputs)))
        return tuple(None if value is None else next(computed) for value in made)

    def _draw(self, inputs: Sequence[Any]) -> tuple[Graph, Made]:
        """Return the parts for all outputs, as a graph of the inputs that are there, and the outputs."""
        values = [None if given is None else Value(f"x{index}") for index, given in enumerate(inputs)]
        sketch = Sketch(_NODE, (True,) * self.inputs)
        made = self.draw_all(sketch, values)
        outputs = tuple(value for value in made if value is not None)
        return Graph(tuple(_present(values)), outputs, tuple(sketch.nodes), {}, self.name), made


CompositeType = TypeVar("CompositeType", bound=type[Composite])


def composite(name: str, domain: str) -> Callable[[CompositeType], CompositeType]:
    """Register a class as an operator of a domain that is replaced by its parts while a model is loaded."""

    def register(cls: CompositeType) -> CompositeType:
        decompose(qualified(name, domain))(take_apart)
        return operator(name, domain)(cls)

    return register


def take_apart(node: Node) -> tuple[Node, ...]:
    """Return the parts of a composite operator, which make the node's outputs.

    Raises:
        InputError: The node lacks an input, or wants an output, that there is not.
    """
    op = node.operator
    assert isinstance(op, Composite)
    try:
        return _take_apart(node, op)
    except InputError as error:
        raise locate(error, node, node.name) from error


def _take_apart(node: Node, op: Composite) -> tuple[Node, ...]:
    sketch = Sketch(node.name, [value is not None for value in node.outputs])
    made = op.draw_all(sketch, node.inputs)
    final: dict[Value, Value] = {}
    copied: list[tuple[Value, Value]] = []
    drawn = {value for part in sketch.nodes for value in part.outputs}
    for index, wanted in enumerate(node.outputs):
        if wanted is None:
            continue
        source = made[index] if index < len(made) else None
        if source is None:
            raise InputError(f"{op.name} has no output {index} with these inputs and attributes.")
        if source in final or source not in drawn:
            copied.append((source, wanted))
        else:
            final[source] = wanted
    parts = [
        replace(
            part,
            inputs=tuple(final.get(value, value) if value is not None else None for value in part.inputs),
            outputs=tuple(final.get(value, value) if value is not None else None for value in part.outputs),
        )
        for part in sketch.nodes
    ]
    parts += [
        Node(Identity(), (final.get(source, source),), (wanted,), f"{node.name}.{wanted.name}")
        for source, wanted in copied
    ]
    needed, _ = list_needed(parts, [value for value in node.outputs if value is not None])
    return tuple(needed)


def _without_absent_end(inputs: Sequence[Value | None]) -> tuple[Value | None, ...]:
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    return tuple(given)


def _present(given: Sequence[Any]) -> list[Any]:
    return [each for each in given if each is not None]

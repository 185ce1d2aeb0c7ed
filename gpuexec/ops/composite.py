"""Operators that are others put together, said once: shapes, NumPy and kernels all follow from the parts.

    @composite("BiasGelu", "com.microsoft")
    @dataclass(frozen=True, slots=True)
    class BiasGelu(Composite):
        def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
            return (sketch.add("Gelu", sketch.add("Add", *inputs)),)

While a model is loaded the pass `decompose` puts the parts in the operator's place, so passes, planner and kernels see
nothing new. What the parts are follows from attributes and from which inputs and outputs there are; ranks and extents
are not known then, and are the parts' own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from gpuexec.apply import compute_arrays, infer_specs
from gpuexec.errors import InputError, locate
from gpuexec.graphs import Node, Value
from gpuexec.operator import Array, Operator, Tolerance, build, decompose, operator, qualified
from gpuexec.ops.elementwise_cast import Identity
from gpuexec.ops.shape import Constant
from gpuexec.spec import TensorSpec

Made = tuple[Value | None, ...]
_SMALL = 64  # elements whose content is followed
_NODE = "node"  # what a node is called whose parts are drawn for their shapes alone


class Sketch:
    """Nodes drawn so far, in order, which take the place of one.

    Attributes:
        name: Of the node; names of parts and values begin with it.
        wanted: Which of its outputs anybody wants.
    """

    def __init__(self, name: str, wanted: Sequence[bool]) -> None:
        self.name, self.wanted = name, tuple(wanted)
        self.nodes: list[Node] = []

    def wants(self, index: int) -> bool:
        """Return whether somebody wants an output."""
        return index < len(self.wanted) and self.wanted[index]

    def add(self, part: str | Operator, *inputs: Value | None, **attributes: Any) -> Value:
        """Add an operator, given or by qualified name and attributes; return its first output."""
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
        """Show under another shape, where 0 copies an extent and -1 takes what is left."""
        return self.add("Reshape", x, self.ints(*shape))

    def take(self, x: Value, axis: int, first: int, end: int) -> Value:
        """Return the slices of an axis from ``first`` to before ``end``, as a view."""
        return self.add("Slice", x, self.ints(first), self.ints(end), self.ints(axis))

    def pick(self, x: Value, axis: int, index: int) -> Value:
        """Return one slice of an axis without it, as a view."""
        return self.add("Squeeze", self.take(x, axis, index, index + 1), self.ints(axis))


class Composite(Operator):
    """Base of operators that others make up; a subclass says how in ``draw``."""

    __slots__ = ()
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    inputs: ClassVar[int] = 8  # the most there may be

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Draw the parts and return the outputs; there are as many ``inputs`` as there may be at most."""
        raise TypeError(f"{type(self).__name__} lacks draw")

    def draw_all(self, sketch: Sketch, inputs: Sequence[Value | None]) -> Made:
        """Draw the parts for inputs of which the last may be absent."""
        if len(inputs) > self.inputs:
            raise InputError(f"{self.name} takes at most {self.inputs} inputs, got {len(inputs)}.")
        return self.draw(sketch, *inputs, *(None,) * (self.inputs - len(inputs)))

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one part after the other."""
        sketch, made, given = self._draw(inputs)
        specs: dict[Value, TensorSpec] = dict(zip(given, _present(inputs), strict=True))
        for node in sketch.nodes:
            taken = [None if value is None else specs[value] for value in node.inputs]
            inferred = _add_content(node.operator, taken, infer_specs(node.operator, taken))
            specs.update(
                {value: spec for value, spec in zip(node.outputs, inferred, strict=False) if value is not None}
            )
        absent = TensorSpec((0,), np.dtype(np.float32))
        return tuple(absent if value is None else specs[value] for value in made)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Compute one part after the other."""
        sketch, made, given = self._draw(inputs)
        arrays: dict[Value, Array] = dict(zip(given, _present(inputs), strict=True))
        for node in sketch.nodes:
            results = compute_arrays(node.operator, [None if value is None else arrays[value] for value in node.inputs])
            arrays.update(
                {
                    value: result
                    for value, result in zip(node.outputs, results, strict=False)
                    if value is not None and result is not None
                }
            )
        return tuple(None if value is None else arrays[value] for value in made)

    def _draw(self, inputs: Sequence[Any]) -> tuple[Sketch, Made, list[Value]]:
        """Return the parts for all outputs, the outputs, and the values of the inputs that are there."""
        values = [None if given is None else Value(f"x{index}") for index, given in enumerate(inputs)]
        sketch = Sketch(_NODE, (True,) * self.inputs)
        made = self.draw_all(sketch, values)
        return sketch, made, [value for value in values if value is not None]


CompositeType = TypeVar("CompositeType", bound=type[Composite])


def composite(name: str, domain: str) -> Callable[[CompositeType], CompositeType]:
    """Register a class as an operator of a domain whose parts take its place while a model is loaded."""

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
    return _needed(parts, {value for value in node.outputs if value is not None})


def _add_content(
    op: Operator, inputs: Sequence[TensorSpec | None], outputs: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Return the outputs' specs with their content, where that follows from known content and they are small."""
    known = [spec.value for spec in inputs if spec is not None and spec.value is not None]
    is_known = len(known) == sum(spec is not None for spec in inputs) and any(spec.value is None for spec in outputs)
    if not known or not is_known or sum(spec.size for spec in outputs) > _SMALL:
        return outputs
    for value in known:
        if value.log is not None:
            value.log(op.name, None)
    computed = compute_arrays(op, [None if spec is None or spec.value is None else spec.value.array for spec in inputs])
    return tuple(spec.with_value(array) for spec, array in zip(outputs, computed, strict=True))


def _needed(parts: Sequence[Node], wanted: set[Value]) -> tuple[Node, ...]:
    """Return the parts that somebody wants something of."""
    kept = []
    for part in reversed(parts):
        if wanted.intersection(part.outputs):
            wanted.update(value for value in part.inputs if value is not None)
            kept.append(part)
    return tuple(reversed(kept))


def _without_absent_end(inputs: Sequence[Value | None]) -> tuple[Value | None, ...]:
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    return tuple(given)


def _present(given: Sequence[Any]) -> list[Any]:
    return [each for each in given if each is not None]

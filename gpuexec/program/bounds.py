"""Bounds of a model's inputs: every extent fixed or within a range, so that one plan serves all sizes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuexec.errors import ErrorCode, InputError
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import DeclaredSpec, Dim, TensorSpec
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.program.contents import Bound


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ranges of one input's extents; None where nothing bounds one. ``ranges`` is None where no rank is known."""

    name: str
    declared: DeclaredSpec
    ranges: tuple[tuple[int, int] | None, ...] | None

    @property
    def sizes(self) -> tuple[int | None, ...] | None:
        """The largest extents; None where one has no bound."""
        return None if self.ranges is None else tuple(None if each is None else each[1] for each in self.ranges)

    @property
    def largest(self) -> TensorSpec | None:
        """The largest tensor; None where an extent has no bound."""
        sizes = self.sizes
        if sizes is None:
            return None
        extents = tuple(extent for extent in sizes if extent is not None)
        return TensorSpec(extents, self.declared.dtype) if len(extents) == len(sizes) else None

    def describe_gap(self) -> str:
        """Name the extent that has no bound, and the cure."""
        if self.ranges is None:
            return f"input {self.name!r} ({self.declared}) has no declared rank"
        axis = self.ranges.index(None)
        dim = (self.declared.dims or ())[axis]
        return f"input {self.name!r} has no bound on axis {axis} ({dim or 'nameless'})"

    def check(self, spec: TensorSpec) -> None:
        """Check that a tensor is within the bounds.

        Raises:
            InputError: Its rank is another, or an extent is out of its range (code NOT_SUPPORTED).
        """
        if self.ranges is None:
            return
        if spec.rank != len(self.ranges):
            raise _refuse(self, spec, f"{len(self.ranges)} axes, not {spec.rank}")
        for axis, (extent, bound) in enumerate(zip(spec.shape, self.ranges, strict=True)):
            if bound is not None and not bound[0] <= extent <= bound[1]:
                low, high = bound
                wanted = str(low) if low == high else f"{low} to {high}"
                raise _refuse(self, spec, f"axis {axis} must be {wanted}, not {extent}")


def find_bounds(model: Model) -> tuple[Bounds, ...]:
    """Return the bounds that a model's inputs have, in order."""
    return tuple(_find(model, port) for port in model.inputs)


def declare_shapes(model: Model, shapes: Mapping[str, Sequence[Bound | None]] | None) -> Model:
    """Return a model whose inputs are bound by these shapes, over the same weights.

    Args:
        model: What to bind.
        shapes: By input an extent for each axis, which fixes it, or a range (low, high); None leaves an axis as it is.

    Raises:
        InputError: An input is unknown, or a shape contradicts what is declared of it, or another.
    """
    if not shapes:
        return model
    ports = {port.name: port for port in model.inputs}
    unknown = next((name for name in shapes if name not in ports), None)
    if unknown is not None:
        raise InputError(f"The model has no input {unknown!r}; it has {', '.join(ports)}.", value=unknown)
    dims = dict(model.dims)
    renamed: dict[Value, Value] = {}
    for value in model.graph.inputs:
        if value.name in shapes:
            declared = _bind(ports[value.name], tuple(shapes[value.name]), dims)
            if declared != value.declared:
                renamed[value] = Value(value.name, declared)
    bound = copy.copy(model)
    bound.dims = dims
    if renamed:
        bound.graph = _replace_values(model.graph, renamed)
        if model._unlowered is not None:
            bound._unlowered = _replace_values(model._unlowered, renamed)
        news = {value.name: value.declared for value in renamed.values()}
        bound.inputs = tuple(ModelPort(port.name, news.get(port.name) or port.spec) for port in model.inputs)
    return bound


def _find(model: Model, port: ModelPort) -> Bounds:
    ranges: list[tuple[int, int] | None] = []
    for dim in port.spec.dims or ():
        known = model.dims.get(dim) if isinstance(dim, str) else dim
        ranges.append((known, known) if isinstance(known, int) else known)
    return Bounds(port.name, port.spec, None if port.spec.dims is None else tuple(ranges))


def _bind(port: ModelPort, shape: tuple[Bound | None, ...], dims: dict[str, Bound]) -> DeclaredSpec:
    """Return what is declared of an input once it has a shape; bounds of named dimensions go to ``dims``."""
    declared = port.spec.dims if port.spec.dims is not None else (None,) * len(shape)
    if len(shape) != len(declared):
        raise InputError(
            f"Input {port.name!r} is {port.spec}; the shape {shape!r} has {len(shape)} axes, not {len(declared)}.",
            value=port.name,
        )
    named: list[Dim] = []
    for axis, (dim, bound) in enumerate(zip(declared, shape, strict=True)):
        if bound is None:
            named.append(dim)
            continue
        low, high = _read_bound(port, axis, bound)
        if isinstance(dim, int):
            if not low <= dim <= high:
                raise InputError(
                    f"Input {port.name!r}: axis {axis} is {dim}, the shape says {bound!r}.", value=port.name
                )
            named.append(dim)
            continue
        name = dim if dim is not None else f"{port.name}.{axis}"
        known = dims.get(name)
        lower, upper = known if isinstance(known, tuple) else (known, known)
        if lower is not None and upper is not None and not (lower <= low and high <= upper):
            raise InputError(
                f"Input {port.name!r}: axis {axis} ({name!r}) is bound to {known!r}, the shape says {bound!r}.",
                value=port.name,
            )
        dims[name] = low if low == high else (low, high)
        named.append(name)
    return DeclaredSpec(port.spec.dtype, tuple(named))


def _read_bound(port: ModelPort, axis: int, bound: object) -> tuple[int, int]:
    low, high = bound if isinstance(bound, (tuple, list)) and len(bound) == 2 else (bound, bound)
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= low <= high:
        raise InputError(
            f"Input {port.name!r}: axis {axis} of its shape is {bound!r}; expected an extent, or a range (low, high)"
            " with 0 <= low <= high.",
            value=port.name,
        )
    return low, high


def _replace_values(graph: Graph, renamed: Mapping[Value, Value]) -> Graph:
    """Return the graph with other values for some of its inputs."""
    nodes = tuple(
        replace(node, inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs))
        if any(v in renamed for v in node.inputs)
        else node
        for node in graph.nodes
    )
    inputs = tuple(renamed.get(value, value) for value in graph.inputs)
    return replace(graph, inputs=inputs, outputs=tuple(renamed.get(v, v) for v in graph.outputs), nodes=nodes)


def _refuse(bounds: Bounds, spec: TensorSpec, why: str) -> InputError:
    error = InputError(f"Input {bounds.name!r} expects {bounds.declared}, got {spec}: {why}.", value=bounds.name)
    error.code = ErrorCode.NOT_SUPPORTED
    return error

"""Size classes: ranges of free dimensions that share one plan."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.geometry import round_up
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import Dim, TensorSpec

_POWERS_UP_TO = 256
# First ends of the classes of a declared range; powers of two follow.
_RANGE_ENDS = (1, 4, 16, 64)
# A declared dimension: a fixed extent, or an inclusive range of extents.
DeclaredDims = Mapping[str, int | tuple[int, int]]


def fix_dim(dim: Dim, dims: DeclaredDims) -> Dim:
    """Return the extent declared of a dimension, or the dimension itself where none is."""
    bound = dims.get(dim) if isinstance(dim, str) else None
    return bound if isinstance(bound, int) else dim


def bucket_end(extent: int) -> int:
    """Return the upper end of an extent's bucket: the next power of two up to 256, then the next multiple of 256."""
    if extent <= 0:
        return 0
    return 1 << (extent - 1).bit_length() if extent <= _POWERS_UP_TO else round_up(extent, _POWERS_UP_TO)


def range_ends(low: int, high: int) -> tuple[int, ...]:
    """Return the upper ends of the classes that a declared range is divided into: 1, 4, 16, 64, powers of two, its end.

    Kernels are chosen for the end of a class, so none runs with many fewer rows than it was chosen for.
    """
    ends = [*_RANGE_ENDS]
    while ends[-1] < high:
        ends.append(2 * ends[-1])
    return (*(end for end in ends if low <= end < high), high)


def free_axes(graph: Graph, declared: DeclaredDims) -> dict[tuple[str, int], str]:
    """Return the axes whose extent may change: (input, axis) -> name of the dimension (``""``: nameless)."""
    axes = {}
    for value in graph.inputs:
        dims = value.declared.dims if value.declared is not None else None
        for axis, dim in enumerate(dims or ()):
            if not isinstance(dim, int) and not (dim is not None and isinstance(declared.get(dim), int)):
                axes[value.name, axis] = dim or ""
    return axes


def has_fixed_inputs(graph: Graph) -> bool:
    """Return whether every input declares all its extents."""
    declared = [value.declared for value in graph.inputs]
    return all(
        spec is not None and spec.dims is not None and all(isinstance(dim, int) for dim in spec.dims)
        for spec in declared
    )


def find_class_ranges(
    graph: Graph, inputs: Mapping[str, TensorSpec], declared: DeclaredDims, free: AbstractSet[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the extents within which each axis (input, axis) that may change stays in its class: the first, the last.

    Args:
        graph: Whose inputs they are.
        inputs: Specs by name.
        declared: Dimensions the caller fixed or bounded.
        free: Axes that change though nothing declares them.
    """
    axes = {**dict.fromkeys(sorted(free), ""), **free_axes(graph, declared)}
    ranges = {}
    for (name, axis), end in find_ends(graph, inputs, declared, free, is_whole=False).items():
        bound = declared.get(axes[name, axis])
        if isinstance(bound, tuple):
            before = [each for each in range_ends(*bound) if each < end]
            ranges[name, axis] = (before[-1] + 1 if before else bound[0], end)
        else:
            ranges[name, axis] = ((end // 2 if end <= _POWERS_UP_TO else end - _POWERS_UP_TO) + 1, end)
    return ranges


def find_ends(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    declared: DeclaredDims,
    free: AbstractSet[tuple[str, int]] = frozenset(),
    *,
    is_whole: bool,
) -> dict[tuple[str, int], int]:
    """Return the upper ends of the class of each axis (input, axis) whose extent may change.

    Args:
        graph: Whose inputs they are.
        inputs: Specs by name.
        declared: Dimensions the caller fixed or bounded.
        free: Axes that change though nothing declares them.
        is_whole: Whether a declared range is one class; otherwise it is divided by `range_ends`.

    Raises:
        InputError: An extent is outside the declared range of its dimension.
    """
    ends: dict[tuple[str, int], int] = {}
    for (name, axis), dim in {**dict.fromkeys(sorted(free), ""), **free_axes(graph, declared)}.items():
        if axis >= inputs[name].rank:
            continue  # what a body declares of its inputs need not be so
        extent = inputs[name].shape[axis]
        bound = declared.get(dim)
        if isinstance(bound, tuple):
            low, high = bound
            if not low <= extent <= high:
                raise InputError(
                    f"Input {name!r}: axis {axis} has extent {extent}, outside {low} to {high} declared of {dim!r}.",
                    value=name,
                )
            ends[name, axis] = high if is_whole else min(end for end in range_ends(low, high) if end >= extent)
        elif extent > 1:
            # Extents 0 and 1 stay what they are, unless declared: they vanish and broadcast.
            ends[name, axis] = bucket_end(extent)
    return ends


def upper_ends(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    declared: DeclaredDims,
    free: AbstractSet[tuple[str, int]] = frozenset(),
    *,
    is_whole: bool = True,
) -> Iterator[dict[str, TensorSpec]]:
    """Yield specs a plan may be laid out for: the ends of the classes, ends reached together, the inputs as they are.

    Dimensions are often tied (total = past + new), and only the graph knows how. So the first candidate takes every
    dimension to its end by itself; the second raises all by the same amount, which keeps sums with a fixed part: the
    least amount by which one of them reaches its end. The last is the inputs as they are. Content stays with inputs
    whose shape stays.

    Args:
        graph: Whose inputs they are.
        inputs: Specs by name.
        declared: Dimensions the caller fixed or bounded.
        free: Axes (input, axis) that change though nothing declares them.
        is_whole: As of `find_ends`.

    Raises:
        InputError: An extent is outside the declared range of its dimension.
    """
    ends = find_ends(graph, inputs, declared, free, is_whole=is_whole)
    if not ends:
        yield dict(inputs)
        return
    extents = {(name, axis): inputs[name].shape[axis] for name, axis in ends}
    step = min((end - extents[key] for key, end in ends.items() if end > extents[key]), default=0)
    raised = {key: extent + step for key, extent in extents.items()}
    seen: list[dict[str, TensorSpec]] = []
    for choice in (ends, raised, extents):
        candidate = with_extents(inputs, choice)
        if candidate not in seen:
            seen.append(candidate)
            yield candidate


def with_extents(inputs: Mapping[str, TensorSpec], extents: Mapping[tuple[str, int], int]) -> dict[str, TensorSpec]:
    """Return specs with other extents on some axes; content stays with inputs whose shape stays."""
    changed = {}
    for name, spec in inputs.items():
        shape = tuple([extents.get((name, axis), extent) for axis, extent in enumerate(spec.shape)])
        changed[name] = spec if shape == spec.shape else spec.with_shape(shape)
    return changed


def check_declared(graph: Graph, declared: Mapping[str, Any]) -> DeclaredDims:
    """Return the declared ranges of dimensions, each an int or two; check that all exist and have sensible extents.

    Raises:
        InputError: One does not.
    """
    checked: dict[str, int | tuple[int, int]] = {}
    names = {
        dim
        for value in graph.inputs
        if value.declared and value.declared.dims
        for dim in value.declared.dims
        if isinstance(dim, str)
    }
    for name, bound in declared.items():
        if name not in names:
            raise InputError(
                f"The model has no dimension {name!r}; it has {', '.join(sorted(names)) or 'none that are free'}."
            )
        ends = list(bound) if isinstance(bound, tuple | list) else [bound, bound]
        are_ints = len(ends) == 2 and all(hasattr(end, "__index__") and not isinstance(end, bool) for end in ends)
        if not are_ints or not 0 <= ends[0] <= ends[1]:
            raise InputError(
                f"Dimension {name!r}: {bound!r} is not an extent, nor a range (low, high) with 0 <= low <= high."
            )
        low, high = (operator.index(end) for end in ends)
        checked[name] = (low, high) if isinstance(bound, tuple | list) else low
    return checked

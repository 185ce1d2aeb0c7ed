"""Append-form memories: graph inputs, such as KV caches, whose rows an Append adds to in place.

Such an input has a STATE buffer of its whole capacity, bound when a run is submitted; its slot is a strided window on
the rows there are, and the output is the window on those and the new ones. So one plan serves all lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpuexec.ir.geometry import contiguous_strides, normalize_axis
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.attention import Attention, AttentionOverCache
from gpuexec.ops.tensor.append import Append
from gpuexec.ops.tensor.copy import Concat
from gpuexec.planner.classes import DeclaredDims, free_axes


@dataclass(frozen=True, slots=True)
class Cache:
    """Memory layout of a cache: row-major, with ``capacity`` in place of the extent of ``axis``.

    ``output`` is its next value, ``rows`` is added to it.
    """

    axis: int
    capacity: int
    output: Value
    rows: Value

    def whole(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the whole buffer, for the spec of the present rows."""
        return spec.with_shape(self.whole_shape(spec.shape))

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole buffer, for the shape of the present rows."""
        return (*shape[: self.axis], self.capacity, *shape[self.axis + 1 :])

    def strides(self, spec: TensorSpec) -> tuple[int, ...]:
        """Return the strides of the window on the present rows, in elements."""
        return contiguous_strides(self.whole(spec).shape)


Caches = Mapping[Value, Cache]


def find_caches(graph: Graph) -> dict[Value, Cache]:
    """Return the inputs of a graph that an Append makes an output of, by input."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    found = {}
    for node in graph.nodes:
        if isinstance(node.operator, Append):
            held, rows, output = node.inputs[0], node.inputs[1], node.outputs[0]
            if held in inputs and output in outputs and held is not None and rows is not None and output is not None:
                rank = len(held.declared.dims or ()) if held.declared is not None else 0
                axis = normalize_axis(node.operator.axis, rank)
                found[held] = Cache(axis, node.operator.capacity, output, rows)
    return found


def has_growth(graph: Graph) -> bool:
    """Return whether an output is an input with rows behind it: the next run's input is longer than this one's."""
    inputs, producers = set(graph.inputs), graph.producers()
    for output in graph.outputs:
        node = producers.get(output)
        while node is not None and node.operator.name == "Identity" and node.inputs[0] is not None:
            node = producers.get(node.inputs[0])
        if node is None:
            continue
        if isinstance(node.operator, Append | Attention | AttentionOverCache):
            return True
        if isinstance(node.operator, Concat) and node.inputs[0] in inputs:
            return True
    return False


def grown_ends(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    declared: DeclaredDims,
    caches: Caches,
    specs: Mapping[Value, TensorSpec],
) -> Iterator[dict[str, TensorSpec]]:
    """Yield specs at which memories are full, so that a plan for them serves every length.

    A length is often tied to other extents: a mask has as many elements as there are rows afterwards. So dimensions
    that are now as long as a memory, before or after, grow with it: all of them, or one by one. The rows added stay as
    many as they are.

    Args:
        graph: Whose inputs they are.
        inputs: Their specs at hand.
        declared: Dimensions the caller fixed or bounded.
        caches: Inputs that grow.
        specs: Specs of all values for the inputs at hand.
    """
    lengths = {value: specs[value].shape[cache.axis] for value, cache in caches.items()}
    rooms = [c.capacity - specs[c.output].shape[c.axis] for c in caches.values()]
    if not caches or min(rooms) <= 0:
        return
    step = min(rooms)
    ends = {value: specs[c.output].shape[c.axis] for value, c in caches.items()}
    axes = free_axes(graph, declared)
    own = {(value.name, cache.axis) for value, cache in caches.items()}
    cached = {value.name for value in caches}
    # Dimensions of a memory's other axes do not grow.
    still = {dim for (name, _), dim in axes.items() if name in cached and dim} - {axes.get(key) for key in own}
    tied = {*lengths.values(), *ends.values()} - {0}
    groups: dict[str, set[tuple[str, int]]] = {}
    for (name, axis), dim in axes.items():
        if (name, axis) not in own and name not in cached and dim not in still and inputs[name].shape[axis] in tied:
            groups.setdefault(dim or f"{name}.{axis}", set()).add((name, axis))
    for chosen in _list_choices(groups):
        raised = own | {key for group in chosen for key in groups[group]}
        yield {
            name: spec.with_shape(
                tuple([extent + step * ((name, axis) in raised) for axis, extent in enumerate(spec.shape)])
            )
            if any(key[0] == name for key in raised)
            else spec
            for name, spec in inputs.items()
        }


def _list_choices(groups: AbstractSet[str] | Mapping[str, object]) -> list[tuple[str, ...]]:
    """Return all groups together, each by itself, and none."""
    names = sorted(groups)
    return list(dict.fromkeys([tuple(names), *((name,) for name in names), ()]))

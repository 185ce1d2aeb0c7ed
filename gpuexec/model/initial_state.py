"""Initial state of memories: zeros, in shapes inferred from the other inputs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.errors import GpuexecError, NeedsHostValue, StateError
from gpuexec.ir.graphs import Graph, list_needed
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.state_spec import Memory, with_extents
from gpuexec.passes.add_memories import without_memories
from gpuexec.planner.analyse import ShapeInference
from gpuexec.planner.classes import DeclaredDims

# Even, and not powers of each other: halving and windows work with both, and equal results are no coincidence.
_TRIED_EXTENTS = (32, 48)


def find_initial_specs(
    graph: Graph, memories: Sequence[Memory], dims: DeclaredDims, given: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Infer the specs of memories that hold nothing yet, by input, from the other inputs.

    Free extents are those of dimensions that inputs given have by the same name, 0 along the axis a memory grows by;
    of an implicit memory they are what its layer would leave, had it started from nothing.

    Args:
        graph: With the memories.
        memories: Of the model.
        dims: Declared extents.
        given: Specs of all other inputs, by name.

    Raises:
        StateError: An extent can't be inferred; names the memory.
        GpuexecError: The inputs don't fit the graph.
    """
    wanted = [memory for memory in memories if memory.input not in given]
    if not wanted:
        return {}
    extents: dict[str, int] = {}
    for value in graph.inputs:
        spec, declared = given.get(value.name), value.declared
        if spec is not None and declared is not None and declared.dims is not None and len(declared.dims) == spec.rank:
            names = zip(declared.dims, spec.shape, strict=True)
            extents.update({dim: extent for dim, extent in names if isinstance(dim, str)})
    starts: dict[str, TensorSpec] = {}
    for memory in wanted:
        shape = [
            dim if isinstance(dim, int) else 0 if axis == memory.axis else extents.get(dim) if dim else None
            for axis, dim in enumerate(memory.shape)
        ]
        fixed = tuple([extent for extent in shape if extent is not None])
        if len(fixed) == len(shape):
            starts[memory.input] = TensorSpec(fixed, memory.dtype)
        elif not memory.is_implicit:
            raise _unknown(memory, "no other input has a dimension of that name")
    inferred = [memory for memory in wanted if memory.input not in starts]
    if inferred:
        starts.update(_infer_starts(graph, inferred, dims, {**given, **starts}))
    return starts


def bind_shapes(graph: Graph, memories: Sequence[Memory], dims: DeclaredDims) -> tuple[Memory, ...]:
    """Return memories with those extents fixed that are the same for any inputs.

    Free dimensions of the inputs are tried with two extents each: what comes out alike does not depend on them.
    """
    try:
        tries = [
            find_initial_specs(graph, memories, dims, _guess_inputs(graph, memories, dims, e)) for e in _TRIED_EXTENTS
        ]
    except GpuexecError:
        # A run will find the shapes, or raise the graph's error.
        return tuple(memories)
    bound = []
    for memory in memories:
        rows = zip(memory.shape, *(starts[memory.input].shape for starts in tries), strict=True)
        shape = [dim if axis == memory.axis or a != b else a for axis, (dim, a, b) in enumerate(rows)]
        bound.append(with_extents(memory, shape))
    return tuple(bound)


def _guess_inputs(graph: Graph, memories: Sequence[Memory], dims: DeclaredDims, guess: int) -> dict[str, TensorSpec]:
    """Return specs of the inputs that are no memories, with a guess for each free extent."""
    own = {memory.input for memory in memories}
    given = {}
    for value in graph.inputs:
        if value.name in own or value.declared is None or value.declared.dims is None:
            continue
        extents = [dims.get(dim) if isinstance(dim, str) else dim for dim in value.declared.dims]
        shape = [extent if isinstance(extent, int) else guess for extent in extents]
        given[value.name] = TensorSpec(tuple(shape), value.declared.dtype)
    return given


def _infer_starts(
    graph: Graph, memories: Sequence[Memory], dims: DeclaredDims, given: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Infer the specs that implicit memories would have after a run that starts from zeros."""
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    missing = [name for name in inputs if name not in given and all(name != m.input for m in memories)]
    if missing:
        raise _unknown(memories[0], f"input {missing[0]!r} was not given yet")
    bare = without_memories(graph, frozenset([inputs[memory.input] for memory in memories]))
    nodes, _ = list_needed(bare, [outputs[memory.output] for memory in memories])
    producers = {value: node for node in nodes for value in node.outputs if value is not None}
    constants = {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    specs = {inputs[name]: spec for name, spec in given.items() if name in inputs}
    try:
        found = ShapeInference(producers, constants, specs).run(nodes, [None] * len(nodes)).specs
    except NeedsHostValue as error:
        raise _unknown(memories[0], f"{error}") from error
    return {memory.input: TensorSpec(found[outputs[memory.output]].shape, memory.dtype) for memory in memories}


def _unknown(memory: Memory, why: str) -> StateError:
    return StateError(
        f"The shape of memory {memory} is not known yet: {why}. Give an array by state.set({{{memory.input!r}: ...}}),"
        " or as an input of the run.",
        value=memory.input,
    )

"""Editable form of a model: the graph before any pass, its memories and dimensions, and the way back to a Model.

Edits work on the graph before the passes: every value still has the name its file gave it, and constants that passes
compute from weights are computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Value, check
from gpuexec.ir.spec import is_host_object
from gpuexec.model.editing.value_edits import exchange
from gpuexec.model.initial_state import bind_shapes
from gpuexec.model.state_spec import Memory, bind_pairs, make_memory
from gpuexec.ops.tensor.append import Append
from gpuexec.ops.tensor.copy import Concat
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.add_memories import add_memories
from gpuexec.passes.remove_dead import remove_dead
from gpuexec.planner.classes import DeclaredDims, check_declared
from gpuexec.system.mapped import read_content


@dataclass(frozen=True, slots=True, eq=False)
class EditableModel:
    """A graph before the passes, its memories, and the declared dimensions."""

    graph: Graph
    memories: tuple[Memory, ...]
    dims: DeclaredDims

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs that callers give."""
        held = {memory.input for memory in self.memories}
        return tuple([value for value in self.graph.inputs if value.name not in held])

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs that callers see."""
        left = {memory.output for memory in self.memories}
        return tuple([value for value in self.graph.outputs if value.name not in left])

    def with_graph(self, graph: Graph) -> EditableModel:
        """Return these parts with another graph, without memories whose input or output it lacks."""
        inputs = {value.name for value in graph.inputs}
        outputs = {value.name for value in graph.outputs}
        kept = [memory for memory in self.memories if memory.input in inputs and memory.output in outputs]
        return EditableModel(graph, tuple(kept), _keep_known(self.dims, graph))


def make_editable(source: Graph, graph: Graph, memories: Sequence[Memory], dims: DeclaredDims) -> EditableModel:
    """Return the editable parts of a model.

    Args:
        source: The graph as it was read.
        graph: The graph after the load passes.
        memories: Of the model.
        dims: Declared of its dimensions.
    """
    named = {value.name for value in source.inputs}
    added = {memory.input for memory in memories if memory.input not in named}
    if added:
        # Implicit memories of recurrent layers, added after the passes.
        whole, pairs = add_memories(remove_dead(source))
        # A layer that a pass moved out of a branch has no memory in the source.
        source = whole if {held.name for held, _ in pairs} == added else graph
    return EditableModel(_declare_alike(_undo_appends(source), graph), tuple(memories), dict(dims))


def apply_load_passes(
    editable: EditableModel, disabled: Collection[str], known: Graph | None = None
) -> tuple[Graph, tuple[Memory, ...]]:
    """Run the load passes over the parts; return the graph and its memories.

    Args:
        editable: The editable.
        disabled: Passes to leave out.
        known: A graph whose constants are used where a new one has the same name and content, so that what lies of
            them on devices serves both.

    Raises:
        InputError: Memories or dimensions don't fit the graph.
    """
    check(editable.graph)
    check_declared(editable.graph, editable.dims)
    graph = run_passes(editable.graph, AT_LOAD, frozenset(disabled))
    if known is not None:
        graph = reuse_arrays(graph, known)
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    implicit = [
        make_memory(inputs[each.input], outputs[each.output], editable.dims, is_implicit=True)
        for each in editable.memories
        if each.is_implicit
    ]
    bound: tuple[Memory, ...] = bind_shapes(graph, implicit, editable.dims) if implicit else ()
    pairs = {each.output: each.input for each in editable.memories if not each.is_implicit}
    if pairs:
        rooms = {each.input: each.capacity for each in editable.memories if each.capacity is not None}
        graph, bound = bind_pairs(graph, bound, pairs, rooms, editable.dims)
    order = {each.input: place for place, each in enumerate(editable.memories)}
    return graph, tuple(sorted(bound, key=lambda each: order[each.input]))


def reuse_arrays(graph: Graph, known: Graph) -> Graph:
    """Return the graph with another graph's arrays for constants of the same name, type and content."""
    arrays = {value.name: array for value, array in known.constants.items()}
    constants = dict(graph.constants)
    for value, array in graph.constants.items():
        old = arrays.get(value.name)
        if old is None or old is array or (old.dtype, old.shape) != (array.dtype, array.shape):
            continue
        if np.array_equal(_bytes(old), _bytes(array)):
            constants[value] = old
    return replace(graph, constants=constants)


def _bytes(array: Array) -> Array:
    """Return a key that is equal for equal content: bytes, or strings as they are."""
    return (
        array if is_host_object(array.dtype) else np.ascontiguousarray(read_content(array)).reshape(-1).view(np.uint8)
    )


def _keep_known(dims: DeclaredDims, graph: Graph) -> DeclaredDims:
    """Return the declarations of those dimensions that inputs of the graph have."""
    declared = [value.declared.dims or () for value in graph.inputs if value.declared is not None]
    names = {dim for row in declared for dim in row}
    return {name: bound for name, bound in dims.items() if name in names}


def _declare_alike(source: Graph, graph: Graph) -> Graph:
    """Return the source with another graph's declared inputs and outputs: shapes may be bound there."""
    declared = {value.name: value.declared for value in (*graph.inputs, *graph.outputs)}
    others = {
        value: Value(value.name, declared[value.name])
        for value in (*source.inputs, *source.outputs)
        if declared.get(value.name) not in (None, value.declared)
    }
    return exchange(source, others)


def _undo_appends(graph: Graph) -> Graph:
    """Return the graph with a Concat in place of each Append."""
    if not any(isinstance(node.operator, Append) for node in graph.nodes):
        return graph
    nodes = [
        replace(node, operator=Concat(node.operator.axis)) if isinstance(node.operator, Append) else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))

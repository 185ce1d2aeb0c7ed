"""Renaming of inputs and outputs, and fixing of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Value, take_free
from gpuexec.model.editing.editable_model import EditableModel
from gpuexec.model.editing.value_edits import exchange
from gpuexec.planner.classes import DeclaredDims, check_declared


def rename(editable: EditableModel, names: Mapping[str, str]) -> EditableModel:
    """Return an editable model with other names for inputs and outputs; an inner value of the same name is renamed.

    Raises:
        InputError: There is no such input or output, or two would have one name.
    """
    if not isinstance(names, Mapping):
        raise InputError(f"rename takes new names by old ones, {{'old': 'new'}}, got a {type(names).__name__}.")
    graph = editable.graph
    ports = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    for old, new in names.items():
        if old not in ports:
            raise InputError(f"rename: the model has no input or output {old!r}; it has {', '.join(ports)}.", value=old)
        if not isinstance(new, str) or not new:
            raise InputError(f"rename: the new name of {old!r} is {new!r}; expected a text.", value=old)
    titles = [names.get(name, name) for name in ports]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise InputError(f"rename: two inputs or outputs would be called {twice[0]!r}.", value=twice[0])
    others = {value: Value(names[name], value.declared) for name, value in ports.items() if name in names}
    taken = {*titles, *(value.name for value in graph.values())}
    for value in graph.values():
        if value.name in titles and value not in others and ports.get(value.name) is not value:
            others[value] = Value(take_free(value.name, taken), value.declared)
    memories = [
        replace(each, input=names.get(each.input, each.input), output=names.get(each.output, each.output))
        for each in editable.memories
    ]
    return EditableModel(exchange(graph, others), tuple(memories), editable.dims)


def bind(editable: EditableModel, dims: DeclaredDims) -> EditableModel:
    """Return an editable model with extents or ranges for dimensions, overriding those declared before.

    Raises:
        InputError: There is no such dimension, or its value is no extent or range.
    """
    if not isinstance(dims, Mapping):
        raise InputError(f"bind takes extents by dimension, {{'batch': 1}}, got a {type(dims).__name__}.")
    return EditableModel(editable.graph, editable.memories, {**editable.dims, **check_declared(editable.graph, dims)})


def fix_dims(graph: Graph, extents: Mapping[str, int]) -> Graph:
    """Return the graph with extents in place of dimensions in the specs of its inputs and outputs."""
    others = {}
    for value in dict.fromkeys([*graph.inputs, *graph.outputs]):
        if value.declared is not None and value.declared.dims is not None:
            dims = tuple([extents.get(dim, dim) if isinstance(dim, str) else dim for dim in value.declared.dims])
            others[value] = Value(value.name, replace(value.declared, dims=dims))
    return exchange(graph, others)

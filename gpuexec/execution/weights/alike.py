"""Weight-only differences between models: whether a Worker or Method can exchange one for the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Array, Graph, walk
from gpuexec.ir.operator import describe
from gpuexec.model.editing.weight_replacement import WeightSource
from gpuexec.model.model import Model, exchange_weights
from gpuexec.system.mapped import read_content


def take_weights(model: Model, weights: WeightSource | Model) -> Model:
    """Return a model with other weights, which shares the device copies of common ones.

    Args:
        model: Whose weights to exchange.
        weights: As for `Model.with_weights`, or a model that differs in nothing else, wherever it was loaded.

    Raises:
        InputError: A weight is unknown or of another type or shape, or the models differ in more.
        ModelError: The file can't be read.
    """
    if not isinstance(weights, Model):
        return model.with_weights(weights)
    _check_alike(model, weights)
    if weights._slabs is model._slabs:
        return weights
    known, given = (list(_list_constants(each.info.graph)) for each in (model, weights))
    arrays = {
        name: array
        for (name, old), (_, array) in zip(known, given, strict=True)
        if not np.array_equal(read_content(old), read_content(array))
    }
    return exchange_weights(model, arrays) if arrays else model


def _check_alike(model: Model, other: Model) -> None:
    """Check that two models have the same inputs, outputs and nodes, but for the content of weights."""
    pairs = (
        ("takes", model.ports, other.ports),
        ("gives", model.outputs, other.outputs),
        ("has memories", model.memories, other.memories),
        ("declares", dict(model.dims), dict(other.dims)),
        ("computes", _describe_graph(model.info.graph), _describe_graph(other.info.graph)),
    )
    for what, mine, theirs in pairs:
        if mine != theirs:
            first, second = _find_difference(mine, theirs)
            raise InputError(
                f"{other!r} differs from {model!r} in more than weights: it {what} {second}, expected {first}. Give"
                " weights by name, or what Model.with_weights makes of the model."
            )


def _find_difference(mine: Any, theirs: Any) -> tuple[str, str]:
    """Return the first difference, as texts."""
    if isinstance(mine, dict):
        return str(mine), str(theirs)
    first, second = (
        next((str(a) for a, b in zip(some, [*others, *(None,) * len(some)]) if a != b), "nothing more")
        for some, others in ((mine, theirs), (theirs, mine))
    )
    return first, second


def _describe_graph(graph: Graph) -> list[str]:
    """Describe a graph's computation node by node, and the types of its constants."""
    rows = []
    for node in graph.nodes:
        name, attributes = describe(node.operator)
        given = {key: _describe_attribute(value) for key, value in attributes if value is not None}
        values = [" ".join(value.name if value else "-" for value in side) for side in (node.inputs, node.outputs)]
        rows.append(f"{name} {node.name!r} {given} ({values[0]}) -> ({values[1]})")
    return rows + [f"{value.name} {array.dtype}{list(array.shape)}" for value, array in graph.constants.items()]


def _describe_attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return _describe_graph(value)
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    return value


def _list_constants(graph: Graph) -> list[tuple[str, Array]]:
    return [(value.name, array) for each in walk(graph) for value, array in each.constants.items()]

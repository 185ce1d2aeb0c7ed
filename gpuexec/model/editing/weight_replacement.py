"""Replacement of a model's weights by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.importer.output_selection import shorten
from gpuexec.ir.containers import to_strings
from gpuexec.ir.graphs import Array, Graph, walk
from gpuexec.ir.spec import name_dtype
from gpuexec.model.editing.named_data import NamedDataMap
from gpuexec.model.editing.value_edits import exchange_bodies
from gpuexec.system.mapped import find_source

# Largest number of errors reported one by one.
_MAX_LISTED = 10
WeightSource = Mapping[str, Any] | NamedDataMap | str | os.PathLike[str]


def read_weights(source: WeightSource) -> dict[str, Array]:
    """Return immutable arrays by name: copies of those given, or views of a mapped file.

    Raises:
        InputError: The source is none, or what it holds is no array.
        ModelError: The file can't be read.
    """
    if isinstance(source, str | os.PathLike):
        source = NamedDataMap.load(source)
    if not isinstance(source, Mapping) or not source:
        raise InputError(f"Weights are arrays by name, at least one; got {type(source).__name__} {source!r:.60}.")
    return {name: _freeze(name, item) for name, item in source.items()}


def replace_weights(graph: Graph, arrays: Mapping[str, Array]) -> Graph:
    """Return the graph with other content for constants, of the same type and shape.

    Args:
        graph: The graph as it was read: constants that passes compute from weights are not in it.
        arrays: By name, at least one; what a body holds goes by its name there.

    Raises:
        InputError: There is no weight of that name, several bodies have one, or type or shape is another; what is
            wrong is listed, and nothing was changed.
    """
    found = find_weights(graph)
    wrong = []
    given: dict[str, Array] = {}
    for name, array in arrays.items():
        rows = found.get(name, [])
        if not rows:
            wrong.append(f"the model has no weight {name!r:.100}")
        elif len(rows) > 1:
            wrong.append(f"{len(rows)} bodies have a weight {name!r:.100}")
        elif (array.dtype, array.shape) != (rows[0].dtype, rows[0].shape):
            wrong.append(f"{name!r:.100} is {_describe(rows[0])}, got {_describe(array)}")
        else:
            given[name] = array
    if wrong:
        lacking = [name for name in arrays if name not in found]
        known = f" It has {shorten(sorted(found))}." if lacking else ""
        value = next(name for name in arrays if name not in given)
        more = f"; and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        listed = "; ".join(wrong[:_MAX_LISTED]) + more
        raise InputError(f"The weights don't fit {graph.name!r}: {listed}.{known}", value=value)
    return _replace(graph, given)


def find_weights(graph: Graph) -> dict[str, list[Array]]:
    """Return the constants of a graph and its bodies by name."""
    found: dict[str, list[Array]] = {}
    for each in walk(graph):
        for value, array in each.constants.items():
            found.setdefault(value.name, []).append(array)
    return found


def _replace(graph: Graph, arrays: Mapping[str, Array]) -> Graph:
    constants = {value: arrays.get(value.name, array) for value, array in graph.constants.items()}
    return replace(exchange_bodies(graph, lambda body: _replace(body, arrays)), constants=constants)


def _freeze(name: str, item: Any) -> Array:
    try:
        array = np.asarray(item)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Weight {name!r}: a {type(item).__name__} is no array of the host: {error}", value=name
        ) from None
    if array.dtype.kind in "OUST":
        try:
            array = to_strings(item)
        except InputError as error:
            raise InputError(f"Weight {name!r}: {error}", value=name) from None
    if find_source(array) is not None and array.flags.c_contiguous:
        return array
    own = np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)
    own.flags.writeable = False
    return own


def _describe(array: Array) -> str:
    return f"{name_dtype(array.dtype)}{list(array.shape)}"

"""Model loading for a session: passes left out, dimensions fixed, initializers replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.described import list_denoted
from gpuexec.compat.onnxruntime.errors import (
    ArgumentTypeError,
    Fail,
    InvalidArgument,
    NoSuchFile,
    make_error,
)
from gpuexec.compat.onnxruntime.options import (
    EXTERNAL_FILE_ENTRY,
    EXTERNAL_SIZE_ENTRY,
    GraphOptimizationLevel,
    SessionOptions,
)
from gpuexec.compat.onnxruntime.values import OrtValue
from gpuexec.errors import InputError
from gpuexec.importer.origin import ExternalData
from gpuexec.importer.save import save_graph
from gpuexec.ir.graphs import Graph, Value, walk
from gpuexec.model.loading import load
from gpuexec.model.model import Model
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes

Array = np.ndarray[Any, Any]
# Without these, models with branches or with sizes that depend on data would not run.
_NEEDED = frozenset({"differentiate", "decompose", "inline_branches", "remove_dead"})
_EXTERNAL_FROM_NBYTES = "1024"
_OPTIONAL = frozenset(each.name for each in (*AT_LOAD, *AT_PLAN)) - _NEEDED


def load_model(source: object, options: SessionOptions) -> Model:
    """Load a model from a path or from bytes with a session's options.

    Raises:
        ArgumentTypeError: It is neither.
        NoSuchFile: There is no such file.
        Fail: Content given for external initializers fits none of the model's.
        GpuexecError: As `gpuexec.load`.
    """
    if isinstance(source, str | os.PathLike):
        if not os.path.exists(source):
            raise make_error(NoSuchFile, f"There is no file {os.fspath(source)}.")
    elif not isinstance(source, bytes | bytearray | memoryview):
        raise make_error(ArgumentTypeError, f"Expected a path or bytes, got {type(source).__name__}.")
    is_plain = options.graph_optimization_level is GraphOptimizationLevel.ORT_DISABLE_ALL
    files = options.external_files or None
    external = ExternalData(files, _take_initializers(options.external_initializers))
    try:
        model = load(source, disabled_passes=_OPTIONAL if is_plain else (), external=external)
    except InputError as error:
        # No other option can be wrong here.
        raise make_error(Fail, f"External initializers: {error}", error) from error
    if options.initializers:
        model = model.with_weights(_take_initializers(options.initializers))
    dims = _list_dims(model, options)
    return model.bind(dims) if dims else model


def promote(model: Model, names: frozenset[str]) -> Model:
    """Return the model with initializers as inputs, behind the others; weights on devices are shared.

    An initializer that nothing in the file reads is an input without effect.

    Raises:
        InvalidArgument: The model does not let callers override one, or reading the model needed its content.
    """
    graph = model.info.graph
    found = {value.name: value for value in graph.constants if value.name in names}
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    header = model.info.header
    usable = {name for name in header.overridable if name in found and (found[name] in read or name in header.idle)}
    fixed = sorted(names - usable)
    if fixed:
        raise make_error(InvalidArgument, f"{fixed[0]!r} is no input, nor an initializer that can be overridden.")
    given = {old: Value(name, header.overridable[name]) for name, old in found.items()}
    # Sorted as the file has them, so that the same names give the same model.
    inputs = tuple(given[found[name]] for name in header.overridable if name in found)
    nodes = tuple(
        replace(node, inputs=tuple(given.get(value, value) if value else None for value in node.inputs))
        for node in graph.nodes
    )
    outputs = tuple(given.get(value, value) for value in graph.outputs)
    constants = {value: array for value, array in graph.constants.items() if value not in given}
    promoted = Graph((*graph.inputs, *inputs), outputs, nodes, constants, graph.name)
    passed = run_passes(promoted, AT_LOAD, model.disabled_passes)
    built = Model(replace(model.info, graph=promoted), passed, model.dims, model.disabled_passes)
    built._slabs, built._lock = model._slabs, model._lock
    return built


def save_optimized(model: Model, options: SessionOptions) -> None:
    """Write the graph after its passes as ONNX, its weights beside it where the options name a file.

    Raises:
        InputError: An operator that a pass made has no form in ONNX; names the nodes.
        Fail: The size from which weights lie in the other file is none.
        AccessError: A file can't be written.
    """
    name, size = options.entry(EXTERNAL_FILE_ENTRY), options.entry(EXTERNAL_SIZE_ENTRY, _EXTERNAL_FROM_NBYTES)
    if not size.isdecimal():
        raise make_error(Fail, f"{EXTERNAL_SIZE_ENTRY} takes a number of bytes, got {size!r}.")
    sizes = [array.nbytes for graph in walk(model.graph) for array in graph.constants.values()]
    is_beside = name and max(sizes, default=0) >= int(size)
    save_graph(
        model.graph,
        options.optimized_model_filepath,
        model.info,
        external_data=name if is_beside else None,
        external_from_nbytes=int(size),
        allow_custom=True,
    )


def _list_dims(model: Model, options: SessionOptions) -> dict[str, int]:
    """Return the requested extents of those dimensions that the model has."""
    requested = {**options.dims, **list_denoted(model.info, options.dims_by_denotation)}
    declared = [dim for port in model.inputs for dim in port.spec.dims or ()]
    return {name: extent for name, extent in requested.items() if name in declared}


def _take_initializers(given: Mapping[str, Any]) -> dict[str, Array]:
    for name, item in given.items():
        if not isinstance(item, OrtValue):
            message = f"Initializer {name!r} takes an OrtValue, got {type(item).__name__}."
            raise make_error(ArgumentTypeError, message)
    return {name: item.numpy() for name, item in given.items()}

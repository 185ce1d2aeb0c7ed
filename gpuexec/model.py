"""A loaded model: its graph after the load passes. Immutable, shared by any number of Workers on any device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuexec.errors import ModelError, StateError
from gpuexec.graph import Graph, Value
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.importer.read import Source
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.planner.classes import DeclaredDims, check_declared
from gpuexec.spec import DeclaredSpec


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output of a model: name, dtype, and dims that may be free."""

    name: str
    spec: DeclaredSpec

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"


class Model:
    """What `load` returns.

    Attributes:
        graph: The graph after the load passes.
        info: What the file says of itself: opset, producer, metadata.
        dims: Dimensions the caller fixed (an int) or bounded (low, high).
        disabled_passes: Names of passes to leave out, of those at load and those at plan.
    """

    def __init__(
        self, info: ImportedModel, graph: Graph, dims: DeclaredDims, disabled_passes: frozenset[str] = frozenset()
    ) -> None:
        self.info, self.graph, self.dims = info, graph, dict(dims)
        self.disabled_passes = disabled_passes
        self.inputs = tuple(_port(value) for value in graph.inputs)
        self.outputs = tuple(_port(value) for value in graph.outputs)
        # Weights on devices, made by whoever runs the model and shared by all; see `gpuexec.memory`.
        self.slabs: dict[Any, Any] = {}
        self.lock = threading.Lock()
        self._process = os.getpid()
        names = [value.name for value in graph.constants]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ModelError(f"Constants share names: {', '.join(twice[:5])}.")

    def check_process(self) -> None:
        """Check that this is still the process that loaded the model.

        Raises:
            StateError: The process was forked.
        """
        if os.getpid() != self._process:
            raise StateError(
                "This model was loaded before a fork; device handles don't survive it. Start processes with spawn."
            )

    def __repr__(self) -> str:
        inputs, outputs = "; ".join(map(str, self.inputs)), "; ".join(map(str, self.outputs))
        return f"Model({self.graph.name!r}, {len(self.graph.nodes)} nodes, {inputs} -> {outputs})"


def load(
    source: Source,
    *,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    disabled_passes: Iterable[str] = (),
) -> Model:
    """Load an ONNX model.

    Args:
        source: A path, the file's bytes, a binary file object, or an onnx.ModelProto.
        dims: Free dimensions by name: an extent fixes one (``{"batch": 1}``), a range bounds it (``{"past": (0,
            128)}``), so that one plan serves all of it.
        disabled_passes: Names of passes to leave out, at load and when planning.

    Raises:
        ModelError: The file is broken, or the graph is.
        UnsupportedError: Operators or forms that are not supported; lists all of them with their nodes.
        InputError: A dimension or pass of that name does not exist.
    """
    info = load_graph(source)
    declared = dict(dims or {})
    check_declared(info.graph, declared)
    disabled = frozenset(disabled_passes)
    graph = run_passes(info.graph, AT_LOAD, disabled)
    return Model(info, graph, declared, disabled)


def _port(value: Value) -> ModelPort:
    if value.declared is None:
        raise ModelError(f"{value} is an input or output whose type the model does not declare.", value=value.name)
    return ModelPort(value.name, value.declared)

"""A loaded model: its graph after the load passes. Immutable, shared by any number of Workers on any device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuexec.errors import InputError, ModelError, StateError
from gpuexec.graph import Graph, Value
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.importer.read import Source
from gpuexec.memories import Memory, bind_pairs, make_memory
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.add_memories import add_memories
from gpuexec.plan import Plan
from gpuexec.planner.classes import DeclaredDims, check_declared
from gpuexec.runtime.stored_code import StoredCode
from gpuexec.spec import DeclaredSpec
from gpuexec.starts import bind_shapes


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
        memories: What a run leaves for the next. Their inputs and outputs are values of the graph, and not among
            ``inputs`` and ``outputs``.
    """

    def __init__(
        self,
        info: ImportedModel,
        graph: Graph,
        dims: DeclaredDims,
        disabled_passes: frozenset[str] = frozenset(),
        memories: Sequence[Memory] = (),
    ) -> None:
        self.info, self.graph, self.dims = info, graph, dict(dims)
        self.disabled_passes, self.memories = disabled_passes, tuple(memories)
        given, taken = {memory.input for memory in memories}, {memory.output for memory in memories}
        # All inputs of the graph: those callers give, and then what memories hold.
        ports = [_port(value) for value in graph.inputs]
        self.inputs = tuple(port for port in ports if port.name not in given)
        self.ports = (*self.inputs, *(port for port in ports if port.name in given))
        self.outputs = tuple(_port(value) for value in graph.outputs if value.name not in taken)
        # Weights on devices, made by whoever runs the model and shared by all; see `gpuexec.resources.memory`.
        self.slabs: dict[Any, Any] = {}
        # Plans by target and code made beforehand, where it comes from a program; see `gpuexec.programs.contents`.
        self.plans: Mapping[str, tuple[Plan, ...]] = {}
        self.code = StoredCode()
        self.lock = threading.Lock()
        self._process = os.getpid()
        names = [value.name for value in graph.constants]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ModelError(f"Constants share names: {', '.join(twice[:5])}.")

    def bind_state(self, pairs: Mapping[str, str], *, capacity: int | Mapping[str, int] | None = None) -> Model:
        """Return this model with outputs bound to inputs: what a run leaves there is what the next one starts from.

        Weights are shared with this model, on devices too.

        Args:
            pairs: Input by output, ``{"present": "past"}``.
            capacity: Rows there is room for, of all memories that grow or by input. An output that is a Concat of the
                input and new rows is then kept where it lies, and only the rows are copied. None: the upper bound
                declared of the dimension, where there is one.

        Raises:
            InputError: A name is unknown or bound already, or two don't fit each other; names both.
        """
        graph, memories = bind_pairs(self.graph, self.memories, pairs, capacity, self.dims)
        bound = Model(self.info, graph, self.dims, self.disabled_passes, memories)
        bound.slabs, bound.lock = self.slabs, self.lock
        return bound

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
    outputs: Sequence[str] | None = None,
    disabled_passes: Iterable[str] = (),
    memories: str | None = None,
) -> Model:
    """Load an ONNX model.

    Args:
        source: A path, the file's bytes, a binary file object, or an onnx.ModelProto.
        dims: Free dimensions by name: an extent fixes one (``{"batch": 1}``), a range bounds it (``{"past": (0,
            128)}``), so that one plan serves all of it.
        outputs: Names of the values that shall be the outputs, inner ones too, in this order; what none of them needs
            is left out, supported or not. None: those the model declares.
        disabled_passes: Names of passes to leave out, at load and when planning.
        memories: ``"implicit"`` lets recurrent layers that start from nothing go on from where the run before left
            them: each is given an input and an output for its state, listed in `Model.memories`.

    Raises:
        ModelError: The file is broken, or the graph is.
        UnsupportedError: Operators or forms that are not supported; lists all of them with their nodes.
        InputError: A dimension, output or pass of that name does not exist, or ``memories`` is something else.
    """
    if memories not in (None, "implicit"):
        raise InputError(f"memories takes None or 'implicit', got {memories!r}; bind others by Model.bind_state.")
    info = load_graph(source, outputs=outputs)
    declared = dict(dims or {})
    check_declared(info.graph, declared)
    disabled = frozenset(disabled_passes)
    graph = run_passes(info.graph, AT_LOAD, disabled)
    if memories is None:
        return Model(info, graph, declared, disabled)
    graph, pairs = add_memories(graph)
    kept = [make_memory(held, output, declared, is_implicit=True) for held, output in pairs]
    return Model(info, graph, declared, disabled, bind_shapes(graph, kept, declared))


def _port(value: Value) -> ModelPort:
    if value.declared is None:
        raise ModelError(f"{value} is an input or output whose type the model does not declare.", value=value.name)
    return ModelPort(value.name, value.declared)

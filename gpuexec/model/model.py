"""The Model: an immutable graph after the load passes, shared by any number of Workers on any device."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.errors import InputError, ModelError, StateError
from gpuexec.importer.load import ImportedModel
from gpuexec.importer.save import save_graph
from gpuexec.ir.graphs import Array, Graph, walk
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import DEFAULT_PRECISION, Precision
from gpuexec.model.editing import choosing, concatenation, renaming
from gpuexec.model.editing.editable_model import EditableModel, apply_load_passes, make_editable
from gpuexec.model.editing.weight_replacement import WeightSource, read_weights, replace_weights
from gpuexec.model.ports import make_input, make_output
from gpuexec.model.state_pairs import find_pairs
from gpuexec.model.state_spec import Memory, bind_pairs, make_memory, make_memory_table
from gpuexec.passes import AT_PLAN, FUSE_ROUNDING, Pass, compress, settle
from gpuexec.passes.add_random_key import add_random_key, find_keys, without_keys
from gpuexec.passes.compress_weights import Only
from gpuexec.passes.lower_precision import list_known, lower_precision
from gpuexec.planner.classes import DeclaredDims
from gpuexec.system.html import make_fragment, make_section, make_table, spell_bytes
from gpuexec.system.pickling import pack, unpack
from gpuexec.system.records import encode
from gpuexec.system.version import VERSION

_log = logging.getLogger("gpuexec")


class Model:
    """A loaded model, as `load` returns it.

    These make other models of it, which stays as it was: `bind`, `bind_state`, `expose`, `keep_outputs`, `extract`,
    `rename`, `prepend`, `append`, `with_weights`, `compress_weights`. `save` writes it to a file.

    It pickles, for other processes of the same release, with its edits, memories and dimensions. Weights that were in
    the model's own file are in the pickle. Those in files beside it, or of a program, go by path, time of writing and
    size, and are mapped again: a process takes memory for them once it reads them for its device. Copies, deep ones
    too, share graphs and weights, which never change.

    Attributes:
        graph: The graph after the load passes.
        info: Metadata of the file: opset, producer, properties.
        dims: Dimensions the caller fixed (an int) or bounded (low, high).
        disabled_passes: Names of passes to leave out, of those at load and those at plan.
        memories: State carried from run to run. Their inputs and outputs are values of the graph, and not among
            ``inputs`` and ``outputs``.
        precision: What the graph's products and convolutions are computed in.

    Example:
        >>> model = gx.load("digits.onnx")
        >>> print(*model.inputs, *model.outputs, sep="; ")
        image: float32[batch,1,8,8]; logits: float32[batch,10]; probabilities: float32[batch,10]
        >>> model.keep_outputs(["logits"]).bind({"batch": 1}).save("logits.onnx")
    """

    def __init__(
        self,
        info: ImportedModel,
        graph: Graph,
        dims: DeclaredDims,
        disabled_passes: frozenset[str] = frozenset(),
        memories: Sequence[Memory] = (),
        precision: Precision = DEFAULT_PRECISION,
    ) -> None:
        graph, key = add_random_key(graph)
        if key is not None:
            memories = (*memories, make_memory(*key, dims, is_implicit=True))
        lowered = lower_precision(graph, precision)
        # The graph as it is without this precision, where that is another.
        self._unlowered = None if lowered is graph else graph
        self.precision, graph = precision, lowered
        self.info, self.graph, self.dims = info, graph, dict(dims)
        self.disabled_passes, self.memories = disabled_passes, tuple(memories)
        given, taken = {memory.input for memory in memories}, {memory.output for memory in memories}
        # All inputs of the graph: first those that callers give, then those of memories.
        ports = [make_input(value) for value in graph.inputs]
        self.inputs = tuple(port for port in ports if port.name not in given)
        self.ports = (*self.inputs, *(port for port in ports if port.name in given))
        self.outputs = tuple(make_output(value) for value in graph.outputs if value.name not in taken)
        # Weights on devices, made by the first Worker and shared by all; see `gpuexec.execution.resources.weights`.
        self._slabs: dict[Any, Any] = {}
        # Passes to run once the specs of the inputs are known.
        self._plan_passes: Sequence[Pass] = (*AT_PLAN, FUSE_ROUNDING) if precision.fuse_rounding else AT_PLAN
        # Stored plans by target and compiled kernels, for a model from a program; see `gpuexec.program.contents`.
        self._plans: Mapping[str, tuple[Plan, ...]] = {}
        self._code = StoredCode()
        self._lock = threading.Lock()
        self._process = os.getpid()
        names = [value.name for value in graph.constants]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ModelError(f"Constants share names: {', '.join(twice[:5])}.")

    @property
    def _source_graph(self) -> Graph:
        """The graph that edits and other precisions begin with."""
        return self.graph if self._unlowered is None else self._unlowered

    def bind_state(self, pairs: Mapping[str, str] | str, *, capacity: int | Mapping[str, int] | None = None) -> Model:
        """Return this model with outputs bound to inputs as state: a run's output is the next run's input.

        Weights are shared with this model, on devices too.

        Args:
            pairs: Input by output, ``{"present": "past"}``; or ``"auto"``: those whose names say so, as exporters give
                them (`gpuexec.model.state_pairs`). `memories` says which were found, and so does the log at INFO.
            capacity: Rows there is room for, of all memories that grow or by input. An output that is a Concat of the
                input and new rows is then kept where it lies, and only the rows are copied. None: the upper bound
                declared of the dimension, where there is one.

        Raises:
            InputError: A name is unknown or bound already, or two don't fit each other; names both.
        """
        if isinstance(pairs, str):
            pairs = self._find_pairs(pairs)
        graph, memories = bind_pairs(self._source_graph, self.memories, pairs, capacity, self.dims)
        return self._derive(self.info, graph, self.dims, self.disabled_passes, memories)

    def _find_pairs(self, way: str) -> dict[str, str]:
        if way != "auto":
            raise InputError(f"bind_state takes inputs by output, {{'present': 'past'}}, or 'auto', got {way!r}.")
        taken = [name for memory in self.memories for name in (memory.input, memory.output)]
        pairs = find_pairs(self._source_graph, taken)
        shown = ", ".join(f"{held} <- {output}" for output, held in pairs.items())
        _log.info("state of %s: %s", self._source_graph.name, shown)
        return pairs

    def expose(self, *names: str) -> Model:
        """Return this model with inner values as additional outputs, after those it has.

        Args:
            *names: Of values, as the file names them, or of nodes, whose outputs they are then. What is an output
                already stays one.

        Raises:
            InputError: There is none of that name, or it lies in the body of a loop or branch.
        """
        return self._edit(choosing.expose(self._editable(), names))

    def keep_outputs(self, names: Sequence[str]) -> Model:
        """Return this model with these outputs alone, in this order, without nodes that only others need.

        Inner values may be among them. Inputs and memories that nothing needs any more go too.

        Raises:
            InputError: There is none of that name, or one is listed twice.
        """
        return self._edit(choosing.keep_outputs(self._editable(), names))

    def extract(self, inputs: Sequence[str], outputs: Sequence[str]) -> Model:
        """Return the subgraph of this model that computes some of its values from others.

        Args:
            inputs: All that the part needs, but for weights and memories; inner values or inputs of the model.
            outputs: The outputs of the part.

        Raises:
            InputError: There is none of that name, one is not needed, or one that is needed is not listed.
        """
        return self._edit(choosing.extract(self._editable(), inputs, outputs))

    def rename(self, names: Mapping[str, str]) -> Model:
        """Return this model with other names for inputs and outputs, ``{"old": "new"}``; those of memories too.

        Raises:
            InputError: There is none of that name, or two would have one.
        """
        return self._edit(renaming.rename(self._editable(), names))

    def bind(self, dims: DeclaredDims) -> Model:
        """Return this model with dimensions fixed (``{"batch": 1}``) or bounded, as by ``dims`` of `load`.

        Raises:
            InputError: There is no such dimension, or its value is no extent or range.
        """
        return self._edit(renaming.bind(self._editable(), dims))

    def prepend(self, other: Model, connections: concatenation.Connections | None = None) -> Model:
        """Return this model with another one in front, whose outputs are its inputs: pre-processing.

        Outputs of the other that nothing takes are outputs behind this model's. Where both have a name, this model's
        stays. Memories of both stay.

        Args:
            other: Runs first.
            connections: Inputs of this model by output of the other, ``{"out": "in"}``, or several, ``{"out": ["a",
                "b"]}``. None: there is one of each.

        Raises:
            InputError: There is no such input or output, or types or extents contradict each other; names both.
        """
        return self._join(other, connections, is_behind=False)

    def append(self, other: Model, connections: concatenation.Connections | None = None) -> Model:
        """Return this model with another one behind, whose inputs are its outputs: post-processing.

        The other's outputs come first, then those of this model that nothing takes. Where both have a name, this
        model's stays. Memories of both stay.

        Args:
            other: Runs on what this model makes.
            connections: Inputs of the other by output of this model; see `prepend`.

        Raises:
            InputError: There is no such input or output, or types or extents contradict each other; names both.
        """
        return self._join(other, connections, is_behind=True)

    def with_weights(self, weights: WeightSource) -> Model:
        """Return this model with other content for some of its weights; all else is shared, plans and devices' too.

        Constants computed from weights (a Conv with its BatchNormalization, a folded Transpose) are computed again.

        Args:
            weights: Arrays by name, as the file names them; a `NamedDataMap`; or the path of a .safetensors, .npz or
                ONNX file.

        Raises:
            InputError: There is no weight of that name, or its type or shape differs; lists all errors.
            ModelError: The file can't be read.
        """
        return exchange_weights(self, read_weights(weights))

    def compress_weights(self, kind: str, *, only: Only | None = None) -> Model:
        """Return this model with the weights of Conv, ConvTranspose, Gemm, MatMul and Gather stored in fewer bits.

        Kernels widen them as they read them; no wide weight is made. Types of activations and of arithmetic stay.

        Args:
            kind: ``"fp16"``: float32 as half. ``"int8"``: floats as integers with one scale for each channel,
                symmetric about zero.
            only: Called with the name and content of each candidate weight; one it returns False for stays as it is.
                Names are the file's, or, where folding made the weight, those of the node's output or the node's and
                ``.weight``.

        Raises:
            InputError: ``kind`` is none.
        """
        editable = self._editable()
        graph = compress(editable.graph, kind, only, self.disabled_passes)
        return remake(self, EditableModel(graph, editable.memories, editable.dims))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        external_data: bool | str | None = None,
        allow_custom: bool = False,
        keep_sources: bool = False,
    ) -> None:
        """Write this model as an ONNX file, atomically.

        It holds what was read, edits included, in the newest form of its operators, before any pass. Dimensions that
        are fixed are written as extents. Memories are written as inputs and outputs, to be bound again. Descriptions
        and metadata that the file came with stay, of nodes and values that are still there.

        Args:
            path: Of the file.
            external_data: Put weights into a file beside it, of this name or of the model's with ``.data`` behind it.
                None: where they don't fit one file of ONNX, 2 GB.
            allow_custom: Write operators registered by others than gpuexec too, which other engines may not know.
            keep_sources: Write the line of source that each node stems from too, where its exporter gave one. Left out
                by default, since it names files of the machine that the model was exported on.

        Raises:
            InputError: An operator has no form in ONNX, or weights don't fit the file; names the nodes.
            AccessError: The file can't be written.
        """
        fixed = {name: bound for name, bound in self.dims.items() if isinstance(bound, int)}
        graph = renaming.fix_dims(self._editable().graph, fixed)
        save_graph(
            graph, path, self.info, external_data=external_data, allow_custom=allow_custom, keep_sources=keep_sources
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description as JSON data: inputs and outputs, operators, bytes of weights, the file's header.

        ``operators`` are those after the passes of loading, in bodies too, the most frequent first; ``nodes_read`` are
        the nodes of the file.
        """
        graphs = walk(self.graph)
        counts = Counter(node.operator.name for graph in graphs for node in graph.nodes)
        return {
            "name": self.graph.name,
            "opset": self.info.opset,
            "ir_version": self.info.ir_version,
            "producer": self.info.producer,
            "metadata": dict(self.info.metadata),
            "inputs": encode(self.inputs),
            "outputs": encode(self.outputs),
            "memories": encode(self.memories),
            "nodes_read": self.info.node_count,
            "nodes": counts.total(),
            "bodies": len(graphs) - 1,
            "operators": dict(counts.most_common()),
            "weights_nbytes": sum(array.nbytes for graph in graphs for array in graph.constants.values()),
            "precision": str(self.precision),
        }

    def _join(self, other: Model, connections: concatenation.Connections | None, *, is_behind: bool) -> Model:
        """Return this model with another one behind or in front."""
        if not isinstance(other, Model):
            raise InputError(f"Expected a model to join {self.graph.name!r} with, got a {type(other).__name__}.")
        first, second = (self, other) if is_behind else (other, self)
        editable = concatenation.join(first._editable(), second._editable(), connections, keeps_first=is_behind)
        return self._edit(editable, self.disabled_passes | other.disabled_passes)

    def _editable(self) -> EditableModel:
        # Keys of random operators are assigned again to the edited graph.
        source, graph = without_keys(self.info.graph), without_keys(self._source_graph)
        keys = {*find_keys(self._source_graph)} - {*find_keys(source)}
        return make_editable(source, graph, [each for each in self.memories if each.input not in keys], self.dims)

    def _edit(self, editable: EditableModel, disabled: frozenset[str] | None = None) -> Model:
        passes = self.disabled_passes if disabled is None else disabled
        graph, memories = apply_load_passes(editable, passes, self._source_graph)
        counts = Counter(node.operator.name for each in walk(editable.graph) for node in each.nodes)
        info = replace(self.info, graph=editable.graph, operators=dict(counts.most_common()))
        return self._derive(info, graph, editable.dims, passes, memories)

    def _derive(
        self,
        info: ImportedModel,
        graph: Graph,
        dims: DeclaredDims,
        disabled: frozenset[str],
        memories: Sequence[Memory],
        precision: Precision | None = None,
    ) -> Model:
        """Return a model that shares with this one the device copies of their common weights."""
        chosen = self.precision if precision is None else precision
        kept = replace(chosen, keep=frozenset(list_known(graph, chosen.keep))) if precision is None else chosen
        derived = Model(info, graph, dims, disabled, memories, kept)
        derived._slabs, derived._lock, derived._code = self._slabs, self._lock, self._code
        return derived

    def __reduce__(self) -> tuple[object, ...]:
        content = (self.info, self._source_graph, self.dims, self.disabled_passes, self.memories, self.precision)
        return _restore, (VERSION, *pack(content))

    def __copy__(self) -> Model:
        made = Model.__new__(Model)
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, _: object) -> Model:
        return self.__copy__()

    def __repr__(self) -> str:
        inputs, outputs = "; ".join(map(str, self.inputs)), "; ".join(map(str, self.outputs))
        return f"Model({self.graph.name!r}, {len(self.graph.nodes)} nodes, {inputs} -> {outputs})"

    def _repr_html_(self) -> str:
        constants = [array.nbytes for array in self.graph.constants.values()]
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.info.opsets.items())
        facts = [
            ("nodes", f"{self.info.node_count} in the file, {len(self.graph.nodes)} after the passes at load"),
            ("constants", f"{len(constants)}, {spell_bytes(sum(constants))}"),
            ("opset", opsets),
            ("producer", self.info.producer),
            ("precision", self.precision),
            *((f"dimension {name}", extent) for name, extent in self.dims.items()),
        ]
        ports = [("input", port.name, port.spec) for port in self.inputs]
        ports += [("output", port.name, port.spec) for port in self.outputs]
        return make_fragment(
            f"Model {self.graph.name}",
            make_table((), [row for row in facts if str(row[1])]),
            make_section("Inputs and outputs", make_table(("", "name", "spec"), ports)),
            make_section("Memories", make_memory_table(self.memories)),
            make_section("Operators", make_table(("operator", "nodes"), self.info.operators.items(), numbers=1)),
        )


def choose_precision(
    model: Model, name: str | None, keep: Collection[str] = (), fuse_rounding: bool | None = None
) -> Model:
    """Return a model in a precision; the one given where that is its own, or where none is named.

    Weights on devices are shared, in the forms that both need.

    Args:
        model: In any precision.
        name: Of `gpuexec.ir.precision`; None: the model's own.
        keep: Names of nodes that stay in float, or patterns of them.
        fuse_rounding: Whether roundings within kernels are left out; None: as the model has it.

    Raises:
        InputError: There is no such precision or node, or the model does not say how to compute in int8.
    """
    own = model.precision
    wanted = Precision.of(
        own.name if name is None else name,
        keep or (own.keep if name is None else ()),
        own.fuse_rounding if fuse_rounding is None else fuse_rounding,
    )
    if wanted == own:
        return model
    graph, memories = model._source_graph, model.memories
    return model._derive(model.info, graph, model.dims, model.disabled_passes, memories, wanted)


def choose_precisions(
    models: Mapping[str, Model], name: str | None, keep: Collection[str] = (), fuse_rounding: bool | None = None
) -> dict[str, Model]:
    """Return several models in a precision; each keeps those nodes in float that it has.

    Raises:
        InputError: As of `choose_precision`; no model has a node to keep.
    """
    known = {each for model in models.values() for each in list_known(model._source_graph, keep)}
    if models and (lost := sorted(set(keep) - known)):
        raise InputError(f"keep names {', '.join(map(repr, lost))}, and no model has a node of such a name.")
    return {
        key: choose_precision(model, name, list_known(model._source_graph, keep), fuse_rounding)
        for key, model in models.items()
    }


def check_process(model: Model) -> None:
    """Check that this is still the process that loaded a model.

    Raises:
        StateError: The process was forked.
    """
    if os.getpid() != model._process:
        raise StateError(
            "This model was loaded before a fork; device handles don't survive it. Start processes with spawn."
        )


def exchange_weights(model: Model, arrays: Mapping[str, Array]) -> Model:
    """Return a model with other content for weights; the arrays are used as they are. See `Model.with_weights`."""
    editable = model._editable()
    changed = model._edit(EditableModel(replace_weights(editable.graph, arrays), editable.memories, editable.dims))
    changed._plans = model._plans
    return changed


def settle_model(model: Model) -> EditableModel:
    """Return a model's editable form with its weights determined; see `gpuexec.passes.settle`."""
    editable = model._editable()
    return editable.with_graph(settle(editable.graph, model.disabled_passes))


def remake(model: Model, editable: EditableModel) -> Model:
    """Return a model of an edited graph whose weights on devices are its own.

    So the first model's are freed with the first model's last Worker.
    """
    made = model._edit(editable)
    made._slabs, made._lock = {}, threading.Lock()
    return made


def _restore(version: str, packed: bytes, buffers: Sequence[bytes]) -> Model:
    """Rebuild the model from a pickle.

    Raises:
        ModelError: Another release wrote it.
        AccessError: A file that weights are in changed since, or is not there.
    """
    if version != VERSION:
        raise ModelError(f"The model was pickled by gpuexec {version}, this is {VERSION}. Send what Model.save writes.")
    return Model(*unpack(packed, buffers))

"""Import of an ONNX model as a Graph.

Initializers and Constant nodes become constants. An initializer that is also a graph input (all of them are, in files
of IR version 3) is a constant and no input: no exporter means its weights to be given anew with every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

import gpuexec.ops  # noqa: F401  the registry is complete once it is imported
from gpuexec.errors import InputError, ModelError
from gpuexec.importer.entries import read_constants, read_inputs, read_outputs
from gpuexec.importer.expand import expand_functions, infer_types
from gpuexec.importer.gradients import bind_gradients
from gpuexec.importer.node_reader import NodeReader
from gpuexec.importer.order import list_graphs, list_nodes, sort_nodes
from gpuexec.importer.origin import ExternalData
from gpuexec.importer.output_selection import choose_outputs
from gpuexec.importer.problems import Problems
from gpuexec.importer.read import Source, open_model
from gpuexec.importer.schemas import NEWEST_OPSET, OLDEST_OPSET, check_opset
from gpuexec.importer.source_lines import read_metadata
from gpuexec.importer.tensors import UnsupportedFormError, declared_spec, refine
from gpuexec.ir.graphs import Graph, Value, check
from gpuexec.ir.operator import qualified
from gpuexec.ir.spec import DeclaredSpec, dtype_row
from gpuexec.system.progress import ProgressCallback


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Header fields of a ModelProto and its graph.

    ``model_version`` is None where it isn't said. ``overridable`` are initializers that are inputs too, which ONNX lets
    callers give anew from IR version 4 on, with the types they are declared with; of these, no node reads the ``idle``.
    ``denotations`` are meanings of inputs' dimensions (``"DATA_BATCH"``), by input and axis; ``""``: none is given.
    ``graph_metadata`` are texts by key, and ``value_metadata`` such of inputs, outputs and initializers by name.
    """

    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    graph_description: str = ""
    overridable: Mapping[str, DeclaredSpec] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    graph_metadata: Mapping[str, str] = field(default_factory=dict)
    value_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """Imported graph with its file's header and memories.

    ``opsets`` holds the version of each domain (``""`` is ai.onnx); ``operators`` counts the nodes of the file by
    operator, those in bodies of If, Loop and Scan too, before functions are expanded.
    """

    graph: Graph
    source: str
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    description: str
    metadata: Mapping[str, str]
    operators: Mapping[str, int]
    header: ModelHeader = field(default_factory=ModelHeader)

    @property
    def opset(self) -> int:
        """Return the version of ai.onnx, the default domain."""
        return self.opsets.get("", NEWEST_OPSET)

    @property
    def node_count(self) -> int:
        """Number of nodes in the file."""
        return sum(self.operators.values())


def load_graph(
    source: Source,
    *,
    name: str | None = None,
    outputs: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
    external: ExternalData | None = None,
) -> ImportedModel:
    """Read an ONNX model as a graph of operators in their newest form.

    Args:
        source: Path, bytes, binary file or ModelProto. External data is read from the model's folder only.
        name: Name of the graph; by default that in the file, or the file's own name.
        outputs: Names of the values that shall be the outputs; None: those that the file declares.
        progress: Called for large weights that are read from the model's own file; those in files beside it are mapped.
        external: Content in place of files beside the model.

    Raises:
        InputError: The source is none of these, there is no such output, or content given fits no initializer.
        ModelError: The model can't be read or contradicts itself; all contradictions are listed.
        UnsupportedError: It asks for operators, attributes or types that are not supported; all of them are listed.
    """
    model, origin, where = open_model(source, progress, external)
    unknown = sorted(set(origin.external.tensors) - {tensor.name for tensor in model.graph.initializer})
    if unknown:
        raise InputError(f"{where} has no initializer {unknown[0]!r} to give content for.", value=unknown[0])
    model = bind_gradients(model)
    if outputs is not None:
        model = choose_outputs(model, outputs)
    opsets = _read_opsets(model, where)
    title = name or model.graph.name or Path(where).stem
    problems = Problems()
    declared = read_outputs(model.graph, problems)
    reader = NodeReader(opsets, origin, problems, declared)
    read_constants(model.graph, reader, problems)
    inputs = read_inputs(model.graph, reader, problems)
    results: list[Value] = []
    try:
        nodes = sort_nodes(model.graph.node, reader.values)
        expanded = expand_functions(model, nodes, opsets)
        if [name for name, spec in declared.items() if spec is None or spec.dims is None]:
            inferred = infer_types(model, expanded, opsets, declared)
            declared.update({name: refine(spec, inferred.get(name)) for name, spec in declared.items()})
        reader.read(expanded)
        results = reader.find_outputs(model.graph)
    except ModelError as error:
        problems.note(error)
    problems.report(f"{where} (opset {opsets.get('', NEWEST_OPSET)})")
    graph = Graph(inputs, tuple(results), tuple(reader.nodes), reader.constants, title)
    check(graph)
    return ImportedModel(
        graph=graph,
        source=where,
        ir_version=model.ir_version,
        opsets=opsets,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        description=model.doc_string,
        metadata={entry.key: entry.value for entry in model.metadata_props},
        operators=_count_operators(nodes),
        header=_read_header(model),
    )


def _count_operators(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    """Return the number of nodes by qualified name, in bodies too, the most frequent first."""
    counts: Counter[str] = Counter()
    for (op_type, domain), count in Counter([(node.op_type, node.domain) for node in list_nodes(nodes)]).items():
        counts[qualified(op_type, domain)] += count
    return dict(counts.most_common())


def _read_opsets(model: onnx.ModelProto, where: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    if "" not in opsets and not {"", "ai.onnx"}.isdisjoint([node.domain for node in model.graph.node]):
        raise ModelError(
            f"{where} has nodes of ai.onnx and no opset for it; expected {OLDEST_OPSET} to {NEWEST_OPSET}."
        )
    opset = opsets.get("", NEWEST_OPSET)
    check_opset(opset, where)
    return opsets


def _read_header(model: onnx.ModelProto) -> ModelHeader:
    """Return a model's header."""
    graph = model.graph
    overridable = _list_overridable(graph) if model.ir_version >= 4 else {}
    return ModelHeader(
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version if model.HasField("model_version") else None,
        graph_description=graph.doc_string,
        overridable=overridable,
        idle=frozenset(overridable) - _list_read(graph) if overridable else frozenset(),
        denotations=_list_denotations(graph),
        graph_metadata=read_metadata(graph),
        value_metadata={
            each.name: read_metadata(each)
            for each in (*graph.input, *graph.output, *graph.initializer)
            if each.metadata_props
        },
    )


def _list_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes read or that are outputs, in bodies too."""
    read = {name for node in list_nodes(graph.node) for name in node.input}
    read.update(info.name for each in (graph, *list_graphs(graph.node)) for info in each.output)
    return read


def _list_denotations(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Return the meanings of inputs' dimensions, of inputs that have any."""
    rows = {}
    for info in graph.input:
        meanings = tuple([dim.denotation for dim in info.type.tensor_type.shape.dim])
        if any(meanings):
            rows[info.name] = meanings
    return rows


def _list_overridable(graph: onnx.GraphProto) -> dict[str, DeclaredSpec]:
    """Return the types of inputs that are initializers too; free dimensions stay free."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    specs = {}
    for info in graph.input:
        tensor = tensors.get(info.name)
        if tensor is not None:
            try:
                declared = declared_spec(info)
            except (UnsupportedFormError, ModelError):
                declared = None
            own = DeclaredSpec(dtype_row(tensor.data_type).numpy, tuple(tensor.dims))
            specs[info.name] = own if declared is None or declared.dtype != own.dtype else refine(declared, own) or own
    return specs

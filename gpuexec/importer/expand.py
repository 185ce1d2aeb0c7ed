"""Expansion of function operators into the nodes of their ONNX bodies.

Two kinds: functions that stand in the model (`inlining`), and operators that ONNX itself defines by a body. Of both,
those that are registered here stay as they are; the rest is expanded, to any depth, in bodies of If, Loop and Scan too.
ONNX's bodies are put in by onnx's inliner, on a copy without weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import defs, helper, inliner, shape_inference

from gpuexec.errors import ModelError
from gpuexec.importer.bodies import has_bodies
from gpuexec.importer.export import write_type
from gpuexec.importer.growth import check_growth
from gpuexec.importer.inlining import Opsets, inline_functions, read_version
from gpuexec.importer.order import describe_node, list_graphs, list_nodes
from gpuexec.importer.schemas import find_schema
from gpuexec.importer.source_lines import PART_OF, copy_source
from gpuexec.importer.tensors import UnsupportedFormError, inferred_spec
from gpuexec.ir.operator import find_operator, qualified, upgrades_for
from gpuexec.ir.spec import DeclaredSpec

# Initializers of up to this many elements stay in the copy: the types of some bodies depend on them.
_SMALL_ELEMENTS = 64
_DEEPEST = 16
_BODIES = "gpuexec.bodies"  # the domain of functions that stand for single nodes
# Operators whose inference in onnx 1.23 ends the process on inputs of unknown type; below, a domain that hides them.
_FATAL = frozenset({"EyeLike", "RegexFullMatch", "ai.onnx.ml.DictVectorizer", "ai.onnx.ml.TreeEnsemble"})
# It also ends the process on a Slice of a negative extent, as files may declare and these make of negative pads.
_FATAL_OF_NEGATIVE, _MAKE_NEGATIVE = frozenset({"Slice"}), frozenset({"Pad", "CenterCropPad"})
_HIDDEN = "gpuexec.hidden."
# Exceptions that onnx raises on models it refuses.
REFUSALS = (RuntimeError, ValueError, defs.SchemaError, shape_inference.InferenceError, onnx.checker.ValidationError)


def is_runnable(op_type: str, domain: str, opset: int) -> bool:
    """Return whether an operator is registered, or an upgrade makes it one that is."""
    name = qualified(op_type, domain)
    return name == "Constant" or find_operator(name) is not None or bool(upgrades_for(name, opset))


def expand_functions(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], opsets: Opsets) -> list[onnx.NodeProto]:
    """Return the nodes with every function that is not registered replaced by its body.

    Operators whose body can't be had (its types stay unknown) are left, to be reported by name.

    Args:
        model: Where functions and weights are.
        nodes: The model's nodes, sorted.
        opsets: Version by domain, of the model; domains of bodies are added.

    Raises:
        ModelError: A function of the model is recursive or malformed.
    """
    functions = [f for f in model.functions if not is_runnable(f.name, f.domain, opsets.get(f.domain, 1))]
    check_growth(nodes, functions)
    if functions:
        nodes = inline_functions(model, nodes, functions, opsets)
    if not _find_bodies(nodes, opsets):
        return list(nodes)
    copy = _copy_without_weights(model, nodes, opsets)
    hide_fatal(copy)
    failed: set[tuple[str, str]] = set()
    for _ in range(_DEEPEST):
        found = _find_bodies(copy.graph.node, opsets) - failed
        if not found:
            break
        for key in sorted(found):
            expanded = _expand_one(copy, key)
            if expanded is None:
                failed.add(key)
            else:
                copy = expanded
        _add_opsets(copy, opsets)
    _show(copy)
    return list(copy.graph.node)


def _find_bodies(nodes: Sequence[onnx.NodeProto], opsets: Opsets) -> set[tuple[str, str]]:
    """Return (domain, operator) of the nodes that do not run by themselves and have a body in ONNX."""
    found = set()
    kinds = set()
    for node in list_nodes(nodes):
        graphs = _find_graphs(node) if node.attribute else frozenset()
        kinds.add((node.domain, node.op_type, graphs, read_version(node) if node.metadata_props else None))
    for domain, op_type, graphs, version in kinds:
        opset = version or opsets.get("" if domain == "ai.onnx" else domain, 1)
        runs = is_runnable(op_type, domain, opset)
        if runs and not graphs:
            continue
        schema = find_schema(op_type, domain, opset)
        if schema is not None and schema.has_body and not (runs and graphs.isdisjoint(schema.attribute_types)):
            found.add((domain, op_type))
    return found


def _find_graphs(node: onnx.NodeProto) -> frozenset[str]:
    """Return the attributes of a node that are graphs no operator here reads: ONNX's body puts them in their place."""
    names: set[str] = set()
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH and not has_bodies(node):
            names.add(attribute.name)
    return frozenset(names)


def _expand_one(model: onnx.ModelProto, key: tuple[str, str]) -> onnx.ModelProto | None:
    _write_defaults(model, key)
    if all((node.domain, node.op_type) != key for node in model.graph.node):
        model = _show_types(model)
    expanded: onnx.ModelProto | None
    try:
        expanded = inliner.inline_selected_functions(model, [key], inline_schema_functions=True)
    except REFUSALS:
        expanded = _expand_past_absent(model, key)
    if expanded is None or any((node.domain, node.op_type) == key for node in list_nodes(expanded.graph.node)):
        return None
    _label(model.graph.node, expanded.graph.node, key)
    return expanded


def _label(nodes: Sequence[onnx.NodeProto], expanded: Sequence[onnx.NodeProto], key: tuple[str, str]) -> None:
    """Label the nodes of expanded bodies as parts of the expanded node; they take its place.

    Of two that stood side by side, the second's begin behind the last that makes an output of the first.
    """
    left = list(reversed(expanded))
    kept = {tuple(node.output) for node in nodes if (node.domain, node.op_type) != key}
    for node in nodes:
        if (node.domain, node.op_type) != key:
            while left and tuple(left.pop().output) != tuple(node.output):
                pass
            continue
        whole = read_label(node) or describe_node(node)
        missing = set(filter(None, node.output))
        while missing and left and tuple(left[-1].output) not in kept:
            part = left.pop()
            missing.difference_update(part.output)
            part.metadata_props.add(key=PART_OF, value=whole)
            copy_source(node, part)


def read_label(node: onnx.NodeProto) -> str:
    """Return which node of the model a node of an expanded body is part of; empty for any other."""
    return next((entry.value for entry in node.metadata_props if entry.key == PART_OF), "")


def _expand_past_absent(model: onnx.ModelProto, key: tuple[str, str]) -> onnx.ModelProto | None:
    """Expand nodes that leave out an input between others, for which onnx's inliner finds no type and gives up.

    ONNX makes a body for each such node as a function of the model, and these are then expanded.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = [node for node in copy.graph.node if (node.domain, node.op_type) == key]
    opset, schema = _schema_in(model, key)
    version = max((v for v in schema.context_dependent_function_opset_versions if v <= opset), default=None)
    if not nodes or version is None:
        return None
    try:
        types = _find_types(model)
        for index, node in enumerate(nodes):
            given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
            body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), given)
            function = onnx.FunctionProto.FromString(body)
            if not function.node or not _means_the_same(function.node, version, opset):
                return None  # some types are unknown, or the body is of another opset
            del function.opset_import[:]
            function.opset_import.extend(model.opset_import)
            function.domain, function.name = _BODIES, f"{node.op_type}{index}"
            node.domain, node.op_type = function.domain, function.name
            copy.functions.append(function)
        copy.opset_import.append(helper.make_opsetid(_BODIES, 1))
        return inliner.inline_local_functions(copy)
    except REFUSALS:
        return None


def _means_the_same(nodes: Sequence[onnx.NodeProto], version: int, opset: int) -> bool:
    """Return whether nodes of a body, written for an opset, are in the newest form of another too."""

    def since(node: onnx.NodeProto, opset: int) -> int:
        schema: Any = defs.get_schema(node.op_type, opset, node.domain)
        return int(schema.since_version)

    return all(since(node, version) == since(node, opset) for node in nodes)


def _schema_in(model: onnx.ModelProto, key: tuple[str, str]) -> tuple[int, Any]:
    """Return the model's opset in the domain of an operator, and ONNX's description of the operator there."""
    opsets: Opsets = {}
    _add_opsets(model, opsets)
    domain = "" if key[0] == "ai.onnx" else key[0]
    opset = opsets.get(domain, 1)
    # Any: the type stubs of onnx 1.23 lack some of it.
    return opset, defs.get_schema(key[1], opset, domain)


def _find_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = shape_inference.infer_shapes(model).graph
    types = {info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _write_defaults(model: onnx.ModelProto, key: tuple[str, str]) -> None:
    """Set missing attributes of nodes to their defaults: onnx's inliner forgets them where a body refers to them."""
    _, schema = _schema_in(model, key)
    if not schema.has_function:
        return  # the body is made for the node, with the defaults in it
    defaults = [attribute.default_value for attribute in schema.attributes.values() if attribute.default_value.name]
    for node in list_nodes(model.graph.node):
        if (node.domain, node.op_type) == key:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in defaults if default.name not in given)


def _show_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the types of body values declared in its graph, the one place where the inliner looks.

    Of a name that has two types in two bodies none is said.
    """
    try:
        typed = shape_inference.infer_shapes(model)
    except REFUSALS:
        return model
    rows: dict[str, list[onnx.ValueInfoProto]] = {}
    for body in list_graphs(typed.graph.node):
        for info in (*body.input, *body.value_info, *body.output):
            rows.setdefault(info.name, []).append(info)
    known = {info.name for info in (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)}
    for name, infos in rows.items():
        kinds = {info.type.tensor_type.elem_type for info in infos}
        if name not in known and len(kinds) == 1:
            typed.graph.value_info.append(infos[0])
    return typed


def _copy_without_weights(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], opsets: Opsets) -> onnx.ModelProto:
    """Return a model of the same nodes in which large initializers are inputs, so that types and names stay known."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(nodes)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    graph.input.extend(info for info in model.graph.input if info.name not in initializers)
    for name, tensor in initializers.items():
        if sum(tensor.dims) <= _SMALL_ELEMENTS and len(tensor.dims) <= 1 and not tensor.external_data:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    return copy


def infer_types(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    opsets: Opsets,
    declared: Mapping[str, DeclaredSpec | None],
) -> dict[str, DeclaredSpec | None]:
    """Return the types of the graph's outputs that follow from its nodes, by name, as far as inference finds them.

    Args:
        model: Where inputs, outputs and weights are.
        nodes: The model's nodes, sorted, functions expanded.
        opsets: Version by domain, of the nodes.
        declared: What is known of the outputs, by name. Inference takes an empty declaration for the whole truth, so
            it is given this in place of what the model says.
    """
    if {read_version(node) for node in list_nodes(nodes) if node.metadata_props} - {None}:
        return {}  # one model has one version of a domain
    copy = _copy_without_weights(model, nodes, opsets)
    hide_fatal(copy)
    for info in copy.graph.output:
        spec = declared.get(info.name)
        info.ClearField("type")
        if spec is not None:
            info.type.CopyFrom(write_type(spec))
    try:
        outputs = shape_inference.infer_shapes(copy).graph.output
        return {info.name: inferred_spec(info) for info in outputs}
    except (*REFUSALS, ModelError, UnsupportedFormError):  # errors in the nodes are reported when they are read
        return {}


def hide_fatal(model: onnx.ModelProto) -> None:
    """Move nodes that onnx can't infer safely to a domain unknown to it."""
    domains, fatal = set(), _FATAL | (_FATAL_OF_NEGATIVE if _has_negative(model.graph) else frozenset())
    for node in list_nodes(model.graph.node):
        if qualified(node.op_type, node.domain) in fatal:
            node.domain = _HIDDEN + node.domain
            domains.add(node.domain)
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)


def _has_negative(graph: onnx.GraphProto) -> bool:
    """Return whether an extent below 0 is declared, or may be made, in a graph or its bodies."""
    if any(qualified(node.op_type, node.domain) in _MAKE_NEGATIVE for node in list_nodes(graph.node)):
        return True
    for body in (graph, *list_graphs(graph.node)):
        types = [info.type for info in (*body.input, *body.value_info, *body.output)]
        while types:
            each = types.pop()
            if any(dim.dim_value < 0 for dim in each.tensor_type.shape.dim):
                return True
            inner = (each.sequence_type.elem_type, each.optional_type.elem_type, each.map_type.value_type)
            types += [one for one in inner if one.WhichOneof("value") is not None]
    return False


def _show(model: onnx.ModelProto) -> None:
    """Undo `hide_fatal`."""
    for node in list_nodes(model.graph.node):
        node.domain = node.domain.removeprefix(_HIDDEN)


def _add_opsets(model: onnx.ModelProto, opsets: Opsets) -> None:
    for entry in model.opset_import:
        if entry.domain.startswith(_HIDDEN):
            continue
        opsets.setdefault("" if entry.domain == "ai.onnx" else entry.domain, entry.version)

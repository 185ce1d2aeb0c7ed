"""Function operators -> the nodes of their ONNX bodies.

Two kinds: functions that stand in the model, and operators that ONNX itself defines by a body. Of both, those that are
registered here stay as they are; the rest is expanded, to any depth. onnx's inliner does it, on a copy without weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import helper, inliner

from gpuexec.errors import ModelError
from gpuexec.importer.schemas import find_schema
from gpuexec.operator import find_operator, qualified, upgrades_for

# Initializers of up to this many elements stay in the copy: the types of some bodies depend on them.
_SMALL_ELEMENTS = 64
_DEEPEST = 16
Opsets = dict[str, int]


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
        opsets: Version by domain, of the model; domains that bodies bring along are added.

    Raises:
        ModelError: A function of the model is recursive or malformed.
    """
    functions = [f for f in model.functions if not is_runnable(f.name, f.domain, opsets.get(f.domain, 1))]
    if not functions and not _find_bodies(nodes, opsets):
        return list(nodes)
    copy = _copy_without_weights(model, nodes)
    if functions:
        copy.functions.extend(functions)
        copy = _expand_local(copy)
    _add_opsets(copy, opsets)
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
    return list(copy.graph.node)


def _find_bodies(nodes: Iterable[onnx.NodeProto], opsets: Opsets) -> set[tuple[str, str]]:
    """Return (domain, operator) of the nodes that do not run by themselves and have a body in ONNX."""
    found = set()
    for key in {(node.domain, node.op_type) for node in nodes}:
        domain, op_type = key
        opset = opsets.get("" if domain == "ai.onnx" else domain, 1)
        schema = None if is_runnable(op_type, domain, opset) else find_schema(op_type, domain, opset)
        if schema is not None and schema.has_body:
            found.add(key)
    return found


def _expand_one(model: onnx.ModelProto, key: tuple[str, str]) -> onnx.ModelProto | None:
    try:
        expanded = inliner.inline_selected_functions(model, [key], inline_schema_functions=True)
    except (RuntimeError, ValueError):
        return None
    is_left = any((node.domain, node.op_type) == key for node in expanded.graph.node)
    return None if is_left else expanded


def _copy_without_weights(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a model of the same nodes in which large initializers are inputs, so that types and names stay known."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
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


def _expand_local(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"The functions of the model can't be expanded: {error}") from error


def _add_opsets(model: onnx.ModelProto, opsets: Opsets) -> None:
    for entry in model.opset_import:
        opsets.setdefault("" if entry.domain == "ai.onnx" else entry.domain, entry.version)

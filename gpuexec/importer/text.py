"""UTF-8 check of the names in a model file, where protobuf hands out bytes."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from gpuexec.errors import ModelError


def check_text(model: onnx.ModelProto, where: str) -> None:
    """Check that every name in a model is text; its tensors' content is not looked at.

    Raises:
        ModelError: One is not; shows its bytes.
    """
    found = _find_odd(model)
    if found is not None:
        raise ModelError(f"{where}: a name or text in the model is not UTF-8: {found[:40]!r}.")


def _find_odd(message: Any) -> bytes | None:
    """Return the first text that is not one, or None."""
    # Nodes and tensors are many, and listing all their fields would copy their content.
    if isinstance(message, onnx.TensorProto):
        return message.name if isinstance(message.name, bytes) else None
    if isinstance(message, onnx.NodeProto):
        return _find_odd_in_node(message)
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in value if field.is_repeated else (value,):
            found = item if isinstance(item, bytes) else None if isinstance(item, str) else _find_odd(item)
            if found is not None:
                return found
    return None


def _find_odd_in_node(node: onnx.NodeProto) -> bytes | None:
    for text in (node.op_type, node.name, node.domain, *node.input, *node.output):
        if isinstance(text, bytes):
            return text
    for attribute in node.attribute:
        for text in (attribute.name, attribute.ref_attr_name):
            if isinstance(text, bytes):
                return text
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            for graph in (attribute.g, *attribute.graphs):
                found = _find_odd(graph)
                if found is not None:
                    return found
    return None

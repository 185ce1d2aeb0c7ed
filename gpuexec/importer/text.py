"""UTF-8 check of the names in a model file, where protobuf hands out bytes."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from gpuexec.errors import ModelError

_GRAPHS = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})


def check_text(model: onnx.ModelProto, where: str) -> None:
    """Check that every name in a model is text; its tensors' content is not looked at.

    Raises:
        ModelError: One is not; shows its bytes.
    """
    found = _find_odd(model)
    if found is not None:
        raise ModelError(f"{where}: a name or text in the model is not UTF-8: {found[:40]!r}.")


def _find_odd(model: onnx.ModelProto) -> bytes | None:
    """Return a text that is not one, or None; a message's own stand before those of the messages in it."""
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        texts: list[str | bytes] = []
        parts: list[Any] = []
        # Nodes, tensors and extents are many, and listing all their fields would copy their content.
        if type(item) is onnx.TensorProto:
            texts.append(item.name)
        elif type(item) is onnx.TensorShapeProto:
            for dim in item.dim:
                texts += (dim.dim_param, dim.denotation)
        elif type(item) is onnx.NodeProto:
            texts += (item.op_type, item.name, item.domain, *item.input, *item.output)
            for attribute in item.attribute:
                texts += (attribute.name, attribute.ref_attr_name)
                if attribute.type in _GRAPHS:
                    parts += (attribute.g, *attribute.graphs)
        else:
            for field, value in item.ListFields():
                if field.type == FieldDescriptor.TYPE_STRING:
                    texts += value if field.is_repeated else (value,)
                elif field.type == FieldDescriptor.TYPE_MESSAGE:
                    parts += value if field.is_repeated else (value,)
        if bytes in map(type, texts):
            return next(text for text in texts if isinstance(text, bytes))
        waiting += reversed(parts)
    return None

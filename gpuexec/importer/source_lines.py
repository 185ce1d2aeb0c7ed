"""Metadata of nodes, and their source lines.

torch.onnx writes a traceback as metadata of each node. Of it the innermost frame of the user's own code is kept, in the
node's name (`gpuexec.errors.NodeName`). All other metadata stays as it is, but for what the importer notes itself.
"""

from __future__ import annotations

import re

import onnx

from gpuexec.errors import NodeName

# https://docs.pytorch.org/docs/2.9/onnx_export.html#metadata
STACK_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+), in ([^\n]+)(?:\n(?!\s*File ")([^\n]*))?', re.MULTILINE)
# What `gpuexec.importer.expand` and `gpuexec.importer.inlining` note of a node.
PART_OF, VERSION = "gpuexec.part_of", "gpuexec.opset"
_NOTES = (PART_OF, VERSION)
_LIBRARIES = ("site-packages", "dist-packages")
_LONGEST = 200


def name_node(node: onnx.NodeProto) -> str:
    """Return the node's name, with the line of source it stems from where its exporter gave one."""
    source = read_source(node)
    return NodeName(node.name, source) if source else node.name


def read_source(node: onnx.NodeProto) -> str:
    """Return the innermost frame of user code in the node's traceback; of a library where there is no other.

    Empty where the node has no traceback.
    """
    trace = next((entry.value for entry in node.metadata_props if entry.key == STACK_TRACE), "")
    frames = _FRAME.findall(trace) if isinstance(trace, str) else []
    if not frames:
        return ""
    own = [frame for frame in frames if not any(name in frame[0] for name in _LIBRARIES)]
    file, line, function, code = (_clean(text) for text in (own or frames)[-1])
    where = f'File "{file}", line {line}, in {function}'
    return f"{where}\n    {code}" if code else where


def read_metadata(proto: onnx.NodeProto | onnx.GraphProto | onnx.ValueInfoProto | onnx.TensorProto) -> dict[str, str]:
    """Return metadata but for a traceback, what the importer notes, and bytes that are no text."""
    return {
        entry.key: entry.value
        for entry in proto.metadata_props
        if entry.key not in (STACK_TRACE, *_NOTES) and isinstance(entry.key, str) and isinstance(entry.value, str)
    }


def copy_source(node: onnx.NodeProto, part: onnx.NodeProto) -> None:
    """Copy the traceback of a node to one made of it."""
    part.metadata_props.extend(entry for entry in node.metadata_props if entry.key == STACK_TRACE)


def write_source(node: onnx.NodeProto, name: str) -> None:
    """Write the source line in a node's name, if any, to the node."""
    source = getattr(name, "source", "")
    if source:
        node.metadata_props.add(key=STACK_TRACE, value=source)


def _clean(text: str) -> str:
    """Return a text of a file for a message: printable, and not too long."""
    text = "".join(each for each in text.strip() if each.isprintable())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

"""Gradient names the values it is about in attributes; a graph has them as inputs, as whatever else a node reads.

So nodes stand in the right order, functions and bodies keep their own names apart, and nothing that a Gradient is about
is taken for unused. What is written has the attributes alone again.
"""

from __future__ import annotations

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.order import describe_node, walk_nodes
from gpuexec.ops.training import DOMAIN

_NAME = "Gradient"


def bind_gradients(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the values that its Gradients name among their inputs; itself where it has none.

    Raises:
        ModelError: A Gradient names none, one twice, or has another number of inputs than names.
    """
    if not _find(model):
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for node in _find(bound):
        xs, zs, y = (_read_names(node, key) for key in ("xs", "zs", "y"))
        if not xs or len(y) != 1:
            raise ModelError(f"{describe_node(node)} lacks its attribute {'y' if xs else 'xs'!r}.", node=node.name)
        if len(node.input) != len(xs) + len(zs):
            what = f"an input for each of {', '.join((*xs, *zs))}, got {len(node.input)}"
            raise ModelError(f"{describe_node(node)} expects {what}.", node=node.name)
        if len(node.output) > len(xs):
            what = f"at most an output for each of {', '.join(xs)}, got {len(node.output)}"
            raise ModelError(f"{describe_node(node)} expects {what}.", node=node.name)
        twice = [name for name in (*xs, *zs) if (*xs, *zs).count(name) > 1]
        if twice:
            raise ModelError(f"{describe_node(node)} names %{twice[0]} twice.", node=node.name, value=twice[0])
        node.input.extend((*xs, *zs, *y))
    return bound


def unbind_gradient(node: onnx.NodeProto) -> None:
    """Give a node written with the values it is about as inputs the form that ONNX has; others stay as they are."""
    if (node.domain, node.op_type) != (DOMAIN, _NAME):
        return
    attributes = {attribute.name: attribute for attribute in node.attribute}
    first, second = (len(attributes[key].strings) if key in attributes else 0 for key in ("xs", "zs"))
    named = list(node.input)[first + second :]
    del node.input[first + second :], attributes["xs"].strings[:]
    attributes["xs"].strings.extend(name.encode() for name in named[:first])
    if second:
        del attributes["zs"].strings[:]
        attributes["zs"].strings.extend(name.encode() for name in named[first:-1])
    attributes["y"].s = named[-1].encode()


def _find(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the Gradients, those in bodies and functions too."""
    rows = (model.graph.node, *(function.node for function in model.functions))
    return [node for row in rows for node in walk_nodes(row) if (node.domain, node.op_type) == (DOMAIN, _NAME)]


def _read_names(node: onnx.NodeProto, key: str) -> list[str]:
    found = [attribute for attribute in node.attribute if attribute.name == key]
    names = [name for attribute in found for name in (attribute.strings or ([attribute.s] if attribute.s else []))]
    return [name.decode(errors="replace") for name in names]

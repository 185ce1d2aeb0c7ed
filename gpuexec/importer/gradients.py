"""Gradient nodes with the values named in their attributes as inputs.

So nodes sort correctly, functions and bodies keep their names apart, and no value that a Gradient needs
is removed as unused. Export restores the attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.order import describe_node, list_graphs, list_nodes
from gpuexec.ir.graphs import take_free
from gpuexec.ops.nn.training import DOMAIN

_NAME = "Gradient"


def bind_gradients(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the values that its Gradients name among their inputs; itself where it has none.

    Raises:
        ModelError: A Gradient lacks a name, has another number of inputs than names, or names dependent values.
    """
    if not _has_gradient(_find_scopes(model)):
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for row in _find_scopes(bound):
        named = [(node, _read_attributes(node)) for node in row if _is_gradient(node)]
        for node, (variables, _) in named:
            _check_independent(node, variables, row)
        for node, (variables, y) in named:
            node.input.extend((*variables, y))
    for function in bound.functions:
        _part_arguments(function)
    return bound


def unbind_gradient(node: onnx.NodeProto) -> None:
    """Restore ONNX's form of a Gradient whose named values are inputs; other nodes stay as they are."""
    if not _is_gradient(node):
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


def _part_arguments(function: onnx.FunctionProto) -> None:
    """Make arguments that Gradients name values of their own: a call may give one value for several."""
    nodes = list(function.node)
    read = {name for node in list_nodes(nodes) if _is_gradient(node) for name in node.input}
    taken = {*function.input, *(name for node in list_nodes(nodes) for name in (*node.input, *node.output))}
    del function.node[:]
    for place, name in enumerate(function.input):
        if name in read:
            function.input[place] = given = take_free(name, taken)
            function.node.append(onnx.helper.make_node("Identity", [given], [name]))
    function.node.extend(nodes)


def _is_gradient(node: onnx.NodeProto) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, _NAME)


def _has_gradient(scopes: Sequence[Sequence[onnx.NodeProto]]) -> bool:
    for nodes in scopes:
        for node in nodes:
            if node.op_type == _NAME and _is_gradient(node):
                return True
    return False


def _find_scopes(model: onnx.ModelProto) -> list[Sequence[onnx.NodeProto]]:
    """Return the nodes of the graph, of each function, and of all bodies in these."""
    scopes: list[Sequence[onnx.NodeProto]] = [model.graph.node]
    for function in model.functions:
        scopes.append(function.node)
    for nodes in list(scopes):
        for body in list_graphs(nodes):
            scopes.append(body.node)
    return scopes


def _read_attributes(node: onnx.NodeProto) -> tuple[list[str], str]:
    """Return the names of xs and zs, and that of y.

    Raises:
        ModelError: They don't fit the node.
    """
    xs, zs, y = (_read_names(node, key) for key in ("xs", "zs", "y"))
    if not xs or len(y) != 1:
        raise ModelError(f"{describe_node(node)} lacks its attribute {'y' if xs else 'xs'!r}.", node=node.name)
    if len(node.input) != len(xs) + len(zs):
        what = f"an input for each of {', '.join((*xs, *zs))}, got {len(node.input)}"
        raise ModelError(f"{describe_node(node)} expects {what}.", node=node.name)
    if len(node.output) > len(xs):
        what = f"at most an output for each of {', '.join(xs)}, got {len(node.output)}"
        raise ModelError(f"{describe_node(node)} expects {what}.", node=node.name)
    return [*xs, *zs], y[0]


def _read_names(node: onnx.NodeProto, key: str) -> list[str]:
    found = [attribute for attribute in node.attribute if attribute.name == key]
    names = [name for attribute in found for name in (attribute.strings or ([attribute.s] if attribute.s else []))]
    return [name.decode(errors="replace") for name in names]


def _check_independent(gradient: onnx.NodeProto, names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> None:
    """Check that names are distinct, and that no named value follows from others.

    Arguments of a function are independent there, whatever it is called with.

    Raises:
        ModelError: It is not so.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    for place, name in enumerate(names):
        what = f"{describe_node(gradient)} names %{name}"
        if name in names[:place]:
            raise ModelError(f"{what} twice.", node=gradient.name, value=name)
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            maker = makers.get(waiting.pop())
            read = set() if maker is None else {each for node in list_nodes([maker]) for each in node.input} - seen
            for other in read.intersection(names):
                message = f"{what}, which follows from %{other}, named too; leave one out."
                raise ModelError(message, node=gradient.name, value=name)
            seen |= read
            waiting += read

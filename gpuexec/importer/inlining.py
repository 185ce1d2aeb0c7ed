"""Inlining of model-local functions: every call becomes the nodes of the function's body.

A function is read by its own opset imports, whatever the model's are: its nodes carry the version of their domain where
that is another than the model's (`read_version`), and are upgraded from there like any node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import onnx
from onnx import AttributeProto, helper

from gpuexec.errors import ModelError, locate
from gpuexec.importer.growth import MAX_NODES, Key, key_of, key_of_call
from gpuexec.importer.order import describe_node, list_graphs, list_nodes, sort_nodes
from gpuexec.importer.schemas import check_opset
from gpuexec.importer.source_lines import VERSION

# Calls and bodies within each other. Exporters that make a function of each module reach a dozen.
_DEEPEST = 64
Opsets = dict[str, int]


def inline_functions(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    functions: Iterable[onnx.FunctionProto],
    opsets: Opsets,
) -> list[onnx.NodeProto]:
    """Return the nodes with every call of a function replaced by the function's nodes, in bodies too.

    Values of a function get names that nothing else has; an output that the function only hands on is made by an
    Identity. An attribute that refers to one of the function has the value of the call, or the default, or goes.

    Args:
        model: Whose names are taken.
        nodes: Sorted; the calls among them have no more inputs and outputs than their function, and no function calls
            itself.
        functions: Functions that are inlined.
        opsets: Version by domain, of the model; domains of functions are added.

    Raises:
        ModelError: A function contradicts itself, there are too many nodes, or calls nest too deeply.
    """
    return _Inliner(functions, opsets, _list_names(model)).expand(nodes, _Scope({}, None), 0)


def read_version(node: onnx.NodeProto) -> int | None:
    """Return the opset of its domain that a node was written for, where that is another than the model's."""
    text = next((entry.value for entry in node.metadata_props if entry.key == VERSION), "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True)
class _Call:
    """Call of a function: attributes by name, given ones and defaults, and versions of its domains."""

    function: onnx.FunctionProto
    given: Mapping[str, AttributeProto]
    defaults: Mapping[str, AttributeProto]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The new names of the values of a graph, within those around it; ``call`` is None in graphs of the model."""

    names: dict[str, str]
    call: _Call | None
    outer: _Scope | None = None

    def find(self, name: str) -> str:
        """Return the new name of a value.

        Raises:
            ModelError: Nothing makes it in the function.
        """
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        if self.call is not None and name:
            raise ModelError(f"Function {self.call.function.name!r}: %{name} is made by no node.", value=name)
        return name


class _Inliner:
    """Inliner: copies nodes into the model under new names, and calls as their functions' nodes."""

    def __init__(self, functions: Iterable[onnx.FunctionProto], opsets: Opsets, taken: set[str]) -> None:
        self._functions = {key_of(function): function for function in functions}
        self._sorted: dict[Key, list[onnx.NodeProto]] = {}
        self._opsets, self._taken = opsets, taken
        self._numbers: dict[str, count[int]] = {}
        self._size = 0

    def expand(self, nodes: Sequence[onnx.NodeProto], scope: _Scope, depth: int) -> list[onnx.NodeProto]:
        """Return copies of nodes, calls expanded; nodes of the model that neither are nor hold calls stay."""
        expanded: list[onnx.NodeProto] = []
        for node in nodes:
            self._count(node)
            is_call = key_of_call(node) in self._functions
            if scope.call is None and not is_call and not self._has_calls(node):
                expanded.append(node)
                continue
            copied = self._copy(node, scope, depth)
            if is_call:
                expanded += self._inline(copied, self._functions[key_of_call(node)], depth + 1)
            else:
                expanded.append(copied)
        return expanded

    def _has_calls(self, node: onnx.NodeProto) -> bool:
        return any(key_of_call(inner) in self._functions for body in list_graphs([node]) for inner in body.node)

    def _count(self, node: onnx.NodeProto) -> None:
        self._size += 1
        if self._size > MAX_NODES:
            raise ModelError(
                f"{describe_node(node)}: with its functions the model has more than {MAX_NODES} nodes, the most that"
                " is expanded.",
                node=node.name or None,
            )

    def _inline(self, call: onnx.NodeProto, function: onnx.FunctionProto, depth: int) -> list[onnx.NodeProto]:
        """Return the nodes of a function, for a call whose names are those of the model."""
        self._check_depth(call, depth)
        nodes = self._sort(function)
        given_attributes = {each.name: each for each in call.attribute}
        defaults = {each.name: each for each in function.attribute_proto}
        versions = {("" if e.domain == "ai.onnx" else e.domain): e.version for e in function.opset_import}
        given = [*call.input, *[""] * (len(function.input) - len(call.input))]
        names = dict(zip(function.input, given, strict=True))
        made = {name for node in nodes for name in node.output if name}
        handed: list[tuple[str, str]] = []
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in made and formal not in names and actual:
                names[formal] = actual
            elif actual:
                handed.append((formal, actual))
        names.update({name: self._take_free(name) for name in made if name not in names})
        scope = _Scope(names, _Call(function, given_attributes, defaults, versions))
        expanded = self.expand(nodes, scope, depth)
        return [*expanded, *[helper.make_node("Identity", [scope.find(old)], [new]) for old, new in handed]]

    def _sort(self, function: onnx.FunctionProto) -> list[onnx.NodeProto]:
        """Return the nodes of a function in executable order; its imports are checked once, too."""
        key = key_of(function)
        if key not in self._sorted:
            try:
                for entry in function.opset_import:
                    if entry.domain in ("", "ai.onnx"):
                        check_opset(entry.version, f"The function {function.name!r}")
                self._sorted[key] = sort_nodes(function.node, function.input)
            except ModelError as error:
                raise locate(error, f"Function {function.name!r}", error.node) from None
        return self._sorted[key]

    def _copy(self, node: onnx.NodeProto, scope: _Scope, depth: int) -> onnx.NodeProto:
        """Return a node under its new names, with the attributes that its function was called with."""
        copied = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, overload=node.overload)
        copied.doc_string = node.doc_string
        copied.input.extend(scope.find(name) for name in node.input)
        copied.output.extend(scope.find(name) for name in node.output)
        copied.metadata_props.extend(node.metadata_props)
        for attribute in node.attribute:
            own = self._copy_attribute(attribute, node, scope, depth)
            if own is not None:
                copied.attribute.append(own)
        if scope.call is not None:
            self._write_version(copied, scope.call.versions)
        return copied

    def _copy_attribute(
        self, attribute: AttributeProto, node: onnx.NodeProto, scope: _Scope, depth: int
    ) -> AttributeProto | None:
        """Return an attribute under new names, one that refers to another as that; None where nothing gives that."""
        copied, name = AttributeProto(), attribute.name
        if attribute.ref_attr_name and scope.call is not None:
            given = scope.call.given.get(attribute.ref_attr_name)
            if given is not None:  # its names are unique in the model already
                for _ in list_nodes([onnx.NodeProto(attribute=[given])]):
                    self._count(node)
                copied.CopyFrom(given)
                copied.name = name
                return copied
            if attribute.ref_attr_name not in scope.call.defaults:
                return None
            attribute = scope.call.defaults[attribute.ref_attr_name]
        copied.CopyFrom(attribute)
        copied.name = name
        if attribute.type == AttributeProto.GRAPH:
            copied.g.CopyFrom(self._copy_graph(attribute.g, node, scope, depth + 1))
        elif attribute.type == AttributeProto.GRAPHS:
            del copied.graphs[:]
            copied.graphs.extend(self._copy_graph(graph, node, scope, depth + 1) for graph in attribute.graphs)
        return copied

    def _copy_graph(self, graph: onnx.GraphProto, node: onnx.NodeProto, scope: _Scope, depth: int) -> onnx.GraphProto:
        """Return a body under new names; in graphs of the model names stay."""
        self._check_depth(node, depth)
        made = (name for inner in graph.node for name in inner.output if name)
        tensors = (*graph.initializer, *(each.values for each in graph.sparse_initializer))
        own = dict.fromkeys(chain((info.name for info in graph.input), (tensor.name for tensor in tensors), made))
        names = {name: name if scope.call is None else self._take_free(name) for name in own if name}
        inner = _Scope(names, scope.call, scope)
        copied = onnx.GraphProto()
        copied.CopyFrom(graph)
        del copied.node[:], copied.value_info[:]
        copied.node.extend(self.expand(graph.node, inner, depth))
        copied.value_info.extend(info for info in graph.value_info if info.name in names)
        for info in (*copied.input, *copied.output, *copied.value_info, *copied.initializer):
            info.name = inner.find(info.name)
        for sparse in copied.sparse_initializer:
            sparse.values.name = inner.find(sparse.values.name)
        return copied

    def _write_version(self, node: onnx.NodeProto, versions: Mapping[str, int]) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = versions.get(domain)
        if version is not None and self._opsets.setdefault(domain, version) != version:
            node.metadata_props.add(key=VERSION, value=str(version))

    def _check_depth(self, node: onnx.NodeProto, depth: int) -> None:
        if depth > _DEEPEST:
            raise ModelError(
                f"{describe_node(node)}: functions and bodies nest more than {_DEEPEST} deep, the most that is"
                " expanded.",
                node=node.name or None,
            )

    def _take_free(self, name: str) -> str:
        free = name
        while free in self._taken:
            free = f"{name}.{next(self._numbers.setdefault(name, count(2)))}"
        self._taken.add(free)
        return free


def _list_names(model: onnx.ModelProto) -> set[str]:
    """Return the names of all values of the model's graphs."""
    names: set[str] = set()
    for graph in (model.graph, *list_graphs(model.graph.node)):
        names.update(info.name for info in (*graph.input, *graph.output))
        names.update(tensor.name for tensor in graph.initializer)
        names.update(sparse.values.name for sparse in graph.sparse_initializer)
        names.update(name for node in graph.node for name in (*node.input, *node.output))
    return names

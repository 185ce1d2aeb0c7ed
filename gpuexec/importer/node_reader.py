"""Conversion of a NodeProto to a Node: attributes, version upgrades, bodies, constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import onnx

from gpuexec.errors import InputError, ModelError, name_after
from gpuexec.importer.bodies import BODIES, read_control
from gpuexec.importer.entries import read_outputs
from gpuexec.importer.expand import is_runnable, read_label
from gpuexec.importer.inlining import read_version
from gpuexec.importer.order import describe_node
from gpuexec.importer.origin import Origin
from gpuexec.importer.problems import Problems
from gpuexec.importer.schemas import Schema, check_counts, check_form, find_schema
from gpuexec.importer.source_lines import name_node, read_metadata
from gpuexec.importer.sparse import to_dense
from gpuexec.importer.tensors import UnsupportedFormError, attribute_value
from gpuexec.ir.graphs import Array, Node, RawNode, Value, bodies, body_fields
from gpuexec.ir.operator import build, qualified, suggest_name, upgrades_for
from gpuexec.ir.signatures import Signature, find_signature
from gpuexec.ir.spec import STRING, DeclaredSpec

_PLAIN_CONSTANTS: Mapping[str, Any] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": STRING,
    "value_strings": STRING,
}
_WITHOUT_HINTS = 6  # the first opset without `consumed_inputs`


@dataclass(frozen=True, slots=True)
class _Kind:
    """Facts that all nodes of one operator at one opset share; ``name`` is the qualified one."""

    name: str
    opset: int
    is_runnable: bool
    schema: Schema | None
    signature: Signature | None
    is_newest: bool


class NodeReader:
    """Reader of the nodes of a graph in order, with the values they make.

    Attributes:
        values: Every value so far, by name.
        constants: Arrays of initializers, Constant nodes and upgrades.
        declared: The graph's declarations of its outputs, by name.
        nodes: The nodes read.
        captures: In a body, the values taken from around it, by their name there.
        path: Where a body stands, for messages: ``"loop/body/"``; ``""`` for the model's graph.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        origin: Origin,
        problems: Problems,
        declared: Mapping[str, DeclaredSpec | None],
        outer: NodeReader | None = None,
        path: str = "",
    ) -> None:
        self.values: dict[str, Value] = {}
        self.constants: dict[Value, Array] = {}
        self.nodes: list[Node] = []
        self.captures: dict[str, Value] = {}
        self.origin, self.problems, self.path, self.declared = origin, problems, path, declared
        self._opsets, self._outer = opsets, outer
        # By operator, domain and the version that the node itself names.
        self._kinds: dict[tuple[str, str, int | None], _Kind] = {} if outer is None else outer._kinds
        self._taken: set[str] = set()  # names of nodes
        self._reserved: set[str] = set()  # names of values that the file or an upgrade makes

    @property
    def is_body(self) -> bool:
        """Return whether the graph is the body of a node."""
        return self._outer is not None

    def open_body(self, graph: onnx.GraphProto, path: str) -> NodeReader:
        """Return a reader for a body of the current node, which sees the values read so far."""
        declared = read_outputs(graph, self.problems, path)
        return NodeReader(self._opsets, self.origin, self.problems, declared, self, path)

    def add(self, value: Value, kind: str) -> Value:
        """Enter an input or initializer.

        Raises:
            ModelError: The name is taken.
        """
        if value.name in self.values:
            raise ModelError(f"The name %{value.name} is given to an {kind} and to another value.", value=value.name)
        self.values[value.name] = value
        return value

    def find(self, name: str) -> Value:
        """Return the value of a name; in a body, one from around it becomes a capture.

        Raises:
            ModelError: Nothing makes it.
        """
        value = self.values.get(name)
        if value is None and self._outer is not None and self._outer.is_visible(name):
            value = Value(name, self._outer.find(name).declared)
            self.values[name] = self.captures[name] = value
        if value is None:
            raise ModelError(f"Output %{name} of the graph is made by no node.", value=name)
        return value

    def find_outputs(self, graph: onnx.GraphProto) -> list[Value]:
        """Return the outputs of the model's graph; one that nothing makes is noted."""
        found: list[Value] = []
        for info in graph.output:
            try:
                found.append(self.values.get(info.name) or self.find(info.name))
            except ModelError as error:
                self.problems.note(error)
        return found

    def is_visible(self, name: str) -> bool:
        """Return whether a name stands for a value here or around."""
        return name in self.values or (self._outer is not None and self._outer.is_visible(name))

    def read(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Read nodes in executable order. Problems are collected, and reading continues."""
        nodes = list(nodes)
        given = {node.name for node in nodes if node.name}
        for node in nodes:
            self._reserved.update(node.output)
        for index, proto in enumerate(nodes):
            name = self._name(proto, index, given)
            # Few nodes have metadata: those of exporters that write it, and those of expanded functions.
            key = (proto.op_type, proto.domain, read_version(proto) if proto.metadata_props else None)
            raw = None
            try:
                kind = self._kinds.get(key) or self._find_kind(*key)
                raw = self._read_raw(proto, name, kind)
            except ModelError as error:
                self.problems.note(error, self.path, name)
            if raw is None:
                self._make_outputs(proto.output)
            elif kind.name == "Constant":
                self._read_constant(raw)
            else:
                has_metadata = bool(proto.metadata_props)
                metadata = read_metadata(proto) if has_metadata else {}
                self._read_node(raw, kind, read_label(proto) if has_metadata else "", metadata)

    def _find_kind(self, op_type: str, domain: str, version: int | None) -> _Kind:
        """Return the facts about an operator; ``version`` None: at the model's opset."""
        own = "" if domain == "ai.onnx" else domain
        opset, name = version or self._opsets.get(own, 1), qualified(op_type, own)
        schema = find_schema(op_type, own, opset)
        signature = find_signature(op_type, own) if schema is None else None
        is_newest = opset >= _WITHOUT_HINTS and not upgrades_for(name, opset)
        kind = _Kind(name, opset, is_runnable(op_type, own, opset), schema, signature, is_newest)
        self._kinds[op_type, domain, version] = kind
        return kind

    def _name(self, proto: onnx.NodeProto, index: int, given: set[str]) -> str:
        """Return the node's name, or one after its operator and place; never one that another node has."""
        name = proto.name or f"{proto.op_type}_{index}"
        if name in self._taken or (not proto.name and name in given):
            name = next(new for new in (f"{name}_{i}" for i in count(2)) if new not in self._taken and new not in given)
        self._taken.add(name)
        return name_after(name, name_node(proto)) if proto.metadata_props else name

    def _read_raw(self, proto: onnx.NodeProto, name: str, kind: _Kind) -> RawNode | None:
        """Return the node with Python attributes, or None where that can't be had."""
        domain, opset, schema = "" if proto.domain == "ai.onnx" else proto.domain, kind.opset, kind.schema
        place = f" ({domain} {opset})" if domain else ""
        if not kind.is_runnable:
            self.problems.add(f"operator {proto.op_type}{place}", self._locate(name), suggest_name(kind.name))
            return None
        if schema is not None:
            check_form(proto, schema)
        elif kind.signature is not None:
            check_counts(proto, kind.signature)
        attributes: dict[str, Any] = {}
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        if schema is not None:
            # Lowering identifies outputs by position, absent ones too.
            outputs += ("",) * (schema.min_outputs - len(outputs))
        graphs: tuple[str, ...] = ()
        if kind.name in BODIES:
            attributes, inputs = read_control(self, proto, self.path + name, opset)
            graphs = BODIES[kind.name]
        described = describe_node(proto) if proto.attribute else ""
        for attribute in proto.attribute:
            if attribute.name in graphs:
                continue
            what = f"{described}: attribute {attribute.name!r}"
            try:
                attributes[attribute.name] = (
                    to_dense(attribute.sparse_tensor, self.origin, what)
                    if attribute.type == onnx.AttributeProto.SPARSE_TENSOR
                    else attribute_value(attribute, self.origin, what)
                )
            except UnsupportedFormError as error:
                what = f"operator {proto.op_type}{place}, attribute {attribute.name!r}: {error}"
                self.problems.add(what, self._locate(name))
                return None
            if schema is not None and attribute.name not in schema.attribute_types:
                # A later opset may have it; in this one it has no type and no meaning.
                what = f"operator {proto.op_type}{place}, attribute {attribute.name!r}: unknown to opset {opset}"
                self.problems.add(what, self._locate(name))
                return None
        return RawNode(proto.op_type, domain, name, inputs, outputs, attributes, opset)

    def _locate(self, name: str) -> str:
        """Return the name of a node with the body it is in."""
        return name_after(self.path + name, name)

    def _read_constant(self, raw: RawNode) -> None:
        """Make a constant of a Constant node."""
        outputs = self._make_outputs(raw.outputs)
        key = next(iter(raw.attributes), "no attribute")
        if len(raw.attributes) != 1 or key not in ("value", "sparse_value", *_PLAIN_CONSTANTS):
            self.problems.add(f"operator Constant with {', '.join(raw.attributes) or key}", self._locate(raw.name))
            return
        array: Array = np.asarray(raw.attributes[key], _PLAIN_CONSTANTS.get(key))
        array.flags.writeable = False
        if outputs and outputs[0] is not None:
            self.constants[outputs[0]] = array

    def _read_node(self, raw: RawNode, kind: _Kind, part_of: str, metadata: Mapping[str, str]) -> None:
        """Upgrade a node, build its operator, connect it."""
        added: dict[str, Value] = {}
        try:
            if kind.is_newest:
                operator = build(kind.name, raw.attributes)
            else:
                raw = upgrade_node(raw)
                before = [build(qualified(each.op_type, each.domain), each.attributes) for each in raw.before]
                operator = build(qualified(raw.op_type, raw.domain), raw.attributes)
        except (ValueError, TypeError, LookupError) as error:
            # Without an ONNX schema the node is unchecked so far.
            form = "" if isinstance(error, InputError) else "of another form: "
            self.problems.add(f"operator {kind.name}: {form}{str(error).rstrip('.')}", self._locate(raw.name))
            self._make_outputs(raw.outputs)
            return
        if not kind.is_newest:
            added = {name: self._add_constant(name, array) for name, array in raw.constants.items()}
            for first, each in zip(before, raw.before, strict=True):
                outputs = tuple(Value(self._find_free(name)) for name in each.outputs)
                self.nodes.append(Node(first, self._find_inputs(each.inputs, added), outputs, each.name, part_of))
                added.update(zip(each.outputs, outputs, strict=True))
        # Operators with bodies divide their inputs by position, so they keep those that are absent at the end.
        has_bodies = bool(body_fields(type(operator)) and bodies(operator))
        inputs = self._find_inputs(raw.inputs, added, keep_absent=has_bodies)
        self.nodes.append(Node(operator, inputs, self._make_outputs(raw.outputs), raw.name, part_of, metadata))

    def _find_inputs(
        self, names: Iterable[str], added: Mapping[str, Value], keep_absent: bool = False
    ) -> tuple[Value | None, ...]:
        """Return the values of these names, among them those an upgrade added; without absent ones at the end."""
        inputs: list[Value | None] = []
        for name in names:
            inputs.append((added.get(name) or self.values.get(name) or self.find(name)) if name else None)
        while inputs and inputs[-1] is None and not keep_absent:
            inputs.pop()
        return tuple(inputs)

    def _add_constant(self, name: str, array: Array) -> Value:
        """Enter an array that an upgrade added."""
        value = Value(self._find_free(name))
        array = np.asarray(array)
        array.flags.writeable = False
        self.constants[value] = array
        return value

    def _find_free(self, name: str) -> str:
        """Return a name like this one for a value that an upgrade added; the file may use it, or use it later."""
        names = chain((name,), (f"{name}.{i}" for i in count(2)))
        free = next(new for new in names if new not in self._reserved and not self.is_visible(new))
        self._reserved.add(free)
        return free

    def _make_outputs(self, names: Iterable[str]) -> tuple[Value | None, ...]:
        """Make the values of a node's outputs; sorting has checked that names are distinct."""
        outputs: list[Value | None] = []
        for name in names:
            value = Value(name, self.declared.get(name)) if name else None
            if value is not None:
                self.values[name] = value
            outputs.append(value)
        return tuple(outputs)


def upgrade_node(raw: RawNode) -> RawNode:
    """Return a node in the newest form of its operator; an upgrade may make it a node of another operator.

    Raises:
        InputError: The node has no newest form.
    """
    if raw.opset < 6:
        raw = raw.without("consumed_inputs")  # a hint at what may be overwritten, which never changed a result
    for function in upgrades_for(qualified(raw.op_type, raw.domain), raw.opset):
        raw = function(raw)
    return raw

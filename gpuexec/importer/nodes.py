"""NodeProto -> Node: attributes to Python, old forms to the newest one, constants aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from gpuexec.errors import InputError, ModelError
from gpuexec.graph import Array, Node, RawNode, Value
from gpuexec.importer.expand import is_runnable
from gpuexec.importer.order import describe_node
from gpuexec.importer.problems import Problems
from gpuexec.importer.schemas import check_form, find_schema
from gpuexec.importer.tensors import UnsupportedFormError, attribute_value
from gpuexec.operator import build, qualified, upgrades_for
from gpuexec.spec import DeclaredSpec

_PLAIN_CONSTANTS: Mapping[str, Any] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


class NodeReader:
    """Reads the nodes of one model, in order, and keeps what they make.

    Attributes:
        values: Every value so far, by name.
        constants: Arrays of initializers, Constant nodes and upgrades.
        nodes: The nodes read.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        folder: Path | None,
        problems: Problems,
        declared: Mapping[str, DeclaredSpec | None],
    ) -> None:
        self.values: dict[str, Value] = {}
        self.constants: dict[Value, Array] = {}
        self.nodes: list[Node] = []
        self._opsets, self._folder, self._problems, self._declared = opsets, folder, problems, declared
        self._taken: set[str] = set()

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
        """Return the value of a name.

        Raises:
            ModelError: Nothing makes it.
        """
        value = self.values.get(name)
        if value is None:
            raise ModelError(f"Output %{name} of the graph is made by no node.", value=name)
        return value

    def read(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Read nodes that stand in executable order. What is not supported is noted, and reading goes on."""
        nodes = list(nodes)
        given = {node.name for node in nodes if node.name}
        for index, proto in enumerate(nodes):
            name = self._name(proto, index, given)
            domain = "" if proto.domain == "ai.onnx" else proto.domain
            raw = self._read_raw(proto, name, domain)
            if raw is None:
                self._make_outputs(proto.output)
            elif raw.op_type == "Constant" and not raw.domain:
                self._read_constant(raw)
            else:
                self._read_node(raw)

    def _name(self, proto: onnx.NodeProto, index: int, given: set[str]) -> str:
        """Return the node's name, or one after its operator and place; never one that another node has."""
        name = proto.name or f"{proto.op_type}_{index}"
        if name in self._taken or (not proto.name and name in given):
            name = next(new for new in (f"{name}_{i}" for i in count(2)) if new not in self._taken and new not in given)
        self._taken.add(name)
        return name

    def _read_raw(self, proto: onnx.NodeProto, name: str, domain: str) -> RawNode | None:
        """Return the node with Python attributes in its newest form, or None where that can't be had."""
        opset = self._opsets.get(domain, 1)
        place = f" ({domain} {opset})" if domain else ""
        if not is_runnable(proto.op_type, domain, opset):
            self._problems.add(f"operator {proto.op_type}{place}", name)
            return None
        schema = find_schema(proto.op_type, domain, opset)
        if schema is not None:
            check_form(proto, schema)
        attributes = {}
        for attribute in proto.attribute:
            what = f"{describe_node(proto)}: attribute {attribute.name!r}"
            try:
                attributes[attribute.name] = attribute_value(attribute, self._folder, what)
            except UnsupportedFormError as error:
                self._problems.add(f"operator {proto.op_type}{place}, attribute {attribute.name!r}: {error}", name)
                return None
        return RawNode(proto.op_type, domain, name, tuple(proto.input), tuple(proto.output), attributes, opset)

    def _read_constant(self, raw: RawNode) -> None:
        """Make a constant of a Constant node."""
        outputs = self._make_outputs(raw.outputs)
        key = next(iter(raw.attributes), "no attribute")
        if len(raw.attributes) != 1 or not (key == "value" or key in _PLAIN_CONSTANTS):
            self._problems.add(f"operator Constant with {', '.join(raw.attributes) or key}", raw.name)
            return
        array: Array = np.asarray(raw.attributes[key], _PLAIN_CONSTANTS.get(key))
        array.flags.writeable = False
        if outputs and outputs[0] is not None:
            self.constants[outputs[0]] = array

    def _read_node(self, raw: RawNode) -> None:
        """Upgrade a node, build its operator, connect it."""
        label = f"operator {qualified(raw.op_type, raw.domain)}"
        try:
            raw = upgrade_node(raw)
            operator = build(qualified(raw.op_type, raw.domain), raw.attributes)
        except InputError as error:
            self._problems.add(f"{label}: {str(error).rstrip('.')}", raw.name)
            self._make_outputs(raw.outputs)
            return
        added = {name: self._add_constant(name, array) for name, array in raw.constants.items()}
        inputs = [added.get(name) or self.values[name] if name else None for name in raw.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        self.nodes.append(Node(operator, tuple(inputs), self._make_outputs(raw.outputs), raw.name))

    def _add_constant(self, name: str, array: Array) -> Value:
        """Enter an array that an upgrade added; the file may use its name already."""
        free = next(new for new in chain((name,), (f"{name}.{i}" for i in count(2))) if new not in self.values)
        value = self.values[free] = Value(free)
        array = np.asarray(array)
        array.flags.writeable = False
        self.constants[value] = array
        return value

    def _make_outputs(self, names: Iterable[str]) -> tuple[Value | None, ...]:
        """Enter the outputs of a node; that no name comes twice is known from sorting."""
        outputs: list[Value | None] = []
        for name in names:
            value = Value(name, self._declared.get(name)) if name else None
            if value is not None:
                self.values[name] = value
            outputs.append(value)
        return tuple(outputs)


def upgrade_node(raw: RawNode) -> RawNode:
    """Return a node in the newest form of its operator; an upgrade may make it a node of another operator.

    Raises:
        InputError: The node has no newest form.
    """
    for function in upgrades_for(qualified(raw.op_type, raw.domain), raw.opset):
        raw = function(raw)
    return raw

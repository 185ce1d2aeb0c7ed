"""Checks of nodes against ONNX schemas: numbers of inputs and outputs, attribute types, bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
from onnx import AttributeProto, defs

from gpuexec.errors import ModelError
from gpuexec.importer.order import describe_node
from gpuexec.ir.signatures import Signature

# onnx keeps versions in a C int.
_LARGEST_OPSET = _NOWHERE = 2**31 - 1
# Versions of ai.onnx that are read.
OLDEST_OPSET, NEWEST_OPSET = 1, 28


@dataclass(frozen=True, slots=True)
class Schema:
    """The form of an operator at one opset.

    ``required`` are positions of inputs that can't be absent, as can't any from ``variadic_from`` on;
    ``required_attributes`` such attributes, but for bodies, which are checked where they are read. Of the first
    ``min_outputs`` outputs a node may leave out the last, as unwanted. Of all, only ``optional_outputs``
    may be there without a name.
    """

    input_names: tuple[str, ...]
    required: tuple[int, ...]
    variadic_from: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    optional_outputs: frozenset[int]
    attribute_types: Mapping[str, int]
    required_attributes: tuple[str, ...]
    has_body: bool


def check_opset(opset: int, where: str) -> None:
    """Check that a version of ai.onnx is one that is read; ``where`` imports it.

    Raises:
        ModelError: It is not.
    """
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ModelError(
            f"{where} is of opset {opset}; expected {OLDEST_OPSET} to {NEWEST_OPSET}. "
            "Convert it with onnx.version_converter.convert_version, or export it anew."
        )


@lru_cache(maxsize=1024)
def find_schema(op_type: str, domain: str, opset: int) -> Schema | None:
    """Return the schema of an operator, or None where ONNX has no such operator at this opset."""
    if opset > _LARGEST_OPSET:
        return None
    try:
        # Any: the type stubs of onnx 1.23 lack some of it.
        schema: Any = defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
    except defs.SchemaError:
        return None
    option = defs.OpSchema.FormalParameterOption
    return Schema(
        input_names=tuple(formal.name for formal in schema.inputs),
        required=tuple(index for index, formal in enumerate(schema.inputs) if formal.option == option.Single),
        variadic_from=next((i for i, formal in enumerate(schema.inputs) if formal.option == option.Variadic), _NOWHERE),
        max_inputs=schema.max_input,
        min_outputs=schema.min_output,
        max_outputs=schema.max_output,
        optional_outputs=frozenset(i for i, formal in enumerate(schema.outputs) if formal.option == option.Optional),
        attribute_types={name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        required_attributes=tuple(
            name
            for name, attribute in schema.attributes.items()
            if attribute.required and attribute.type != defs.OpSchema.AttrType.GRAPH
        ),
        has_body=schema.has_function or schema.has_context_dependent_function,
    )


def newest_version(op_type: str, domain: str) -> int:
    """Return the domain version with an operator's newest form; 1 where ONNX has none.

    One that is deprecated has that of before.
    """
    version, found = _LARGEST_OPSET, 1
    while version:
        try:
            # Any: the type stubs of onnx 1.23 lack some of it.
            schema: Any = defs.get_schema(op_type, version, domain)
        except defs.SchemaError:
            return found
        found = int(schema.since_version)
        if not schema.deprecated:
            return found
        version = found - 1
    return found


def check_counts(node: onnx.NodeProto, form: Schema | Signature) -> None:
    """Check a node's numbers of inputs and outputs.

    Raises:
        ModelError: It has not.
    """
    if len(node.input) > form.max_inputs or len(node.output) > form.max_outputs:
        raise ModelError(
            f"{describe_node(node)} takes at most {form.max_inputs} inputs and {form.max_outputs} outputs, "
            f"got {len(node.input)} and {len(node.output)}.",
            node=node.name,
        )
    required = form.required
    if "" not in node.input and (not required or required[-1] < len(node.input)):
        return
    absent = [index for index, name in enumerate(node.input) if not name and index >= form.variadic_from]
    for index in (*required, *absent):
        if index >= len(node.input) or not node.input[index]:
            names = form.input_names
            name = f" ({names[min(index, len(names) - 1)]})" if names else ""
            raise ModelError(f"{describe_node(node)} lacks its input {index}{name}.", node=node.name)


def check_form(node: onnx.NodeProto, schema: Schema) -> None:
    """Check a node's inputs, outputs and attribute types against its schema.

    Raises:
        ModelError: It has not.
    """
    check_counts(node, schema)
    given = [attribute.name for attribute in node.attribute] if schema.required_attributes else []
    for name in schema.required_attributes:
        if name not in given:
            raise ModelError(f"{describe_node(node)} lacks its attribute {name!r}.", node=node.name)
    for attribute in node.attribute:
        expected = schema.attribute_types.get(attribute.name, attribute.type)
        if attribute.type != expected:
            kinds = AttributeProto.AttributeType
            raise ModelError(
                f"{describe_node(node)}: attribute {attribute.name!r} is of type {kinds.Name(expected)}, "
                f"got {kinds.Name(attribute.type) if attribute.type in kinds.values() else attribute.type}.",
                node=node.name,
            )

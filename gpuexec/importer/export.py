"""Export of a graph to an ONNX model.

Operators of gpuexec's own domain come with ONNX functions, so that any engine runs an exported model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper, parser

from gpuexec.errors import InputError
from gpuexec.importer.gradients import unbind_gradient
from gpuexec.importer.order import list_nodes
from gpuexec.importer.schemas import find_schema, newest_version
from gpuexec.importer.source_lines import write_source
from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies, take_free, walk
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import MAP, OPTIONAL, SEQUENCE, DeclaredSpec, dtype_row
from gpuexec.ops.control.control import count_own_inputs
from gpuexec.ops.tensor.shape import from_literal
from gpuexec.system.mapped import read_content

# The newest opset that the oracle engines support.
EXPORT_OPSET = 24
EXPORT_IR_VERSION = 10
# Attributes of operators with bodies beyond ONNX's.
_COUNTS = ("carried", "states", "given")
_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
# Makes a tensor of a constant and its name.
Store = Callable[[Array, str], TensorProto]
# Types of an attribute, single and as a list, by the type of its (first) item.
_ATTRIBUTE_TYPES: dict[type, tuple[int, int]] = {
    bool: (AttributeProto.INT, AttributeProto.INTS),
    int: (AttributeProto.INT, AttributeProto.INTS),
    float: (AttributeProto.FLOAT, AttributeProto.FLOATS),
    str: (AttributeProto.STRING, AttributeProto.STRINGS),
}
_DOMAIN = "gpuexec"
_FUNCTION_BODIES = {
    "AlignAxes": """AlignAxes <axis> (x, like) => (y) {
        first = Constant <value_int: int = @axis> ()
        zero = Constant <value_int: int = 0> ()
        last = Constant <value_ints: ints = [-1]> ()
        one = Constant <value_ints: ints = [1]> ()
        shape = Shape (x)
        rank = Size (shape)
        other_shape = Shape (like)
        other_rank = Size (other_shape)
        from_end = Add (first, other_rank)
        is_negative = Less (first, zero)
        start = Where (is_negative, from_end, first)
        behind = Sub (other_rank, start)
        spare = Sub (behind, rank)
        added = Max (spare, zero)
        count = Reshape (added, last)
        ones = Expand (one, count)
        target = Concat <axis: int = 0> (shape, ones)
        y = Reshape <allowzero: int = 1> (x, target)
    }""",
    "Append": """Append <axis, capacity, memory> (held, rows) => (y) {
        y = Concat <axis: int = @axis> (held, rows)
    }""",
}


def choose_opset(graph: Graph) -> int:
    """Return the opset to declare: EXPORT_OPSET, or the first later one with all operators and attributes."""
    newest = defs.onnx_opset_version()
    rows = {describe(node.operator) for each in walk(graph) for node in each.nodes if not bodies(node.operator)}
    for opset in range(EXPORT_OPSET, newest + 1):
        if all(_is_known(name, attributes, opset) for name, attributes in rows):
            return opset
    return EXPORT_OPSET


def to_model(
    graph: Graph, opset: int = EXPORT_OPSET, *, store: Store | None = None, keep_sources: bool = False
) -> onnx.ModelProto:
    """Return the graph as an ONNX model, constants as initializers.

    Names stay as they are; where two values share one, in whatever bodies, the later gets a number. What bodies capture
    they name as the graph around them does.

    Args:
        graph: Graph to write; every input must have a declared type.
        opset: Version to declare for ai.onnx. Operators are written in their newest form whatever it says.
        store: Makes a tensor of a constant and its name; None: with the content inside.
        keep_sources: Write the line of source that a node stems from.

    Raises:
        InputError: An input has no declared type, or an attribute has no form in this opset.
    """
    names: dict[Value, str] = {}
    _name_values(graph, names, set())
    versions = {**_choose_versions(graph), "": opset}
    form = _Form(names, versions, store or store_inside, keep_sources)
    nodes = [proto for node in graph.nodes for proto in _write_node(node, form)]
    domains = {node.domain: versions.get(node.domain, 1) for node in list_nodes(nodes) if node.domain}
    proto = helper.make_graph(
        nodes,
        graph.name or "graph",
        [_write_info(value, names, is_input=True) for value in graph.inputs],
        [_write_info(value, names, is_input=False) for value in graph.outputs],
        [form.store(np.asarray(array), names[value]) for value, array in graph.constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*row) for row in sorted(domains.items()))]
    functions = _find_functions(nodes, opset)
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=EXPORT_IR_VERSION, producer_name="gpuexec", functions=functions
    )


def store_inside(array: Array, name: str) -> TensorProto:
    """Return a constant that lies in the file itself."""
    return numpy_helper.from_array(read_content(np.asarray(array)), name)


@dataclass(frozen=True, slots=True)
class _Form:
    """Export context: names of values, the version of each domain, and the store of constants."""

    names: dict[Value, str]
    versions: dict[str, int]
    store: Store
    keeps_sources: bool = False


def _is_known(name: str, attributes: tuple[tuple[str, Any], ...], opset: int) -> bool:
    """Return whether an opset has an operator, if any has, with these attributes."""
    domain, _, op_type = name.rpartition(".")
    if find_schema(op_type, domain, defs.onnx_opset_version()) is None:
        return True
    schema = find_schema(op_type, domain, opset)
    given = {key for key, value in attributes if value is not None}
    return schema is not None and (given <= set(schema.attribute_types) or op_type in _FLATTENING)


def _choose_versions(graph: Graph) -> dict[str, int]:
    """Return the version of each domain beside ai.onnx: the newest of its operators, or the last that has them all.

    Where an operator kept attributes that its newest form has no place for, an older version has.
    """
    rows: dict[str, list[tuple[str, set[str]]]] = {}
    for each in walk(graph):
        for node in each.nodes:
            name, attributes = describe(node.operator)
            domain, _, op_type = name.rpartition(".")
            if domain:
                rows.setdefault(domain, []).append((op_type, {key for key, value in attributes if value is not None}))
    versions = {}
    for domain, uses in rows.items():
        newest = max(newest_version(op_type, domain) for op_type, _ in uses)
        schemas = {
            version: [(find_schema(op_type, domain, version), given) for op_type, given in uses]
            for version in range(newest, 0, -1)
        }
        fits = (v for v, found in schemas.items() if all(s and given <= set(s.attribute_types) for s, given in found))
        versions[domain] = next(fits, newest)
    return versions


def _name_values(graph: Graph, names: dict[Value, str], taken: set[str]) -> None:
    """Name every value uniquely; inputs and outputs come first, since users know their names.

    A value of a body that captures one of the graph around it goes by the other's name.
    """
    for value in (*graph.inputs, *graph.outputs, *graph.values()):
        if value not in names:
            names[value] = take_free(value.name or "value", taken)
    for node in graph.nodes:
        for body in bodies(node.operator):
            captured = [names[value] for value in node.inputs[count_own_inputs(node.operator) :] if value is not None]
            names.update(zip(body.inputs[len(body.inputs) - len(captured) :], captured, strict=True))
            _name_values(body, names, taken)


def _write_node(node: Node, form: _Form) -> list[onnx.NodeProto]:
    names = form.names
    qualified, attributes = describe(node.operator)
    domain, _, op_type = qualified.rpartition(".")
    opset = form.versions.get(domain, 1)
    schema = find_schema(op_type, domain, opset)
    inputs = ["" if value is None else names[value] for value in node.inputs]
    outputs = ["" if value is None else names[value] for value in node.outputs]
    if schema is not None:
        optional = schema.optional_outputs
        outputs = [
            name or ("" if index in optional else f"{node.name}.unwanted{index}") for index, name in enumerate(outputs)
        ]
    proto = helper.make_node(op_type, inputs, outputs, name=node.name, domain=domain or None)
    given = {key: value for key, value in attributes if value is not None}
    if bodies(node.operator):
        own = count_own_inputs(node.operator)
        del proto.input[own:]
        captures = len(node.inputs) - own
        for key in _COUNTS:
            given.pop(key, None)
        for key in [key for key, value in given.items() if isinstance(value, Graph)]:
            proto.attribute.append(
                helper.make_attribute(key, _write_body(given.pop(key), f"{node.name}.{key}", captures, form))
            )
    is_flat = op_type in _FLATTENING and bool(given.pop("flatten", 0))
    for key, value in given.items():
        if schema is not None and key not in schema.attribute_types:
            where = f"opset {opset} of {domain}" if domain else f"opset {opset}"
            message = f"{node}: attribute {key} = {value!r}, kept from an older opset, has no form in {where}."
            raise InputError(message, node=node.name)
        proto.attribute.append(_write_attribute(node, key, value, schema.attribute_types[key] if schema else None))
    unbind_gradient(proto)
    helper.set_model_props(proto, dict(node.metadata))
    if form.keeps_sources:
        write_source(proto, node.name)
    return _write_flattened(proto, given.get("axis", -1)) if is_flat else [proto]


def _write_body(body: Graph, name: str, captures: int, form: _Form) -> onnx.GraphProto:
    """Write a body. An output that is not made by its nodes, or is listed twice, is written as an Identity."""
    names = form.names
    nodes = [proto for node in body.nodes for proto in _write_node(node, form)]
    made = {value for node in body.nodes for value in node.outputs if value is not None}
    outputs = []
    for index, value in enumerate(body.outputs):
        info = _write_info(value, names, is_input=False)
        if value not in made:
            info.name = f"{name}.output{index}"
            nodes.append(helper.make_node("Identity", [names[value]], [info.name]))
        made.discard(value)
        outputs.append(info)
    own = body.inputs[: len(body.inputs) - captures]
    constants = [form.store(np.asarray(array), names[value]) for value, array in body.constants.items()]
    inputs = [_write_info(value, names, is_input=False) for value in own]
    return helper.make_graph(nodes, body.name or name, inputs, outputs, constants)


def _write_flattened(proto: onnx.NodeProto, axis: int) -> list[onnx.NodeProto]:
    """Write the Softmax of before opset 13, whose rows are those of the input flattened at the axis, as four nodes."""
    (source,), (result,) = proto.input, proto.output
    shape, flat, rows = (f"{result}.{proto.op_type}.{part}" for part in ("shape", "flat", "rows"))
    inner = helper.make_node(proto.op_type, [flat], [rows], name=proto.name, axis=-1)
    inner.metadata_props.extend(proto.metadata_props)
    return [
        helper.make_node("Shape", [source], [shape]),
        helper.make_node("Flatten", [source], [flat], axis=axis),
        inner,
        helper.make_node("Reshape", [rows, shape], [result], allowzero=1),
    ]


def _write_attribute(node: Node, key: str, value: Any, kind: int | None) -> AttributeProto:
    """Write an attribute; ``kind`` is its ONNX type, None where ONNX does not know the operator."""
    if kind is None:
        kind = _guess_type(value)
    if kind == AttributeProto.TYPE_PROTO:
        value = write_type(value)
    if kind == AttributeProto.TENSOR:
        array = value if isinstance(value, np.ndarray) else from_literal(value)
        value = numpy_helper.from_array(array)
    if kind is None:
        raise InputError(f"{node}: attribute {key} = {value!r} has no form in ONNX.", node=node.name)
    return helper.make_attribute(key, value, attr_type=kind)


def _guess_type(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return AttributeProto.TENSOR
    if isinstance(value, DeclaredSpec):
        return AttributeProto.TYPE_PROTO
    is_list = isinstance(value, tuple)
    types = _ATTRIBUTE_TYPES.get(type(value[0]) if is_list and value else int if is_list else type(value))
    return types[is_list] if types is not None else None


def _write_info(value: Value, names: dict[Value, str], is_input: bool) -> onnx.ValueInfoProto:
    if value.declared is None:
        if is_input:
            raise InputError(f"Input {value} has no declared type.", value=value.name)
        return helper.make_empty_tensor_value_info(names[value])
    return helper.make_value_info(names[value], write_type(value.declared))


def write_type(declared: DeclaredSpec) -> onnx.TypeProto:
    """Return the declared type of a value in ONNX's form; of a container without element type, too."""
    if declared.dtype == MAP:
        key = TensorProto.INT64 if declared.key is None else dtype_row(declared.key).code
        return helper.make_map_type_proto(key, _write_item(declared))
    if declared.dtype == SEQUENCE:
        return helper.make_sequence_type_proto(_write_item(declared))
    if declared.dtype == OPTIONAL:
        return helper.make_optional_type_proto(_write_item(declared))
    return helper.make_tensor_type_proto(dtype_row(declared.dtype).code, declared.dims)


def _write_item(declared: DeclaredSpec) -> onnx.TypeProto:
    return onnx.TypeProto() if declared.item is None else write_type(declared.item)


def _find_functions(nodes: Sequence[onnx.NodeProto], opset: int) -> list[onnx.FunctionProto]:
    """Return the functions that nodes call, in bodies too, written for an opset."""
    called = sorted({node.op_type for node in list_nodes(nodes) if node.domain == _DOMAIN})
    return [_make_function(name, opset) for name in called if name in _FUNCTION_BODIES]


def _make_function(name: str, opset: int) -> onnx.FunctionProto:
    text = f'<domain: "{_DOMAIN}", opset_import: ["": {opset}]> {_FUNCTION_BODIES[name]}'
    function = parser.parse_function(text)
    assert isinstance(function, onnx.FunctionProto)
    return function

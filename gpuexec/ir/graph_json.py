"""JSON form of a graph: serialization and parsing.

Operators are written by name and attributes, values by number, constants by the number of an array. Nothing is run by
reading one: an operator is looked up in the registry, and its attributes must be of the types that its class declares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError, ModelError, UnsupportedError, locate
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import Operator, build, describe, find_operator, suggest_name
from gpuexec.ir.spec import MAX_AXES, DeclaredSpec, dtype_row, is_container
from gpuexec.ir.validate import field_types, is_of_type

# Takes a constant and what to call it in messages, and returns its number.
Keep = Callable[[Array, str], int]
_MAX_BODIES = 32
# Declared spec of a container: dtype, dims, its elements, and the dtype of its keys.
_CONTAINER_ENTRIES = 4
_MAX_EXTENT = 2**63 - 1


def encode_graph(graph: Graph, keep: Keep) -> dict[str, Any]:
    """Return a graph as JSON data.

    Args:
        graph: A checked one.
        keep: Stores a constant.

    Raises:
        InputError: An attribute is no data; names the node.
    """
    numbers = {value: number for number, value in enumerate(graph.values())}
    parts = [node.part_of for node in graph.nodes]
    return {
        "name": graph.name,
        "values": [[value.name, _encode_declared(value.declared)] for value in numbers],
        "inputs": [numbers[value] for value in graph.inputs],
        "outputs": [numbers[value] for value in graph.outputs],
        "constants": [[numbers[value], keep(array, f"%{value.name}")] for value, array in graph.constants.items()],
        "nodes": [_encode_node(node, numbers, keep) for node in graph.nodes],
        **({"parts_of": parts} if any(parts) else {}),
    }


def decode_graph(data: Any, arrays: Sequence[Array]) -> Graph:
    """Return the graph that `encode_graph` described; it is not checked beyond its form.

    Args:
        data: JSON data of a graph.
        arrays: Constants by number.

    Raises:
        ModelError: The data is of another form, or an attribute of another type than its operator declares.
        UnsupportedError: Operators that are not registered here; lists all of them.
    """
    unknown: dict[str, str] = {}
    graph = _decode_graph(data, arrays, unknown, 0)
    if unknown:
        rows = ", ".join(f"{name} ({node!r})" for name, node in sorted(unknown.items()))
        near = " ".join(filter(None, map(suggest_name, sorted(unknown))))
        raise UnsupportedError(
            f"Graph {graph.name!r} uses operators that are not registered here: {rows}. Import the package"
            f" that registers them, or use the version of gpuexec that wrote the program. {near}".rstrip()
        )
    return graph


def is_dim(dim: Any) -> bool:
    """Return whether something is a declared dim: an extent, a name, or None."""
    if isinstance(dim, int) and not isinstance(dim, bool):
        return 0 <= dim <= _MAX_EXTENT
    return dim is None or isinstance(dim, str)


class _UnregisteredOperator(Operator):
    """Placeholder for an operator that is not registered, until all of them are known."""

    __slots__ = ()


def _encode_declared(declared: DeclaredSpec | None) -> Any:
    if declared is None:
        return None
    row = [dtype_row(declared.dtype).name, None if declared.dims is None else list(declared.dims)]
    if is_container(declared.dtype):
        row += [_encode_declared(declared.item), None if declared.key is None else dtype_row(declared.key).name]
    return row


def _encode_node(node: Node, numbers: Mapping[Value, int], keep: Keep) -> list[Any]:
    name, attributes = describe(node.operator)
    try:
        encoded = {key: _encode_attribute(value, keep) for key, value in attributes}
    except InputError as error:
        raise locate(error, node, node.name) from None
    inputs = [None if value is None else numbers[value] for value in node.inputs]
    return [node.name, name, encoded, inputs, [None if value is None else numbers[value] for value in node.outputs]]


def _encode_attribute(value: Any, keep: Keep) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"$": "float", "v": repr(float(value))}
        case tuple():
            return [_encode_attribute(item, keep) for item in value]
        case bytes():
            return {"$": "bytes", "v": value.hex()}
        case np.dtype():
            return {"$": "dtype", "v": dtype_row(value).name}
        case DeclaredSpec():
            return {"$": "declared", "v": _encode_declared(value)}
        case Graph():
            return {"$": "graph", "v": encode_graph(value, keep)}
    raise InputError(f"an attribute is a {type(value).__name__}, which can't be stored.")


def _decode_graph(data: Any, arrays: Sequence[Array], unknown: dict[str, str], depth: int) -> Graph:
    if depth > _MAX_BODIES:
        raise ModelError(f"A body lies in more than {_MAX_BODIES} others.")
    name = _take(data, "name", str, "A graph")
    where = f"Graph {name!r}"
    values = [_decode_value(row, where) for row in _take(data, "values", list, where)]
    constants: dict[Value, Array] = {}
    for row in _take(data, "constants", list, where):
        value, number = _split(row, 2, f"{where}: a constant")
        constants[_pick(value, values, where)] = _pick(number, arrays, where)
    rows = _take(data, "nodes", list, where)
    parts = _take(data, "parts_of", list, where) if "parts_of" in data else [""] * len(rows)
    if len(parts) != len(rows) or not all(isinstance(part, str) for part in parts):
        raise ModelError(f"{where} does not say of each node what it is part of.")
    nodes = [_decode_node(row, part, values, arrays, unknown, depth) for row, part in zip(rows, parts, strict=True)]
    return Graph(
        inputs=tuple([_pick(item, values, where) for item in _take(data, "inputs", list, where)]),
        outputs=tuple([_pick(item, values, where) for item in _take(data, "outputs", list, where)]),
        nodes=tuple(nodes),
        constants=constants,
        name=name,
    )


def _decode_value(row: Any, where: str) -> Value:
    name, declared = _split(row, 2, f"{where}: a value")
    if not isinstance(name, str):
        raise ModelError(f"{where}: the name of a value is {str(name)[:60]!r}, expected a text.")
    return Value(name, _decode_declared(declared, f"{where}: %{name}", name))


def _decode_declared(row: Any, what: str, name: str, depth: int = 0) -> DeclaredSpec | None:
    """Decode a declared spec; ``what`` and ``name`` say in messages whose it is."""
    if row is None:
        return None
    is_nested = isinstance(row, list) and len(row) == _CONTAINER_ENTRIES
    dtype, dims, *rest = _split(row, _CONTAINER_ENTRIES if is_nested else 2, f"What is declared of {what}")
    if not isinstance(dtype, str) or not (dims is None or isinstance(dims, list)):
        raise ModelError(f"{what} declares no element type with dims.", value=name)
    if dims is not None and (len(dims) > MAX_AXES or not all(is_dim(dim) for dim in dims)):
        raise ModelError(f"{what} declares dims that are none, or more than {MAX_AXES}.", value=name)
    try:
        found = dtype_row(dtype).numpy
        key = dtype_row(rest[1]).numpy if rest and isinstance(rest[1], str) else None
    except InputError as error:
        raise ModelError(f"{what}: {error}", value=name) from None
    if is_container(found) != is_nested or depth > _MAX_BODIES:
        raise ModelError(f"{what} declares a {dtype} of another form.", value=name)
    item = _decode_declared(rest[0], what, name, depth + 1) if rest else None
    return DeclaredSpec(found, None if dims is None else tuple(dims), item, key)


def _decode_node(
    row: Any, part_of: str, values: Sequence[Value], arrays: Sequence[Array], unknown: dict[str, str], depth: int
) -> Node:
    name, operator, attributes, inputs, outputs = _split(row, 5, "A node")
    if not (isinstance(name, str) and isinstance(operator, str) and isinstance(attributes, dict)):
        raise ModelError(f"A node is of another form: {str(row)[:100]}.")
    where = f"{operator} {name!r}"
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        raise ModelError(f"{where}: expected lists of inputs and outputs.", node=name)
    decoded = {key: _decode_attribute(value, arrays, unknown, depth) for key, value in attributes.items()}
    return Node(
        _build(operator, decoded, name, unknown),
        tuple([None if item is None else _pick(item, values, where) for item in inputs]),
        tuple([None if item is None else _pick(item, values, where) for item in outputs]),
        name,
        part_of,
    )


def _build(operator: str, attributes: Mapping[str, Any], node: str, unknown: dict[str, str]) -> Operator:
    cls: Any = find_operator(operator)
    if cls is None:
        unknown.setdefault(operator, node)
        return _UnregisteredOperator()
    hints = field_types(cls)
    for key, value in attributes.items():
        if key in hints and not is_of_type(value, hints[key]):
            raise ModelError(
                f"{operator} {node!r}: attribute {key} is {str(value)[:60]!r}, expected {_show(hints[key])}.", node=node
            )
    try:
        return build(operator, attributes)
    except GpuexecError as error:
        raise ModelError(f"{operator} {node!r}: {error}", node=node) from None
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ModelError(f"{operator} {node!r} does not take its attributes: {error}.", node=node) from error


def _decode_attribute(item: Any, arrays: Sequence[Array], unknown: dict[str, str], depth: int) -> Any:
    if isinstance(item, list):
        return tuple([_decode_attribute(part, arrays, unknown, depth) for part in item])
    if not isinstance(item, dict):
        return item
    kind, value = item.get("$"), item.get("v")
    if kind == "graph":
        return _decode_graph(value, arrays, unknown, depth + 1)
    if kind == "declared":
        return _decode_declared(value, "A type", "")
    if not isinstance(value, str):
        raise ModelError(f"An attribute is of an unknown form: {str(item)[:60]}.")
    try:
        match kind:
            case "float":
                return float(value)
            case "bytes":
                return bytes.fromhex(value)
            case "dtype":
                return dtype_row(value).numpy
    except ValueError as error:
        raise ModelError(f"An attribute can't be read: {error}.") from error
    raise ModelError(f"An attribute is of an unknown form: {str(item)[:60]}.")


def _take(data: Any, key: str, kind: type, where: str) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise ModelError(f"{where} has no {key}, or one of another form.")
    return value


def _split(row: Any, count: int, where: str) -> list[Any]:
    if not isinstance(row, list) or len(row) != count:
        raise ModelError(f"{where} is {str(row)[:60]!r}, expected a list of {count}.")
    return row


def _pick(number: Any, items: Sequence[Any], where: str) -> Any:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(items):
        raise ModelError(f"{where}: {str(number)[:30]} is no number of {len(items)}.")
    return items[number]


def _show(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)

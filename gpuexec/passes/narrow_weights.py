"""Fusion of DequantizeLinear or Cast of a constant into the operator that reads it as a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import build, describe, find_operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.quant.narrow import DOMAIN, FORMS
from gpuexec.ops.quant.narrow_weight import HALF, INT8, PAIRS
from gpuexec.system.mapped import read_content

_UINT8 = np.dtype(np.uint8)
_SHIFT = 128  # from uint8 to int8, which kernels read


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Narrow weight: its values, scale and zero point, the axis of these, and the type it is widened to."""

    name: str
    weight: Array
    scale: Array | None
    zero: Array | None
    axis: int | None
    wide: np.dtype[Any]


def narrow_weights(graph: Graph) -> Graph:
    """Fuse dequantised constants into their readers, where kernels read them as stored.

    The constant is int8 or uint8 before DequantizeLinear, with one scale or one for each channel, or half before a Cast
    to float; a Transpose may follow. Others stay, and are widened while loading. Results stay the same.
    """
    producers, consumers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)
    found: dict[Value, Stored] = {}
    for node in graph.nodes:
        result = node.outputs[0] if node.outputs else None
        stored = None if result is None or result in outputs else _read(node, producers, graph.constants)
        if stored is not None and result is not None and can_read(stored, result, consumers.get(result, ())):
            found[result] = stored
    return _replace(graph, found) if found else graph


def _replace(graph: Graph, found: Mapping[Value, Stored]) -> Graph:
    """Return the graph with the readers of some values reading narrow weights instead."""
    constants = dict(graph.constants)
    names = {value.name for value in graph.values()}
    added: dict[Value, tuple[Value, Value | None, Value | None]] = {}
    for value, stored in found.items():
        weight = add_constant(f"{stored.name}.narrow", stored.weight, constants, names)
        scale, zero = (
            None if array is None else add_constant(f"{stored.name}.{part}", array, constants, names)
            for part, array in (("scale", stored.scale), ("zero", stored.zero))
        )
        added[value] = weight, scale, zero
    nodes = []
    for node in graph.nodes:
        form = FORMS.get(node.operator.name)
        source = node.inputs[form.weight] if form is not None and len(node.inputs) > form.weight else None
        if form is None or source is None or source not in found:
            nodes.append(node)
            continue
        stored, (weight, scale, zero) = found[source], added[source]
        inputs = [*node.inputs, *(None,) * (form.inputs - len(node.inputs)), scale, zero]
        inputs[form.weight] = weight
        while inputs[-1] is None:
            inputs.pop()
        nodes.append(replace(node, operator=_narrow(node, stored), inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(nodes), constants=constants)


def can_read(stored: Stored, value: Value, readers: Sequence[Node]) -> bool:
    """Return whether all readers take a value as their weight alone, and can take this narrow one."""
    if not readers or (stored.wide, stored.weight.dtype) not in PAIRS:
        return False
    for node in readers:
        form = FORMS.get(node.operator.name)
        if form is None or [i for i, given in enumerate(node.inputs) if given is value] != [form.weight]:
            return False
        made: Any = find_operator(_name(node))
        if stored.axis is not None and stored.axis not in made.scaled_axes(stored.weight.ndim):
            return False
    return True


def _read(node: Node, producers: Mapping[Value, Node], constants: Mapping[Value, Array]) -> Stored | None:
    """Return the narrow weight that a node makes a wide one of."""
    if node.operator.name == "Transpose" and node.inputs[0] in producers:
        assert node.inputs[0] is not None
        stored = _read(producers[node.inputs[0]], producers, constants)
        return None if stored is None else _transpose(stored, getattr(node.operator, "perm", ()))
    arrays = [None if value is None else constants.get(value) for value in node.inputs]
    is_known = all(value is None or array is not None for value, array in zip(node.inputs, arrays, strict=True))
    weight = arrays[0] if arrays else None
    if weight is None or not is_known or not weight.ndim or node.inputs[0] is None:
        return None
    try:
        infer_specs(node.operator, [None if array is None else TensorSpec.of(array) for array in arrays])
    except GpuexecError:  # planning reports it with its place
        return None
    name = node.inputs[0].name
    if node.operator.name == "Cast" and weight.dtype == HALF:
        return Stored(name, weight, None, None, None, dtype_row(getattr(node.operator, "to")).numpy)  # noqa: B009
    if node.operator.name != "DequantizeLinear":
        return None
    return _dequantized(node, name, weight, *(*arrays[1:], None)[:2])


def _dequantized(node: Node, name: str, weight: Array, scale: Array | None, zero: Array | None) -> Stored | None:
    operator: Any = node.operator
    if dtype_row(weight.dtype).kind in ("narrow int", "narrow uint"):
        weight, zero = _to_int8(weight), None if zero is None else _to_int8(zero)
    if scale is None or weight.dtype not in (INT8, _UINT8) or operator.block_size or operator.output_dtype:
        return None
    if scale.size == 1:
        scale, axis = scale.reshape(()), None
        zero = None if zero is None else zero.reshape(())
    else:
        axis = normalize_axis(operator.axis, weight.ndim)
    if weight.dtype == _UINT8:
        zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
        weight, zero = _shift(weight), _shift(zero)
    if zero is not None and not read_content(zero).any():
        zero = None
    return Stored(name, weight, scale, zero, axis, scale.dtype)


def _to_int8(array: Array) -> Array:
    """Return integers of fewer bits, which a byte holds each anyway, as int8."""
    wide = read_content(array).astype(np.int8)
    wide.flags.writeable = False
    return wide


def _shift(array: Array) -> Array:
    shifted: Array = np.asarray(read_content(array) ^ np.uint8(_SHIFT)).view(np.int8)
    shifted.flags.writeable = False
    return shifted


def _transpose(stored: Stored, perm: Sequence[int] | None) -> Stored:
    order = tuple(perm) if perm else tuple(reversed(range(stored.weight.ndim)))
    axis = None if stored.axis is None else order.index(stored.axis)
    return replace(stored, weight=stored.weight.transpose(order), axis=axis)


def _name(node: Node) -> str:
    return f"{DOMAIN}.Narrow{node.operator.name}"


def _narrow(node: Node, stored: Stored) -> Any:
    _, attributes = describe(node.operator)
    return build(_name(node), {**dict(attributes), "to": dtype_row(stored.wide).code, "scale_axis": stored.axis})


def add_constant(name: str, array: Array, constants: dict[Value, Array], names: set[str]) -> Value:
    """Add a constant under a name of its own."""
    value = Value(take_free(name, names))
    constants[value] = array
    return value

"""Fusion of blockwise 4-bit DequantizeLinear and MatMul into MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.passes.narrow_weights import add_constant
from gpuexec.system.mapped import read_content

# Packed operator for a product whose second input is a dequantised constant, perhaps transposed.
_WIDENS, _TURNS, _MULTIPLIES, _PACKED = "DequantizeLinear", "Transpose", "MatMul", "com.microsoft.MatMulNBits"
_BITS, _HALF_RANGE = 4, 8
_BLOCKS = (16, 32, 64, 128, 256)
_WIDE = (np.dtype(np.float32), np.dtype(np.float16))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Packed weight ``[inner, columns]`` of MatMulNBits: two codes a byte, by column.

    Attributes:
        codes: ``[columns, blocks, block / 2]``.
        scales: ``[columns, blocks]``.
        zeros: Codes that stand for 0, two a byte, by column; None: the middle of the range.
    """

    name: str
    inner: int
    block: int
    codes: Array
    scales: Array
    zeros: Array | None


def pack_weights(graph: Graph) -> Graph:
    """Fuse blockwise 4-bit weights into the products that read them; other readers get constants widened at load.

    The constant is int4 or uint4, float or half once dequantised, and its blocks of 16 to 256 run along the inner
    extent.
    """
    producers, consumers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)
    found: dict[Value, Packed] = {}
    for node in graph.nodes:
        wide = node.outputs[0] if node.outputs else None
        readers = [] if wide is None or wide in outputs else consumers.get(wide, [])
        if wide is None or not readers or not all(_is_weight_of(wide, reader) for reader in readers):
            continue
        packed = _read(node, producers, graph.constants)
        if packed is not None:
            found[wide] = packed
    return _replace(graph, found) if found else graph


def _is_weight_of(value: Value, node: Node) -> bool:
    return node.operator.name == _MULTIPLIES and node.inputs[1] is value


def _replace(graph: Graph, found: Mapping[Value, Packed]) -> Graph:
    constants = dict(graph.constants)
    names = {value.name for value in graph.values()}
    added: dict[Value, tuple[Value | None, ...]] = {}
    for value, packed in found.items():
        parts = (("packed", packed.codes), ("scale", packed.scales), ("zero", packed.zeros))
        added[value] = tuple(
            None if array is None else add_constant(f"{packed.name}.{part}", array, constants, names)
            for part, array in parts
        )
    nodes = []
    for node in graph.nodes:
        weight = node.inputs[1] if node.operator.name == _MULTIPLIES else None
        if weight is None or weight not in found:
            nodes.append(node)
            continue
        packed, given = found[weight], added[weight]
        attributes = {"K": packed.inner, "N": packed.scales.shape[0], "block_size": packed.block, "bits": _BITS}
        inputs = (node.inputs[0], *(given if given[-1] is not None else given[:-1]))
        nodes.append(replace(node, operator=build(_PACKED, attributes), inputs=inputs))
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _read(node: Node, producers: Mapping[Value, Node], constants: Mapping[Value, Array]) -> Packed | None:
    """Return the packed form of the weight that a node makes; None where it makes none."""
    source = node.inputs[0] if node.inputs else None
    is_turned = node.operator.name == _TURNS
    if is_turned:
        if source not in producers or tuple(getattr(node.operator, "perm", None) or (1, 0)) != (1, 0):
            return None
        assert source is not None
        node = producers[source]
    if node.operator.name != _WIDENS or node.inputs[0] is None:
        return None
    arrays = [None if value is None else constants.get(value) for value in node.inputs]
    weight, scale, zero = (*arrays, None)[:3]
    if weight is None or scale is None or any(a is None and v for a, v in zip(arrays, node.inputs, strict=True)):
        return None
    kind, block = dtype_row(weight.dtype), getattr(node.operator, "block_size", 0)
    is_packed = kind.kind in ("narrow int", "narrow uint") and kind.width == _BITS
    if not is_packed or weight.ndim != 2 or block not in _BLOCKS:
        return None
    try:
        (made,) = infer_specs(node.operator, [None if a is None else TensorSpec.of(a) for a in arrays])
    except GpuexecError:  # planning reports it with its place
        return None
    axis = normalize_axis(getattr(node.operator, "axis", 1), 2)
    if made.dtype not in _WIDE or made.dtype != scale.dtype or (axis == 1) is not is_turned:
        return None
    return _pack(node.inputs[0].name, block, *(a if a is None or is_turned else a.T for a in (weight, scale, zero)))


def _pack(name: str, block: int, weight: Array | None, scale: Array | None, zero: Array | None) -> Packed:
    """Pack a weight ``[columns, inner]`` with scales and zero points ``[columns, blocks]``."""
    assert weight is not None and scale is not None
    (columns, inner), blocks = weight.shape, scale.shape[1]
    is_signed = dtype_row(weight.dtype).kind == "narrow int"
    codes = _pair(_as_codes(weight, is_signed), blocks * block).reshape(columns, blocks, block // 2)
    zeros = None
    if zero is not None or not is_signed:  # signed codes have 0 in the middle
        given = np.zeros(scale.shape, weight.dtype) if zero is None else zero
        zeros = _pair(_as_codes(given, is_signed), 2 * ceil_div(blocks, 2))
    return Packed(name, inner, block, codes, _freeze(np.ascontiguousarray(read_content(scale))), zeros)


def _as_codes(array: Array, is_signed: bool) -> Array:
    """Return integers of 4 bits as bytes from 0 to 15."""
    return (read_content(array).astype(np.int8) + np.int8(_HALF_RANGE if is_signed else 0)).view(np.uint8)


def _pair(codes: Array, width: int) -> Array:
    """Return rows of codes, as many as ``width`` with zeros behind them, two a byte, the first in the low bits."""
    whole = np.zeros((codes.shape[0], width), np.uint8)
    whole[:, : codes.shape[1]] = codes
    return _freeze(whole[:, ::2] | whole[:, 1::2] << np.uint8(_BITS))


def _freeze(array: Array) -> Array:
    array.flags.writeable = False
    return array

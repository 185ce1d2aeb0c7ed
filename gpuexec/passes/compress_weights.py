"""Weight compression: float32 as half, or as 8-bit integers with a scale per channel.

int8 is symmetric: ``q = round(w / scale)`` from -127 to 127, where ``scale = max |w| / 127`` over a channel, so that
zero stays zero and kernels subtract nothing. A channel is what makes one place of the output: a column of a matrix, an
output channel of a convolution, a row that Gather picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import build
from gpuexec.ir.spec import dtype_row
from gpuexec.ops.quant.narrow_weight import HALF, INT8, PAIRS
from gpuexec.passes.narrow_weights import Stored, add_constant, can_read
from gpuexec.system.mapped import read_content

KINDS: dict[str, np.dtype[Any]] = {"fp16": HALF, "int8": INT8}
# Predicate on a weight's name and content; refused weights stay wide.
Only = Callable[[str, Array], bool]
_MAX_LEVEL = 127
_NONE = object()
_BLOCK_NBYTES = 16 << 20


def compress_weights(graph: Graph, kind: str, only: Only | None = None) -> Graph:
    """Store the weights of Conv, ConvTranspose, Gemm, MatMul and Gather narrow, and widen them by a node each.

    The nodes are DequantizeLinear or Cast, as files have them; `gpuexec.passes.narrow_weights` does away with them. A
    weight that others read too, that is not finite or beyond the range of half, or of a type for which kernels know no
    such form stays as it is.

    Raises:
        InputError: ``kind`` is none.
    """
    if kind not in KINDS:
        raise InputError(f"Weights can be compressed to {' or '.join(map(repr, KINDS))}, got {kind!r}.")
    consumers, outputs = graph.consumers(), set(graph.outputs)
    constants = dict(graph.constants)
    names = {value.name for value in graph.values()}
    taken = {node.name for node in graph.nodes}
    nodes = []
    for value, array in graph.constants.items():
        readers = consumers.get(value, [])
        if value in outputs or not array.ndim or not array.size or (array.dtype, KINDS[kind]) not in PAIRS:
            continue
        axis = _choose_axis(value, array, KINDS[kind], readers)
        if axis is _NONE or (only is not None and not only(value.name, array)):
            continue
        made = _to_half(array) if kind == "fp16" else to_int8(array, axis)
        if made is None:
            continue
        del constants[value]
        parts = zip((f"{value.name}.{kind}", f"{value.name}.scale"), made)
        inputs = tuple(add_constant(name, part, constants, names) for name, part in parts)
        operator = (
            build("Cast", {"to": dtype_row(array.dtype).code})
            if kind == "fp16"
            else build("DequantizeLinear", {} if axis is None else {"axis": axis})
        )
        nodes.append(Node(operator, inputs, (value,), take_free(f"{value.name}.widen", taken)))
    return replace(graph, nodes=(*nodes, *graph.nodes), constants=constants) if nodes else graph


def _choose_axis(value: Value, array: Array, dtype: np.dtype[Any], readers: Sequence[Node]) -> Any:
    """Return the axis that scales shall run along, None for one scale, or _NONE where the weight can't be read so."""
    shape = np.broadcast_to(np.zeros((), dtype), array.shape)
    plain = Stored(value.name, shape, None, None, None, array.dtype)
    if not can_read(plain, value, readers):
        return _NONE
    if dtype == HALF:
        return None
    axes = [_channel_axis(node, array.ndim) for node in readers]
    return next((axis for axis in axes if can_read(replace(plain, axis=axis), value, readers)), None)


def _channel_axis(node: Node, rank: int) -> int | None:
    """Return the axis of a node's weight that makes the places of its output."""
    operator: Any = node.operator
    if node.operator.name == "Gather":
        return normalize_axis(operator.axis, rank)
    return node.operator.channel_axis(1, rank)


def _to_half(array: Array) -> tuple[Array] | None:
    """Return an array as half; None where half can't hold its values."""
    made = np.empty(array.shape, np.float16)
    with np.errstate(over="ignore"):
        for part in _parts(array, 0):
            made[part] = read_content(array[part])
            if not np.isfinite(made[part]).all():
                return None
    made.flags.writeable = False
    return (made,)


def to_int8(array: Array, axis: int | None) -> tuple[Array, Array] | None:
    """Return an array as int8 with its scales, one or one for each place along an axis; None where it is not finite."""
    other = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
    shape = () if axis is None else (array.shape[axis],)
    largest = np.zeros(shape, np.float32)
    for part in _parts(array, axis or 0):
        peaks = np.abs(read_content(array[part]).astype(np.float32)).max(axis=other, initial=0.0)
        if axis is None:
            largest = np.maximum(largest, peaks)
        else:
            largest[part[axis]] = peaks
    if not np.isfinite(largest).all():
        return None
    scale = (largest / _MAX_LEVEL).astype(array.dtype)
    # Values that underflow to zero in the type, and channels of zeros.
    scale = np.where(scale.astype(np.float32) > 0, scale, np.ones((), array.dtype)).astype(array.dtype)
    made = np.empty(array.shape, np.int8)
    spread = scale if axis is None else scale.reshape(-1, *(1,) * (array.ndim - axis - 1))
    for part in _parts(array, axis or 0):
        divisor = (spread if axis is None else spread[part[axis]]).astype(np.float32)
        made[part] = np.clip(np.rint(read_content(array[part]).astype(np.float32) / divisor), -_MAX_LEVEL, _MAX_LEVEL)
    made.flags.writeable = scale.flags.writeable = False
    return made, scale


def _parts(array: Array, axis: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices along an axis, each of few enough elements to be worked on at a time."""
    step = max(1, array.shape[axis] * _BLOCK_NBYTES // max(1, array.nbytes))
    for first in range(0, array.shape[axis], step):
        yield (*(slice(None),) * axis, slice(first, first + step))

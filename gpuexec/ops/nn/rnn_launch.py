"""Launches of recurrent layers: one product for the inputs of all steps, then all steps in one launch."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter, Slots
from gpuexec.ir.spec import accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.linalg.matmul import MatMul
from gpuexec.ops.nn.rnn_host import Bound
from gpuexec.ops.tensor.layout import window

_SOURCE = "rnn.cu"
_THREADS = 256  # kThreads
_TILE_BYTES = 16  # of a column of a tile of rows; kRows
_BLOCKS_PER_MULTIPROCESSOR = 2  # by the kernel's __launch_bounds__
_SLICES = (8, 16, 32)  # units of a slice; kPartials is for no others
# Up to this many recurrent weights, rereading them from a multiprocessor's cache is faster than a grid barrier.
_FEW_WEIGHTS = 1 << 16
CELLS = {"RNN": 0, "GRU": 1, "LSTM": 2}  # Cell of rnn.cu
_PLANES = {"RNN": 2, "GRU": 2, "LSTM": 3}  # h before and after a step, and c
instantiate(_SOURCE, [f"recur<{dtype_row(t).cuda}>" for t in dtypes_of("float")])


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Parameters of a recurrent layer beside its slots.

    ``hidden_size`` is what the attribute says, 0 where it says nothing: it alone decides on the kernel, since extents
    may not. Axes of x are time and batch, and with ``is_batch_first`` the other way round. ``is_linear`` is a GRU's.
    """

    cell: str
    gates: int
    reverses: tuple[bool, ...]
    functions: tuple[Bound, ...]
    clip: float
    hidden_size: int
    is_batch_first: bool
    is_linear: bool = False
    input_forget: bool = False


@dataclass(frozen=True, slots=True)
class RecurrentOperands:
    """The inputs of a layer as ONNX has them."""

    x: Slot
    weights: Slot
    recurrent: Slot
    bias: Slot | None
    lengths: Slot | None
    first_h: Slot | None
    first_c: Slot | None
    peepholes: Slot | None


def launch_layer(emit: Emitter, layer: RecurrentLayer, operands: RecurrentOperands, outputs: Slots) -> None:
    """Launch a layer into Y, the last h and the last c, of which some may be absent."""
    x, recurrent = operands.x, operands.recurrent
    directions, hidden = recurrent.shape[0], recurrent.shape[2]
    acc, cuda = accumulator(x.dtype), dtype_row(x.dtype).cuda
    steps, batch = x.shape[1::-1] if layer.is_batch_first else x.shape[:2]
    products = _multiply_inputs(emit, x, operands.weights)
    read = (operands.bias, operands.lengths, operands.first_h, operands.first_c, operands.peepholes)
    dense = [None if slot is None else emit.contiguous(slot) for slot in read]
    planes = _PLANES[layer.cell] + (2 if layer.cell == "GRU" and not layer.is_linear else 0)
    scratch = emit.temp((planes, directions, batch, hidden), acc)
    arguments: list[Argument] = [products, emit.contiguous(recurrent), *dense, *(*outputs, None, None)[:3], scratch]
    writes = [index for index in (7, 8, 9, 10) if arguments[index] is not None]
    is_small = layer.hidden_size > 0 and layer.gates * layer.hidden_size**2 <= _FEW_WEIGHTS
    if is_small:
        units, barrier = next((units for units in _SLICES if units >= hidden), _SLICES[-1]), None
        blocks = directions * ceil_div(batch, _TILE_BYTES // acc.itemsize)
    else:
        # The slices are the same on every device, since a sum's order follows from them; how many blocks share them is
        # the device's.
        units, barrier = _SLICES[0], emit.counters(1)
        places = _BLOCKS_PER_MULTIPROCESSOR * emit.target.multiprocessors
        blocks = min(directions * ceil_div(hidden, units), places)
        writes.append(len(arguments))
    arguments += [barrier, _pack(layer, (steps, batch, hidden, directions), units.bit_length() - 1)]
    kernel, grid = Kernel(_SOURCE, f"recur<{cuda}>"), (max(1, blocks), 1, 1)
    emit.launch(kernel, grid, (_THREADS, 1, 1), arguments, writes, cooperative=not is_small)


def _multiply_inputs(emit: Emitter, x: Slot, weights: Slot) -> Slot:
    """Return x times the weights of each direction, in the accumulator: ``[directions, *x.shape[:2], gates]``."""
    acc = accumulator(x.dtype)
    x, weights = (_widen(emit, slot) for slot in (x, weights))
    directions, columns, width = weights.shape
    products = emit.temp((directions, *x.shape[:2], columns), acc)
    left = window(x, (1, *x.shape), (0, *x.strides))
    across = (weights.strides[0], 0, weights.strides[2], weights.strides[1])
    right = window(weights, (directions, 1, width, columns), across)
    MatMul().lower(emit, (left, right), (products,))
    return products


def _widen(emit: Emitter, slot: Slot) -> Slot:
    acc = accumulator(slot.dtype)
    if acc == slot.dtype:
        return slot
    wide = emit.temp(slot.shape, acc)
    Cast(dtype_row(acc).code).lower(emit, (slot,), (wide,))
    return wide


def _pack(layer: RecurrentLayer, extents: tuple[int, int, int, int], log_units: int) -> bytes:
    """Return the bytes of the struct ``Recurrence`` of rnn.cu."""
    steps, batch, hidden, directions = extents
    of_direction, outer, inner, _ = contiguous_strides(
        (directions, *((batch, steps) if layer.is_batch_first else (steps, batch)), layer.gates * hidden)
    )
    into = (of_direction, inner, outer) if layer.is_batch_first else (of_direction, outer, inner)
    state = (hidden, directions * hidden) if layer.is_batch_first else (batch * hidden, hidden)
    # Y is [batch, steps, directions, hidden], or [steps, directions, batch, hidden].
    rows = directions * hidden
    y = (hidden, rows, steps * rows) if layer.is_batch_first else (batch * hidden, batch * rows, hidden)
    reversed_bits = sum(1 << d for d, is_reverse in enumerate(layer.reverses) if is_reverse)
    flags = (CELLS[layer.cell], reversed_bits, layer.input_forget, layer.is_linear, log_units)
    numbers = (steps, batch, hidden, directions, layer.gates, *into, *y, *state, *state, *flags)
    functions = [*layer.functions, *[Bound(0, 0.0, 0.0)] * (6 - len(layer.functions))]
    packed = [pack_struct("<qdd", each.kind, each.alpha, each.beta) for each in functions]
    return pack_struct("<20qd", *numbers, layer.clip) + join_bytes(packed)


# Instructions of a thread for 16 multiply-adds, and for what else a step takes; places of k whose loads are under way
# together.
_EACH_SUM, _EACH_STEP, _TERMS_TOGETHER = 113 / 16, 400, 1


@work_of(_SOURCE, "recur")
def _count_recurrence(launch: Launch) -> Work:
    packed, weights = launch.arguments[-1], launch.arguments[1]
    assert isinstance(packed, bytes) and isinstance(weights, Slot)
    steps, batch, hidden, directions, gates = struct.unpack_from("<5q", packed)
    cell, _, _, is_linear, log_units = struct.unpack_from("<5q", packed, 15 * 8)
    phases = 2 if cell == CELLS["GRU"] and not is_linear else 1
    blocks, warps = launch.grid[0], _THREADS // 32
    tiles = ceil_div(batch, _TILE_BYTES // 4)
    # Pieces of a block in a row: slices of units of all tiles where blocks share them, else all slices of a tile.
    slices = ceil_div(hidden, 1 << log_units)
    pieces = ceil_div(directions * slices, blocks) * tiles if launch.cooperative else slices
    terms = ceil_div(hidden << log_units, _THREADS)  # places of k of a thread
    sums = directions * gates * steps * batch * hidden * hidden
    issued = gates * (_TILE_BYTES // 4) * terms * _EACH_SUM + _EACH_STEP
    meetings = 2 * phases if launch.cooperative else 0  # a barrier of all blocks is an atomic and a load
    weight_nbytes = count_slot_bytes(weights)
    return Work(
        flops=2 * sums + 8 * directions * gates * steps * batch * hidden,
        instructions=blocks * warps * steps * pieces * issued,
        needed_multiply_adds=sums,
        multiply_adds=blocks * warps * steps * pieces * gates * (_TILE_BYTES // 4) * terms,
        l2_nbytes=steps * (weight_nbytes if launch.cooperative else 0) + weight_nbytes,
        rounds=steps * (pieces * phases * ceil_div(terms, _TERMS_TOGETHER) + meetings),
        barriers=steps * pieces * 2 * phases,
        registers=122,
        shared_nbytes=18432,
    )

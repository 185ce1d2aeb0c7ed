"""Shared parts of sorting operators: order-preserving keys, and the launches that sort rows of keys.

Tiles of 1024 rows are sorted by a bitonic network each; then seven merges join eight runs each, every element finding
its place by how many come before it in each of the others. A merge that has nothing left to join copies, so the number
of launches is the same for every size. Rows that are equal stand by number: the order is the stable one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import COMPUTED, STRING, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, read_int, work_of

SOURCE = "sort.cu"
TILE = 1024  # kSortTile of sort.cuh
_THREADS, _WAYS = 256, 8  # kThreads, kWays of sort.cu
_MERGES = 7  # join 2**31 rows
_INDEX = np.dtype(np.int64)
KEY_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
instantiate(SOURCE, [f"make_keys<{row.cuda}>" for row in COMPUTED])
instantiate(SOURCE, [f"{kernel}<{key}>" for kernel in ("sort_tiles", "merge_runs") for key in KEY_TYPES.values()])


def sort_keys(x: Array) -> Array:
    """Return unsigned integers that are ordered as the values are: -0 as 0, every NaN one key above all others.

    Strings get their ranks, in the order of code points.
    """
    if x.dtype == STRING:
        return np.unique(x, return_inverse=True)[1].astype(np.uint64).reshape(x.shape)
    bits = np.dtype(f"u{x.dtype.itemsize}")
    sign = bits.type(1 << (8 * x.dtype.itemsize - 1))
    plain = np.array(x, order="C")
    if x.dtype.kind in "biu":
        return np.asarray(plain.view(bits) ^ (sign if x.dtype.kind == "i" else bits.type(0)))
    with np.errstate(all="ignore"):
        is_nan = plain != plain
        plain += np.zeros((), x.dtype)  # -0 becomes 0
    if is_nan.any():
        plain[is_nan] = np.nan
    found = plain.view(f"i{x.dtype.itemsize}")
    keys = (found >> (8 * x.dtype.itemsize - 1)).view(bits)  # all ones of negative numbers
    keys |= sign
    keys ^= found.view(bits)
    return np.asarray(keys)


def largest_key(dtype: np.dtype[Any]) -> int:
    """Return the largest key of a number: above it is only that of NaN, which host and device write differently."""
    if dtype.kind in "biuO":
        return (1 << 8 * dtype.itemsize) - 1
    return int(sort_keys(np.full(1, np.inf, dtype))[0])


def make_keys(emit: Emitter, x: Slot) -> Slot:
    """Launch the keys of a slot, dense and of its shape."""
    keys = emit.temp(x.shape, f"u{x.dtype.itemsize}")
    emit.launch(
        Kernel(SOURCE, f"make_keys<{dtype_row(x.dtype).cuda}>"),
        (max(1, ceil_div(x.spec.size, _THREADS)), 1, 1),
        (_THREADS, 1, 1),
        [emit.contiguous(x), keys, int64(x.spec.size)],
        writes=[1],
    )
    return keys


def sort_rows(emit: Emitter, keys: Slot, rows: int, columns: int) -> Slot:
    """Launch the sort of dense rows of keys, and return the numbers of the rows in order, as int64."""
    key = KEY_TYPES[keys.dtype.itemsize]
    order, merged = emit.temp((rows,), _INDEX), emit.temp((rows,), _INDEX)
    extents = (int64(rows), int64(columns))
    tiles = (max(1, ceil_div(rows, TILE)), 1, 1)
    emit.launch(Kernel(SOURCE, f"sort_tiles<{key}>"), tiles, (_THREADS, 1, 1), [keys, order, *extents], writes=[1])
    grid, run = (max(1, ceil_div(rows, _THREADS)), 1, 1), TILE
    for _ in range(_MERGES):
        arguments: list[Argument] = [keys, order, merged, *extents, int64(run)]
        emit.launch(Kernel(SOURCE, f"merge_runs<{key}>"), grid, (_THREADS, 1, 1), arguments, writes=[2])
        order, merged, run = merged, order, run * _WAYS
    return order


# Instructions of a thread: to compare two rows by one column, and around; wavefronts of a pair of places.
_COMPARE, _AROUND, _PAIR_WAVEFRONTS = 30, 60, 8


def count_sort(places: int, threads: int) -> tuple[int, int]:
    """Return the steps of the network that sorts a tile of places, and the comparisons of a thread in them."""
    levels = max(0, places - 1).bit_length()
    steps = levels * (levels + 1) // 2
    return steps, steps * ceil_div(1 << levels, 2 * threads)


@work_of(SOURCE, "sort_tiles")
def _count_tiles(launch: Launch) -> Work:
    keys, order = launch.arguments[:2]
    rows, columns = map(read_int, launch.arguments[2:])
    assert isinstance(keys, Slot) and isinstance(order, Slot)
    steps, compared = count_sort(min(TILE, rows), _THREADS)
    return Work(
        instructions=count_warps(launch) * (_AROUND + compared * _COMPARE * max(1, columns)),
        wavefronts=count_warps(launch) * compared * _PAIR_WAVEFRONTS,
        l2_nbytes=count_slot_bytes(keys) + order.spec.nbytes,  # L1 has the keys of a tile
        rounds=1 + steps,
        barriers=steps + 1,
        shared_nbytes=8 * TILE,
    )


@work_of(SOURCE, "merge_runs")
def _count_merge(launch: Launch) -> Work:
    keys, order, merged = launch.arguments[:3]
    rows, columns, run = map(read_int, launch.arguments[3:])
    assert isinstance(keys, Slot) and isinstance(order, Slot) and isinstance(merged, Slot)
    runs = min(_WAYS, ceil_div(rows, run))
    halvings = (runs - 1) * min(run, rows).bit_length()  # of the other runs, in search of a row's place
    return Work(
        instructions=count_warps(launch) * (_AROUND + halvings * _COMPARE * max(1, columns)),
        l2_nbytes=order.spec.nbytes + merged.spec.nbytes + (count_slot_bytes(keys) * 2 if halvings else 0),
        rounds=1 + 2 * halvings,
        operand_nbytes={} if halvings else {0: 0},
    )

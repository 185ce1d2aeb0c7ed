"""Strided copies on their own, and the operators made of them: Concat, Tile, EyeLike, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec.ops.tensor.depth_space  # noqa: F401 (registers its operators)
from gpuexec.devices.simulator.counts import LaunchCounts, RequestCounts
from gpuexec.devices.simulator.module import load_file
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.lib.across import read_lanes
from gpuexec.ops.lib.strided import Walk
from gpuexec.ops.tensor import copy
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Array, Case, run_case


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def tile(id: str, x: tuple[int, ...], *repeats: int) -> Case:
    return Case(f"tile_{id}", "Tile", (arange(*x), ints(*repeats)), const=(1,))


CASES = [
    Case("concat", "Concat", (arange(2, 3), arange(4, 3)), {"axis": 0}),
    Case("concat_inner", "Concat", (arange(2, 3), arange(2, 1), arange(2, 5)), {"axis": 1}),
    Case("concat_negative", "Concat", (arange(2, 3, 2), arange(2, 3, 3)), {"axis": -1}),
    Case("concat_one", "Concat", (arange(2, 3),), {"axis": 0}),
    Case("concat_twice", "Concat", (arange(3), arange(3)), {"axis": 0}, opset=7),
    Case("concat_empty_piece", "Concat", (arange(2, 3), arange(2, 0), arange(2, 1)), {"axis": 1}),
    Case("concat_all_empty", "Concat", (arange(0, 3), arange(0, 3)), {"axis": 0}),
    Case("concat_strided", "Concat", (arange(6, 4).T, arange(4, 3)[:, ::-1]), {"axis": 1}),
    Case("concat_transposed", "Concat", (arange(45, 70).T, arange(70, 2)), {"axis": 1}),
    Case("concat_pixels", "Concat", (arange(2, 150, 3).transpose(0, 2, 1), arange(2, 3, 1)), {"axis": 2}),
    Case("concat_many_units", "Concat", (arange(50, 60)[:, ::2], arange(50, 1)), {"axis": 1}),
    tile("one_axis", (2, 3), 1, 4),
    tile("all_axes", (2, 3, 2), 2, 2, 3),
    tile("once", (2, 3), 1, 1),
    tile("never", (2, 3), 2, 0),
    tile("empty", (0, 3), 2, 2),
    tile("scalar", ()),
    tile("ten_walked_axes", (2, 1, 2, 2, 2, 2), 2, 3, 2, 2, 2, 2),
    Case("tile_strided", "Tile", (arange(6, 4)[::2, ::-1], ints(2, 3)), const=(1,)),
    Case("depth_dcr", "DepthToSpace", (arange(2, 8, 2, 3),), {"blocksize": 2}),
    Case("depth_crd", "DepthToSpace", (arange(2, 18, 2, 3),), {"blocksize": 3, "mode": "CRD"}),
    Case("depth_old", "DepthToSpace", (arange(1, 8, 2, 3),), {"blocksize": 2}, opset=7),
    Case("depth_empty", "DepthToSpace", (arange(0, 8, 2, 3),), {"blocksize": 2}),
    Case("depth_strided", "DepthToSpace", (arange(2, 3, 2, 8).transpose(0, 3, 2, 1),), {"blocksize": 2}),
    Case("space", "SpaceToDepth", (arange(2, 3, 4, 6),), {"blocksize": 2}),
    Case("space_dcr", "SpaceToDepth", (arange(2, 3, 4, 6),), {"blocksize": 2, "mode": "DCR"}, opset=28),
    Case("space_crd", "SpaceToDepth", (arange(2, 3, 4, 6),), {"blocksize": 2, "mode": "CRD"}, opset=28),
    Case("space_old", "SpaceToDepth", (arange(1, 2, 3, 6),), {"blocksize": 3}, opset=7),
    *(Case(f"eye_{k}", "EyeLike", (arange(3, 5),), {"k": k}) for k in (-9, -3, -2, 0, 1, 4, 5, 9)),
    *(Case(f"eye_tall_{k}", "EyeLike", (arange(5, 3),), {"k": k}) for k in (-5, -4, -2, 0, 2, 3)),
    *(
        Case(
            f"eye_{row.name}", "EyeLike", (arange(3, 3),), {"dtype": row.code}, expected=(np.eye(3).astype(row.numpy),)
        )
        for row in COMPUTED
    ),
    Case("eye_own_dtype", "EyeLike", (arange(2, 3, dtype=np.int32),)),
    Case("eye_empty", "EyeLike", (arange(0, 3),), {"k": 1}),
    Case("eye_strided", "EyeLike", (arange(6, 4)[::2].T,)),
]
CASES += [
    case
    for row in COMPUTED
    for x in [arange(4, 6).astype(row.numpy)]
    for case in [
        Case(f"concat_{row.name}", "Concat", (x, x[:1]), {"axis": 0}, expected=(np.vstack([x, x[:1]]),)),
        Case(f"tile_{row.name}", "Tile", (x, ints(2, 1)), const=(1,), expected=(np.vstack([x, x]),)),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_copy(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.fixture
def takes_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads take squares of however few units."""
    monkeypatch.setattr(copy, "_FILLING_SQUARES", 0)
    monkeypatch.setattr(copy, "_divide_work", copy._divide_work.__wrapped__)


def turned(id: str, *shape: int, dtype: Any = np.float32) -> Case:
    """Return a copy of an array whose last two axes are exchanged in memory, beside a copy of a row."""
    x = (arange(*shape) % 251).astype(dtype).swapaxes(-1, -2)
    return Case(f"turned_{id}", "Concat", (x, x[..., :1, :]), {"axis": x.ndim - 2})


@pytest.mark.usefixtures("takes_squares")
@pytest.mark.parametrize(
    "case",
    [
        *(turned(np.dtype(t).name, 64, 96, dtype=t) for t in (np.uint8, np.float16, np.float32, np.float64)),
        turned("batches", 2, 3, 32, 64),
        turned("rows", 16, 160),
        turned("columns", 160, 16),
        turned("pairs", 32, 48, 2),
    ],
    ids=lambda case: case.id,
)
def test_turned_copy(checks: str, case: Case) -> None:
    run_case(case, checks)


def same(x: Array) -> Array:
    return x


# Name, shape of the source's memory, view of it, window on the destination's memory.
VIEWS: list[tuple[str, tuple[int, ...], Callable[[Array], Array], Callable[[Array], Array]]] = [
    ("scalar", (), same, same),
    ("dense", (7, 9), same, same),
    ("many_blocks", (5, 1024), same, same),
    ("rows_of_wide_units", (6, 64), lambda x: x[::2, 16:48], lambda x: x[1::2, :32]),
    ("rows_of_odd_length", (6, 31), lambda x: x[::2, 1:28], lambda x: x[1::2, 3:30]),
    ("rows_of_odd_stride", (6, 31), lambda x: x[:, :24], lambda x: np.empty((6, 24), x.dtype)),
    ("offset_by_one", (4, 64), lambda x: x[:, 1:17], lambda x: x[:, :16]),
    ("reversed", (5, 32), lambda x: x[::-1, ::-1], same),
    ("reversed_rows", (5, 32), lambda x: x[::-1], same),
    ("into_reversed", (5, 32), same, lambda x: x[::-1, ::-1]),
    ("every_third", (4, 30), lambda x: x[:, ::3], lambda x: x[:, 1::3]),
    ("stretched", (32,), lambda x: np.broadcast_to(x, (3, 32)), lambda x: np.empty((3, 32), x.dtype)),
    ("stretched_inner", (3, 1), lambda x: np.broadcast_to(x, (3, 8)), lambda x: np.empty((3, 8), x.dtype)),
    ("transposed_small", (5, 6), lambda x: x.T, lambda x: np.empty((6, 5), x.dtype)),
    ("transposed", (70, 45), lambda x: x.T, lambda x: np.empty((45, 70), x.dtype)),
    ("transposed_one_tile", (32, 32), lambda x: x.T, lambda x: np.empty((32, 32), x.dtype)),
    ("transposed_squares", (96, 160), lambda x: x.T, lambda x: np.empty((160, 96), x.dtype)),
    ("transposed_long_squares", (400, 16), lambda x: x.T, lambda x: np.empty((16, 400), x.dtype)),
    ("transposed_tall_squares", (32, 400), lambda x: x.T, lambda x: np.empty((400, 32), x.dtype)),
    ("into_transposed_squares", (48, 64), same, lambda x: np.empty((64, 48), x.dtype).T),
    ("images", (2, 32, 8, 8), lambda x: x.transpose(0, 2, 3, 1), lambda x: np.empty((2, 8, 8, 32), x.dtype)),
    ("into_square_window", (32, 64), lambda x: x.T, lambda x: np.empty((80, 96), x.dtype)[8:72, 16:48]),
    ("transposed_batches", (3, 40, 33), lambda x: x.transpose(0, 2, 1), lambda x: np.empty((3, 33, 40), x.dtype)),
    ("channels_last", (2, 20, 5, 7), lambda x: x.transpose(0, 2, 3, 1), lambda x: np.empty((2, 5, 7, 20), x.dtype)),
    ("channels_first", (2, 5, 7, 20), lambda x: x.transpose(0, 3, 1, 2), lambda x: np.empty((2, 20, 5, 7), x.dtype)),
    ("transposed_reversed", (40, 45), lambda x: x[::-1, ::-1].T, lambda x: np.empty((45, 40), x.dtype)),
    ("transposed_into_window", (40, 45), lambda x: x.T, lambda x: np.empty((50, 64), x.dtype)[3:48, 2:42]),
    ("into_transposed", (40, 45), same, lambda x: np.empty((45, 40), x.dtype).T),
    ("pixels_apart", (2, 300, 3), lambda x: x.transpose(0, 2, 1), lambda x: np.empty((2, 3, 300), x.dtype)),
    ("pixels_together", (2, 3, 300), lambda x: x.transpose(0, 2, 1), lambda x: np.empty((2, 300, 3), x.dtype)),
    ("transposed_two_rows", (2, 600), lambda x: x.T, lambda x: np.empty((600, 2), x.dtype)),
    ("transposed_pairs", (40, 35, 2), lambda x: x.transpose(1, 0, 2), lambda x: np.empty((35, 40, 2), x.dtype)),
    ("transposed_window", (24, 90), lambda x: x[1:, 3:80].T, lambda x: np.empty((80, 25), x.dtype)[2:79, 1:24]),
    ("more_units_than_blocks", (700, 391), lambda x: x[:, ::2], lambda x: np.empty((700, 196), x.dtype)),
    ("rank_eight", (2, 3) * 4, lambda x: x.transpose(7, 6, 5, 4, 3, 2, 1, 0), lambda x: np.empty((3, 2) * 4, x.dtype)),
    ("rank_ten", (2,) * 10, lambda x: x.T, lambda x: np.empty((2,) * 10, x.dtype)),
]


class CountingEmitter(DirectEmitter):
    """Counts the memory requests of launches, over arrays that start with a sector."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[LaunchCounts] = []

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel in count mode."""
        functions = load_file(kernel.source, kernel_table()[kernel.source], mode="count")
        given = [_align(self.arrays[a.buffer])[a.offset_bytes :] if isinstance(a, Slot) else a for a in arguments]
        functions[kernel.expression].launch_arrays(grid, block, *given, counts=self.counts)


def _align(memory: Array, alignment: int = 256) -> Array:
    whole = np.zeros(memory.nbytes + alignment, np.uint8)
    first = -whole.ctypes.data % alignment
    return whole[first : first + memory.nbytes]


@pytest.mark.usefixtures("takes_squares")
@pytest.mark.parametrize("is_wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32, np.float64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(("id", "shape", "source", "destination"), VIEWS, ids=[row[0] for row in VIEWS])
def test_copy_commands(
    id: str,
    shape: tuple[int, ...],
    source: Any,
    destination: Any,
    dtype: Any,
    is_wide: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_wide:  # as if offsets needed more than 32 bits
        monkeypatch.setattr(Walk, "is_wide", property(lambda walk: True))
    x = ((arange(*shape, dtype=np.int64) * 7 + 1) % 60_000).astype(dtype)
    emit = DirectEmitter()
    target = emit.slot(destination(np.zeros_like(x)))
    copy.copy_commands(emit, target, emit.slot(source(x)))
    np.testing.assert_array_equal(emit.read(target), source(x))


@pytest.mark.parametrize(
    ("dtype", "columns", "unit"),
    [
        (np.float32, slice(0, 16), 16),
        (np.float32, slice(2, 18), 8),
        (np.float32, slice(1, 17), 4),
        (np.float32, slice(0, 18), 8),
        (np.float32, slice(0, 15), 4),
        (np.uint8, slice(0, 16), 16),
        (np.uint8, slice(4, 16), 4),
        (np.uint8, slice(1, 16), 1),
        (np.float64, slice(2, 8), 16),
        (np.float64, slice(None, None, -1), 8),
    ],
)
def test_units_are_as_long_as_alignment_allows(dtype: Any, columns: slice, unit: int) -> None:
    emit = DirectEmitter()
    memory = emit.slot(arange(4, 64, dtype=dtype))
    row = np.empty((4, 64), dtype)[:, columns]
    first = columns.indices(64)[0] * memory.dtype.itemsize
    strides = tuple(stride // row.itemsize for stride in row.strides)
    source = Slot(memory.buffer, first, TensorSpec(row.shape, row.dtype), strides)
    copy.copy_commands(emit, emit.temp(row.shape, dtype), source)
    ((_, arguments),) = emit.launches
    assert arguments[-1] == unit


def test_copy_keeps_what_lies_between() -> None:
    emit = DirectEmitter()
    memory = emit.slot(np.full((4, 8), 7, np.float32))
    window = Slot(memory.buffer, 4, TensorSpec((2, 3), np.dtype(np.float32)), (16, 2))
    copy.copy_commands(emit, window, emit.slot(arange(2, 3)))
    expected = np.full((4, 8), 7, np.float32)
    expected[::2, 1:7:2] = arange(2, 3)
    np.testing.assert_array_equal(emit.read(memory), expected)


def test_commands_do_not_depend_on_extents() -> None:
    counts = set()
    for rows in (1, 2, 31, 64, 100):
        emit = DirectEmitter()
        copy.copy_commands(emit, emit.temp((48, rows), np.float32), emit.slot(arange(rows, 48).T))
        counts.add(tuple(kernel.expression for kernel, _ in emit.launches))
    assert counts == {("copy_strided",)}


@pytest.mark.parametrize(
    ("dtype", "shape", "view", "most"),
    [
        (np.float32, (96, 160), lambda x: x.T, 1.0),
        (np.float16, (2, 96, 160), lambda x: x.transpose(0, 2, 1), 1.0),
        (np.float32, (512, 640), lambda x: x.T, 1.0),
        (np.float16, (2, 1024, 640), lambda x: x.transpose(0, 2, 1), 1.0),
        (np.uint8, (1024, 1024), lambda x: x.T, 1.0),
        (np.float32, (70, 100), lambda x: x.T, 1.25),  # of odd rows, where tiles end within sectors
        (np.float32, (2, 1600, 3), lambda x: x.transpose(0, 2, 1), 1.0),
        (np.float32, (2, 3, 1600), lambda x: x.transpose(0, 2, 1), 1.0),
        (np.float32, (64, 96, 2), lambda x: x.transpose(1, 0, 2), 1.0),
        (np.float32, (2, 64, 4, 32), lambda x: x.transpose(0, 2, 1, 3), 1.0),
        (np.float32, (64, 128), lambda x: x[:, 32:96], 1.0),
        (np.float32, (64, 127), lambda x: x[:, 1:90], 1.35),  # rows that start within sectors
        (np.float32, (1, 256), lambda x: np.broadcast_to(x, (64, 256)), 1.0),
        (np.float32, (256, 1), lambda x: np.broadcast_to(x, (256, 64)), 1.0),
        (np.float32, (64, 256), lambda x: x[:, ::-1], 1.0),
    ],
)
def test_sectors_are_near_the_least(dtype: Any, shape: tuple[int, ...], view: Any, most: float) -> None:
    emit = CountingEmitter()
    source = emit.slot(view(arange(*shape, dtype=dtype)))
    copy.copy_commands(emit, emit.fresh(source.shape, dtype), source)
    for access in ("read", "write"):
        rows = [row.counts for row in emit.counts[0].lines if (row.space, row.access) == ("global", access)]
        assert sum(rows, RequestCounts()).ratio <= most, access


def test_vectors_serve_many_units_whose_rows_are_aligned() -> None:
    def find_lanes(dtype: Any, rows: int, columns: int, first: int = 0) -> int:
        emit = DirectEmitter()
        whole = np.empty((rows, columns + first), dtype)
        source = emit.slot(whole[:, first:].T)
        source = Slot(source.buffer, first * whole.itemsize, source.spec, source.strides)
        emit.arrays[source.buffer] = np.zeros(whole.nbytes + 64, np.uint8)
        copy.copy_commands(emit, emit.temp(source.shape, dtype), source)
        ((_, arguments),) = emit.launches
        return read_lanes(arguments[-2])

    lanes = {np.uint8: 8, np.float16: 8, np.float32: 4, np.float64: 2}
    assert {dtype: find_lanes(dtype, 1024, 1024) for dtype in lanes} == lanes
    assert (
        find_lanes(np.float32, 64, 64) == find_lanes(np.float32, 1023, 1024) == find_lanes(np.float32, 1024, 1022) == 1
    )
    assert find_lanes(np.float32, 1024, 1024, 2) == 1 and find_lanes(np.float32, 1024, 1024, 4) == 4


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("Concat", {"axis": 0}, (), "at least one input"),
        ("Concat", {"axis": 2}, (spec(2, 3), spec(2, 3)), "axis is out of range"),
        ("Concat", {"axis": 0}, (spec(2, 3), spec(2, 4)), "input 1 is float32\\[2,4\\]"),
        ("Concat", {"axis": 0}, (spec(2, 3), spec(2)), "input 1 is float32\\[2\\]"),
        ("Concat", {"axis": 0}, (spec(2, 3), spec(2, 3, dtype=np.float16)), "input 1 is float16"),
        ("Concat", {"axis": 0}, (spec(), spec()), "axis is out of range"),
        ("Tile", {}, (spec(2, 3), TensorSpec.of(ints(2))), "for each of 2 axes, got \\[2\\]"),
        ("Tile", {}, (spec(2), TensorSpec.of(ints(-1))), "0 or more"),
        ("EyeLike", {}, (spec(2, 3, 4),), "expects a matrix"),
        ("DepthToSpace", {"blocksize": 2}, (spec(1, 6, 2, 2),), "divisible by blocksize"),
        ("DepthToSpace", {"blocksize": 2, "mode": "DRC"}, (spec(1, 8, 2, 2),), "'DCR' or 'CRD'"),
        ("SpaceToDepth", {"blocksize": 2}, (spec(1, 1, 3, 2),), "divisible by 2"),
        ("SpaceToDepth", {"blocksize": 2}, (spec(1, 4, 2),), r"expects \[n, c, h, w\]"),
        ("SpaceToDepth", {"blocksize": 2, "mode": "X"}, (spec(1, 4, 2, 2),), "must be 'DCR' or 'CRD', got 'X'"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


@pytest.mark.parametrize("name", ["EyeLike", "DepthToSpace", "SpaceToDepth"])
def test_attributes_are_those_of_the_standard(name: str) -> None:
    attributes = onnx.defs.get_schema(name).attributes
    required = {key: 2 for key, attribute in attributes.items() if attribute.required}
    op = build(name, required)
    for key, attribute in attributes.items():
        if not attribute.required:
            default = attribute.default_value
            expected = {onnx.AttributeProto.INT: default.i, onnx.AttributeProto.STRING: default.s.decode()}
            assert getattr(op, key) == expected.get(default.type)
    assert {field.name for field in dataclasses.fields(op)} == set(attributes)  # type: ignore[arg-type]


def test_tile_asks_for_repeats() -> None:
    with pytest.raises(NeedsHostValue):
        build("Tile", {}).infer(spec(2), spec(1, dtype=np.int64))


def test_concat_of_other_ranks_is_refused_at_the_axis_that_one_lacks() -> None:
    specs = [TensorSpec((2, 4, 0), np.dtype(np.float32)), TensorSpec((2, 4), np.dtype(np.float32))]
    with pytest.raises(InputError, match=r"input 1 is float32\[2,4\], input 0 is float32\[2,4,0\]"):
        copy.Concat(2).infer(*specs)

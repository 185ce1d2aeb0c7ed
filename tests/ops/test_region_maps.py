"""Regions with index maps: windows, picked slices and views, bit-equal to their operators one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.cli.operator_types import PIXEL
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_source import find_source, read_text
from gpuexec.devices.kernels.machine_code import read_figures
from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Kernel
from gpuexec.ir.index_map import Assembled, Picked, Viewed, ViewedAxis, Window
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.elementwise import region_boxes
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import (
    find_forms,
    find_map,
    list_keys,
    list_moved,
    read_number,
    write_integers,
)
from gpuexec.ops.lib.view_probe import find_view
from tests.devices.cuda_wheels import needs_nvdisasm
from tests.ops.direct import PlanningEmitter, lower_and_run
from tests.ops.harness import Array, Case, run_case
from tests.ops.step_by_step import Steps, check_blits
from tests.ops.test_region import apply_steps, numbers, region
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(29)
FLOAT, HALF, DOUBLE = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64)
INT, LONG, BYTE, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_)
TO_HALF, TO_FLOAT = ((("to", dtype_row(dtype).code),) for dtype in (HALF, FLOAT))


def axis(number: int) -> tuple[tuple[str, int], ...]:
    return (("axis", number),)


def ints(*numbers: int) -> str:
    return write_integers(np.array(numbers, np.int64))


def indices(dtype: Any, *rows: Any) -> Array:
    return np.array(rows, dtype)


def spec(*shape: int, dtype: Any = FLOAT) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


EMBEDDING: Steps = (("Gather", (), (0, 1)), ("Gather", (), (2, 3)), ("Add", (), (-1, -2)), ("Add", (), (-3, 4)))
ROTARY: Steps = (
    ("Neg", (), (0,)),
    ("Concat", axis(-1), (-1, 1)),
    ("Mul", (), (-2, 2)),
    ("Mul", (), (3, 4)),
    ("Add", (), (-3, -4)),
)
PADDED: Steps = (("Cast", TO_HALF, (0,)), ("Pad", (), (-1, ints(0, 0, 1, 2, 0, 0, 2, 2), "float16 0.5", None)))
TURNED: Steps = (("Relu", (), (0,)), ("Transpose", (("perm", (0, 2, 1)),), (-1,)), ("Add", (), (-2, 1)))
NESTED: Steps = (
    ("Neg", (), (0,)),
    ("Slice", (), (-1, ints(-1), ints(-20), ints(-1), ints(-2))),
    ("Unsqueeze", (), (-2, ints(1))),
    ("Concat", axis(1), (-3, 1)),
    ("Transpose", (("perm", (0, 2, 1)),), (-4,)),
    ("Concat", axis(2), (-5, 2, 3)),
    ("Mul", (), (-6, 4)),
)


def rotary(dtype: Any, *shape: int, of: Sequence[int] | None = None) -> list[Array]:
    """Return halves of the last axis, sines, the whole, and cosines."""
    x, half = numbers(dtype, *shape), shape[-1] // 2
    table = shape[-2:] if of is None else of
    return [x[..., half:], x[..., :half], numbers(dtype, *table), x, numbers(dtype, *table)]


def pad(*pads: int, value: int | str | None = None) -> Steps:
    return (("Relu", (), (0,)), ("Pad", (), (-1, ints(*pads), value)))


CASES = [
    # Picked slices.
    *(
        region(
            f"embedding_{np.dtype(dtype)}_{np.dtype(index).name}",
            [
                numbers(dtype, 10, width),
                indices(index, [1, -2, 3], [0, 9, -10]),
                numbers(dtype, 5, width),
                indices(INT, 1, 2, -1),
                numbers(dtype, 3, width),
            ],
            EMBEDDING,
        )
        for dtype, index, width in (
            (FLOAT, LONG, 8), (HALF, INT, 16), (BFLOAT16, LONG, 7), (DOUBLE, INT, 1), (INT, LONG, 12),
            (np.uint32, INT, 3), (np.uint64, LONG, 5), (BYTE, INT, 13)
        )
    ),
    region(
        "picked_along_the_last_axis",
        [numbers(FLOAT, 4, 9), indices(LONG, [0, -1], [3, 3], [8, -9]), numbers(FLOAT, 3, 2)],
        (("Gather", axis(-1), (0, 1)), ("Add", (), (-1, 2))),
    ),
    region(
        "picked_between",
        [numbers(HALF, 3, 5, 8), indices(INT, -5, 4), numbers(HALF, 8)],
        (("Gather", axis(1), (0, 1)), ("Mul", (), (-1, 2))),
    ),
    region(
        "picked_by_one_index",
        [numbers(FLOAT, 3, 8), np.array(-1, LONG), numbers(FLOAT, 2, 8)],
        (("Gather", (), (0, 1)), ("Add", (), (-1, 2))),
    ),
    region(
        "picked_of_views",
        [numbers(FLOAT, 8, 12)[::2, ::-1], indices(LONG, [3, 0], [1, 2])[:, ::-1], numbers(FLOAT, 12)],
        (("Gather", (), (0, 1)), ("Sub", (), (-1, 2))),
    ),
    region(
        "picked_by_itself",
        [indices(LONG, 2, 0, 1, -1)],
        (("Gather", (), (0, 0)), ("Add", (), (-1, 0))),
    ),
    region("picked_one", [numbers(FLOAT, 6), np.array(2, INT)], (("Gather", (), (0, 1)), ("Neg", (), (-1,)))),
    region(
        "picked_none",
        [numbers(FLOAT, 6, 4), indices(LONG).reshape(0, 2)],
        (("Gather", (), (0, 1)), ("Neg", (), (-1,))),
    ),
    region(
        "picked_none_beside_others",
        [numbers(FLOAT, 4, 8), indices(LONG), indices(LONG, 3, -4), numbers(FLOAT, 2, 8)],
        (("Gather", (), (0, 1)), ("Gather", (), (0, 2)), ("Concat", axis(0), (-1, -2)), ("Add", (), (-3, 3))),
    ),
    region(
        "picked_bytes",
        [RNG.integers(0, 255, (6, 16)).astype(BYTE), indices(LONG, 5, 0, -6)],
        (("Gather", (), (0, 1)), ("Cast", TO_HALF, (-1,)), ("Mul", (), (-2, "float16 0.00392"))),
    ),
    region(
        "picked_words",
        [np.arange(30, dtype=np.uint16).reshape(6, 5), indices(LONG, 5, 0, -6)],
        (("Gather", (), (0, 1)), ("Transpose", (), (-1,)), ("Concat", axis(1), (-2, -2, -2))),
    ),
    # Windows.
    *(
        region(f"rotary_{dtype}_{shape}", rotary(dtype, *shape), ROTARY)
        for dtype, shape in ((FLOAT, (2, 3, 4, 16)), (HALF, (1, 2, 5, 32)), (BFLOAT16, (2, 3, 6)), (DOUBLE, (1, 2)))
    ),
    region("rotary_of_one_row", rotary(FLOAT, 2, 4, 1, 16, of=(2, 1, 1, 16)), ROTARY),
    *(
        region(
            f"joined_along_{along}_{'_'.join(map(str, extents))}",
            [
                *[numbers(FLOAT, *[extent if n == along else own for n, own in enumerate((2, 8, 4))])
                  for extent in extents],
                numbers(FLOAT, *[sum(extents) if n == along else own for n, own in enumerate((2, 8, 4))]),
            ],
            (("Abs", (), (0,)), ("Concat", axis(along), (-1, 1, 2)), ("Add", (), (-2, 3))),
        )
        for along in (0, 1, 2)
        for extents in ((8, 4, 8), (1, 7, 3), (0, 4, 0), (31, 1, 0))
    ),
    region(
        "joined_types",
        [numbers(LONG, 3, 2), RNG.integers(0, 2, (3, 3)).astype(bool), numbers(FLOAT, 3, 5)],
        (
            ("Greater", (), (0, "int64 1")),
            ("Concat", axis(1), (-1, 1)),
            ("Where", (), (-2, 2, "float32 0.0")),
            ("Not", (), (-2,)),
        ),
        (2, 3),
    ),
    region(
        "joined_twice_to_itself",
        [numbers(HALF, 4, 8)],
        (("Neg", (), (0,)), ("Concat", axis(0), (-1, -1)), ("Concat", axis(1), (-2, -2, -2)), ("Exp", (), (-3,))),
    ),
    region("padded_image", [RNG.integers(0, 255, (2, 3, 5, 12)).astype(BYTE)], PADDED),
    region("padded_by_zeros", [numbers(FLOAT, 4, 8)], pad(0, 4, 0, 4)),
    region("padded_and_cut", [numbers(FLOAT, 6, 9)], pad(-2, 3, 1, -4)),
    region("padded_by_a_tensor", [numbers(FLOAT, 2, 3), numbers(FLOAT, 1)], pad(1, 0, 0, 5, value=1)),
    region("padded_nothing", [numbers(FLOAT, 0, 3)], pad(1, 1, 0, 0)),
    region(
        "padded_some_axes",
        [numbers(INT, 2, 3, 4)],
        (("Neg", (), (0,)), ("Pad", (), (-1, ints(1, 2), "int32 -7", ints(-2)))),
    ),
    region(
        "padded_bools",
        [numbers(FLOAT, 3, 3), np.array(True)],
        (("Greater", (), (0, "float32 0.0")), ("Pad", (), (-1, ints(1, 0, 0, 2), 1)), ("Not", (), (-2,))),
    ),
    # Views.
    region("turned", [numbers(FLOAT, 2, 8, 4), numbers(FLOAT, 2, 4, 8)], TURNED),
    region("turned_primes", [numbers(HALF, 1, 31, 7), numbers(HALF, 7, 31)], TURNED),
    region(
        "nested",
        [numbers(FLOAT, 3, 8), numbers(FLOAT, 3, 2, 4), numbers(FLOAT, 3, 4, 5), numbers(FLOAT, 3, 4, 0),
         numbers(FLOAT, 3, 4, 8)],
        NESTED,
    ),
    region(
        "divided_and_turned",
        [numbers(FLOAT, 10, 8), indices(LONG, [1, -2, 3], [0, 9, -10])],
        (
            ("Gather", (), (0, 1)),
            ("Reshape", (), (-1, ints(2, 3, 2, 4))),
            ("Transpose", (("perm", (0, 2, 1, 3)),), (-2,)),
            ("Cast", TO_HALF, (-3,)),
        ),
    ),
    region(
        "a_window_seen_by_steps",
        [RNG.integers(0, 255, (2, 3, 4, 6)).astype(BYTE)],
        (
            *PADDED,
            ("Slice", (), (-2, ints(1), ints(5), ints(2), ints(2))),
            ("Reshape", (), (-3, ints(2, 3, 2, 2, 5))),
            ("Neg", (), (-4,)),
        ),
    ),
    region(
        "a_window_of_divided_axes",
        [numbers(FLOAT, 6, 5), numbers(FLOAT, 2, 5), numbers(FLOAT, 2, 4, 5)],
        (
            ("Concat", axis(0), (0, 1)),
            ("Reshape", (), (-1, ints(2, 4, 5))),
            ("Add", (), (-2, 2)),
        ),
    ),
    region(
        "one_value_at_two_places",
        [numbers(FLOAT, 4, 4)],
        (("Neg", (), (0,)), ("Transpose", (), (-1,)), ("Sub", (), (-1, -2))),
        (0, 2),
    ),
    region(
        "pairs_side_by_side",
        [numbers(FLOAT, 2, 3, 8), numbers(FLOAT, 3, 16), numbers(FLOAT, 2, 3, 16)],
        (
            ("Neg", (), (0,)),
            ("Unsqueeze", (), (-1, ints(-1))),
            ("Unsqueeze", (), (0, ints(-1))),
            ("Concat", axis(-1), (-2, -3)),
            ("Reshape", (), (-4, ints(2, 3, 16))),
            ("Mul", (), (-5, 1)),
            ("Add", (), (-6, 2)),
        ),
    ),
    region(
        "joined_and_divided",
        [numbers(HALF, 2, 6, 5), numbers(HALF, 4, 15)],
        (
            ("Abs", (), (0,)),
            ("Reshape", (), (-1, ints(4, 15))),
            ("Add", (), (-2, 1)),
        ),
    ),
    region(
        "no_common_axes_of_three",
        [numbers(HALF, 6, 4, 5), numbers(HALF, 8, 15)],
        (
            ("Abs", (), (0,)),
            ("Reshape", (), (-1, ints(8, 15))),
            ("Add", (), (-2, 1)),
        ),
    ),
    region(
        "joined_behind_a_turn",
        [numbers(FLOAT, 3, 4, 5), numbers(FLOAT, 20, 3)],
        (
            ("Exp", (), (0,)),
            ("Transpose", (("perm", (1, 2, 0)),), (-1,)),
            ("Reshape", (), (-2, ints(20, 3))),
            ("Mul", (), (-3, 1)),
        ),
    ),
    region(
        "turned_behind_a_join",
        [numbers(FLOAT, 3, 4, 5), numbers(FLOAT, 5, 12)],
        (
            ("Neg", (), (0,)),
            ("Reshape", (), (-1, ints(12, 5))),
            ("Transpose", (), (-2,)),
            ("Mul", (), (-3, 1)),
        ),
    ),
    region(
        "no_common_axes",
        [numbers(FLOAT, 6, 4), numbers(FLOAT, 4, 6)],
        (("Neg", (), (0,)), ("Reshape", (), (-1, ints(4, 6))), ("Mul", (), (-2, 1))),
    ),
    region(
        "stretched",
        [numbers(FLOAT, 3, 1, 4), numbers(FLOAT, 3, 5, 4)],
        (("Exp", (), (0,)), ("Expand", (), (-1, ints(3, 5, 4))), ("Mul", (), (-2, 1))),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_region(checks: str, case: Case) -> None:
    run_case(case, checks)
    if checks == "pixel":
        check_blits(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_launch_gives_the_bits_of_kernels_of_the_steps(case: Case) -> None:
    op, steps = build("gpuexec.Region", case.attributes), case.attributes["steps"]
    made: list[Array] = []
    for name, attributes, given in steps:
        taken = [
            None if g is None else read_number(g) if isinstance(g, str) else case.inputs[g] if g >= 0 else made[-1 - g]
            for g in given
        ]
        known = [n for n, each in enumerate(given) if isinstance(each, str)]
        made += lower_and_run(build(name, dict(attributes)), taken, known)
    wanted = [made[step] for step in case.attributes["results"]]
    for got, expected in zip(lower_and_run(op, case.inputs), wanted, strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))
    if wanted[0].size and "no_common_axes" not in case.id:
        assert isinstance(lower(op, [x for x in case.inputs if x is not None])[1], Kernel)


def lower(
    op: Region, arrays: Sequence[Array], choices: Sequence[int] | None = None
) -> tuple[PlanningEmitter, Kernel, tuple[Any, ...]]:
    """Return what a region would launch."""
    emit = PlanningEmitter(choices)
    slots = tuple(emit.slot(x) for x in arrays)
    outputs = tuple(emit.fresh(spec.shape, spec.dtype) for spec in op.infer(*(slot.spec for slot in slots)))
    op.lower(emit, slots, outputs)
    kernel, *_, arguments = emit.kept
    assert kernel.source == "flat.cu"
    return emit, kernel, tuple(arguments)


@pytest.mark.parametrize(
    ("steps", "make", "sizes"),
    [
        (
            EMBEDDING,
            lambda n, d: [numbers(FLOAT, 9, d), np.zeros((n, 5), np.int64), numbers(FLOAT, 7, d),
                          np.zeros(5, np.int64), numbers(FLOAT, d)],
            [(8, 64), (7, 63), (1, 4), (1, 1)],
        ),
        (ROTARY, lambda n, d: rotary(FLOAT, 2, n, 2 * d), [(8, 32), (7, 31), (1, 4), (3, 1), (1, 1)]),
        (
            (("Neg", (), (0,)), ("Concat", axis(1), (-1, 1)), ("Add", (), (-2, 2))),
            lambda n, d: [numbers(FLOAT, 2, n, d), numbers(FLOAT, 2, 3, d), numbers(FLOAT, 2, n + 3, d)],
            [(8, 64), (7, 63), (1, 4), (0, 4), (1, 1)],
        ),
        (TURNED, lambda n, d: [numbers(FLOAT, 2, n, d), numbers(FLOAT, 2, d, n)], [(8, 64), (7, 31), (1, 4), (1, 1)]),
        (
            NESTED,
            lambda n, d: [numbers(FLOAT, n, d), numbers(FLOAT, n, 2, min(d, 4)), numbers(FLOAT, n, min(d, 4), 5),
                          numbers(FLOAT, n, min(d, 4), 0), numbers(FLOAT, n, min(d, 4), 8)],
            [(8, 8), (3, 8)],
        ),
    ],
)  # fmt: skip
def test_other_sizes_take_the_kernel_of_the_upper_end(steps: Steps, make: Any, sizes: Any) -> None:
    op = Region(steps, (len(steps) - 1,))
    end, kernel, _ = lower(op, make(*sizes[0]))
    for size in sizes[1:]:
        assert lower(op, make(*size), end.choices)[1] == kernel, size
    # Borders, extents and strides are arguments: what lies alike has one text.
    assert lower(op, make(*sizes[1]))[1] == kernel


def test_textures_take_a_blit_for_each_result_which_reads_what_that_needs() -> None:
    steps: Steps = (
        ("Neg", (), (0,)),
        ("Gather", (), (1, 2)),
        ("Concat", axis(0), (-1, -2)),
        ("Relu", (), (-3,)),
        ("Add", (), (-4, 3)),
    )
    arrays = [numbers(FLOAT, 4, 6), numbers(FLOAT, 5, 6), indices(LONG, 1, 3), numbers(FLOAT, 6, 6)]
    emit = PlanningEmitter()
    emit.target = PIXEL
    Region(steps, (3, 4)).lower(emit, [emit.slot(x) for x in arrays], [emit.fresh((6, 6), FLOAT) for _ in range(2)])
    expressions = [kernel.expression for kernel, _ in emit.launches]
    assert [kernel.source for kernel, _ in emit.launches] == ["pixel/flat.cu"] * 2
    assert [each.partition(", ")[2] for each in expressions] == [
        "float, float, float, i64>", "float, float, float, i64, float>"
    ]  # fmt: skip
    assert all(kernel.text.startswith("// Neg, Gather, Concat, Relu, Add.\n") for kernel, _ in emit.launches)


@pytest.mark.parametrize(
    ("steps", "specs", "why"),
    [
        (TURNED, [spec(2, 8, 4), spec(2, 4, 8)], ""),
        ((("Gather", (), (0, 1)), ("Concat", axis(0), (-1, 0))), [spec(4, 6, dtype=np.int8), spec(3, dtype=LONG)],
         "its blits would read or write int8"),
        ((("Neg", (), (0,)), ("Gather", (), (-1, 1))), [spec(4, 6), spec(3, dtype=LONG)],
         "its results are of several shapes, or what a Gather picks of is computed in it"),
        ((("Neg", (), (0,)), ("Reshape", (), (-1, ints(4, 6))), ("Mul", (), (-2, 1))), [spec(6, 4), spec(4, 6)],
         "no sums of coordinates say where its elements come from"),
    ],
)  # fmt: skip
def test_regions_say_why_they_have_no_blits(steps: Steps, specs: list[TensorSpec], why: str) -> None:
    assert Region(steps, (len(steps) - 1,)).refuse_blits(specs) == why


def test_what_lies_otherwise_than_at_the_upper_end_is_refused() -> None:
    op = Region(TURNED, (2,))
    end, _, _ = lower(op, [numbers(FLOAT, 2, 8, 4), numbers(FLOAT, 4, 8)])
    with pytest.raises(PlanError, match="upper end"):
        lower(op, [numbers(FLOAT, 2, 8, 4), numbers(FLOAT, 2, 4, 8)], end.choices)


@pytest.mark.parametrize(
    ("shape", "half", "lanes"), [((4, 32), 16, 4), ((4, 32), 12, 4), ((4, 32), 14, 1), ((4, 30), 15, 1)]
)
def test_windows_that_begin_at_multiples_are_made_by_vectors(shape: tuple[int, int], half: int, lanes: int) -> None:
    x = numbers(FLOAT, *shape)
    first, second = np.ascontiguousarray(x[:, :half]), np.ascontiguousarray(x[:, half:])
    op = Region((("Neg", (), (0,)), ("Concat", axis(1), (-1, 1)), ("Add", (), (-2, 2))), (2,))
    _, _, arguments = lower(op, [first, second, x])
    assert int.from_bytes(arguments[0][4:8], "little") == lanes


def test_neighbouring_axes_are_joined_beside_windows() -> None:
    """Channels joined to each other: the window is one along all three axes as one."""
    op = Region((("Neg", (), (0,)), ("Concat", axis(1), (-1, 1)), ("Relu", (), (-2,))), (2,))
    _, kernel, _ = lower(op, [numbers(FLOAT, 2, 3, 4, 8), numbers(FLOAT, 2, 5, 4, 8)])
    assert "FlatWalk<i32, 1," in kernel.text


def test_offsets_of_many_elements_have_64_bits() -> None:
    emit = PlanningEmitter()
    small = emit.slot(numbers(FLOAT, 1))
    x = small.__class__(0, 0, TensorSpec((2**15, 2**16), FLOAT), (2**16, 1))
    y = small.__class__(0, 0, TensorSpec((2**16, 2**16), FLOAT), (2**16, 1))
    Region((("Neg", (), (0,)), ("Concat", axis(0), (-1, 1))), (1,)).lower(emit, (x, x), (y,))
    assert "FlatWalk<i64" in emit.kept[0].text


def test_an_index_out_of_range_reads_as_zero_on_a_device_and_is_refused_on_the_host() -> None:
    op = Region((("Gather", (), (0, 1)), ("Add", (), (-1, "float32 1.0"))), (1,))
    data, places = numbers(FLOAT, 3, 4), indices(LONG, 0, 3, -4, 2)
    (made,) = lower_and_run(op, (data, places))
    np.testing.assert_array_equal(made, np.stack([data[0], data[0] * 0, data[0] * 0, data[2]]) + np.float32(1))
    with pytest.raises(InputError, match="index 3 is out of range for axis 0 of extent 3"):
        op.compute(data, places)


def test_results_take_no_bytes_of_inputs_that_are_read_at_other_places() -> None:
    def allowed(steps: Steps, *shapes: tuple[int, ...]) -> list[int]:
        emit = PlanningEmitter()
        slots = tuple(emit.slot(numbers(FLOAT, *shape)) for shape in shapes)
        op = Region(steps, (len(steps) - 1,))
        (spec,) = op.infer(*(slot.spec for slot in slots))
        op.lower(emit, slots, (emit.fresh(spec.shape, spec.dtype),))
        return [slots.index(x) for _, x in emit.in_place_allowed]

    assert allowed(TURNED, (1, 4, 4), (1, 4, 4)) == [1]
    assert allowed((("Neg", (), (0,)), ("Concat", axis(0), (-1, 1)), ("Add", (), (-2, 2))), (0, 4), (4, 4), (4, 4)) == [
        2
    ]
    forms = find_forms(TURNED, list_keys([numbers(FLOAT, 1, 4, 4), numbers(FLOAT, 1, 4, 4)]))
    assert list_moved(TURNED, forms) == {0}


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_blocks_of_any_size_give_the_bits_of_whole_arrays(
    case: Case, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_boxes, "BLOCK", block)
    monkeypatch.setattr(region_boxes, "SMALL_NBYTES", 16)
    made = build("gpuexec.Region", case.attributes).compute(*case.inputs)
    steps = case.attributes["steps"]
    wanted = apply_steps(steps, case.inputs)
    for got, step in zip(made, case.attributes["results"], strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(wanted[step]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_block_is_a_list_of_calls(case: Case) -> None:
    """Calls listed for one block give its bits run after run, with indices that change; too little memory is told."""
    op = build("gpuexec.Region", case.attributes)
    made = op.compute(*case.inputs)
    if not made[0].size:
        return
    (program,) = op._programs.values()  # type: ignore[attr-defined]
    assert isinstance(program, region_boxes.BoxProgram)
    scratch = [np.full(nbytes, 0xFF, np.uint8) for nbytes in program.count_scratch()]
    for constant in (False, True):
        out = [np.empty_like(y) for y in made]
        calls = program.prepare(case.inputs, out, scratch, [constant] * len(case.inputs))
        assert all(call.func != program.run for call in calls)  # type: ignore[attr-defined]
        for _ in range(2):
            for call in calls:
                call()
            for y, expected in zip(out, made, strict=True):
                np.testing.assert_array_equal(to_bits(y), to_bits(expected))
                y[...] = np.zeros((), y.dtype)
    tight = dataclasses.replace(program, most_nbytes=0)
    (call,) = tight.prepare(case.inputs, out, [], [False] * len(case.inputs))
    call()
    np.testing.assert_array_equal(to_bits(out[0]), to_bits(made[0]))


def test_a_block_whose_memory_does_not_suffice_is_computed_as_blocks_are() -> None:
    arrays = rotary(FLOAT, 4, 5, 16)
    op = Region(ROTARY, (4,))
    (expected,) = op.compute(*arrays)
    (program,) = op._programs.values()
    assert isinstance(program, region_boxes.BoxProgram)
    tight = dataclasses.replace(program, most_nbytes=64)
    made = np.empty_like(expected)
    (call,) = tight.prepare(arrays, [made], [np.empty(64, np.uint8)], [False] * 5)
    call()
    np.testing.assert_array_equal(to_bits(made), to_bits(expected))


def test_indices_out_of_range_are_refused_by_the_calls() -> None:
    table, places = numbers(FLOAT, 10, 8), indices(LONG, 1, -2)
    op = Region((("Gather", (), (0, 1)), ("Neg", (), (-1,))), (1,))
    (expected,) = op.compute(table, places)
    (program,) = op._programs.values()
    assert isinstance(program, region_boxes.BoxProgram)
    calls = program.prepare([table, places], [expected], [np.empty(program.most_nbytes, np.uint8)], [True, False])
    places[1] = 10
    with pytest.raises(InputError, match="index 10 is out of range for axis 0 of extent 10"):
        calls[0]()


def test_a_result_is_made_in_the_memory_of_an_input() -> None:
    arrays = [np.ascontiguousarray(each) for each in rotary(FLOAT, 4, 5, 16)]
    (expected,) = Region(ROTARY, (4,)).compute(*arrays)
    expected = expected.copy()
    (made,) = Region(ROTARY, (4,)).compute(*arrays, out=(arrays[3],))
    assert made is arrays[3]
    np.testing.assert_array_equal(to_bits(made), to_bits(expected))


def test_what_is_picked_of_a_computed_value_runs_step_by_step() -> None:
    steps: Steps = (("Neg", (), (0,)), ("Gather", (), (-1, 1)), ("Exp", (), (-2,)))
    inputs = [numbers(FLOAT, 4, 8), indices(LONG, 1, -1)]
    assert find_forms(steps, list_keys(inputs)).kinds is None
    (got,) = Region(steps, (2,)).compute(*inputs)
    np.testing.assert_array_equal(to_bits(got), to_bits(apply_steps(steps, inputs)[2]))
    (apart,) = lower_and_run(Region(steps, (2,)), inputs)
    np.testing.assert_allclose(apart, got, rtol=1e-6)


def known(*numbers: int) -> TensorSpec:
    return TensorSpec.of(np.array(numbers, np.int64))


def test_operators_say_where_their_elements_come_from() -> None:
    assert find_map(build("Gather", {"axis": -1}), [spec(3, 4), spec(2, 2, dtype=LONG)]) == Picked(1, 2)
    assert find_map(build("Concat", {"axis": -1}), [spec(3, 4), spec(3, 2)]) == Assembled(
        (1,), (Window(0, (0, 0)), Window(1, (0, 4))), is_whole=True
    )
    padding = build("Pad", {})
    assert find_map(padding, [spec(3, 4), known(1, 0, -1, 0), spec(), None]) == Assembled(
        (0,), (Window(0, (1, 0)),), is_whole=False, filler=2, contents=(1, 3)
    )
    assert find_map(build("Pad", {"mode": "edge"}), [spec(3, 4), known(1, 0, -1, 0)]) is None
    assert find_map(padding, [spec(3), spec(2, dtype=LONG)]) is None, "the pads are not known"
    narrow = dtype_row("float8e4m3fn").numpy
    assert find_map(build("Concat", {"axis": 0}), [spec(3, dtype=narrow)]) is None, "nothing computes with it"
    assert find_map(build("Neg", {}), [spec(3)]) is None


def test_views_are_found_by_what_they_do_to_strides() -> None:
    def view(name: str, *inputs: TensorSpec, **attributes: Any) -> Viewed | None:
        return find_view(build(name, attributes), inputs)

    assert view("Transpose", spec(2, 3, 4), perm=(2, 0, 1)) == Viewed(
        (ViewedAxis(0, ((1, 1),)), ViewedAxis(0, ((2, 1),)), ViewedAxis(0, ((0, 1),)))
    )
    assert view("Slice", spec(5, 6), known(-1, 1), known(-9, 6), known(0, 1), known(-2, 3)) == Viewed(
        (ViewedAxis(4, ((0, -2),)), ViewedAxis(1, ((1, 3),))), (1, 2, 3, 4)
    )
    assert view("Reshape", spec(6, 4), known(2, 3, 4)) == Viewed(
        (ViewedAxis(0, ((0, 3), (1, 1))), ViewedAxis(0, ((2, 1),))), (1,)
    )
    assert view("Unsqueeze", spec(3), known(0)) == Viewed((ViewedAxis(0, ((1, 1),)),), (1,))
    assert view("Expand", spec(3, 1), known(2, 3, 4)) == Viewed((ViewedAxis(0, ((1, 1),)), ViewedAxis(0, ())), (1,))
    assert view("Reshape", spec(2, 3), known(6)) is None, "no strides of two axes are those of one"
    assert view("Split", spec(6), num_outputs=2) is None, "a step makes one value"
    assert view("Reshape", spec(0, 3), known(3, 0), allowzero=1) == Viewed((ViewedAxis(0, ()),) * 2, (1,))


@needs_nvdisasm
@pytest.mark.parametrize(
    ("steps", "arrays", "bound"),
    [
        (ROTARY, rotary(FLOAT, 1, 4, 64, 128), 56),
        (EMBEDDING, [numbers(FLOAT, 99, 64), indices(LONG, *[[1] * 16] * 2), numbers(FLOAT, 7, 64),
                     indices(LONG, *[[2] * 16] * 2), numbers(FLOAT, 16, 64)], 70),
        ((("Neg", (), (0,)), ("Concat", axis(1), (-1, 1))), [numbers(FLOAT, 1, 64, 64)] * 2, 30),
    ],
    ids=["rotary", "embedding", "concat"],
)  # fmt: skip
def test_few_integer_instructions_stand_before_the_store(
    steps: Steps, arrays: list[Array], bound: int, tmp_path: Path
) -> None:
    """Of a thread, which stores 16 bytes, and keeps all in registers."""
    _, kernel, _ = lower(Region(steps, (len(steps) - 1,)), arrays)
    for architecture in ("sm_80", "sm_90", "sm_120"):
        text = read_text(find_source(kernel.source), [kernel.text])
        cubin = nvrtc.compile_cubin(text, [kernel.expression], architecture)
        figures = read_figures(cubin.image, tmp_path)[cubin.kernels[0].lowered_name]
        assert figures.store_bits == 128 and not figures.local_accesses, architecture
        assert figures.path_integers <= bound, architecture

"""Regions of rows: bit-equal to their operators one after the other, on the host and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.module import load_generated
from gpuexec.errors import PlanError
from gpuexec.ir.command import Kernel
from gpuexec.ir.operator import build, describe
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import RowRegion
from gpuexec.ops.elementwise.region_steps import made_by, write_integers
from gpuexec.ops.elementwise.row_blocks import BLOCK
from tests.ops.calls import Call
from tests.ops.direct import PlanningEmitter, lower_and_run
from tests.ops.every_call import list_calls
from tests.ops.harness import Array, Case, run_case
from tests.ops.step_by_step import Steps, apply_steps, check_blits, pick
from tests.ops.test_region import DOUBLE, FLOAT, HALF, INT, LONG, numbers
from tests.ops.tolerance import to_bits

LAST, LAST_TWO = (write_integers(np.array(axes, np.int64)) for axes in ((-1,), (-2, -1)))
GONE = (("keepdims", 0),)
TO_FLOAT, TO_HALF = ((("to", dtype_row(dtype).code),) for dtype in (FLOAT, HALF))

LAYER_NORM: Steps = (
    ("ReduceMean", (), (0, LAST)),
    ("Sub", (), (0, made_by(0))),
    ("Mul", (), (made_by(1), made_by(1))),
    ("ReduceMean", (), (made_by(2), LAST)),
    ("Add", (), (made_by(3), "float32 1e-05")),
    ("Sqrt", (), (made_by(4),)),
    ("Div", (), (made_by(1), made_by(5))),
    ("Mul", (), (made_by(6), 1)),
    ("Add", (), (made_by(7), 2)),
)
SOFTMAX: Steps = (
    ("ReduceMax", (), (0, LAST)),
    ("Sub", (), (0, made_by(0))),
    ("Exp", (), (made_by(1),)),
    ("ReduceSum", (), (made_by(2), LAST)),
    ("Div", (), (made_by(2), made_by(3))),
)
SKIP_NORM: Steps = (
    ("Add", (), (0, 1)),
    ("LayerNormalization", (), (made_by(0), 2, 3)),
    ("Relu", (), (made_by(1),)),
)
REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)


def rows(label: str, inputs: Sequence[Array | None], steps: Steps, results: tuple[int, ...] = ()) -> Case:
    """Return a case whose expected outputs are those of the operators; the last step makes the result by default."""
    results = results or (len(steps) - 1,)
    made = apply_steps(steps, inputs)
    expected = tuple(made[step] for step in results)
    attributes = {"steps": steps, "results": results}
    return Case(
        label, "RowRegion", tuple(inputs), attributes, outputs=(True,) * len(results), expected=expected,
        domain="gpuexec", terms=2 * max(x.shape[-1] if x is not None and x.ndim else 1 for x in inputs) + 8,
    )  # fmt: skip


def around(name: str, attributes: Any = (), axes: str | None = LAST) -> Steps:
    """Return an operator on rows between two on elements, whose result it stretches over a row."""
    given = (made_by(0),) if axes is None else (made_by(0), axes)
    back: Steps = () if name.startswith("Arg") or name.endswith("Place") else (("Sub", (), (0, made_by(1))),)
    return (("Add", (), (0, 1)), (name, attributes, given), *back, ("Abs", (), (made_by(1),)))


SHAPES = {
    "rows": ((6, 37), (37,), (37,)),
    "one_row": ((1, 31), (31,), (31,)),
    "one_column": ((5, 1), (1,), (1,)),
    "one": ((1, 1), (1,), (1,)),
    "no_rows": ((0, 4), (4,), (4,)),
    "no_columns": ((3, 0), (0,), (0,)),
    "deep": ((2, 3, 4, 40), (3, 1, 40), (1,)),
    "by_rows": ((4, 5, 20), (4, 1, 1), (5, 1)),
    "warps": ((3, 1000), (1000,), (1,)),
    "held": ((2, 5000), (5000,), (1,)),
    "streamed": ((2, 8300), (8300,), (8300,)),
}
CASES = [
    *(
        rows(f"norm_{name}", [numbers(FLOAT, *shape) for shape in shapes], LAYER_NORM)
        for name, shapes in SHAPES.items()
    ),
    *(
        rows(f"{name}_{np.dtype(dtype).name}", [numbers(dtype, 5, 37), numbers(dtype, 37)], around(name), (1, 3))
        for name in REDUCTIONS
        for dtype in ((FLOAT, HALF, BFLOAT16, DOUBLE, INT, LONG) if name == "ReduceMean" else (FLOAT,))
    ),
    *(
        rows(
            f"{name}_{np.dtype(dtype).name}",
            [np.arange(155, dtype=dtype).reshape(5, 31) ** 2, np.arange(31, dtype=dtype)],
            (("Max", (), (0, 1)), (name, (), (-1, LAST)), ("Max", (), (-2, 1))),
            (1, 2),
        )
        for name, dtype in (("ReduceSum", np.uint32), ("ReduceProd", np.uint64), ("ReduceMin", np.uint8))
    ),
    *(
        rows(
            f"{name}{attributes}_{np.dtype(dtype).name}",
            [numbers(dtype, 5, 37).round(), numbers(dtype, 37).round()],
            around(name, attributes, None),
        )
        for name in ("ArgMax", "ArgMin")
        for attributes in ((("axis", -1),), (("axis", 1), ("keepdims", 0), ("select_last_index", 1)))
        for dtype in ((FLOAT, LONG) if name == "ArgMax" else (HALF,))
    ),
    *(
        rows(
            f"{name}_{np.dtype(dtype).name}",
            [numbers(dtype, 3, 2, 130), numbers(dtype, 2, 1)],
            around(name, (), None),
        )
        for name, dtype in (("Softmax", FLOAT), ("Softmax", HALF), ("LogSoftmax", BFLOAT16), ("LogSoftmax", DOUBLE))
    ),
    *(
        rows(
            f"{name}_{largest}_{np.dtype(dtype).name}",
            [numbers(dtype, 5, 37).round(), numbers(dtype, 37).round()],
            around(f"gpuexec.{name}", (("largest", largest),), None),
        )
        for name in ("TopElement", "TopPlace")
        for largest in (0, 1)
        for dtype in ((FLOAT, HALF, LONG) if name == "TopElement" else (FLOAT, LONG))
    ),
    rows(
        "first_of_two_lanes",  # which have the columns in turn
        [
            np.array(
                [
                    [1, 2, np.nan, 0, 3, 0],
                    [1, np.nan, 2, 0, np.nan, 3],
                    [np.nan] * 6,
                    [2, 3, 0, 1, 3, 0],
                    [3, 0, 1, 2, 0, 4],
                ],
                FLOAT,
            )
        ],
        tuple(("gpuexec.TopPlace", (("largest", largest),), (0,)) for largest in (1, 0)),
        (0, 1),
    ),
    *(
        rows(
            f"instance_norm_{np.dtype(dtype).name}_{'x'.join(map(str, shape))}",
            [numbers(dtype, *shape), numbers(dtype, shape[1]), numbers(dtype, shape[1])],
            (
                ("Neg", (), (0,)),
                ("InstanceNormalization", (), (made_by(0), 1, 2)),
                ("Mul", (), (made_by(1), 0)),
            ),
        )
        for dtype, shape in (
            *((dtype, (2, 3, 5, 7)) for dtype in (FLOAT, HALF, BFLOAT16, DOUBLE)),
            *((FLOAT, shape) for shape in ((1, 1, 40), (3, 1, 2, 2), (1, 8, 700), (2, 0, 4))),
        )
    ),
    rows("softmax_states", [numbers(FLOAT, 2, 4100), numbers(FLOAT, 4100)], around("Softmax", (), None)),
    rows("log_softmax_states", [numbers(FLOAT, 2, 4100), numbers(FLOAT, 4100)], around("LogSoftmax", (), None)),
    rows("softmax_streamed", [numbers(DOUBLE, 1, 9000), numbers(DOUBLE, 9000)], around("Softmax", (), None)),
    rows(
        "softmax_flat",
        [numbers(FLOAT, 3, 4, 5), numbers(FLOAT, 5)],
        around("Softmax", (("axis", 1), ("flatten", 1)), None),
    ),
    rows(
        "softmax_infinite",
        [np.array([[np.inf, 0], [-np.inf, -np.inf], [np.nan, 1], [-0.0, 0.0]], FLOAT)],
        (("Neg", (), (0,)), ("Softmax", (), (-1,))),
    ),
    *(
        rows(
            f"skip_norm_{np.dtype(dtype).name}",
            [numbers(dtype, *s) for s in ((4, 96), (4, 96), (96,), (96,))],
            SKIP_NORM,
            (0, 2),
        )
        for dtype in (FLOAT, HALF, BFLOAT16, DOUBLE)
    ),
    rows(
        "norm_of_axes",
        [numbers(FLOAT, *s) for s in ((4, 5, 6), (5, 6), (1, 6), (6,))],
        (
            ("Mul", (), (0, 1)),
            ("LayerNormalization", (("axis", 1), ("epsilon", 0.1)), (-1, 2, 3)),
        ),
    ),
    rows(
        "norm_without_bias",
        [numbers(FLOAT, 4, 6), numbers(FLOAT, 6)],
        (
            ("Exp", (), (0,)),
            ("LayerNormalization", (), (-1, 1)),
            ("Neg", (), (-2,)),
        ),
    ),
    *(
        rows(
            f"rms_{np.dtype(x).name}_{np.dtype(s).name}",
            [numbers(x, 3, 70), numbers(s, 70)],
            (
                ("Neg", (), (0,)),
                ("RMSNormalization", (), (-1, 1)),
                ("Abs", (), (-2,)),
            ),
        )
        for x, s in ((FLOAT, FLOAT), (HALF, FLOAT), (FLOAT, HALF), (HALF, HALF), (FLOAT, DOUBLE), (DOUBLE, FLOAT))
    ),
    rows("softmax", [numbers(FLOAT, 3, 37)], SOFTMAX),
    rows(
        "softmax_of_axes",
        [numbers(FLOAT, 2, 3, 4, 5)],
        tuple(
            (name, attributes, tuple(LAST_TWO if each == LAST else each for each in given))
            for name, attributes, given in SOFTMAX
        ),
    ),
    rows(
        "two_norms",
        [numbers(FLOAT, 3, 40), numbers(FLOAT, 40)],
        (
            ("LayerNormalization", (), (0, 1)),
            ("Gelu", (), (-1,)),
            ("LayerNormalization", (), (-2, 1)),
            ("Add", (), (-3, 0)),
        ),
        (1, 3),
    ),
    rows(
        "both",
        [numbers(FLOAT, 3, 40)],
        (
            ("ReduceMax", GONE, (0, LAST)),
            ("ReduceMin", GONE, (0, LAST)),
            ("Sub", (), (-1, -2)),
            ("Sqrt", (), (-3,)),
            ("ReduceSum", (), (0, LAST)),
        ),
        (0, 3, 4),
    ),
    rows(
        "numbers_of_rows",
        [numbers(FLOAT, 4, 3, 40), numbers(FLOAT, 3), numbers(FLOAT, 4, 1)],
        (
            ("Relu", (), (0,)),
            ("ReduceMean", GONE, (-1, LAST)),
            ("Mul", (), (-2, 1)),
            ("Add", (), (-3, 2)),
        ),
        (0, 3),
    ),
    rows(
        "types",
        [numbers(FLOAT, 4, 33), numbers(HALF, 33)],
        (
            ("Cast", TO_HALF, (0,)),
            ("Add", (), (-1, 1)),
            ("ReduceMean", (), (-2, LAST)),
            ("Greater", (), (-2, -3)),
            ("Where", (), (-4, -2, 1)),
            ("ReduceMax", GONE, (-5, LAST)),
        ),
        (3, 5),
    ),
    rows("transposed", [numbers(FLOAT, 37, 6).T, numbers(FLOAT, 37), numbers(FLOAT, 6, 1)], LAYER_NORM),
    rows(
        "reversed",
        [numbers(FLOAT, 6, 37)[::-1, ::-1], numbers(FLOAT, 37)[::-1], numbers(FLOAT, 6, 1)[::-1]],
        LAYER_NORM,
    ),
    rows("gaps", [numbers(FLOAT, 6, 74)[::2, ::2], numbers(FLOAT, 74)[::2], numbers(FLOAT, 1)], LAYER_NORM),
    rows(
        "broadcast",
        [np.broadcast_to(numbers(FLOAT, 4, 1), (4, 9)), numbers(FLOAT, 9), numbers(FLOAT, 1)],
        SKIP_NORM[:1] + (("Softmax", (), (-1,)),),
    ),
    rows(
        "scattered",
        [numbers(FLOAT, 3, 4, 5, 8), numbers(FLOAT, 4, 1, 8), numbers(FLOAT, 3, 1, 5, 1)],
        (
            ("Add", (), (0, 1)),
            ("Mul", (), (-1, 2)),
            ("Softmax", (), (-2,)),
        ),
    ),
    rows("vector", [numbers(FLOAT, 70)], (("Neg", (), (0,)), ("Softmax", (), (-1,)), ("ArgMax", (), (-1,))), (1, 2)),
    rows(
        "one_row_of_numbers",
        [numbers(FLOAT, 1, 4), numbers(FLOAT)],
        (("Softmax", (), (0,)), ("ReduceMax", GONE, (-1, LAST)), ("Less", (), (-2, 1)), ("Where", (), (-3, -2, 1))),
        (0, 3),
    ),
    rows("no_others", [numbers(FLOAT, 4, 9)], (("Softmax", (), (0,)),)),
    # So many that blits keep the values of rows, of 4 bytes, and of 8, 4 and 1; then more than a texel has.
    rows("kept_sum", [numbers(FLOAT, 60, 101), numbers(FLOAT, 101)], around("ReduceSum"), (1, 2)),
    rows("kept_softmax", [numbers(HALF, 7, 11, 97), numbers(HALF, 97)], around("Softmax", (), None), (0, 2)),
    rows(
        "kept_types",
        [numbers(FLOAT, 40, 131), numbers(FLOAT, 40, 1)],
        (
            ("Abs", (), (0,)),
            ("ArgMax", (("axis", 1),), (-1,)),
            ("ReduceMax", (), (-1, LAST)),
            ("Greater", (), (-3, 1)),
            ("Cast", TO_FLOAT, (-2,)),
            ("Where", (), (-4, -1, "float32 0.5")),
            ("Mul", (), (-6, -5)),
        ),
        (1, 3, 5, 6),
    ),
    rows(
        "more_than_a_texel",
        [numbers(FLOAT, 30, 128), numbers(FLOAT, 128)],
        tuple(
            row
            for number in range(3)
            for row in (("LayerNormalization", (), (-2 * number or 0, 1)), ("Abs", (), (-1 - 2 * number,)))
        ),
        (5,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_row_region(checks: str, case: Case) -> None:
    run_case(case, checks)
    if checks == "pixel":
        check_blits(case)


def run_apart(case: Case) -> list[Array]:
    """Return what the kernels of the steps make one after the other."""
    made: list[Array] = []
    for name, attributes, given in case.attributes["steps"]:
        known = [place for place, g in enumerate(given) if isinstance(g, str)]
        op = build(name, dict(attributes))
        made += lower_and_run(op, pick(given, case.inputs, made), known, (True,))
    return [made[step] for step in case.attributes["results"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel_of_a_row_region_gives_the_bits_of_those_of_its_steps(case: Case) -> None:
    got = lower_and_run(build("gpuexec.RowRegion", case.attributes), case.inputs)
    for made, expected in zip(got, run_apart(case), strict=True):
        np.testing.assert_array_equal(to_bits(made), to_bits(expected))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numpy_gives_the_bits_of_the_steps(case: Case) -> None:
    got = build("gpuexec.RowRegion", case.attributes).compute(*case.inputs)
    assert case.expected is not None
    for made, expected in zip(got, case.expected, strict=True):
        np.testing.assert_array_equal(to_bits(made), to_bits(expected))


def lower(
    op: RowRegion, *inputs: Array, choices: Sequence[int] | None = None, target: str = "sm_90"
) -> tuple[PlanningEmitter, Kernel]:
    emit = PlanningEmitter(choices)
    emit.target = Target.named(target)
    slots = tuple(emit.slot(each) for each in inputs)
    specs = op.infer(*(slot.spec for slot in slots))
    op.lower(emit, slots, tuple(emit.fresh(spec.shape, spec.dtype) for spec in specs))
    return emit, emit.kept[0]


def make_norm(count: int, columns: int) -> list[Array]:
    return [numbers(FLOAT, count, columns), numbers(FLOAT, columns), numbers(FLOAT, columns)]


def test_regions_of_other_sizes_take_the_kernel_of_the_upper_end() -> None:
    op = RowRegion(LAYER_NORM, (6, 8))
    end, kernel = lower(op, *make_norm(8, 1500))
    assert "kHeld = 8;" in kernel.text
    for count, columns in ((8, 1500), (7, 1499), (3, 1), (1, 1), (2, 900), (1, 40)):
        assert lower(op, *make_norm(count, columns), choices=end.choices)[1] == kernel
        assert lower(op, *make_norm(count, columns), choices=end.choices)[0].choices == end.choices
    with pytest.raises(PlanError, match="longer than at the upper end"):
        lower(op, *make_norm(2, 3000), choices=end.choices)
    with pytest.raises(PlanError, match="upper end"):
        lower(op, numbers(FLOAT, 8, 1500), numbers(FLOAT, 8, 1500), numbers(FLOAT, 1500), choices=end.choices)


@pytest.mark.parametrize("columns", [5000, 9000])
def test_sizes_of_a_class_have_the_bits_of_their_steps(columns: int) -> None:
    """Rows that lanes hold at the upper end, and rows that they read anew."""
    op = RowRegion(SKIP_NORM, (0, 2))

    def make(count: int, extent: int) -> list[Array]:
        return [numbers(FLOAT, *shape) for shape in ((count, extent), (count, extent), (extent,), (extent,))]

    end, kernel = lower(op, *make(3, columns))
    for count, extent in ((3, columns), (2, 300), (1, 7)):
        inputs = make(count, extent)
        emit, own = lower(op, *inputs, choices=end.choices)
        assert own == kernel
        case = rows("", inputs, SKIP_NORM, (0, 2))
        _, grid, block, arguments = emit.kept
        values = [emit.arrays[a.buffer][a.offset_bytes :] if hasattr(a, "buffer") else a for a in arguments]
        emit.find_function(kernel).launch_arrays(grid, block, *values)
        for slot, expected in zip(arguments[-2:], run_apart(case), strict=True):
            np.testing.assert_array_equal(to_bits(emit.read(slot)), to_bits(expected))


@pytest.mark.parametrize(
    ("label", "kernels"),
    [
        ("numbers_of_rows", ["draw_rows", "draw_row_values"]),
        ("kept_sum", ["draw_kept_values", "draw_row_values", "draw_rows"]),
        ("kept_softmax", ["draw_kept_values", "draw_rows", "draw_rows"]),
        ("kept_types", ["draw_kept_values", "draw_row_values", "draw_row_values", "draw_rows", "draw_rows"]),
        ("more_than_a_texel", ["draw_rows"]),
        ("transposed", ["draw_rows"]),
    ],
)
def test_textures_take_a_blit_for_each_result_and_one_for_rows_that_many_read(label: str, kernels: list[str]) -> None:
    (case,) = (each for each in CASES if each.id == label)
    emit, _ = lower(
        build("gpuexec.RowRegion", case.attributes), *[x for x in case.inputs if x is not None], target="pixel_80"
    )
    assert [kernel.expression.partition("<")[0] for kernel, _ in emit.launches] == kernels
    assert all(kernel.source == "pixel/rows.cu" and kernel.text for kernel, _ in emit.launches)


def test_blits_of_other_sizes_are_those_of_the_upper_end() -> None:
    op = RowRegion(LAYER_NORM, (8,))
    end, _ = lower(op, *make_norm(64, 300), target="pixel_80")
    assert len(end.launches) == 2
    for count, columns in ((64, 300), (63, 299), (3, 1), (1, 1)):
        emit, _ = lower(op, *make_norm(count, columns), choices=end.choices, target="pixel_80")
        assert [kernel for kernel, _ in emit.launches] == [kernel for kernel, _ in end.launches]


def test_textures_fold_no_rows_otherwise_than_the_blits_of_the_steps() -> None:
    op = RowRegion(around("Softmax", (), None), (2,))
    assert op.refuse_blits([TensorSpec((2, 4096), FLOAT), TensorSpec((4096,), FLOAT)]) == ""
    long = [TensorSpec((2, 4097), FLOAT), TensorSpec((4097,), FLOAT)]
    assert op.refuse_blits(long) == "rows so long are folded otherwise by the blit of Softmax"
    emit, _ = lower(op, *[numbers(FLOAT, *spec.shape) for spec in long], target="pixel_80")
    assert "pixel/rows.cu" not in [kernel.source for kernel, _ in emit.launches]


def test_arithmetic_that_extents_choose_is_that_of_the_upper_end() -> None:
    op = RowRegion(around("Softmax", (), None), (2,))
    end, _ = lower(op, numbers(FLOAT, 2, 4097), numbers(FLOAT, 4097))
    with pytest.raises(PlanError, match="not computed as at the upper end"):
        lower(op, numbers(FLOAT, 2, 4096), numbers(FLOAT, 4096), choices=end.choices)


def test_rows_that_lie_side_by_side_are_reduced_as_they_lie() -> None:
    """By the operators' own kernels, whose teams have other lanes then."""
    x = numbers(FLOAT, 300, 40).T
    op = RowRegion((("ReduceSum", (), (0, LAST)), ("Sub", (), (0, -1))), (1,))
    assert lower(op, x)[1].source != "rows.cu" == lower(op, np.ascontiguousarray(x))[1].source
    # A team of a few lanes folds alike either way.
    assert lower(op, numbers(FLOAT, 20, 6).T)[1].source == "rows.cu"


def test_textures_take_one_operator_after_the_other() -> None:
    op = RowRegion(SOFTMAX, (4,))
    emit = PlanningEmitter()
    emit.target = Target.named("pixel_90")
    slot = emit.slot(numbers(FLOAT, 3, 8))
    op.lower(emit, (slot,), (emit.fresh((3, 8), FLOAT),))
    assert emit.kept[0].source != "rows.cu"


def test_results_take_the_bytes_of_inputs_that_are_done_with() -> None:
    def allowed(steps: Steps, results: tuple[int, ...], columns: int = 8) -> list[tuple[int, int]]:
        emit = PlanningEmitter()
        slots = tuple(emit.slot(numbers(FLOAT, 4, columns)) for _ in range(2))
        specs = RowRegion(steps, results).infer(*(slot.spec for slot in slots))
        outputs = tuple(emit.fresh(spec.shape, spec.dtype) for spec in specs)
        RowRegion(steps, results).lower(emit, slots, outputs)
        return [(outputs.index(y), slots.index(x)) for y, x in emit.in_place_allowed]

    steps: Steps = (("Add", (), (0, 1)), ("Softmax", (), (-1,)))
    assert allowed(steps, (0, 1)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert allowed(steps, (1,), 9000) == [], "rows are read anew while results are stored"
    # A row that no other follows is kept as well.
    again: Steps = (
        ("Softmax", (), (0,)),
        ("Add", (), (made_by(0), 0)),
        ("Neg", (), (0,)),
        ("Add", (), (made_by(1), 1)),
    )
    case = rows("", [numbers(FLOAT, 1, 40), numbers(FLOAT, 1, 40)], again, (2, 3))
    _, kernel = lower(RowRegion(again, (2, 3)), *[x for x in case.inputs if x is not None])
    assert kernel.text.count("= column < place.end ? in0[") == 1
    # What is read first behind the fold is not there yet when a result is stored before it.
    late: Steps = (("Neg", (), (0,)), ("Softmax", (), (-1,)), ("Add", (), (-2, 1)), ("Relu", (), (-1,)))
    assert allowed(late, (3, 2)) == [(0, 0), (1, 0), (1, 1)]
    assert allowed((("ReduceSum", (), (0, LAST)), ("Add", (), (-1, 1))), (0,)) == []


def test_offsets_of_many_elements_have_64_bits() -> None:
    emit = PlanningEmitter()
    x = emit.slot(numbers(FLOAT, 1))
    wide = x.__class__(0, 0, TensorSpec((2**20, 4096), FLOAT), (4096, 1))
    RowRegion((("Softmax", (), (0,)),), (0,)).lower(emit, (wide,), (wide,))
    kernel, grid, _, arguments = emit.kept
    assert "RowWalk<i64" in kernel.text and grid[0] == 2**20 and len(arguments[0]) == 8 + 8 + 8 + 24 + 8


@pytest.mark.parametrize(
    "shape",
    [(3, BLOCK + 5), (400, 3000), (7, 150000), (600000, 2), (2, 700, 900), (1, 1, 3 * BLOCK)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [FLOAT, HALF, DOUBLE], ids=str)
def test_blocks_give_the_bits_of_whole_arrays(shape: tuple[int, ...], dtype: Any) -> None:
    steps: Steps = (
        ("Add", (), (0, 1)),
        ("ReduceMean", (), (made_by(0), LAST)),
        ("Sub", (), (made_by(0), made_by(1))),
        ("ReduceSumSquare", GONE, (made_by(2), LAST)),
        ("Softmax", (), (made_by(2),)),
        ("LayerNormalization", (), (made_by(4), 1)),
        ("Add", (), (made_by(5), 2)),
    )
    inputs = [numbers(dtype, *shape), numbers(dtype, shape[-1]), numbers(dtype, *shape[:-1], 1)]
    op, expected = RowRegion(steps, (1, 3, 6)), apply_steps(steps, inputs)
    out = [None, np.full(expected[3].shape, 7, dtype), np.full(expected[6].shape, 7, dtype)]
    made = op.compute(*inputs, out=out)
    assert made[1] is out[1] and made[2] is out[2]
    for got, place in zip(made, (1, 3, 6), strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected[place]))


def list_row_calls(name: str) -> list[Call]:
    """Return the calls of an operator that can be in a region of rows, without empty inputs."""
    calls = [call for call in list_calls()[name] if all(x is None or x.size for x in call.inputs)]
    return [call for call in calls if name != RowRegion.name and find_form(call) is not None]


def find_form(call: Call) -> Any:
    return call.operator.as_row([None if x is None else TensorSpec.of(x) for x in call.inputs])


def surround(call: Call) -> RowRegion:
    """Return a region of an operator between two on elements."""
    read = find_form(call).read
    inputs = [
        None if x is None else write_integers(x) if place in read else place for place, x in enumerate(call.inputs)
    ]
    to = (("to", dtype_row(find_form(call).dtype).code),)
    return RowRegion(((*describe(call.operator), tuple(inputs)), ("Cast", to, (made_by(0),))), (1,))


@pytest.mark.parametrize("name", sorted(name for name in list_calls() if list_row_calls(name)))
def test_every_case_of_an_operator_runs_inside_a_row_region(name: str) -> None:
    """On the host and on the simulator, with the bits of the operator by itself; all kernels are one object."""
    planned = []
    for call in list_row_calls(name):
        op = surround(call)
        inputs = [x if isinstance(given, int) else None for x, given in zip(call.inputs, op.steps[0][2], strict=True)]
        emit = PlanningEmitter()
        slots = tuple(None if x is None else emit.slot(x) for x in inputs)
        (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
        y = emit.fresh(spec.shape, spec.dtype)
        op.lower(emit, slots, (y,))
        (computed,) = op.compute(*inputs)
        expected, *_ = call.operator.compute(*call.inputs)
        np.testing.assert_array_equal(to_bits(computed), to_bits(np.asarray(expected)), err_msg=str(call))
        if emit.kept[0].source == "rows.cu":
            planned.append((call, emit, y))
    assert planned
    functions = load_generated(list(dict.fromkeys(emit.kept[0] for _, emit, _ in planned)))
    for call, emit, y in planned:
        kernel, grid, block, arguments = emit.kept
        values = [emit.arrays[a.buffer][a.offset_bytes :] if hasattr(a, "buffer") else a for a in arguments]
        functions[kernel].launch_arrays(grid, block, *values)
        alone = lower_and_run(call.operator, call.inputs, find_form(call).read, (True,))[0]
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(alone), err_msg=str(call))

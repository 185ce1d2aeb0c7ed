"""MaxPool, AveragePool and LpPool: all attributes and types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.lib.windows import resolve_windows
from gpuexec.ops.nn.pool import FLOATS, MAX_DTYPES, reduce_windows
from tests.ops.harness import Case, expect, run_case

Array = np.ndarray[Any, Any]
NAN = float("nan")


def make(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Return reproducible content; equal values are frequent, so that the choice among them is seen."""
    values = np.random.default_rng(seed).integers(-20, 20, shape)
    return (values % 40 if np.dtype(dtype).kind == "u" else values).astype(dtype)


def pool(
    id: str,
    op: str,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    dtype: Any = np.float32,
    oracle: str = "onnxruntime",
    opset: int = 22,
    indices: bool = False,
    **attributes: Any,
) -> Case:
    """Return a pooling case; bfloat16 takes the float case's answer, rounded."""
    attributes["kernel_shape"] = list(kernel)
    wanted = (True, True) if indices else (True,)
    case = Case(
        id,
        op,
        (make(1, *x, dtype=dtype),),
        attributes,
        outputs=wanted,
        oracle=oracle,
        opset=opset,
        terms=int(np.prod(kernel)),
    )
    if dtype == BFLOAT16:
        wide = Case(id, op, (make(1, *x, dtype=np.float32),), attributes, outputs=wanted, oracle=oracle, opset=opset)
        answers = tuple(y.astype(BFLOAT16) if y.dtype == np.float32 else y for y in expect(wide))
        return Case(id, op, case.inputs, attributes, outputs=wanted, expected=answers, opset=opset, terms=case.terms)
    return case


MAX, AVG, LP = "MaxPool", "AveragePool", "LpPool"
CASES = [
    *(
        pool(f"max_{dtype_row(d).name}", MAX, (2, 3, 7, 8), (3, 2), d, pads=[1, 1, 1, 0])
        for d in MAX_DTYPES
        if d != np.float16
    ),
    pool("max_float16", MAX, (2, 3, 7, 8), (3, 2), np.float16, "reference"),
    *(
        pool(f"max_indices_{dtype_row(d).name}", MAX, (2, 3, 7, 8), (3, 2), d, indices=True, strides=[2, 1])
        for d in MAX_DTYPES
        if d != np.float16
    ),
    pool("max_plain", MAX, (1, 2, 5, 6), (2, 3)),
    pool("max_strided", MAX, (1, 2, 9, 8), (3, 3), strides=[2, 3]),
    pool("max_dilated", MAX, (1, 2, 9, 8), (2, 3), dilations=[3, 2], indices=True),
    pool("max_asymmetric", MAX, (1, 2, 5, 6), (3, 3), pads=[2, 0, 1, 2], indices=True),
    pool("max_column_major", MAX, (2, 2, 5, 6), (2, 2), storage_order=1, indices=True, strides=[2, 2]),
    pool("max_window_beyond_the_input", MAX, (1, 2, 2, 3), (9, 4), ceil_mode=1, strides=[9, 4]),
    pool("max_ceil", MAX, (1, 2, 6, 7), (3, 3), ceil_mode=1, strides=[2, 2], indices=True),
    pool(
        "max_ceil_starts_in_the_end_padding", MAX, (1, 1, 2, 2), (1, 1), ceil_mode=1, strides=[2, 2], pads=[0, 0, 0, 0]
    ),
    *(
        pool(f"max_{a.lower()}", MAX, (1, 2, 7, 8), (3, 2), auto_pad=a, strides=[2, 2], indices=True)
        for a in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    pool("max_one_axis", MAX, (2, 3, 9), (4,), pads=[1, 2], indices=True),
    pool("max_three_axes", MAX, (1, 2, 4, 5, 6), (2, 3, 2), pads=[1, 0, 1, 0, 1, 0], strides=[1, 2, 2], indices=True),
    pool("max_opset_8", MAX, (1, 2, 5, 6), (2, 3), opset=8),
    pool("max_opset_7", MAX, (1, 2, 5, 6), (2, 3), opset=7),
    *(
        pool(
            f"average_{dtype_row(d).name}",
            AVG,
            (2, 3, 7, 8),
            (3, 2),
            d,
            "reference" if d == np.float16 else "onnxruntime",
        )
        for d in FLOATS
        if d != np.float64
    ),
    pool("average_float64", AVG, (2, 3, 7, 8), (3, 2), np.float64, "reference", pads=[1, 1, 1, 0]),
    pool("average_padded", AVG, (1, 2, 5, 6), (3, 3), pads=[1, 2, 1, 0]),
    pool("average_counts_padding", AVG, (1, 2, 5, 6), (3, 3), pads=[1, 2, 1, 0], count_include_pad=1),
    pool("average_dilated", AVG, (1, 2, 9, 8), (2, 3), dilations=[3, 2], strides=[2, 1]),
    pool("average_ceil", AVG, (1, 2, 6, 7), (3, 3), ceil_mode=1, strides=[2, 2], pads=[1, 1, 1, 1]),
    pool(
        "average_ceil_counts_padding",
        AVG,
        (1, 2, 6, 7),
        (3, 3),
        ceil_mode=1,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    ),
    *(
        pool(f"average_{a.lower()}", AVG, (1, 2, 7, 8), (3, 2), auto_pad=a, strides=[2, 2])
        for a in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    pool("average_same_upper_counts_padding", AVG, (1, 2, 7, 8), (3, 3), auto_pad="SAME_UPPER", count_include_pad=1),
    pool("average_one_axis", AVG, (2, 3, 9), (4,), pads=[1, 2]),
    pool("average_three_axes", AVG, (1, 2, 4, 5, 6), (2, 3, 2), pads=[1, 0, 1, 0, 1, 0]),
    pool("average_opset_7", AVG, (1, 2, 5, 6), (2, 3), opset=7),
    pool("average_window_beyond_the_input", AVG, (1, 2, 2, 3), (9, 4), ceil_mode=1, strides=[9, 4]),
    pool("average_opset_11", AVG, (1, 2, 5, 6), (2, 3), opset=11, ceil_mode=1, strides=[2, 2]),
    *(
        pool(f"lp_{dtype_row(d).name}", LP, (1, 2, 5, 6), (2, 3), d, oracle="reference", pads=[1, 1, 0, 1])
        for d in FLOATS
    ),
    *(pool(f"lp_{p}", LP, (1, 2, 5, 6), (2, 3), p=p) for p in (1, 2, 3)),
    pool("lp_dilated", LP, (1, 2, 7, 8), (2, 2), oracle="reference", dilations=[2, 2]),
    *(pool(f"lp_opset_{opset}", LP, (1, 2, 5, 6), (2, 3), opset=opset, p=3) for opset in (2, 11, 18)),
    replace(
        pool("lp_opset_1", LP, (1, 2, 5, 6), (2, 3), p=3),
        opset=1,
        attributes={"kernel_shape": [2, 3], "p": 3.0},
        expected=expect(pool("lp_opset_2", LP, (1, 2, 5, 6), (2, 3), opset=2, p=3)),
    ),
    Case(
        "global_lp_opset_1",
        "GlobalLpPool",
        (make(1, 2, 3, 4, 5),),
        {"p": 2.0},
        opset=1,
        terms=20,
        expected=(np.sqrt(np.square(make(1, 2, 3, 4, 5)).sum((2, 3), keepdims=True)),),
    ),
    pool("no_images", MAX, (0, 2, 5, 6), (2, 3), oracle="reference"),
]


def worked(
    id: str, x: list[float], expected: list[float], indices: list[int], dtype: Any = np.float32, **attributes: Any
) -> Case:
    """Return a MaxPool over one axis, worked out by hand."""
    answers = np.array([[expected]], dtype), np.array([[indices]], np.int64)
    return Case(
        id, MAX, (np.array([[x]], dtype),), attributes, outputs=(True, True), expected=answers, oracle="expected"
    )


LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")


BY_HAND = [
    worked("first_of_equals", [3, 3, 1, 1], [3, 3, 1], [0, 1, 2], kernel_shape=[2]),
    worked("nan_wins", [1, NAN, 2, NAN, 5], [NAN, NAN, NAN], [1, 1, 3], kernel_shape=[3]),
    worked("minus_infinity_is_a_value", [-INF, -INF, -INF], [-INF, -INF], [0, 1], kernel_shape=[2]),
    worked("padding_alone", [7], [LOWEST, 7, LOWEST], [-1, 0, -1], kernel_shape=[1], pads=[1, 1]),
    worked("half", [1, 3, 2, 2], [3, 3, 2], [1, 1, 2], np.float16, kernel_shape=[2]),
    worked("lowest_integers", [-128, -128], [-128], [0], np.int8, kernel_shape=[2]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(checks: str, case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case, checks)


def last_channels() -> Array:
    """Return channels that lie last, rows backwards, every second column."""
    return make(1, 2, 8, 9, 4).transpose(0, 3, 1, 2)[:, :, ::-1, ::2]


VIEWS = [
    Case(
        f"view_{op.lower()}",
        op,
        (last_channels(),),
        {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]},
        outputs=wanted,
        oracle="onnxruntime" if op == MAX else "reference",  # whose indices are wrong beside padding
        opset=21,
        terms=4,
    )
    for op, wanted in ((MAX, (True, True)), (AVG, (True,)), (LP, (True,)))
]


@pytest.mark.parametrize("case", [*VIEWS, *BY_HAND], ids=lambda case: case.id)
def test_views(checks: str, case: Case) -> None:
    """Inputs keep their strides."""
    run_case(case, checks)


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: case.id)
def test_maximum_worked_by_hand(checks: str, case: Case) -> None:
    """Cases on which oracles disagree: ties, NaN, infinities, windows of padding."""
    run_case(case, checks)


def test_values_do_not_depend_on_whether_indices_are_wanted() -> None:
    """Both ways to the maximum give the same bits, NaN included."""
    x = make(2, 2, 3, 8, 9)
    x[0, 1, 3, 3] = NAN
    op = gx_operator.build(MAX, {"kernel_shape": [3, 2], "pads": [1, 0, 0, 1], "strides": [2, 1]})
    alone = op.compute(x, out=[np.empty(op.infer(TensorSpec.of(x))[0].shape, np.float32)])[0]
    np.testing.assert_array_equal(alone, op.compute(x)[0])


def test_windows_are_reduced_in_as_many_passes_as_the_kernels_extents_add_up_to() -> None:
    """A kernel of 13 x 13 takes 26 passes over the input, not 169."""
    passes = []

    def combine(a: Array, b: Array, out: Array) -> None:
        passes.append(b.shape)
        np.maximum(a, b, out=out)

    x = make(3, 1, 2, 20, 20)
    windows = resolve_windows((20, 20), (13, 13), (), (), (6,) * 4, "NOTSET")
    y = reduce_windows(x, windows, combine, -np.inf)
    assert y.shape == (1, 2, 20, 20) and y[0, 0, 10, 10] == x[0, 0, 4:17, 4:17].max()
    assert len(passes) <= 13 + 13


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "attributes", "words"),
    [
        (MAX, (1, 2, 5), np.int32, {"kernel_shape": [2]}, "type"),
        (AVG, (1, 2, 5), np.int8, {"kernel_shape": [2]}, "type"),
        (MAX, (1, 2), np.float32, {"kernel_shape": []}, "spatial axes"),
        (MAX, (1, 2, 5, 5), np.float32, {"kernel_shape": [2]}, "kernel_shape"),
        (AVG, (1, 2, 5), np.float32, {"kernel_shape": [6]}, "padded extent"),
        (LP, (1, 2, 5), np.float32, {"kernel_shape": [2], "p": 0}, "p of at least 1"),
    ],
)
def test_refuses(op: str, shape: tuple[int, ...], dtype: Any, attributes: dict[str, Any], words: str) -> None:
    """Inputs that do not fit are refused, with what was expected."""
    with pytest.raises(InputError, match=words):
        gx_operator.build(op, attributes).infer(TensorSpec(shape, np.dtype(dtype)))

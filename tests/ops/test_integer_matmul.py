"""MatMulInteger and QLinearMatMul."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.quant import integer_matmul
from gpuexec.ops.quant.integer import Quantized
from gpuexec.ops.quant.integer_matmul import MatMulInteger, QLinearMatMul, launch_integer_gemm
from gpuexec.planner.template import plan_graph
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Array, Case, run_case

RNG = np.random.default_rng(11)
U8, I8 = np.uint8, np.int8


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scales(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.uniform(0.01, 0.1, shape).astype(dtype)


def product(id: str, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Case:
    """The result is worked out in int64; zero points already broadcast."""
    left = a.astype(np.int64) - (0 if a_zero is None else a_zero.astype(np.int64))
    right = b.astype(np.int64) - (0 if b_zero is None else b_zero.astype(np.int64))
    inputs: tuple[Array | None, ...] = (a, b)
    if a_zero is not None or b_zero is not None:
        inputs = (a, b, a_zero) if b_zero is None else (a, b, a_zero, b_zero)
    return Case(id, "MatMulInteger", inputs, expected=(np.asarray((left @ right).astype(np.int32)),))


def by_rows(id: str, a: Array, b: Array, a_zero: Array, b_zero: Array) -> Case:
    """Zero points of one axis: of rows on the left, of columns on the right."""
    case = product(id, a, b, a_zero[:, None], b_zero[None, :])
    return Case(id, case.op, (a, b, a_zero, b_zero), expected=case.expected)


PRODUCTS = [
    *(
        product(f"{a.__name__}_{b.__name__}", integers(a, 5, 7), integers(b, 7, 9), integers(a), integers(b))
        for a in (U8, I8)
        for b in (U8, I8)
    ),
    product("tiles", integers(U8, 70, 150), integers(I8, 150, 67), integers(U8), integers(I8)),
    product("whole_tiles", integers(U8, 2, 64, 32), integers(I8, 2, 32, 64), integers(U8), integers(I8)),
    product("tiles_unaligned", integers(I8, 66, 37), integers(U8, 37, 65)),
    product("without_zeros", integers(U8, 6, 8), integers(U8, 8, 3)),
    product("a_zero", integers(U8, 6, 8), integers(I8, 8, 3), integers(U8, 1)),
    product("b_zero", integers(I8, 6, 8), integers(I8, 8, 3), None, integers(I8)),
    by_rows("zeros_by_rows", integers(U8, 6, 9), integers(I8, 9, 5), integers(U8, 6), integers(I8, 5)),
    by_rows("few_rows_zeros_by_rows", integers(I8, 3, 300), integers(U8, 300, 10), integers(I8, 3), integers(U8, 10)),
    product(
        "zeros_by_matrix", integers(U8, 2, 3, 9), integers(I8, 2, 9, 5), integers(U8, 2, 3, 1), integers(I8, 2, 1, 5)
    ),
    product(
        "zeros_by_more_matrices", integers(U8, 2, 5, 9), integers(I8, 9, 4), integers(U8, 5, 1), integers(I8, 2, 1, 4)
    ),
    product(
        "zeros_by_one_matrix", integers(U8, 5, 9), integers(I8, 2, 9, 4), integers(U8, 1, 5, 1), integers(I8, 1, 4)
    ),
    product("few_rows", integers(U8, 2, 131), integers(I8, 131, 21), integers(U8), integers(I8)),
    product("column", integers(U8, 40, 12), integers(I8, 12, 1), integers(U8), integers(I8)),
    product("vectors", integers(U8, 12), integers(I8, 12), integers(U8), integers(I8)),
    product("vector_left", integers(U8, 12), integers(I8, 12, 5), integers(U8), integers(I8)),
    product("vector_right", integers(U8, 3, 5, 12), integers(I8, 12), integers(U8), integers(I8)),
    product("batches", integers(U8, 2, 1, 5, 6), integers(I8, 3, 6, 4), integers(U8), integers(I8)),
    product("batches_of_few_rows", integers(U8, 3, 2, 40), integers(I8, 3, 40, 128), integers(U8), integers(I8)),
    product("batches_of_whole_lines", integers(U8, 2, 20, 64), integers(I8, 2, 64, 32), integers(U8), integers(I8)),
    product("batches_one_right", integers(U8, 2, 3, 5, 6), integers(I8, 6, 4), integers(U8), integers(I8)),
    product("rank8", integers(U8, 1, 2, 1, 2, 1, 2, 5, 6), integers(I8, 2, 1, 2, 1, 2, 1, 6, 4), integers(U8)),
    product("transposed", integers(U8, 9, 6).T, integers(I8, 4, 9).T, integers(U8), integers(I8)),
    product("transposed_tiles", integers(U8, 72, 68).T, integers(I8, 80, 72).T, integers(U8), integers(I8)),
    product("empty_inner", integers(U8, 5, 0), integers(I8, 0, 4), integers(U8), integers(I8)),
    product("empty_rows", integers(U8, 0, 5), integers(I8, 5, 4)),
    product("empty_batch", integers(U8, 0, 3, 5), integers(I8, 5, 4)),
    product("large_tiles", integers(U8, 1280, 4), integers(I8, 4, 1024), integers(U8), integers(I8)),
    product("extremes", np.full((9, 1100), 255, U8), np.full((1100, 9), -128, I8), np.array(0, U8), np.array(127, I8)),
    Case(
        "reference",
        "MatMulInteger",
        (integers(U8, 4, 3), integers(U8, 3, 2), np.array(12, U8), np.array(0, U8)),
        opset=10,
    ),
]


def quantised(id: str, a: Array, b: Array, *quants: Array, y_zero: Array, dtype: Any = np.float32) -> Case:
    """Scales and zero points of a, b and the scale of y stand in that order; the result is rounded before it moves."""
    a_scale, a_zero, b_scale, b_zero, y_scale = quants

    def row(q: Array) -> Array:
        return q[:, None] if q.ndim == 1 and q.size > 1 else q

    sums = (a.astype(np.int64) - row(a_zero)) @ (b.astype(np.int64) - b_zero)
    factor = row(a_scale).astype(np.float32) * b_scale.astype(np.float32) / row(y_scale).astype(np.float32)
    whole = np.rint(sums.astype(np.float32) * factor).astype(np.int64) + row(y_zero)
    limits = np.iinfo(y_zero.dtype)
    expected = np.asarray(np.clip(whole, limits.min, limits.max).astype(y_zero.dtype))
    inputs = (a, a_scale.astype(dtype), a_zero, b, b_scale.astype(dtype), b_zero, y_scale.astype(dtype), y_zero)
    return Case(id, "QLinearMatMul", inputs, expected=(expected,), opset=21)


def plain(id: str, a: Array, b: Array, y: Any = U8, dtype: Any = np.float32) -> Case:
    """Scales that every float type holds, so that the result does not depend on it."""
    quarter, eighth = np.array(0.25, dtype), np.array(0.125, dtype)
    zeros = (np.array(3, a.dtype), np.array(5, b.dtype))
    quants = (quarter, zeros[0], eighth, zeros[1], np.array(32, dtype))
    return quantised(id, a, b, *quants, y_zero=np.array(7, y), dtype=dtype)


QUANTISED = [
    *(
        plain(f"{a.__name__}_{b.__name__}_{y.__name__}", integers(a, 5, 7), integers(b, 7, 6), y)
        for a in (U8, I8)
        for b in (U8, I8)
        for y in (U8, I8)
    ),
    plain("halves", integers(U8, 5, 7), integers(I8, 7, 6), I8, np.float16),
    plain("bfloat16s", integers(U8, 5, 7), integers(I8, 7, 6), I8, ml_dtypes.bfloat16),
    plain("tiles", integers(U8, 70, 90), integers(I8, 90, 66), I8),
    plain("large_tiles", integers(U8, 1280, 4), integers(I8, 4, 1024), I8),
    plain("few_rows", integers(U8, 2, 90), integers(I8, 90, 66), I8),
    plain("vectors", integers(U8, 9), integers(I8, 9)),
    plain("batches", integers(U8, 2, 5, 9), integers(I8, 2, 9, 3)),
    quantised(
        "by_rows_and_columns",
        integers(U8, 6, 9),
        integers(I8, 9, 5),
        scales(6),
        integers(U8, 6),
        scales(5),
        integers(I8, 5),
        scales(6) * 40,
        y_zero=integers(U8, 6),
    ),
    quantised(
        "by_columns",
        integers(U8, 3, 8, 9),
        integers(I8, 9, 5),
        scales(),
        integers(U8),
        scales(5),
        integers(I8, 5),
        scales() * 40,
        y_zero=integers(U8),
    ),
    quantised(
        "by_matrix",
        integers(U8, 2, 6, 9),
        integers(I8, 2, 9, 5),
        scales(2, 6, 1),
        integers(U8, 2, 6, 1),
        scales(2, 1, 5),
        integers(I8, 2, 1, 5),
        scales(2, 6, 1) * 40,
        y_zero=integers(I8, 2, 6, 1),
    ),
    Case(
        "halves_to_even",
        "QLinearMatMul",
        (
            np.array([[1], [3], [5], [7], [250]], U8),
            *(np.array(1, np.float32), np.array(0, U8)),
            *(np.array([[1]], I8), np.array(1, np.float32), np.array(0, I8)),
            *(np.array(2, np.float32), np.array(1, I8)),
        ),
        expected=(np.array([[1], [3], [3], [5], [126]], I8),),
    ),
    Case(
        "saturates",
        "QLinearMatMul",
        (
            np.array([[255], [0]], U8),
            *(np.array(1e30, np.float32), np.array(128, U8)),
            *(np.array([[1]], I8), np.array(1e30, np.float32), np.array(0, I8)),
            *(np.array(1e-3, np.float32), np.array(100, U8)),
        ),
        expected=(np.array([[255], [0]], U8),),
    ),
    Case(
        "no_scale",
        "QLinearMatMul",
        (
            np.array([[9], [0]], U8),
            *(np.array(0, np.float32), np.array(0, U8)),
            *(np.array([[1]], I8), np.array(1, np.float32), np.array(0, I8)),
            *(np.array(0, np.float32), np.array(100, U8)),
        ),
        expected=(np.array([[100], [100]], U8),),
    ),
    plain("empty_inner", integers(U8, 3, 0), integers(I8, 0, 2)),
    Case(
        "opset10",
        "QLinearMatMul",
        (
            integers(U8, 4, 3),
            *(np.array(0.01, np.float32), np.array(12, U8)),
            *(integers(U8, 3, 2), np.array(0.02, np.float32), np.array(4, U8)),
            *(np.array(0.03, np.float32), np.array(100, U8)),
        ),
        opset=10,
        oracle="onnxruntime",
    ),
]


@pytest.mark.parametrize("case", [*PRODUCTS, *QUANTISED], ids=lambda case: f"{case.op}_{case.id}")
def test_products_of_integers(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.sampled_from([U8, I8]),
    st.sampled_from([U8, I8]),
    st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(1, 20)),
    st.integers(0, 2**32 - 1),
)
def test_products_of_any_integers(checks: str, a: Any, b: Any, extents: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, inner, columns = extents

    def draw(dtype: Any, *shape: int) -> Array:
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True), dtype)

    run_case(product("any", draw(a, rows, inner), draw(b, inner, columns), draw(a), draw(b)), checks)


# Left operands of whole vectors are read as they lie, others are packed; the last ones have slices.
WEIGHTED = [
    product("whole_rows", integers(U8, 70, 64), integers(I8, 64, 30), integers(U8), integers(I8)),
    product("rows_with_gaps", integers(I8, 2, 70, 96)[:, :, 16:80], integers(U8, 64, 68), integers(I8)),
    product("odd_rows", integers(U8, 66, 37), integers(U8, 37, 65), integers(U8), integers(U8)),
    product("batches", integers(I8, 2, 3, 9, 32), integers(I8, 3, 32, 12), integers(I8), integers(I8)),
    product("vector", integers(U8, 3, 9, 48), integers(I8, 48), integers(U8), integers(I8)),
    product("transposed", integers(U8, 20, 48), integers(I8, 33, 48).T, integers(U8), integers(I8)),
    product("one_row", integers(U8, 1, 2048), integers(I8, 2048, 40), integers(U8), integers(I8)),
    product("few_rows", integers(I8, 5, 1024), integers(U8, 1024, 130), integers(I8), integers(U8)),
    product("slices", integers(U8, 65, 2064), integers(U8, 2064, 70), integers(U8), integers(U8)),
]


@pytest.mark.parametrize("case", WEIGHTED, ids=lambda case: case.id)
def test_products_with_a_weight(checks: str, case: Case) -> None:
    run_case(dataclasses.replace(case, const=(1,)), checks)


# Tiles in fewer rows and columns: the kernel that counts in 64 bits has none, and shares outputs by the inner extent.
FEWER = [
    product("tiles", integers(U8, 9, 150), integers(I8, 150, 7), integers(U8), integers(I8)),
    product("whole_tiles", integers(U8, 2, 8, 32), integers(I8, 2, 32, 8), integers(U8), integers(I8)),
    product("tiles_unaligned", integers(I8, 10, 37), integers(U8, 37, 9)),
    product("transposed_tiles", integers(U8, 72, 12).T, integers(I8, 8, 72).T, integers(U8), integers(I8)),
    # of so many outputs that they are made without the checks
    product("large_tiles", integers(U8, 288, 4), integers(I8, 4, 256), integers(U8), integers(I8)),
    plain("tiles", integers(U8, 7, 90), integers(I8, 90, 9), I8),
    plain("large_tiles", integers(U8, 288, 4), integers(I8, 4, 256), I8),
]
_FEWER = {(case.op, case.id): case for case in FEWER}
LONG = [
    _FEWER.get((case.op, case.id), case)
    for case in (*PRODUCTS, *QUANTISED)
    if not case.const and case.inputs[0].dtype in (U8, I8)
]


@pytest.mark.parametrize("case", LONG, ids=lambda case: f"{case.op}_{case.id}")
def test_products_beyond_32_bits(monkeypatch: pytest.MonkeyPatch, checks: str, case: Case) -> None:
    """Bytes are summed as they lie, by a kernel that counts in 64."""
    monkeypatch.setattr(integer_matmul, "_MAX_ROWS", 1)  # as if 32 bits held so much
    run_case(case, checks)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_scaled_products_beyond_32_bits(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """To the bit what tiles give, of many terms too, and of views."""
    a, b = integers(U8, 3, 1, 1500)[:, :, ::-1], integers(I8, 2, 13, 1500).swapaxes(1, 2)
    quants = scales(1, dtype=dtype), integers(U8, 1), scales(2, 1, 13, dtype=dtype), integers(I8, 2, 1, 13)
    bias = scales(13, dtype=dtype)
    made = []
    for rows in (2**31, 1):
        monkeypatch.setattr(integer_matmul, "_MAX_ROWS", rows)
        emit = DirectEmitter()
        a_scale, a_zero, b_scale, b_zero, added = (emit.slot(each) for each in (*quants, bias))
        left = Quantized(emit.slot(a[:, np.newaxis]), a_scale, a_zero)
        right, y = Quantized(emit.slot(b), b_scale, b_zero), emit.fresh((3, 2, 1, 13), dtype)
        launch_integer_gemm(emit, left, right, Quantized(y), alpha=0.5, bias=added)
        made.append((emit.launches[-1][0].expression.partition("<")[0], emit.read(y).copy()))
    (one, first), (other, second) = made
    assert (one, other) == ("integer_gemv", "integer_contract")
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("a", "b"), [((2**31, 3), (3, 2)), ((2**16, 2**15, 3), (3, 2)), ((2, 3), (3, 2**29)), ((2, 2**31), (2**31, 1))]
)
def test_extents_that_words_do_not_hold(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    operator, target = MatMulInteger(), open_device("tracer").target
    build, specs = GraphBuilder(), {"a": TensorSpec(a, np.dtype(U8)), "b": TensorSpec(b, np.dtype(I8))}
    values = [build.input(name, *spec.shape, dtype=spec.dtype) for name, spec in specs.items()]
    plan = plan_graph(build.graph(build.node(operator, *values)), specs, target).plan
    assert [kernel.expression for kernel in plan.kernels()] == ["integer_contract<i32>"]


@pytest.mark.parametrize("cls", [MatMulInteger, QLinearMatMul])
def test_attributes_are_those_of_the_schema(cls: Any) -> None:
    assert not onnx.defs.get_schema(cls.name).attributes
    assert not dataclasses.fields(cls)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


F32 = np.float32
SCALE, ZERO = spec(F32), spec(U8)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (MatMulInteger(), (spec(np.int16, 2, 3), spec(U8, 3, 2)), "expects A of type"),
        (MatMulInteger(), (spec(U8, 2, 3), None), "lacks its B"),
        (MatMulInteger(), (spec(U8, 2, 3), spec(U8, 2, 3)), "as many columns on the left as rows on the right"),
        (MatMulInteger(), (spec(U8), spec(U8, 2, 3)), "as many columns on the left as rows on the right"),
        (MatMulInteger(), (spec(U8, 2, 3), spec(U8, 3, 2), spec(I8)), "expects a_zero_point of type uint8"),
        (
            MatMulInteger(),
            (spec(U8, 2, 3), spec(U8, 3, 2), spec(U8, 3)),
            "a_zero_point to be one number, or one for each row",
        ),
        (MatMulInteger(), (spec(U8, 2, 3), spec(U8, 3, 4), None, spec(U8, 3)), "one for each column (4)"),
        (
            QLinearMatMul(),
            (spec(U8, 2, 3), SCALE, ZERO, spec(U8, 3, 2), SCALE, ZERO, SCALE, None),
            "lacks its y_zero_point",
        ),
        (
            QLinearMatMul(),
            (spec(U8, 2, 3), SCALE, ZERO, spec(U8, 3, 2), SCALE, ZERO, spec(np.float16), ZERO),
            "expects y_scale of the type of a_scale",
        ),
        (
            QLinearMatMul(),
            (spec(U8, 2, 3), spec(np.float64), ZERO, spec(U8, 3, 2), SCALE, ZERO, SCALE, ZERO),
            "expects a_scale of type",
        ),
    ],
)
def test_what_does_not_fit_is_refused(op: Any, inputs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        op.infer(*inputs)
    assert message in str(caught.value)

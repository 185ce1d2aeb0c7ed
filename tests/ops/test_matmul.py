"""MatMul and Gemm: every ONNX form against NumPy and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, accumulator, dtype_row
from gpuexec.ops.linalg import product
from gpuexec.ops.linalg.matmul import multiply
from gpuexec.ops.linalg.matmul_launch import DTYPES
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
HALVES = (np.dtype(np.float16), BFLOAT16)


def make(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Return reproducible content; small integers for integer types."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0 if np.dtype(dtype).kind == "u" else -9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def matmul_case(id: str, a: tuple[int, ...], b: tuple[int, ...], dtype: Any = np.float32, opset: int = 24) -> Case:
    """Return a MatMul; half types are worked out in double."""
    x, y = make(1, *a, dtype=dtype), make(2, *b, dtype=dtype)
    expected = None
    if np.dtype(dtype) in HALVES:
        expected = (np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(dtype),)
    return Case(id, "MatMul", (x, y), expected=expected, terms=a[-1], opset=opset)


def gemm_case(
    id: str,
    a: tuple[int, int],
    b: tuple[int, int],
    c: tuple[int, ...] | None,
    dtype: Any = np.float32,
    opset: int = 24,
    **attributes: Any,
) -> Case:
    """Return a Gemm whose expected value is worked out in double."""
    x, y = make(3, *a, dtype=dtype), make(4, *b, dtype=dtype)
    z = None if c is None else make(5, *c, dtype=dtype)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else np.dtype(dtype)
    left, right = (x.T if attributes.get("transA") else x), (y.T if attributes.get("transB") else y)
    expected = attributes.get("alpha", 1.0) * np.matmul(left.astype(wide), right.astype(wide))
    if z is not None:
        expected = expected + attributes.get("beta", 1.0) * z.astype(wide)
    inputs = (x, y) if z is None else (x, y, z)
    terms = left.shape[1] + 1
    return Case(
        id, "Gemm", inputs, attributes, expected=(np.asarray(expected).astype(dtype),), terms=terms, opset=opset
    )


CASES = [
    *(matmul_case(f"matmul_{dtype_row(d).name}", (3, 5, 7), (3, 7, 4), d) for d in DTYPES),
    matmul_case("matmul_2d", (5, 7), (7, 6)),
    matmul_case("matmul_beyond_a_tile", (70, 33), (33, 65)),
    matmul_case("matmul_whole_tiles", (2, 64, 9), (9, 128)),
    matmul_case("matmul_whole_slabs", (70, 32), (32, 65)),
    matmul_case("matmul_row", (7,), (7, 5)),
    matmul_case("matmul_column", (5, 7), (7,)),
    matmul_case("matmul_dot", (7,), (7,)),
    matmul_case("matmul_row_by_batch", (7,), (2, 3, 7, 5)),
    matmul_case("matmul_batch_by_column", (2, 3, 5, 7), (7,)),
    matmul_case("matmul_shared_right", (2, 3, 5, 7), (7, 4)),
    matmul_case("matmul_shared_left", (5, 7), (2, 3, 7, 4)),
    matmul_case("matmul_batch_broadcast", (2, 1, 5, 7), (3, 7, 4)),
    matmul_case("matmul_batch_crossed", (2, 1, 3, 1, 2, 7), (1, 2, 1, 2, 7, 4)),
    matmul_case("matmul_eight_batch_axes", (2, 1) * 4 + (3, 6), (1, 2) * 4 + (6, 5)),
    matmul_case("matmul_one_row_each", (4, 1, 7), (4, 7, 3)),
    matmul_case("matmul_one_row_shared", (4, 1, 7), (7, 3)),
    matmul_case("matmul_few_rows", (3, 70), (70, 37)),
    matmul_case("matmul_few_columns", (37, 70), (70, 3)),
    matmul_case("matmul_few_columns_batch", (2, 3, 37, 70), (3, 70, 2)),
    matmul_case("matmul_few_of_both", (2, 70), (70, 2)),
    matmul_case("matmul_five_rows", (5, 70), (70, 9)),
    *(matmul_case(f"matmul_{rows}_rows", (rows, 300), (300, 44)) for rows in (1, 2, 3, 7, 8)),
    *(gemm_case(f"gemm_{rows}_rows", (rows, 260), (45, 260), (45,), transB=1) for rows in (1, 2, 3, 7, 8)),
    matmul_case("matmul_few_rows_batch", (3, 2, 70), (3, 70, 5)),
    matmul_case("matmul_nine_rows", (9, 70), (70, 9)),
    matmul_case("matmul_slices", (70, 1030), (1030, 33)),
    matmul_case("matmul_slices_batch", (2, 65, 516), (2, 516, 68)),
    matmul_case("matmul_slices_half", (17, 4104), (4104, 24), np.float16),
    matmul_case("matmul_few_rows_half", (3, 70), (70, 37), np.float16),
    *(matmul_case(f"matmul_few_rows_of_vectors_{d}", (3, 72), (72, 40), d) for d in HALVES),
    *(gemm_case(f"gemm_few_rows_of_vectors_{d}", (2, 72), (9, 72), (9,), d, transB=1) for d in HALVES),
    matmul_case("matmul_few_columns_batch_half", (2, 3, 37, 70), (3, 70, 2), np.float16),
    matmul_case("matmul_batch_broadcast_half", (2, 1, 5, 7), (3, 7, 4), np.float16),
    matmul_case("matmul_empty_inner_half", (3, 0), (0, 4), np.float16),
    matmul_case("matmul_no_rows_half", (2, 0, 5), (5, 4), np.float16),
    matmul_case("matmul_large_tiles", (1280, 1), (1, 1024)),
    matmul_case("matmul_large_tiles_of_vectors", (1280, 4), (4, 1024)),
    matmul_case("matmul_empty_inner", (3, 0), (0, 4)),
    matmul_case("matmul_empty_inner_batch", (2, 3, 0), (2, 0, 4)),
    matmul_case("matmul_no_rows", (2, 0, 5), (5, 4)),
    matmul_case("matmul_no_batch", (0, 3, 5), (0, 5, 4)),
    matmul_case("matmul_opset_9", (5, 7), (7, 6), opset=9),
    *(gemm_case(f"gemm_{dtype_row(d).name}", (5, 7), (7, 6), (6,), d) for d in DTYPES),
    gemm_case("gemm_without_c", (5, 7), (7, 6), None),
    gemm_case("gemm_scaled", (5, 7), (7, 6), (5, 6), alpha=0.5, beta=0.25),
    gemm_case("gemm_scaled_half", (5, 7), (7, 6), (5, 6), np.float16, alpha=0.5, beta=0.25),
    gemm_case("gemm_scaled_double", (5, 7), (7, 6), (5, 6), np.float64, alpha=0.5, beta=-2.0),
    gemm_case("gemm_scaled_int32", (5, 7), (7, 6), (5, 6), np.int32, alpha=2.0, beta=3.0),
    Case(
        "gemm_scaled_uint64",
        "Gemm",
        (np.array([[2**63 + 2**62]], np.uint64), np.array([[1]], np.uint64), np.array([[2**40]], np.uint64)),
        {"beta": 0.5},
        expected=(np.array([[2**63 + 2**62 + 2**39]], np.uint64),),
    ),
    gemm_case("gemm_scaled_without_c", (5, 7), (7, 6), None, alpha=-1.5),
    gemm_case("gemm_trans_a", (7, 5), (7, 6), (5, 6), transA=1),
    gemm_case("gemm_trans_b", (5, 7), (6, 7), (1, 6), transB=1),
    gemm_case("gemm_trans_both", (7, 5), (6, 7), (5, 1), transA=1, transB=1),
    gemm_case("gemm_scalar_c", (5, 7), (7, 6), ()),
    gemm_case("gemm_one_element_c", (5, 7), (7, 6), (1,)),
    gemm_case("gemm_opset_7", (5, 7), (7, 6), (6,), opset=7),
    gemm_case("gemm_opset_9", (5, 7), (7, 6), (6,), opset=9),
    gemm_case("gemm_opset_11_without_c", (5, 7), (7, 6), None, opset=11),
    gemm_case("gemm_empty_inner", (3, 0), (0, 4), (4,)),
    gemm_case("gemm_no_rows", (0, 3), (3, 4), (4,)),
    gemm_case("gemm_few_rows", (2, 40), (19, 40), (2, 19), transB=1, alpha=0.5, beta=2.0),
    gemm_case("gemm_few_columns", (40, 19), (2, 40), (19, 1), transA=1, transB=1, beta=2.0),
    gemm_case("gemm_few_rows_half", (2, 40), (19, 40), (19,), np.float16, transB=1),
    gemm_case("gemm_beyond_a_tile", (65, 40), (40, 67), (67,)),
    Case("matmul_reference", "MatMul", (make(6, 2, 3, 4), make(7, 4, 5)), oracle="onnxruntime", terms=4),
    Case(
        "gemm_reference",
        "Gemm",
        (make(6, 4, 3), make(7, 5, 4), make(8, 1, 5)),
        {"alpha": 0.3, "beta": 0.7, "transA": 1, "transB": 1},
        terms=5,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(checks: str, case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case, checks)


VIEWS = [
    Case("both_transposed", "MatMul", (make(1, 7, 5).T, make(2, 6, 7).T), terms=7),
    Case("heads", "MatMul", (make(1, 2, 5, 3, 7).swapaxes(1, 2), make(2, 2, 6, 3, 7).transpose(0, 2, 3, 1)), terms=7),
    Case(
        "one_query", "MatMul", (make(1, 2, 1, 3, 7).swapaxes(1, 2), make(2, 2, 6, 3, 7).transpose(0, 2, 3, 1)), terms=7
    ),
    Case("reversed", "MatMul", (make(1, 3, 9)[::-1, ::-1], make(2, 9, 8)[::-1, ::2]), terms=9),
    Case(
        "stretched",
        "MatMul",
        (np.broadcast_to(make(1, 4), (6, 5, 4)), np.broadcast_to(make(2, 4, 1), (6, 4, 70))),
        terms=4,
    ),
    Case("c_transposed", "Gemm", (make(1, 7, 5), make(2, 6, 7), make(3, 6, 5).T), {"transA": 1, "transB": 1}, terms=8),
]


@pytest.mark.parametrize("case", VIEWS, ids=lambda case: case.id)
def test_views(checks: str, case: Case) -> None:
    """Inputs keep their strides."""
    run_case(case, checks)


@pytest.mark.parametrize(
    "shapes", [((3, 20), (20, 9)), ((30, 20), (20, 3)), ((70, 9), (9, 67)), ((2, 1, 7, 5), (3, 5, 16))], ids=str
)
def test_products_beyond_32_bits(
    monkeypatch: pytest.MonkeyPatch, checks: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """They take the kernel that counts in 64."""
    monkeypatch.setattr(product, "_MAX_EXTENT", 16)  # as if 32 bits held so much
    a, b = (make(seed, *shape) for seed, shape in enumerate(shapes))
    run_case(Case("long", "MatMul", (a, b), terms=20), checks)
    emit = DirectEmitter()
    slots = emit.slot(a), emit.slot(b)
    gx_operator.build("MatMul", {}).lower(emit, slots, (emit.fresh((a @ b).shape, np.float32),))
    assert [kernel.expression for kernel, _ in emit.launches] == ["gemm<float>"]


def test_gemm_ignores_c_when_beta_is_zero(checks: str) -> None:
    """A NaN in C must not reach the output."""
    c = np.full((4,), np.nan, np.float32)
    expected = (make(1, 2, 3) @ make(2, 3, 4),)
    run_case(
        Case("beta0", "Gemm", (make(1, 2, 3), make(2, 3, 4), c), {"beta": 0.0}, expected=expected, terms=3), checks
    )


def test_integers_wrap_in_their_own_width(checks: str) -> None:
    """Overflow wraps, as NumPy's does."""
    a = np.full((1, 2), 2**31 - 1, np.int32)
    run_case(Case("wrap", "MatMul", (a, a.T.copy()), expected=(np.array([[2]], np.int32),)), checks)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_rounds_once(checks: str, dtype: Any) -> None:
    """2048 ones plus small terms would stall in a half accumulator."""
    a = np.ones((1, 4096), dtype)
    run_case(Case("once", "MatMul", (a, a.T.copy()), expected=(np.array([[4096]], dtype),), terms=1), checks)


@pytest.mark.parametrize(
    "spoil", [lambda x: x[..., ::2], lambda x: x[::-1], lambda x: np.broadcast_to(x[:1, :1], x.shape)]
)
def test_multiply_takes_views(spoil: Any) -> None:
    """Strided, reversed and broadcast operands give the bits of their dense copies."""
    a, b = spoil(make(1, 6, 8)), make(2, 8, 5)
    b = b[: a.shape[1]]
    np.testing.assert_allclose(multiply(a, b), np.ascontiguousarray(a) @ b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "words"),
    [
        ("MatMul", [(2, 3), (4, 5)], "ff", "columns on the left"),
        ("MatMul", [(), (4,)], "ff", "rank 1"),
        ("MatMul", [(2, 3, 4), (3, 4, 5)], "ff", "broadcast"),
        ("MatMul", [(2, 3), (3, 5)], "fd", "one type"),
        ("MatMul", [(2, 3), (3, 5)], "bb", "one type"),
        ("Gemm", [(2, 3, 4), (4, 5)], "ff", "two matrices"),
        ("Gemm", [(2, 3), (4, 5)], "ff", "inner"),
        ("Gemm", [(2, 3), (3, 5), (3,)], "fff", "broadcast"),
        ("Gemm", [(2, 3), (3, 5), (5,)], "ffd", "float64"),
    ],
)
def test_refuses(name: str, shapes: list[tuple[int, ...]], dtypes: str, words: str) -> None:
    """Inputs that do not fit are refused, with what was expected."""
    op = gx_operator.build(name, {})
    with pytest.raises(InputError, match=words):
        op.infer(*(TensorSpec(shape, np.dtype(code)) for shape, code in zip(shapes, dtypes, strict=True)))


def test_accumulator_is_wide_for_halves() -> None:
    """The tolerance of these cases holds for sums in float32."""
    assert {accumulator(d) for d in HALVES} == {np.dtype(np.float32)}

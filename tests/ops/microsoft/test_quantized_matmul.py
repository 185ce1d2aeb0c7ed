"""MatMulIntegerToFloat, DynamicQuantizeMatMul and QGemm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.quant import integer_matmul
from tests.ops.decomposed import check_parts
from tests.ops.harness import Array, Case, run_case

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(15)
U8, I8, F32 = np.uint8, np.int8, np.float32


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True), dtype)


def scales(*shape: int, dtype: Any = F32) -> Array:
    return RNG.uniform(0.01, 0.1, shape).astype(dtype)


def floats(*shape: int, dtype: Any = F32) -> Array:
    return RNG.normal(0, 3, shape).astype(dtype)


def case(id: str, op: str, *inputs: Array | None, oracle: str = "onnxruntime", **attributes: Any) -> Case:
    return Case(id, op, inputs, attributes, opset=1, domain=DOMAIN, oracle=oracle)


def to_float(id: str, a: Array, b: Array, *rest: Array | None) -> Case:
    return case(id, "MatMulIntegerToFloat", a, b, *rest)


TO_FLOAT = [
    *(
        to_float(
            f"{a.__name__}_{b.__name__}",
            *(integers(a, 5, 7), integers(b, 7, 9), scales(), scales(), integers(a), integers(b), floats(9)),
        )
        for a, b in ((U8, U8), (U8, I8), (I8, I8))
    ),
    Case(
        "nothing_times_a_negative",
        "MatMulIntegerToFloat",
        (np.array([[0]], I8), np.array([[255]], U8), F32(0.5).reshape(()), F32(-2).reshape(()), *(None,) * 3),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([[-0.0]], F32),),
    ),
    Case(
        "int8_uint8",
        "MatMulIntegerToFloat",
        (np.array([[-3, 5]], I8), np.array([[255], [7]], U8), F32(0.5).reshape(()), F32(2).reshape(()), *(None,) * 3),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([[-730]], F32),),
    ),
    to_float(
        "columns", integers(U8, 70, 90), integers(I8, 90, 66), scales(), scales(66), integers(U8), integers(I8, 66)
    ),
    to_float(
        "few_rows", integers(U8, 2, 90), integers(I8, 90, 66), scales(), scales(66), integers(U8), integers(I8, 66)
    ),
    *(
        to_float(
            f"{label}_{np.dtype(dtype).name}",
            *(integers(U8, rows, 4), integers(I8, 4, columns), scales(dtype=dtype), scales(dtype=dtype)),
        )
        for dtype in (F32, np.float16)
        for label, rows, columns in (("one_row", 1, 9), ("small_tiles", 70, 66), ("large_tiles", 1280, 1024))
    ),
    to_float("no_zeros", integers(U8, 5, 7), integers(I8, 7, 9), scales(), scales()),
    to_float("batches", integers(U8, 2, 3, 7), integers(I8, 7, 9), scales(), scales(9), integers(U8), None, floats(9)),
    to_float(
        "columns_of_matrices",
        *(integers(U8, 2, 3, 7), integers(I8, 2, 7, 9), scales(), scales(2, 1, 9), integers(U8), integers(I8, 2, 1, 9)),
    ),
    to_float(
        "half",
        *(integers(U8, 3, 7), integers(I8, 7, 9), scales(dtype=np.float16), scales(9, dtype=np.float16)),
        *(integers(U8), integers(I8, 9), floats(9, dtype=np.float16)),
    ),
    to_float(
        "strided", integers(U8, 9, 6).T, integers(I8, 4, 9).T, scales(), scales(8)[::2], None, integers(I8, 4)[::-1]
    ),
    Case(
        "one_zero_of_many_columns",
        "MatMulIntegerToFloat",
        (np.array([[3, 5]], U8), np.array([[1, 2], [3, 4]], I8), F32(1).reshape(()), np.array([1, 2], F32), None)
        + (np.array(1, I8),),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([[10, 36]], F32),),
    ),
    to_float("empty_rows", integers(U8, 0, 7), integers(I8, 7, 9), scales(), scales()),
]


def dynamic(id: str, a: Array, b: Array, *rest: Array | None) -> Case:
    return case(id, "DynamicQuantizeMatMul", a, b, *rest)


DYNAMIC = [
    dynamic("uint8", floats(5, 7), integers(U8, 7, 9), scales(), integers(U8), floats(9)),
    dynamic("int8", floats(5, 7), integers(I8, 7, 9), scales(), integers(I8)),
    dynamic("columns", floats(2, 5, 40), integers(I8, 40, 9), scales(9), integers(I8, 9), floats(9)),
    dynamic("no_zero", floats(5, 7), integers(I8, 7, 9), scales(9), None, floats(9)),
    dynamic("short", floats(5, 7), integers(I8, 7, 9), scales()),
]


def gemm(id: str, a: Array, b: Array, *rest: Array, columns: bool = False, **attributes: Any) -> Case:
    wide = b.shape[0 if attributes.get("transB") else 1]
    by = (wide,) if columns else ()
    given = (a, scales(), integers(a.dtype), b, scales(*by), integers(b.dtype, *by), *rest)
    return case(id, "QGemm", *given, **attributes)


def addend(*shape: int) -> Array:
    return RNG.integers(-(2**14), 2**14, shape).astype(np.int32)


QUANT = (np.array(0.9, F32), np.array(100, U8))
GEMM = [
    *(
        gemm(f"{a.__name__}_{b.__name__}", integers(a, 5, 7), integers(b, 7, 9), addend(9), *QUANT)
        for a, b in ((U8, U8), (U8, I8))
    ),
    gemm("signed", integers(I8, 5, 7), integers(I8, 7, 9), addend(9), QUANT[0], np.array(-3, I8)),
    gemm("to_float", integers(U8, 5, 7), integers(I8, 7, 9), addend(9)),
    gemm("without_addend", integers(U8, 5, 7), integers(I8, 7, 9)),
    gemm("columns", integers(U8, 5, 7), integers(I8, 7, 9), addend(1, 9), *QUANT, columns=True),
    gemm("columns_to_float", integers(U8, 5, 7), integers(I8, 7, 9), addend(5, 1), columns=True, alpha=0.7),
    gemm("whole_addend", integers(U8, 5, 7), integers(I8, 7, 9), addend(5, 9), *QUANT, alpha=0.3),
    gemm("trans_a", integers(U8, 7, 5), integers(I8, 7, 9), addend(9), *QUANT, transA=1),
    gemm("trans_b", integers(U8, 5, 7), integers(I8, 9, 7), addend(9), *QUANT, transB=1, columns=True),
    gemm("trans_both", integers(U8, 7, 5), integers(I8, 9, 7), addend(9), *QUANT, transA=1, transB=1),
    gemm("tiles", integers(U8, 70, 50), integers(I8, 50, 70), addend(70), *QUANT, columns=True),
    gemm("strided", integers(U8, 14, 10)[::-2, ::2].T, integers(I8, 9, 7).T, addend(18)[::2], *QUANT),
    Case(
        "scalar_addend",
        "QGemm",
        (
            *(np.array([[2]], U8), np.array(1, F32), np.array(0, U8)),
            *(np.array([[3]], I8), np.array(1, F32), np.array(0, I8), np.array(4, np.int32)),
        ),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([[10]], F32),),
    ),
]


@pytest.mark.parametrize("case", [*TO_FLOAT, *GEMM], ids=lambda case: f"{case.op}_{case.id}")
def test_quantized_products(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize(
    "case", [each for each in (*TO_FLOAT, *GEMM) if "large" not in each.id], ids=lambda case: f"{case.op}_{case.id}"
)
def test_quantized_products_beyond_32_bits(monkeypatch: pytest.MonkeyPatch, checks: str, case: Case) -> None:
    """They take the kernel that counts in 64."""
    monkeypatch.setattr(integer_matmul, "_MAX_ROWS", 1)  # as if 32 bits held so much
    run_case(case, checks)


@pytest.mark.parametrize("case", DYNAMIC, ids=lambda case: case.id)
def test_products_of_what_is_quantized_first(case: Case) -> None:
    check_parts(case)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


A, B, S, ZA, ZB = spec(U8, 5, 7), spec(I8, 7, 9), spec(F32), spec(U8), spec(I8)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("MatMulIntegerToFloat", (A, B, None, S), "lacks its a_scale"),
        ("MatMulIntegerToFloat", (A, B, S, spec(np.float16)), "expects b_scale of the type of a_scale"),
        ("MatMulIntegerToFloat", (A, B, S, S, ZA, ZB, spec(F32, 7)), "expects a bias of one number for each column"),
        ("MatMulIntegerToFloat", (A, B, S, spec(F32, 7)), "b_scale to be one number, or one for each column (9)"),
        ("QGemm", (spec(U8, 2, 5, 7), S, ZA, B, S, ZB), "expects A to be a matrix"),
        ("QGemm", (A, spec(F32, 5), ZA, B, S, ZB), "expects a_scale to be one number"),
        ("QGemm", (A, S, ZA, B, S, ZB, spec(F32, 9)), "expects C of type int32"),
        ("QGemm", (A, S, ZA, B, S, ZB, spec(np.int32, 5)), "broadcast"),
        ("QGemm", (A, S, ZA, B, S, ZB, None, S), "lacks its y_zero_point"),
        ("QGemm", (A, S, ZA, spec(I8, 8, 9), S, ZB), "as many columns on the left as rows on the right"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, inputs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(f"{DOMAIN}.{name}", {}).infer(*inputs)
    assert message in str(caught.value)

"""QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearWhere and QLinearConcat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.prepared import check_prepared

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(14)
U8, I8 = np.uint8, np.int8


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True), dtype)


def scale(value: float = 0.0) -> Array:
    return np.array(value or RNG.uniform(0.01, 0.1), np.float32)


def case(id: str, op: str, *inputs: Array | None, oracle: str = "onnxruntime", **attributes: Any) -> Case:
    return Case(id, op, inputs, attributes, opset=1, domain=DOMAIN, oracle=oracle)


def unary(id: str, op: str, x: Array, y_scale: float = 0.0, **attributes: Any) -> Case:
    return case(id, op, x, scale(), integers(x.dtype), scale(y_scale), integers(x.dtype), **attributes)


def binary(id: str, op: str, a: Array, b: Array) -> Case:
    quants = [part for _ in range(3) for part in (scale(), integers(a.dtype))]
    return case(id, op, a, *quants[:2], b, *quants[2:4], scale(0.3), quants[5])


def without_zeros(id: str, op: str, function: Any, *given: Array) -> Case:
    """Absent zero points, which onnxruntime does not survive everywhere: worked out here. The last is not named."""
    by, to = scale(0.25), scale(0.5)
    made = np.rint(function(*(x.astype(np.float32) * by for x in given)) / to)
    inputs = [part for x in given for part in (x, by, None)]
    expected = np.clip(made, -128, 127).astype(I8)
    return Case(id, op, (*inputs, to), opset=1, domain=DOMAIN, expected=(expected,))


def where(id: str, condition: Array, x: Array, y: Array) -> Case:
    of_x, of_y, of_z = ((scale(), integers(x.dtype)) for _ in range(3))
    return case(id, "QLinearWhere", condition, x, *of_x, y, *of_y, *of_z)


def concat(id: str, axis: int, *parts: Array) -> Case:
    quantised = [piece for part in parts for piece in (part, scale(), integers(part.dtype))]
    return case(id, "QLinearConcat", scale(), integers(parts[0].dtype), *quantised, axis=axis)


def bools(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.bool_)


ALL = {dtype: np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype) for dtype in (U8, I8)}
CASES = [
    *(unary(f"{dtype.__name__}", "QLinearSigmoid", ALL[dtype], 1 / 256) for dtype in (U8, I8)),
    *(unary(f"{dtype.__name__}", "QLinearLeakyRelu", ALL[dtype], alpha=0.1) for dtype in (U8, I8)),
    unary("default", "QLinearLeakyRelu", ALL[U8]),
    unary("negative_alpha", "QLinearLeakyRelu", ALL[U8], alpha=-0.5),
    unary("rank8", "QLinearSigmoid", integers(U8, 1, 2, 1, 2, 1, 2, 1, 3), 1 / 256),
    unary("scalar", "QLinearLeakyRelu", integers(U8)),
    unary("empty", "QLinearLeakyRelu", integers(U8, 0, 3)),
    unary("strided", "QLinearLeakyRelu", integers(U8, 6, 8)[::-2, 1::2].T),
    without_zeros("no_zeros", "QLinearLeakyRelu", lambda x: np.where(x < 0, np.float32(0.01) * x, x), ALL[I8]),
    *(
        binary(f"{dtype.__name__}", f"QLinear{op}", integers(dtype, 3, 16), integers(dtype, 3, 16))
        for op in ("Add", "Mul")
        for dtype in (U8, I8)
    ),
    *(
        case_
        for op in ("QLinearAdd", "QLinearMul")
        for case_ in (
            binary("broadcast", op, integers(U8, 2, 1, 5), integers(U8, 3, 1)),
            binary("scalar", op, integers(I8), integers(I8, 4, 5)),
            binary("scalars", op, integers(I8), integers(I8)),
            binary("rank8", op, integers(U8, 1, 2, 1, 2, 1, 2, 1, 3), integers(U8, 2, 1, 2, 1, 2, 1, 2, 1)),
            binary("empty", op, integers(U8, 0, 3), integers(U8, 3)),
            binary("strided", op, integers(U8, 6, 8)[::-2, 1::2].T, integers(U8, 3)[::-1]),
        )
    ),
    without_zeros("no_zeros", "QLinearAdd", np.add, integers(I8, 9), integers(I8, 9)),
    without_zeros("no_zeros", "QLinearMul", np.multiply, integers(I8, 9), integers(I8, 9)),
    *(where(f"{t.__name__}", bools(3, 5), integers(t, 3, 5), integers(t, 3, 5)) for t in (U8, I8)),
    where("broadcast", bools(3, 1), integers(U8, 2, 1, 5), integers(U8, 5)),
    where("units", bools(4, 8), integers(U8, 4, 8), integers(U8, 4, 8)),
    where("scalars", bools(), integers(U8), integers(U8)),
    where("empty", bools(0, 3), integers(U8, 3), integers(U8, 1)),
    *(concat(f"{t.__name__}", 1, integers(t, 2, 3), integers(t, 2, 5), integers(t, 2, 1)) for t in (U8, I8)),
    concat("axis0", 0, integers(U8, 2, 8), integers(U8, 1, 8)),
    concat("negative_axis", -2, integers(U8, 2, 3, 4), integers(U8, 2, 2, 4)),
    concat("one", 0, integers(U8, 7)),
    concat("empty_part", 0, integers(U8, 0, 3), integers(U8, 2, 3)),
    concat("strided", 1, integers(U8, 8, 6)[::2, ::-1], integers(U8, 3, 4).T),
    Case(
        "halves_to_even",
        "QLinearAdd",
        (np.array([1, 3, 5, 250], U8), scale(0.5), None, np.zeros(1, U8), scale(1), None, scale(1), np.array(7, U8)),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([7, 9, 9, 132], U8),),
    ),
    Case(
        "saturates",
        "QLinearMul",
        (
            ALL[U8][[0, 128, 255]],
            scale(1e3),
            np.array(128, U8),
            ALL[U8][255:],
            scale(1e3),
            None,
            scale(1),
            np.array(9, U8),
        ),
        opset=1,
        domain=DOMAIN,
        expected=(np.array([0, 9, 255], U8),),
    ),
]


UNARY = [case_ for case_ in CASES if case_.op in ("QLinearSigmoid", "QLinearLeakyRelu") and case_.inputs[0].size]


@pytest.mark.parametrize("case_", UNARY, ids=lambda case_: f"{case_.op}_{case_.id}")
def test_bytes_are_looked_up_where_scales_are_constant(case_: Case) -> None:
    op = build(f"{DOMAIN}.{case_.op}", dict(case_.attributes))
    known = set(range(1, len(case_.inputs)))
    assert check_prepared(case_.id, op, case_.inputs, known, op.compute(*case_.inputs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}_{case.id}")
def test_quantized_elementwise(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.sampled_from(["QLinearAdd", "QLinearMul"]),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["both", "left", "right"])), max_size=5),
    st.sampled_from([U8, I8]),
)
def test_quantized_binaries_that_broadcast(checks: str, op: str, axes: list[tuple[int, str]], dtype: Any) -> None:
    left = [extent if where != "right" else 1 for extent, where in axes]
    right = [extent if where != "left" else 1 for extent, where in axes]
    run_case(binary("any", op, integers(dtype, *left), integers(dtype, *right)), checks)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


X, S, Z = spec(U8, 4), spec(np.float32), spec(U8)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("QLinearSigmoid", (spec(np.int32, 4), S, Z, S, Z), "expects X of type uint8, int8"),
        ("QLinearSigmoid", (X, S, spec(I8), S, Z), "expects X_zero_point of type uint8"),
        ("QLinearSigmoid", (X, spec(np.float32, 4), Z, S, Z), "expects X_scale to be one number"),
        ("QLinearLeakyRelu", (X, S, Z, None, Z), "lacks its Y_scale"),
        ("QLinearAdd", (X, S, Z, spec(I8, 4), S, Z, S, Z), "expects B of type uint8"),
        ("QLinearAdd", (X, S, Z, X, S, Z, S, spec(I8)), "expects C_zero_point of type uint8"),
        ("QLinearAdd", (X, S, Z, spec(U8, 3), S, Z, S, Z), "broadcast"),
        ("QLinearWhere", (X, X, S, Z, X, S, Z, S, Z), "expects condition of type bool"),
        ("QLinearConcat", (S, Z, X, S), "axis"),
        ("QLinearConcat", (S, Z), "expects three inputs for each tensor"),
        ("QLinearConcat", (S, Z, X, S, Z, spec(U8, 4, 2), S, Z), "that differ along axis 0 alone"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, inputs: tuple[TensorSpec | None, ...], message: str) -> None:
    attributes = {"axis": 3 if message == "axis" else 0} if name == "QLinearConcat" else {}
    with pytest.raises(InputError) as caught:
        build(f"{DOMAIN}.{name}", attributes).infer(*inputs)
    assert message in str(caught.value)

"""Building blocks of derivatives, and refusals of Gradient; its results are tested in tests/passes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.gradient import Gradient
from gpuexec.ops.nn.training import DOMAIN
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng([*shape, 2]).normal(0, 1, shape)).astype(dtype)


def sum_to(id: str, x: Array, *shape: int) -> Case:
    lead = x.ndim - len(shape)
    axes = tuple(axis for axis, extent in enumerate(x.shape) if axis < lead or shape[axis - lead] != extent)
    expected = x.astype(np.float64).sum(axis=axes).reshape(shape).astype(x.dtype)
    inputs = (x, np.zeros(shape, x.dtype))
    terms = max(1, int(np.prod([x.shape[axis] for axis in axes])))
    return Case(id, "SumTo", inputs, domain="gpuexec", expected=(expected,), terms=terms, opset=1)


def own(id: str, op: str, x: Array, *rest: Array, expected: Array, **attributes: Any) -> Case:
    return Case(id, op, (x, *rest), attributes, domain="gpuexec", expected=(expected,), opset=1)


def swap(id: str, x: Array, first: int, second: int) -> Case:
    return own(id, "SwapAxes", x, first=first, second=second, expected=np.swapaxes(x, first, second))


def matrix(a: Array, b: Array, role: str) -> Case:
    """MatMul itself tells the shape that its result has with the axes put in."""
    rows, columns = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    y = np.asarray(np.matmul(a, b))
    x, like = {"a": (a, rows), "b": (b, columns), "y": (y, np.matmul(rows, columns))}[role]
    return own(f"{role}{a.ndim}{b.ndim}", "MatrixOf", x, a, b, role=role, expected=x.reshape(like.shape))


PAIRS = [(sample(*a), sample(*b)) for a, b in (
    ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((4,), (2, 4, 3)), ((3, 2, 4), (4,)), ((2, 4), (4, 3)),
    ((0,), (0, 2)))
]  # fmt: skip
CASES = [
    swap("last", sample(2, 3, 4), -1, -2),
    swap("first", sample(2, 3, 4), 0, 2),
    swap("same", sample(2, 3), 1, 1),
    swap("empty", sample(2, 0), 0, 1),
    swap("strided", sample(6, 8, 4)[::-2, ::3], 0, -1),
    swap("rank8", sample(2, 1, 3, 2, 1, 2, 2, 2), 1, 6),
    *(swap(np.dtype(t).name, sample(2, 3).astype(t), 0, 1) for t in (*FLOATS, np.int8, np.bool_)),
    *(matrix(a, b, role) for a, b in PAIRS for role in "aby"),
    *(own(f"widen_{np.dtype(t).name}", "Widen", sample(3, 4, dtype=t), expected=sample(3, 4, dtype=t).astype(to))
      for t, to in zip(FLOATS, (np.float32, np.float64, np.float32, np.float32), strict=True)),
    own("widen_empty", "Widen", sample(0, 2, dtype=np.float16), expected=sample(0, 2)),
    own("widen_number", "Widen", np.array(np.inf, np.float16), expected=np.asarray(np.float32(np.inf))),
    *(sum_to(np.dtype(t).name, sample(5, 3, 4, dtype=t), 3, 1) for t in FLOATS),
    sum_to("same", sample(3, 4), 3, 4),
    sum_to("to_one_number", sample(3, 4)),
    sum_to("inner", sample(3, 4, 5), 3, 1, 5),
    sum_to("ones", sample(1, 4, 1), 1, 1, 1),
    sum_to("empty", sample(0, 4), 1, 4),
    sum_to("rank8", sample(2, 1, 3, 2, 1, 2, 2, 2), 1, 3, 1, 1, 2, 1, 2),
    sum_to("strided", sample(6, 8, 4)[::-2, ::3].transpose(2, 1, 0), 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_parts_of_derivatives(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_sum_to_refuses_what_does_not_stretch() -> None:
    x, like = (TensorSpec(shape, np.dtype(np.float32)) for shape in ((3, 4), (3, 5)))
    with pytest.raises(InputError, match=r"\[3, 5\] does not broadcast to \[3, 4\]"):
        build("gpuexec.SumTo", {}).infer(x, like)


def test_gradient_has_the_attributes_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("Gradient", domain=DOMAIN).attributes
    assert {name for name, each in attributes.items() if each.required} == {"xs", "y"}
    assert Gradient(("a",), "c") == Gradient(xs=("a",), y="c", zs=())


F32 = TensorSpec((2,), np.dtype(np.float32))
I64 = TensorSpec((2,), np.dtype(np.int64))
REFUSALS = [
    ("gpuexec.SumTo", {}, (I64, I64), "SumTo expects input of type .*, got int64"),
    ("gpuexec.SumTo", {}, (F32, I64), "SumTo expects what it is summed to of type float32, got int64"),
    ("gpuexec.SwapAxes", {"first": 0, "second": 1}, (F32,), "axis"),
    ("gpuexec.Widen", {}, (I64,), "Widen expects input of type .*, got int64"),
    (f"{DOMAIN}.Gradient", {"xs": ("a",), "y": "c"}, (F32,), "inputs for xs and zs and those themselves and y, got 1"),
    (f"{DOMAIN}.Gradient", {"xs": ("a",), "y": "c"}, (I64, F32, F32), "expects input of type .*, got int64"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "specs", "message"), REFUSALS)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


def test_matrix_of_refuses_an_unknown_role() -> None:
    with pytest.raises(InputError, match="expects role a, b or y, got 'z'"):
        build("gpuexec.MatrixOf", {"role": "z"})


def test_gradient_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="the pass 'differentiate'"):
        Gradient(("a",), "c").compute(sample(2))

"""Shape, Size, Constant, ConstantOfShape, Range, and the store of host values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build, describe
from gpuexec.ir.spec import BFLOAT16, COMPUTED, TensorSpec
from gpuexec.ops.tensor.shape import RANGE_DTYPES, from_literal, to_literal
from tests.ops.harness import Array, Case, run_case


def scalar(value: float, dtype: Any = np.int64) -> Array:
    return np.array(value, dtype)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def count(id: str, start: Array, limit: Array, delta: Array, **more: Any) -> Case:
    return Case(f"range_{id}", "Range", (start, limit, delta), const=(0, 1, 2), **more)


def counted_by_hand(start: Array, limit: Array, delta: Array) -> Array:
    wide = np.dtype(np.float32) if start.dtype in (np.float16, BFLOAT16) else start.dtype
    steps = np.arange(np.ceil((float(limit) - float(start)) / float(delta)))
    return np.asarray((start.astype(wide) + steps.astype(wide) * delta.astype(wide)).astype(start.dtype))


CASES = [
    Case("shape", "Shape", (zeros(2, 3, 4),)),
    Case("shape_scalar", "Shape", (zeros(),)),
    Case("shape_empty", "Shape", (zeros(2, 0),), opset=7),
    Case("shape_start", "Shape", (zeros(2, 3, 4),), {"start": 1}),
    Case("shape_end", "Shape", (zeros(2, 3, 4),), {"end": -1}),
    Case("shape_both", "Shape", (zeros(2, 3, 4),), {"start": -2, "end": 2}),
    Case("shape_clamped", "Shape", (zeros(2, 3, 4),), {"start": -9, "end": 9}),
    Case("shape_nothing", "Shape", (zeros(2, 3, 4),), {"start": 2, "end": 1}),
    Case("size", "Size", (zeros(2, 3, 4),)),
    Case("size_scalar", "Size", (zeros(),)),
    Case("size_empty", "Size", (zeros(2, 0),), opset=7),
    Case("constant_float", "Constant", (), {"value_float": 1.5}),
    Case("constant_floats", "Constant", (), {"value_floats": [1.5, -2.25]}),
    Case("constant_int", "Constant", (), {"value_int": 2**40}),
    Case("constant_ints", "Constant", (), {"value_ints": [1, -2]}),
    Case("fill_default", "ConstantOfShape", (np.array([2, 3], np.int64),), const=(0,)),
    Case("fill_scalar", "ConstantOfShape", (np.zeros(0, np.int64),), const=(0,)),
    Case("fill_empty", "ConstantOfShape", (np.array([2, 0], np.int64),), const=(0,)),
    count("int64", scalar(3), scalar(11), scalar(2)),
    count("int32_down", *(scalar(v, np.int32) for v in (10, 4, -2))),
    count("int16", *(scalar(v, np.int16) for v in (-5, 6, 3))),
    count("nothing", scalar(3), scalar(3), scalar(1)),
    count("wrong_way", scalar(3), scalar(1), scalar(1)),
    count("one_element_tensors", *(np.array([v], np.int64) for v in (0, 3, 1)), expected=(np.arange(3),)),
    count("wide", scalar(2**40), scalar(2**40 + 5), scalar(2)),
    count("wrapping", scalar(-(2**63)), scalar(2**63 - 1), scalar(2**62)),
    count("float_exact", *(scalar(v, np.float32) for v in (1, 5, 0.5))),
]
CASES += [
    case
    for row in COMPUTED
    for x in [np.array([[1, 0], [2, 3]]).astype(row.numpy)]
    for case in [
        Case(f"constant_{row.name}", "Constant", (), {"value": x}, expected=(x,)),
        Case(
            f"fill_{row.name}",
            "ConstantOfShape",
            (np.array([3, 5], np.int64),),
            {"value": x[1, :1]},
            const=(0,),
            expected=(np.full((3, 5), x[1, 0], row.numpy),),
        ),
    ]
]
CASES += [
    count(f"fraction_{dtype.name}", *bounds, expected=(counted_by_hand(*bounds),))
    for dtype in RANGE_DTYPES
    if dtype.kind not in "iu"
    for bounds in [[scalar(v, dtype) for v in (-1, 40, 0.3)]]
]
# More than planning keeps on the host, so that the kernel makes them.
CASES += [
    count(f"long_{dtype.name}", *bounds, expected=(counted_by_hand(*bounds),))
    for dtype in RANGE_DTYPES
    for bounds in [[scalar(v, dtype) for v in (-9, 1200, 1)]]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_shape(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_infer_knows_the_content(op: str) -> None:
    (spec,) = build(op, {}).infer(TensorSpec((2, 3), np.dtype(np.float32)))
    assert spec.value is not None
    np.testing.assert_array_equal(spec.value.array, np.array([2, 3] if op == "Shape" else 6))


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_range_asks_for_content_it_lacks(lacking: int) -> None:
    specs = [TensorSpec.of(scalar(v)) for v in (0, 5, 1)]
    specs[lacking] = TensorSpec((), np.dtype(np.int64))
    with pytest.raises(NeedsHostValue) as caught:
        build("Range", {}).infer(*specs)
    assert caught.value.index == lacking


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((scalar(0), scalar(5), scalar(0)), "expects a delta that is not 0"),
        ((scalar(0), scalar(5, np.int32), scalar(1)), "three scalars of one type"),
        ((scalar(0), np.zeros(2, np.int64), scalar(1)), "three scalars of one type"),
        (tuple(scalar(v, np.float32) for v in (0, np.inf, 1)), "expects a countable number"),
        (tuple(scalar(v, np.uint8) for v in (0, 5, 1)), "among float32"),
    ],
)
def test_range_refuses(bounds: tuple[Array, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("Range", {}).infer(*map(TensorSpec.of, bounds))


def test_constant_refuses_two_values() -> None:
    with pytest.raises(InputError, match="exactly one of"):
        build("Constant", {"value_int": 1, "value_float": 2.0})
    with pytest.raises(InputError, match="exactly one of"):
        build("Constant", {})


def test_constant_of_shape_refuses_more_than_one_element() -> None:
    with pytest.raises(InputError, match="must hold one element"):
        build("ConstantOfShape", {"value": zeros(2)})
    with pytest.raises(InputError, match="extents of 0 or more"):
        build("ConstantOfShape", {}).infer(TensorSpec.of(np.array([-1])))


@pytest.mark.parametrize("row", COMPUTED, ids=lambda row: row.name)
def test_constants_compare_by_content_and_pass_through_json(row: Any) -> None:
    x = np.array([[1, 0, 3]]).astype(row.numpy)
    op = build("Constant", {"value": x})
    assert op == build("Constant", {"value": x.copy()})
    assert op != build("Constant", {"value": x[0]})
    assert op != build("Constant", {"value": x[:, ::-1] == 0})
    name, attributes = describe(op)
    assert build(name, json.loads(json.dumps(dict(attributes)))) == op
    back = from_literal(to_literal(x))
    assert (back.dtype, back.shape, back.tobytes()) == (x.dtype, x.shape, x.tobytes())

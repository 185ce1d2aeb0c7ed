"""QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.quant.narrow_types import FLOAT8
from gpuexec.ops.quant.quantize import NARROW, NARROWER, POWER, WIDE, DequantizeLinear, QuantizeLinear
from tests.ops.harness import Array, Case, run_case

INT32 = np.dtype(np.int32)
RNG = np.random.default_rng(3)


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scales(dtype: Any, *shape: int) -> Array:
    return RNG.uniform(0.01, 2.0, shape).astype(dtype)


def dequantize(id: str, x: Array, scale: Array, zero: Array | None = None, opset: int = 24, **attributes: Any) -> Case:
    """The result is worked out in float64, which holds every product, and rounded once."""
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    code = attributes.get("output_dtype", 0)
    dtype = dtype_row(code).numpy if code else scale.dtype
    wide = (x.astype(np.float64) - (0 if zero is None else spread(x, zero, axis, block))).astype(np.float32)
    exact = wide.astype(np.float64) * spread(x, scale, axis, block).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32).astype(dtype)
    given = (x, scale) if zero is None else (x, scale, zero)
    return Case(id, "DequantizeLinear", given, attributes, opset=opset, expected=(expected,))


def spread(x: Array, scale: Array, axis: int, block: int) -> Array:
    if scale.size == 1:
        return scale.reshape(())
    if block:
        return np.take(np.repeat(scale, block, axis), range(x.shape[axis]), axis)
    return np.expand_dims(scale, [i for i in range(x.ndim) if i != axis % x.ndim])


DEQUANTIZE = [
    *(
        dequantize(f"{x.name}_{y.name}", integers(x, 3, 5), scales(y, 5), None if x == INT32 else integers(x, 5))
        for x in (*NARROW, INT32)
        for y in WIDE
    ),
    dequantize("per_tensor", integers(np.int8, 2, 3, 4), scales(np.float32), np.array(-3, np.int8)),
    dequantize("per_tensor_of_one", integers(np.uint8, 2, 3), scales(np.float32, 1), np.array([9], np.uint8)),
    *(
        dequantize(f"axis{axis}", integers(np.int8, 3, 3, 3), scales(np.float32, 3), axis=axis)
        for axis in (0, 1, 2, -1)
    ),
    dequantize("blocks", integers(np.int8, 4, 6), scales(np.float32, 4, 2), integers(np.int8, 4, 2), block_size=3),
    dequantize("blocks_cut", integers(np.uint8, 5, 4), scales(np.float32, 2, 4), axis=0, block_size=3),
    dequantize("half_of_float", integers(np.int8, 4, 3), scales(np.float32, 3), output_dtype=10),
    dequantize("float_of_half", integers(np.int8, 4, 3), scales(np.float16, 3), output_dtype=1),
    dequantize("scalar", np.array(7, np.int8), scales(np.float32), np.array(2, np.int8)),
    dequantize("empty", integers(np.int8, 0, 3), scales(np.float32, 3)),
    dequantize("strided", integers(np.int8, 6, 4)[::-2].T, scales(np.float32, 3)),
    dequantize("large", np.array([2**31 - 1, -(2**31), 2**24 + 1], np.int32), np.array(1.0, np.float32)),
    Case(
        "opset13",
        "DequantizeLinear",
        (integers(np.int8, 2, 3), scales(np.float32, 3)),
        {"axis": 1},
        opset=13,
        oracle="onnxruntime",
    ),
    Case("opset10", "DequantizeLinear", (integers(np.uint8, 2, 3), scales(np.float32)), opset=10, oracle="onnxruntime"),
]


def quantize(id: str, x: Array, scale: Array, zero: Array | None = None, **attributes: Any) -> Case:
    return Case(id, "QuantizeLinear", (x, scale) if zero is None else (x, scale, zero), attributes)


def floats(dtype: Any, *shape: int) -> Array:
    return RNG.normal(0, 100, shape).astype(dtype)


QUANTIZE = [
    *(
        quantize(f"{x.name}_{y.name}", floats(x, 3, 5), scales(np.float32 if x == INT32 else x, 5), integers(y, 5))
        for x in (np.dtype(np.float32), np.dtype(np.float16), INT32)
        for y in NARROW
    ),
    *(
        Case(
            f"bfloat16_{y.name}",
            "QuantizeLinear",
            (np.array([3, -70000, 2.5, 0.5], ml_dtypes.bfloat16), np.array(1, ml_dtypes.bfloat16), np.zeros((), y)),
            expected=(np.clip([3, -70144, 2, 0], np.iinfo(y).min, np.iinfo(y).max).astype(y),),
        )
        for y in NARROW
    ),
    quantize("halves_to_even", np.arange(-4.5, 5, 0.5, np.float32), np.array(1, np.float32), np.array(0, np.int8)),
    quantize("no_zero", floats(np.float32, 4, 3), scales(np.float32, 3)),
    quantize("output_dtype", floats(np.float32, 4, 3), scales(np.float32, 3), output_dtype=5),
    quantize("per_tensor", floats(np.float32, 2, 3, 2), scales(np.float32), np.array(128, np.uint8)),
    *(quantize(f"axis{axis}", floats(np.float32, 3, 3, 3), scales(np.float32, 3), axis=axis) for axis in (0, 2, -2)),
    quantize("blocks", floats(np.float32, 4, 6), scales(np.float32, 4, 2), integers(np.int8, 4, 2), block_size=3),
    quantize("precision", floats(np.float32, 4, 3), scales(np.float32, 3), precision=10),
    quantize("precision_of_scale", np.arange(-90, 90, dtype=np.float32) / 3, np.array(0.37, np.float32), precision=16),
    Case(
        "scale_of_int32",
        "QuantizeLinear",
        (np.array([7, -7, 2**20, 5], np.int32), np.array(2, np.int32), np.array(1, np.int8)),
        expected=(np.array([5, -3, 127, 3], np.int8),),
    ),
    Case(
        "scale_of_bfloat16",
        "QuantizeLinear",
        (np.array([3, -2, 1], np.float32), np.array(0.5, ml_dtypes.bfloat16), np.array(1, np.int8)),
        expected=(np.array([7, -3, 3], np.int8),),
    ),
    Case(
        "beyond",
        "QuantizeLinear",
        (np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e7], np.float32), np.array(0.5, np.float32)),
        {"output_dtype": 3},
        expected=(np.array([127, -128, 0, 127, -128, 127], np.int8),),
    ),
    quantize("empty", floats(np.float32, 0, 3), scales(np.float32, 3)),
    quantize("strided", floats(np.float32, 6, 4)[::-2].T, scales(np.float32, 3)),
    quantize("one_number", np.array(2.6, np.float32), scales(np.float32), np.array(3, np.uint8)),
    Case("opset13", "QuantizeLinear", (floats(np.float32, 2, 3), scales(np.float32, 3)), opset=13),
    Case("opset10", "QuantizeLinear", (floats(np.float32, 2, 3), scales(np.float32)), opset=10),
]


def codes(dtype: Any, *shape: int) -> Array:
    """Return elements of a narrow type by all bits, but for NaN."""
    bits = RNG.integers(0, 1 << dtype_row(dtype).width, shape, np.uint8)
    with np.errstate(all="ignore"):
        is_number = np.isfinite(bits.view(dtype).astype(np.float32))
    return np.where(is_number, bits, 1).astype(np.uint8).view(dtype)


def zeros(dtype: Any, *shape: int) -> Array:
    """Return zero points: numbers of integers; of floats, which the suite's oracle wants so, zero."""
    return codes(dtype, *shape) if dtype_row(dtype).kind != "narrow float" else np.zeros(shape, dtype)


def powers(*shape: int) -> Array:
    return RNG.integers(120, 134, shape, np.uint8).view(POWER)


NARROW_CASES = [
    *(
        dequantize(f"{x.name}_{y.name}", codes(x, 3, 5), scales(y, 5), zeros(x, 5), opset=25)
        for x in NARROWER
        for y in WIDE
    ),
    *(dequantize(f"{x.name}_no_zero", codes(x, 2, 3, 4), scales(np.float32)) for x in NARROWER),
    *(
        dequantize(f"{x.name}_blocks", codes(x, 5, 8), scales(np.float16, 5, 3), zeros(x, 5, 3), block_size=3)
        for x in NARROWER
    ),
    *(
        dequantize(f"{x.name}_power", codes(x, 4, 6), powers(2, 6), axis=0, block_size=2, output_dtype=code)
        for x, code in ((NARROWER[0], 1), (dtype_row("int4").numpy, 10), (dtype_row("float4e2m1").numpy, 16))
    ),
    dequantize("int8_power", integers(np.int8, 4, 6), powers(6), output_dtype=1),
    dequantize("float8_zero", codes(FLOAT8[0], 4), scales(np.float32), np.array(1.5, FLOAT8[0])),
    dequantize("int4_strided", codes(dtype_row("int4").numpy, 6, 4)[::-2].T, scales(np.float32, 3), axis=1),
    dequantize("int4_empty", codes(dtype_row("int4").numpy, 0, 3), scales(np.float32, 3)),
    *(
        Case(
            f"{x.name}_{y.name}",
            "QuantizeLinear",
            (floats(x, 3, 5) / (1 if x == INT32 else 20), scales(np.float32 if x == INT32 else x, 5), zeros(y, 5)),
            opset=25,
        )
        for x in (np.dtype(np.float32), np.dtype(np.float16))
        for y in NARROWER
        if dtype_row(y).width != 6
    ),
    *(
        Case(
            f"{y.name}_no_saturation",
            "QuantizeLinear",
            (floats(np.float32, 9) * 1e5, scales(np.float32)),
            {"output_dtype": dtype_row(y).code, "saturate": 0},
            opset=25,
        )
        for y in FLOAT8
    ),
    *(
        Case(
            f"{y.name}_int32",
            "QuantizeLinear",
            (np.array([7, -7, 2**20, 5, 0], np.int32), np.array(2, np.int32), np.array(zero, y)),
            expected=(np.array(expected, np.float32).astype(y),),
        )
        for y, zero, expected in (
            (dtype_row("int4").numpy, 1, [5, -3, 7, 3, 1]),
            (dtype_row("uint2").numpy, 1, [3, 0, 3, 3, 1]),
            (dtype_row("float6e3m2").numpy, 0, [3.5, -3.5, 28, 2.5, 0]),
            (dtype_row("float6e2m3").numpy, 1, [4.5, -2.5, 7.5, 3.5, 1]),
        )
    ),
    Case(
        "scale_is_a_power",
        "QuantizeLinear",
        (np.array([3, -70000, 2.5, 0.5], ml_dtypes.bfloat16), np.array(0.5, POWER)),
        {"output_dtype": 22},
        expected=(np.array([6, -8, 5, 1], np.float32).astype(dtype_row("int4").numpy),),
    ),
    Case(
        "nothing_below_zero",
        "QuantizeLinear",
        (np.array([-0.0, -1], np.float32), np.array(np.inf, np.float32)),
        {"output_dtype": 17},
        expected=(np.zeros(2, np.float32).astype(dtype_row("float8e4m3fn").numpy),),  # a sum with 0 has no sign
    ),
    Case(
        "no_numbers",
        "QuantizeLinear",
        (np.array([np.inf, -np.inf, np.nan, 3e38, -3e38], np.float32), np.array(0.5, np.float32)),
        {"output_dtype": 26},
        expected=(np.array([1, -2, 0, 1, -2], np.float32).astype(dtype_row("int2").numpy),),
    ),
]


@pytest.mark.parametrize("case", NARROW_CASES, ids=lambda case: f"{case.op}_{case.id}")
def test_quantize_of_narrow_types(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("case", [*DEQUANTIZE, *QUANTIZE], ids=lambda case: f"{case.op}_{case.id}")
def test_quantize(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("cls", [QuantizeLinear, DequantizeLinear])
def test_attributes_are_those_of_the_schema(cls: Any) -> None:
    schema = onnx.defs.get_schema(cls.name)
    assert {a.name: a.default_value.i for a in schema.attributes.values()} == {
        name: getattr(cls(), name) for name in cls.__dataclass_fields__
    }


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("operator", "inputs", "message"),
    [
        (DequantizeLinear(), (spec("f4", 3), spec("f4")), "float32"),
        (DequantizeLinear(), (spec("i1", 3), spec("f8")), "float64"),
        (DequantizeLinear(), (spec("i1", 3), spec("f4"), spec("u1")), "zero point of int8"),
        (DequantizeLinear(), (spec("i1", 2, 3), spec("f4", 2)), r"\[3\] along axis 1 of \[2, 3\], got scales of \[2\]"),
        (DequantizeLinear(block_size=2), (spec("i1", 2, 3), spec("f4", 2, 3)), "one for each 2 places"),
        (DequantizeLinear(output_dtype=3), (spec("i1", 3), spec("f4")), "output_dtype"),
        (DequantizeLinear(), (spec(NARROWER[0], 3), spec(POWER)), "output_dtype"),
        (DequantizeLinear(), (spec(NARROWER[0], 3), spec("f4"), spec(NARROWER[1])), "zero point of float8e4m3fn"),
        (DequantizeLinear(), (spec(POWER, 3), spec("f4")), "x of type"),
        (QuantizeLinear(output_dtype=24), (spec("f4", 3), spec("f4")), "got float8e8m0"),
        (QuantizeLinear(precision=24), (spec("f4", 3), spec("f4")), "precision"),
        (QuantizeLinear(), (spec("f8", 3), spec("f4")), "float64"),
        (QuantizeLinear(output_dtype=3), (spec("f4", 3), spec("f4"), spec("u1")), "output_dtype int8, got uint8"),
        (QuantizeLinear(output_dtype=1), (spec("f4", 3), spec("f4")), "got float32"),
        (QuantizeLinear(precision=3), (spec("f4", 3), spec("f4")), "precision"),
    ],
)
def test_what_does_not_fit_is_refused(operator: Any, inputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        operator.infer(*inputs)

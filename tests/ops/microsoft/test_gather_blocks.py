"""GatherBlockQuantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from tests.ops.harness import Array, Case, run_case

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(19)
U8, F32, F16 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float16)
UINT4, INT4 = dtype_row("uint4").numpy, dtype_row("int4").numpy
FLOATS = [dtype_row(f"float8{kind}").numpy for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]
FLOATS.append(dtype_row("float4e2m1").numpy)


def codes_of(packed: Array, bits: int) -> Array:
    """The codes of rows of bytes, by the definition: bit by bit."""
    flat = np.unpackbits(packed, axis=-1, bitorder="little")
    places = flat.reshape(*flat.shape[:-1], -1, bits).astype(np.int64)
    return (places << np.arange(bits)).sum(-1)


def draw(dtype: Any, *shape: int) -> Array:
    if dtype == U8:
        return RNG.integers(0, 256, shape).astype(U8)
    low, high = (-8, 8) if dtype == INT4 else (0, 16) if dtype == UINT4 else (-6, 7)
    return RNG.integers(low, high, shape).astype(np.float32).astype(dtype)


def gather(
    id: str,
    shape: tuple[int, ...],
    indices: Any,
    *,
    data: Any = U8,
    scale: Any = F32,
    zeros: bool = False,
    index: Any = np.int64,
    wide_scales: tuple[int, ...] | None = None,
    **attributes: Any,
) -> Case:
    """``shape`` is of the stored data. The result is worked out in float32, which holds every difference."""
    bits, block = attributes.get("bits", 4), attributes.setdefault("block_size", 16)
    table = draw(data, *shape)
    axis, q = attributes.get("gather_axis", 0), attributes.get("quantize_axis", 1)
    values = (codes_of(table, bits) if data == U8 else table.astype(F32)).astype(F32)
    extent = values.shape[q]
    places = np.arange(extent) // (block or extent)
    by = list(values.shape)
    by[q] = int(places[-1]) + 1
    scales = RNG.uniform(0.1, 1, wide_scales or by).astype(scale)
    given = [table, np.array(indices, index), scales]
    minus: Any = np.float32(1 << (bits - 1)) if data == U8 else np.float32(0)
    if zeros:
        packed = draw(data, *by[:-1], -(-by[-1] * bits // 8) if data == U8 else by[-1])
        given.append(packed)
        wide = codes_of(packed, bits)[..., : by[-1]] if data == U8 else packed
        minus = np.take(wide.astype(F32), places, q)
    wide = (values - minus) * np.take(np.broadcast_to(scales.astype(F32), by), places, q)
    flat = np.array(indices)
    inside = (flat >= -values.shape[axis]) & (flat < values.shape[axis])
    picked = np.take(wide, np.where(inside, flat, 0), axis)
    lead = (1,) * (axis % values.ndim)
    picked = np.where(inside.reshape(*lead, *flat.shape, *(1,) * (values.ndim - len(lead) - 1)), picked, np.float32(0))
    return Case(
        id,
        "GatherBlockQuantized",
        tuple(given),
        attributes,
        opset=1,
        domain=DOMAIN,
        expected=(picked.astype(scale),),
    )


ROWS = [3, 0, -1, 2]
CASES = [
    *(
        gather(f"{bits}bits{'_zeros' * z}", (5, 12), ROWS, bits=bits, zeros=z)
        for bits in (2, 4, 8)
        for z in (False, True)
    ),
    *(
        gather(f"{dtype_row(t).name}{'_zeros' * z}", (5, 40), ROWS, data=t, zeros=z)
        for t in (UINT4, INT4)
        for z in (False, True)
    ),
    *(gather(f"{dtype_row(t).name}", (5, 40), ROWS, data=t) for t in FLOATS),
    gather("half", (5, 12), ROWS, scale=F16, zeros=True),
    gather("bfloat16", (5, 12), ROWS, scale=BFLOAT16, zeros=True),
    gather("int32", (5, 12), ROWS, index=np.int32),
    gather("outside", (5, 12), [0, 5, -6, 4]),
    gather("block32", (5, 40), ROWS, block_size=32, zeros=True),
    gather("three_axes", (5, 3, 20), [[1, 2], [4, 0]], quantize_axis=2, zeros=True),
    gather("middle_blocks", (5, 20, 4), [1, 2], quantize_axis=1, zeros=True),
    gather("negative_axes", (5, 3, 20), [1, 2], quantize_axis=-1, gather_axis=-3),
    gather("other_axis", (5, 7, 20), [[6, 0, -2]], data=INT4, gather_axis=1, quantize_axis=2, zeros=True),
    gather("same_axis", (5, 40), [39, 0, 17, 16], data=UINT4, gather_axis=1, quantize_axis=1, zeros=True),
    gather("blocks_of_rows", (40, 6), [39, 0, 17], data=INT4, gather_axis=1, quantize_axis=0),
    gather("one_scale", (5, 40), ROWS, data=FLOATS[0], block_size=0, wide_scales=(1, 1)),
    gather("scale_of_rows", (5, 40), ROWS, data=FLOATS[0], block_size=0),
    gather("scalar_index", (5, 12), 3),
    gather("no_indices", (5, 12), np.zeros((0, 2), np.int64)),
    Case(
        "no_rows",
        "GatherBlockQuantized",
        (np.zeros((0, 8), U8), np.array([[0, -1]]), np.zeros((0, 1), F16)),
        {"block_size": 16},
        opset=1,
        domain=DOMAIN,
        expected=(np.zeros((1, 2, 16), F16),),
    ),
    Case(
        "by_onnxruntime",
        "GatherBlockQuantized",
        (
            RNG.integers(0, 256, (5, 12)).astype(U8),
            np.array([[3, 0], [1, 4]]),
            RNG.uniform(0.1, 1, (5, 2)).astype(F32),
            RNG.integers(0, 256, (5, 1)).astype(U8),
        ),
        {"block_size": 16, "bits": 4},
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_gather_of_blocks(checks: str, case: Case) -> None:
    run_case(case, checks)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


D, I, S = spec(U8, 5, 12), spec(np.int64, 3), spec(F32, 5, 2)


@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ({"block_size": 24}, (D, I, S), "block_size to be a power of 2"),
        ({"block_size": 0}, (D, I, S), "block_size to be a power of 2"),
        ({"block_size": 16, "bits": 3}, (D, I, S), "expects bits 2, 4 or 8"),
        ({"block_size": 16, "gather_axis": 1, "quantize_axis": 0}, (D, I, S), "expects gather_axis 0"),
        ({"block_size": 16}, (spec(F32, 5, 12), I, S), "expects data of type uint8, int4"),
        ({"block_size": 16}, (D, spec(F32, 3), S), "expects indices of type int32, int64"),
        ({"block_size": 16}, (D, I, spec(F32, 5, 1)), "expects scales of [5, 2]"),
        ({"block_size": 16}, (D, I, S, spec(U8, 5, 2)), "expects zero points: uint8[5,1]"),
        ({"block_size": 16}, (spec(FLOATS[0], 5, 32), I, S, spec(FLOATS[0], 5, 2)), "none of floats"),
        ({"block_size": 16}, (spec(U8), I, S), "expects data of rank 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused(
    attributes: dict[str, Any], inputs: tuple[TensorSpec | None, ...], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        build(f"{DOMAIN}.GatherBlockQuantized", attributes).infer(*inputs)
    assert message in str(caught.value)

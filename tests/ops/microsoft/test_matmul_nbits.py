"""MatMulNBits and MatMulBnb4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.microsoft.matmul_nbits import TABLES
from tests.ops.harness import Array, Case, run_case
from tests.ops.prepared import check_prepared

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(17)
F32, F16, U8 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint8)


def codes_of(packed: Array, bits: int) -> Array:
    """The codes of a row of bytes, by the definition: bit by bit."""
    flat = np.unpackbits(packed, axis=-1, bitorder="little")
    places = flat.reshape(*flat.shape[:-1], flat.shape[-1] // bits, bits).astype(np.int64)
    return np.asarray((places << np.arange(bits)).sum(-1))


def nbits(
    id: str,
    a: tuple[int, ...],
    n: int,
    *,
    bits: int = 4,
    block: int = 16,
    zeros: str = "",
    dtype: Any = F32,
    groups: bool = False,
    bias: bool = False,
    precision: str = "",
    **changes: Any,
) -> Case:
    """The result is worked out in double. In a precision, ``dtype`` is of the first input alone."""
    k = a[-1]
    blocks = -(-k // block)
    x = RNG.normal(0, 1, a).astype(dtype)
    dtype = F32 if precision else dtype
    packed = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(U8)
    scales = RNG.uniform(0.01, 0.1, (n, blocks)).astype(dtype)
    zero, wide = None, np.full((n, blocks), 1 << (bits - 1), np.float64)
    if zeros == "packed":
        zero = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(U8)
        wide = codes_of(zero, bits)[:, :blocks].astype(np.float64)
    elif zeros:
        zero = RNG.uniform(0, 1 << bits, (n, blocks)).astype(dtype)
        wide = zero.astype(np.float64)
    places = RNG.integers(0, blocks, k).astype(np.int32) if groups else np.arange(k) // block
    weights = codes_of(packed.reshape(n, blocks * block * bits // 8), bits)[:, :k] - wide[:, places]
    weights *= scales.astype(np.float64)[:, places]
    expected = x.astype(np.float64) @ weights.T
    added = RNG.normal(0, 1, n).astype(dtype) if bias else None
    if added is not None:
        expected += added.astype(np.float64)
    inputs = [x, packed, scales, zero, places if groups else None, added]
    while inputs[-1] is None:
        inputs.pop()
    inputs = [changes.get(f"input{i}", given) for i, given in enumerate(inputs)]
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block, **({"precision": precision} if precision else {})}
    return Case(
        id,
        "MatMulNBits",
        tuple(inputs),
        attributes,
        opset=1,
        domain=DOMAIN,
        expected=(expected.astype(dtype),),
        terms=max(1, k) * 64,
    )


def by_onnxruntime(case: Case) -> Case:
    return Case(
        f"{case.id}_by_onnxruntime",
        case.op,
        case.inputs,
        case.attributes,
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
        terms=case.terms,
    )


NBITS = [
    *(
        nbits(f"{bits}bits_{z or 'default'}", (5, 40), 6, bits=bits, zeros=z)
        for bits in (2, 4, 8)
        for z in ("", "packed", "wide")
    ),
    *(nbits(f"{t}_{z}", (5, 48), 6, dtype=t, zeros=z, bias=True) for t in (F16, BFLOAT16) for z in ("packed", "wide")),
    # Of half and bf16 on tensor cores.
    *(
        nbits(
            f"{t}_block{block}_{z or 'default'}_{rows}_rows",
            (rows, k),
            70,
            dtype=t,
            block=block,
            zeros=z,
            bias=block == 64,
        )
        for t in (F16, BFLOAT16)
        for rows, k, block, z in (
            (5, 40, 64, "packed"),
            (16, 264, 32, ""),
            (17, 72, 32, ""),
            (66, 136, 32, "packed"),
            (40, 592, 128, "packed"),
        )
    ),
    *(
        nbits(
            f"{t}_{precision}_{bits}bits_{z or 'default'}_block{block}",
            (17, 264),
            70,
            bits=bits,
            dtype=t,
            precision=precision,
            block=block,
            zeros=z,
            bias=block == 32,
        )
        for t, precision in ((F16, ""), (BFLOAT16, ""), (F16, "fp16"), (BFLOAT16, "bf16"))
        for bits in (2, 4, 8)
        for block, z in ((32, "packed"), (128, ""))
    ),
    # Few rows: one after the other of blocks, zero points and numbers of rows.
    *(
        nbits(
            f"{t}_{precision or 'own'}_{bits}bits_{rows}_rows",
            (rows, k),
            n,
            bits=bits,
            dtype=t,
            precision=precision,
            block=block,
            zeros=z,
            bias=rows > 1,
        )
        for t, precision in ((F32, ""), (F16, ""), (BFLOAT16, ""), (F16, "fp16"), (BFLOAT16, "bf16"))
        for bits, rows, k, n, block, z in (
            (2, 3, 264, 33, 64, "packed"),
            (4, 1, 520, 70, 32, ""),
            (4, 2, 136, 7, 128, "packed"),
            (8, 4, 2056, 40, 32, "packed"),
        )
    ),
    # The other kernels of float, which have one, two or four rows.
    *(
        nbits(f"float_{bits}bits_{rows}_rows", (rows, 264), 9, bits=bits, block=32)
        for bits, rows in ((2, 1), (2, 2), (4, 4), (8, 1), (8, 2))
    ),
    nbits("fp16_slices", (20, 2056), 9, bits=8, dtype=F16, precision="fp16", block=64, zeros="packed"),
    # Widened again, for lack of tensor cores for them.
    nbits("fp16_block16", (5, 40), 6, dtype=F16, precision="fp16", zeros="packed", bias=True),
    nbits("fp16_wide", (5, 48), 6, bits=8, dtype=F16, precision="fp16", block=32, zeros="wide"),
    nbits("bf16_groups", (5, 40), 6, dtype=BFLOAT16, precision="bf16", block=32, groups=True),
    nbits("bf16_rows_of_odd_length", (2, 71), 9, bits=2, dtype=BFLOAT16, precision="bf16", block=32),
    nbits("slices_of_blocks", (20, 2056), 9, dtype=F16, block=256, zeros="packed"),
    nbits("rows_of_odd_length", (20, 70), 9, dtype=F16, block=32, zeros="packed"),
    nbits("bias", (5, 40), 6, bias=True),
    nbits("groups", (5, 40), 6, zeros="packed", groups=True, bias=True),
    nbits("groups_alone", (2, 40), 6, groups=True),
    nbits("block32", (5, 70), 6, block=32, zeros="packed"),
    nbits("block128", (5, 300), 6, block=128, zeros="packed", bits=2),
    nbits("one_row", (1, 130), 20, zeros="packed"),
    nbits("few_rows", (3, 130), 20, bits=8, zeros="packed", bias=True),
    nbits("tiles", (70, 90), 66, zeros="packed", bias=True),
    nbits("batches", (2, 3, 40), 6),
    nbits("vector", (40,), 6),
    nbits("empty", (0, 40), 6),
    nbits("no_columns", (5, 40), 0, zeros="packed"),
    nbits("no_inner", (5, 0), 6, bias=True),
    nbits("rank8", (1, 2, 1, 2, 1, 2, 1, 40), 3),
]
NBITS += [by_onnxruntime(case) for case in NBITS if case.id in ("2bits_packed", "4bits_packed", "4bits_wide", "bias")]


def bnb(id: str, a: tuple[int, ...], n: int, kind: int, *, dtype: Any = F32, block: int = 16, trans: int = 1) -> Case:
    """The result is worked out in double. With ``trans`` 0, ``n`` is K."""
    x = RNG.normal(0, 1, a).astype(dtype)
    count = a[-1] * n
    codes = RNG.integers(0, 16, count + count % 2)
    packed = (codes[::2] << 4 | codes[1::2]).astype(U8)
    largest = RNG.uniform(0.1, 2, -(-count // block)).astype(dtype)
    flat = TABLES[kind].astype(np.float64)[codes[:count]] * largest.astype(np.float64)[np.arange(count) // block]
    rows, columns = (n, a[-1]) if trans else (a[-1], n)
    weights = flat.reshape(rows, columns)
    expected = x.astype(np.float64) @ (weights.T if trans else weights)
    attributes = {"K": columns, "N": rows, "block_size": block, "quant_type": kind, "transB": trans}
    return Case(
        id,
        "MatMulBnb4",
        (x, packed, largest),
        attributes,
        opset=1,
        domain=DOMAIN,
        expected=(expected.astype(dtype),),
        terms=a[-1] * 8,
    )


BNB4 = [
    *(bnb(f"{t}_{kind}", (5, 40), 6, kind, dtype=t) for t in (F32, F16, BFLOAT16) for kind in (0, 1)),
    bnb("odd", (5, 33), 7, 1),
    bnb("block64", (2, 130), 20, 1, block=64),
    bnb("tiles", (70, 90), 66, 0),
    bnb("turned", (5, 33), 7, 1, trans=0),
    bnb("turned_tiles", (70, 90), 66, 1, trans=0),
    bnb("turned_few_rows", (2, 90), 66, 1, trans=0),
    by_onnxruntime(bnb("fp4", (5, 32), 6, 0)),
    by_onnxruntime(bnb("nf4", (5, 32), 6, 1)),
]


SMALL = [case for case in NBITS if case.inputs[1].size <= 1 << 12 and all(x is None or x.size for x in case.inputs)]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_constant_weights_are_widened_once(case: Case) -> None:
    op = build(f"{DOMAIN}.{case.op}", dict(case.attributes))
    assert check_prepared(case.id, op, case.inputs, {1, 2, 3, 4}, op.compute(*case.inputs))


@pytest.mark.parametrize("case", [*NBITS, *BNB4], ids=lambda case: f"{case.op}_{case.id}")
def test_products_with_packed_weights(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("outside", [3, -1, 1 << 30])
@pytest.mark.parametrize("rows", [2, 5])
def test_a_place_without_a_block_counts_as_nothing(checks: str, rows: int, outside: int) -> None:
    x, packed, scales = np.ones((rows, 40), F32), np.full((6, 3, 8), 0x99, U8), np.ones((6, 3), F32)
    groups = np.array([outside, *(0,) * 39], np.int32)
    attributes = {"K": 40, "N": 6, "block_size": 16}
    expected = (np.full((rows, 6), 39, F32),)
    refusal = f"g_idx from 0 to 2, got {outside}"
    inputs = (x, packed, scales, None, groups)
    run_case(
        Case("beyond", "MatMulNBits", inputs, attributes, opset=1, domain=DOMAIN, expected=expected, refusal=refusal),
        checks,
    )


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


A, B, S = spec(F32, 5, 40), spec(U8, 6, 3, 8), spec(F32, 6, 3)
K40 = {"K": 40, "N": 6, "block_size": 16}


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "message"),
    [
        ("MatMulNBits", {**K40, "bits": 3}, (A, B, S), "expects bits 2, 4 or 8"),
        ("MatMulNBits", {**K40, "weight_prepacked": 1}, (A, B, S), "weight_prepacked 0"),
        ("MatMulNBits", {**K40, "block_size": 24}, (A, B, S), "block_size to be a power of 2"),
        ("MatMulNBits", K40, (spec(F32, 5, 41), B, S), "the last extent of A to be K=40"),
        ("MatMulNBits", K40, (spec(np.float64, 5, 40), B, S), "expects A of type"),
        ("MatMulNBits", {**K40, "precision": "fp16"}, (A, B, S), "expects A of type float16"),
        ("MatMulNBits", {**K40, "precision": "fp16"}, (spec(F16, 5, 40), B, spec(F16, 6, 3)), "18 of float32"),
        ("MatMulNBits", K40, (A, spec(U8, 6, 2, 8), S), "expects B to be 144 of uint8"),
        ("MatMulNBits", K40, (A, B, spec(F16, 6, 3)), "expects scales to be 18 of float32"),
        ("MatMulNBits", K40, (A, B, S, spec(U8, 6, 3)), "expects zero_points to be 12 of uint8"),
        ("MatMulNBits", K40, (A, B, S, None, spec(np.int32, 7)), "expects g_idx to be an int32 for each of 40 places"),
        ("MatMulNBits", K40, (A, B, S, None, None, spec(F32, 5)), "expects bias to be 6 of float32"),
        ("MatMulBnb4", {**K40, "quant_type": 2}, (A, spec(U8, 120), spec(F32, 15)), "expects quant_type 0"),
        ("MatMulBnb4", {**K40, "quant_type": 1}, (A, spec(U8, 121), spec(F32, 15)), "expects B to be 120 of uint8"),
        ("MatMulBnb4", {**K40, "quant_type": 1}, (A, spec(U8, 120), spec(F32, 14)), "expects absmax to be 15"),
        ("MatMulBnb4", {**K40, "quant_type": 1, "transB": 0}, (A, spec(U8, 120), spec(F32, 15)), "A to be N=6"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, attributes: dict[str, Any], inputs: tuple[TensorSpec | None, ...], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        build(f"{DOMAIN}.{name}", attributes).infer(*inputs)
    assert message in str(caught.value)

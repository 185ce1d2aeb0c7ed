"""RotaryEmbedding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.rotary import FLOATS, RotaryEmbedding
from tests.ops.harness import Array, Case, run_case

HALVES = [t for t in FLOATS if t != np.float32]


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def rotary(
    id: str, x: Array, *, heads: int | None = None, dim: int = 0, entries: int = 0, interleaved: int = 0, **more: Any
) -> Case:
    """A case whose tables hold a row for each row of x, or for ``entries`` positions."""
    batch, rows = (x.shape[0], x.shape[2]) if x.ndim == 4 else x.shape[:2]
    size = x.shape[3] if x.ndim == 4 else x.shape[2] // (heads or 1)
    pairs = (dim or size) // 2
    lead = (entries,) if entries else (batch, rows)
    cosines, sines = sample((*lead, pairs), x.dtype, 8), sample((*lead, pairs), x.dtype, 9)
    positions = np.random.default_rng(3).integers(0, entries, (batch, rows)) if entries else None
    attributes: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": dim}
    if heads is not None:
        attributes["num_heads"] = heads
    return Case(f"rotary-{id}", "RotaryEmbedding", (x, cosines, sines, positions), attributes, **more)


def in_float(case: Case) -> Case:
    """The case with the result of its float twin, rounded once: the reference rounds each step."""
    x, *tables = case.inputs
    assert x is not None
    wide = [None if t is None else t if t.dtype == np.int64 else t.astype(np.float32) for t in (x, *tables)]
    (y,) = build(case.op, case.attributes).compute(*wide)
    assert y is not None
    return dataclasses.replace(case, expected=(y.astype(x.dtype),))


def cases() -> list[Case]:
    x = sample((2, 3, 4, 8))
    flat = sample((2, 4, 24))
    rows = [
        rotary(f"{rank}-{way}-{'picked' if entries else 'given'}-{dim}", given, heads=heads, dim=dim, entries=entries,
               interleaved=interleaved)
        for rank, given, heads in (("4d", x, None), ("3d", flat, 3))
        for way, interleaved in (("halves", 0), ("neighbours", 1))
        for entries in (0, 50)
        for dim in (0, 4)
    ]  # fmt: skip
    lists = [
        in_float(rotary(f"{t.name}-{entries}", sample((1, 2, 5, 10), t), entries=entries, dim=6))
        for t in HALVES
        for entries in (0, 9)
    ]
    special = x.copy()
    special[0, 0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    whole = rotary("batch-of-one", x, entries=5)
    cosines, sines = sample((1, 4, 4), seed=1), sample((2, 1, 4), seed=2)
    return [
        *rows,
        *lists,
        rotary("heads-of-four-axes", x, heads=3),
        rotary("special", special),
        rotary("many-rows", sample((1, 5, 70, 6)), entries=3),
        rotary("no-rows", x[:, :, :0], entries=3, expected=(x[:, :, :0],)),
        rotary("no-columns", x[..., :0], expected=(x[..., :0],)),
        dataclasses.replace(whole, inputs=(*whole.inputs[:3], np.array([[-1, 4, 0, -5]]))),
        Case("rotary-stretched-tables", "RotaryEmbedding", (x, cosines, sines)),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_rotary(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_views(checks: str) -> None:
    x = sample((4, 3, 8, 2)).transpose(0, 3, 1, 2)
    run_case(rotary("transposed", x), checks)
    run_case(rotary("reversed", x[:, :, ::-1, ::-1], entries=4), checks)
    whole = rotary("tables", x)
    tables = [np.broadcast_to(t[:1, :, ::-1], t.shape) for t in whole.inputs[1:3] if t is not None]
    run_case(dataclasses.replace(whole, inputs=(x, *tables)), checks)
    run_case(rotary("columns", sample((2, 12, 3)).transpose(0, 2, 1), heads=3), checks)


def test_position_out_of_range_is_refused_on_the_host_and_reads_zero_on_a_device(checks: str) -> None:
    case = rotary("out-of-range", sample((1, 2, 3, 4)), entries=5)
    x, *tables = (t for t in case.inputs[:3] if t is not None)
    with_zeros = (np.concatenate((table, np.zeros_like(table[:1]))) for table in tables)
    (y,) = build(case.op, case.attributes).compute(x, *with_zeros, np.array([[4, 5, 5]]))
    assert y is not None and y[:, :, 0].all() and not y[:, :, 1:].any()
    inputs = (x, *tables, np.array([[4, 5, -6]]))
    run_case(dataclasses.replace(case, inputs=inputs, expected=(y,), refusal="index 5 is out of range"), checks)


def test_attributes_are_those_of_onnx() -> None:
    schema = onnx.defs.get_schema("RotaryEmbedding", 23)
    ours = {f.name: f.default for f in dataclasses.fields(RotaryEmbedding)}
    theirs = {
        name: onnx.helper.get_attribute_value(a.default_value) if a.default_value.name else None
        for name, a in schema.attributes.items()
    }
    assert ours == theirs


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


TABLE = spec(2, 4, 4)


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({}, (spec(2, 3, 4, 8, dtype=np.float64), TABLE, TABLE), "input of type float32"),
        ({}, (spec(2, 3, 4, 8), spec(2, 4, 4, dtype=np.float16), TABLE), "cos_cache of type float32"),
        ({}, (spec(2, 4, 24), TABLE, TABLE), "number of heads of X"),
        ({"num_heads": 5}, (spec(2, 4, 24), TABLE, TABLE), "divisor of the last, got 5"),
        ({}, (spec(2, 4), TABLE, TABLE), "expects X"),
        ({}, (spec(2, 3, 4, 7), TABLE, TABLE), "even number of elements of a head's 7"),
        ({"rotary_embedding_dim": 10}, (spec(2, 3, 4, 8), TABLE, TABLE), "head's 8, got 10"),
        ({}, (spec(2, 3, 4, 8), spec(3, 4, 4), TABLE), r"cos_cache of shape \[2, 4, 4\]"),
        ({}, (spec(2, 3, 4, 8), TABLE, spec(2, 4, 3)), r"sin_cache of shape \[2, 4, 4\]"),
        ({}, (spec(2, 3, 4, 8), TABLE, TABLE, spec(2, 4, dtype=np.int64)), r"cos_cache \[positions, 4\]"),
        ({}, (spec(2, 3, 4, 8), spec(9, 4), spec(8, 4), spec(2, 4, dtype=np.int64)), "as many positions"),
        ({}, (spec(2, 3, 4, 8), spec(9, 4), spec(9, 4), spec(2, 5, dtype=np.int64)), r"position_ids of shape \[2, 4\]"),
        ({}, (spec(2, 3, 4, 8), spec(9, 4), spec(9, 4), spec(2, 4, dtype=np.int32)), "position_ids of type int64"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("RotaryEmbedding", attributes).infer(*specs)

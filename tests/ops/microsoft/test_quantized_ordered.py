"""QOrderedMatMul and its kin, which onnxruntime runs on GPUs alone: worked out in double, rounded where they round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.importer.load import load_graph
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes import AT_LOAD, run_passes
from tests.ops.harness import Case, run_case
from tests.ops.microsoft.composed import DOMAIN, Array, Composed, make_model, run_composed

RNG = np.random.default_rng(21)
I8, F32, F16 = np.int8, np.float32, np.float16
ROWS = {"order_A": 1, "order_B": 0, "order_Y": 1}
ORDERS = {"order_input": 1, "order_output": 1, "order_weight": 0}


def integers(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape, I8)


def number(value: float) -> Array:
    return np.array(value, F32)


def to_bytes(x: Array, scale: Array) -> Array:
    return np.asarray(np.clip(np.rint(x / scale), -128, 127)).astype(I8)


def by_columns(b: Array) -> Array:
    """The matrices that elements stand for which lie column by column."""
    *outer, rows, columns = b.shape
    return b.reshape(*outer, columns, rows).swapaxes(-1, -2).astype(np.float64)


def product(
    id: str, a: Array, b: Array, b_scale: Array, y_scale: float = 16, bias: Array | None = None, c: Array | None = None
) -> Composed:
    a_scale, c_scale = number(0.25), number(0.5)
    y = a.astype(np.float64) @ by_columns(b) * (a_scale * b_scale)
    y = y if bias is None else y + bias
    y = y if c is None else y + c.astype(np.float64) * c_scale
    tail = () if bias is None and c is None else (bias,) if c is None else (bias, c, c_scale)
    inputs = (a, a_scale, b, b_scale, number(y_scale), *tail)
    return Composed(id, "QOrderedMatMul", inputs, ROWS, (1, 2, 3, 4), expected=(to_bytes(y, number(y_scale)),))


def gelu(id: str, x: Array, **attributes: int) -> Composed:
    wide = x.astype(np.float64) * 0.03125
    y = wide * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(wide / math.sqrt(2)))
    inputs = (x, number(0.03125), number(0.02))
    return Composed(id, "QOrderedGelu", inputs, attributes, expected=(to_bytes(y, inputs[2].astype(np.float64)),))


def norm(id: str, x: Array, dtype: Any, has_bias: bool = True, **attributes: Any) -> Composed:
    scale = RNG.uniform(0.5, 2, x.shape[-1]).astype(dtype)
    bias = RNG.uniform(-1, 1, x.shape[-1]).astype(dtype) if has_bias else None
    wide = x.astype(np.float64) * 0.0625
    centered = wide - wide.mean(-1, keepdims=True)
    made = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + attributes.get("epsilon", 1e-5)) * scale
    made = made if bias is None else made + bias
    inputs = (x, number(0.0625), scale, bias, number(0.03))
    expected = to_bytes(made, inputs[4].astype(np.float64))
    return Composed(id, "QOrderedLayerNormalization", inputs, attributes, expected=(expected,))


def attention(
    id: str, heads: int, size: int, mask: Array | None = None, per_column: bool = False, has_inner: bool = True
) -> Composed:
    batch, rows, inner, width = 2, 5, 7, heads * size
    x, weights = integers(batch, rows, inner), [integers(inner, width) for _ in range(3)]
    biases = [RNG.uniform(-1, 1, width).astype(F32) for _ in range(3)]
    of_weights = [RNG.choice(np.array([0.002, 0.003], F32), width) if per_column else number(0.002) for _ in range(3)]
    scales = [number(0.01), number(0.0125), number(0.02)]
    score_scale, probability_scale, y_scale = number(0.1), number(1 / 127), number(0.01)

    def rounded(wide: Array, scale: Array) -> Array:
        return to_bytes(wide, scale.astype(np.float64)) * scale.astype(np.float64)

    parts = []
    for weight, weight_scale, bias, scale in zip(weights, of_weights, biases, scales, strict=True):
        wide = x.astype(np.float64) @ by_columns(weight) * (number(0.02).astype(np.float64) * weight_scale) + bias
        parts.append(rounded(wide, scale).reshape(batch, rows, heads, size).transpose(0, 2, 1, 3))
    q, k, v = parts
    scores = q @ k.swapaxes(-1, -2)
    scores = (rounded(scores, score_scale) if has_inner else scores) / math.sqrt(size)
    if mask is not None:
        kept = np.arange(rows) < mask[:, None] if mask.ndim == 1 else mask != 0
        scores = np.where(kept[:, None, None, :], scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    shares = rounded(shares, probability_scale) if has_inner else shares
    y = (shares @ v).transpose(0, 2, 1, 3).reshape(batch, rows, width)
    between = (score_scale, probability_scale) if has_inner else (None, None)
    inputs = (x, number(0.02), *scales, *weights, *of_weights, *biases, *between, y_scale)
    return Composed(
        id,
        "QOrderedAttention",
        inputs if mask is None else (*inputs, mask),
        {"num_heads": heads, "qkv_hidden_sizes": [width] * 3, **ORDERS},
        tuple(range(5, 14)),
        expected=(to_bytes(y, y_scale.astype(np.float64)),),
    )


CASES = [
    product("plain", integers(3, 8), integers(8, 6), number(0.5)),
    product("per_column", integers(2, 3, 8), integers(8, 6), RNG.choice(np.array([0.25, 0.5, 1], F32), 6)),
    product("bias", integers(2, 3, 8), integers(8, 6), number(0.5), bias=RNG.integers(-64, 64, 6).astype(F32)),
    product("residual", integers(2, 3, 8), integers(8, 6), number(0.5), c=integers(2, 3, 6)),
    product("batches_of_both", integers(2, 3, 8), integers(2, 8, 6), number(0.5), c=integers(1, 3, 6)),
    product("saturates", integers(2, 40), integers(40, 3), number(2), y_scale=0.5),
    product("no_rows", integers(0, 8), integers(8, 6), number(0.5)),
    gelu("gelu", np.arange(-128, 128).astype(I8).reshape(2, 128)),
    gelu("gelu_in_another_order", integers(3, 4), order_X=0, order_Y=0),
    norm("norm", integers(2, 3, 16), F32),
    norm("norm_of_halves", integers(5, 16), F16, epsilon=0.001),
    norm("norm_without_bias", integers(5, 16), F32, has_bias=False),
    attention("attention", 2, 4),
    attention("attention_per_column", 2, 3, per_column=True),
    attention("attention_masked", 3, 4, np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)),
    attention("attention_of_lengths", 1, 8, np.array([3, 5], np.int32)),
    attention("attention_rounded_less", 2, 4, has_inner=False),
]


def by_shape(*shape: int) -> Case:
    x = integers(*shape)
    return Case(f"columns-{shape}", "ColumnMajor", (x,), expected=(by_columns(x).astype(I8),), domain="gpuexec")


PARTS = [
    *(by_shape(*shape) for shape in ((3, 4), (2, 3, 4), (0, 4), (5, 0), (1, 1))),
    Case("type", "OfType", (X := integers(3),), {"role": "x", "types": ("int8",)}, expected=(X,), domain="gpuexec"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operators_are_what_they_were_made_of(case: Composed) -> None:
    run_composed(case)


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case.id)
def test_parts_show_what_there_is(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("QOrderedMatMul", {**ROWS, "order_B": 3}, r"expects order_B 0, got 3"),
        ("QOrderedGelu", {"order_X": 1, "order_Y": 2}, r"expects order_Y 1, got 2"),
        ("QOrderedLayerNormalization", {"order_X": 2}, r"expects order_X 1, got 2"),
        ("QOrderedAttention", {**ORDERS, "num_heads": 2}, r"qkv_hidden_sizes of three equal numbers.*got \[\] and 2"),
        (
            "QOrderedAttention",
            {**ORDERS, "num_heads": 4, "qkv_hidden_sizes": (6, 6, 6)},
            r"that num_heads divides, got \[6, 6, 6\] and 4",
        ),
        (
            "QOrderedAttention",
            {**ORDERS, "num_heads": 2, "qkv_hidden_sizes": (6, 6, 6), "unidirectional": 1},
            r"expects unidirectional 0, got 1",
        ),
    ],
)
def test_other_orders_and_sizes_are_refused(op: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"{DOMAIN}.{op}", attributes)


@pytest.mark.parametrize(
    ("case", "position", "dtype", "message"),
    [
        (product("a", integers(2, 8), integers(8, 6), number(0.5)), 0, np.uint8, r"a matrix of type int8, got uint8"),
        (
            product("y", integers(2, 8), integers(8, 6), number(0.5)),
            4,
            np.float16,
            r"a scale of type float32, got float16",
        ),
        (gelu("x", integers(2, 8)), 0, np.int16, r"a matrix of type int8, got int16"),
        (norm("b", integers(2, 8), F32), 3, np.float64, r"B of type float32, float16, got float64"),
    ],
    ids=lambda each: each.id if isinstance(each, Composed) else None,
)
def test_other_types_are_refused(case: Composed, position: int, dtype: Any, message: str) -> None:
    specs = [None if x is None else TensorSpec.of(x) for x in case.inputs]
    given = specs[position]
    assert given is not None
    specs[position] = TensorSpec(given.shape, np.dtype(dtype))
    with pytest.raises(InputError, match=message):
        build(f"{DOMAIN}.{case.op}", case.attributes).infer(*specs)


def test_residual_without_its_scale_is_refused() -> None:
    case = product("residual", integers(2, 3, 8), integers(8, 6), number(0.5), c=integers(2, 3, 6))
    model = make_model(Composed("", case.op, case.inputs[:-1], case.attributes), case.expected)
    with pytest.raises(InputError, match=r"QOrderedMatMul.*expects C and scale_C together"):
        run_passes(load_graph(model.SerializeToString()).graph, AT_LOAD)

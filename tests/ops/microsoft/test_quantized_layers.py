"""QLinearSoftmax, pools and means, QAttention and QEmbedLayerNormalization, and forms that ONNX has too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from tests.ops.decomposed import check_parts
from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.as_model import check_as_model

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(16)
U8, I8, F32 = np.uint8, np.int8, np.float32


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True), dtype)


def scale(value: float) -> Array:
    return np.array(value, F32)


def layer(id: str, op: str, x: Array, y_scale: float = 0.0173, **attributes: Any) -> Case:
    inputs = (x, scale(0.05), integers(x.dtype), scale(y_scale), integers(x.dtype))
    return Case(id, f"QLinear{op}", inputs, attributes, opset=1, domain=DOMAIN, oracle="onnxruntime")


def mean(id: str, x: Array, axes: tuple[int, ...], keepdims: int = 1) -> Case:
    """Return a case of QLinearReduceMean, computed in double where onnxruntime has no kernel."""
    zero, y_zero = integers(x.dtype), integers(x.dtype)
    wide = (x.astype(np.float64) - zero) * 0.5
    made = np.rint(wide.mean(axes, keepdims=bool(keepdims)) / 0.25) + y_zero
    limits = np.iinfo(x.dtype)
    expected = np.asarray(np.clip(made, limits.min, limits.max)).astype(x.dtype)
    attributes = {"keepdims": keepdims, "axes": list(axes)}
    inputs = (x, scale(0.5), zero, scale(0.25), y_zero)
    return Case(id, "QLinearReduceMean", inputs, attributes, opset=1, domain=DOMAIN, expected=(expected,))


LAYERS = [
    *(layer(f"{t.__name__}", "Softmax", integers(t, 2, 3, 5), 1 / 256, axis=-1, opset=13) for t in (U8, I8)),
    layer("axis", "Softmax", integers(U8, 2, 3, 5), 1 / 256, axis=1, opset=17),
    layer("flattened", "Softmax", integers(U8, 2, 3, 5), 1 / 256, axis=1, opset=11),
    *(layer(f"{t.__name__}", "AveragePool", integers(t, 2, 3, 6, 7), kernel_shape=[3, 2]) for t in (U8, I8)),
    layer(
        "all_attributes",
        "AveragePool",
        integers(U8, 1, 2, 7, 8),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    ),
    layer("ceil", "AveragePool", integers(U8, 1, 2, 7, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    layer("same", "AveragePool", integers(U8, 1, 2, 7, 8), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    layer("channels_last", "AveragePool", integers(U8, 1, 6, 7, 3), kernel_shape=[3, 2], channels_last=1),
    *(layer(f"{t.__name__}", "GlobalAveragePool", integers(t, 2, 3, 6, 7)) for t in (U8, I8)),
    layer("channels_last", "GlobalAveragePool", integers(U8, 2, 6, 7, 3), channels_last=1),
    mean("last", integers(U8, 4, 8), (1,)),
    mean("dropped", integers(I8, 4, 3, 8), (-1,), keepdims=0),
    mean("two", integers(I8, 2, 3, 4), (0, 2)),
    mean("all", integers(U8, 4, 8), (0, 1)),
    Case(
        "without_zeros",
        "QLinearReduceMean",
        (np.array([[-8, -4]], I8), scale(1), None, scale(2)),
        {"axes": [1], "keepdims": 1},
        opset=1,
        domain=DOMAIN,
        expected=(np.array([[-3]], I8),),
    ),
]


def attention(id: str, *, columns: bool = False, weight: Any = I8, rows: int = 4, **given: Any) -> Case:
    batch, width, heads, size = 2, 8, 2, 3
    hidden = heads * size
    by = (3 * hidden,) if columns else ()
    attributes = {"num_heads": heads, **{key: given[key] for key in ("unidirectional", "scale") if key in given}}
    inputs = (
        integers(U8, batch, rows, width),
        integers(weight, width, 3 * hidden),
        RNG.normal(0, 0.5, 3 * hidden).astype(F32),
        scale(0.01),
        RNG.uniform(0.005, 0.01, by).astype(F32),
        given.get("mask"),
        np.array(120, U8),
        given.get("zero", integers(weight)),
        given.get("past"),
    )
    while inputs[-1] is None:
        inputs = inputs[:-1]
    has_past = given.get("past") is not None
    return Case(
        id,
        "QAttention",
        inputs,
        attributes,
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
        outputs=(True, True) if has_past else (True,),
        terms=50,
    )


def embed(id: str, *, segments: bool, mask: bool) -> Case:
    words, rows, width = 2, 4, 6
    ids = lambda end: RNG.integers(0, end, (words, rows)).astype(np.int32)
    tables = [integers(U8, 9, width), integers(U8, 5, width), integers(U8, 2, width) if segments else None]
    parts = [*tables, integers(U8, width), integers(U8, width)]
    by = [None if part is None else np.array(RNG.uniform(0.01, 0.02), F32) for part in parts]
    zeros = [None if part is None else integers(U8) for part in parts]
    lengths = RNG.integers(0, 2, (words, rows)).astype(np.int32) if mask else None
    inputs = (ids(9), ids(2) if segments else None, *parts, lengths, *by, *zeros)
    return Case(
        id,
        "QEmbedLayerNormalization",
        inputs,
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
        outputs=(True, True),
        terms=2000,
    )


ATTENTION = [
    attention("int8"),
    attention("uint8", weight=U8),
    attention("columns", columns=True, zero=np.zeros((18,), I8)),
    attention("causal", unidirectional=1),
    attention("scaled", scale=0.3),
    attention("lengths", mask=np.array([2, 4], np.int32)),
    attention("mask", mask=RNG.integers(0, 2, (2, 4)).astype(np.int32)),
    attention("past", past=RNG.normal(0, 1, (2, 2, 2, 5, 3)).astype(F32), unidirectional=1),
    embed("segments", segments=True, mask=False),
    embed("masked", segments=True, mask=True),
    embed("words_alone", segments=False, mask=False),
]

FORMS = [
    Case(
        f"{op}_{dtype.__name__}",
        op,
        (x, scale(0.7), np.array(3, dtype)),
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
    )
    for dtype in (U8, I8, np.uint16, np.int16)
    for op, x in (
        ("QuantizeLinear", RNG.normal(0, 50, (3, 5)).astype(F32)),
        ("DequantizeLinear", RNG.integers(0, 127, (3, 5)).astype(dtype)),
    )
] + [
    Case(
        "channels_axis0",
        "QuantizeLinear",
        (RNG.normal(0, 50, (3, 5)).astype(F32), RNG.uniform(0.1, 1, 3).astype(F32), integers(I8, 3)),
        {"axis": 0},
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
    )
]


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: f"{case.op}_{case.id}")
def test_quantized_layers(case: Case) -> None:
    check_parts(case)
    check_as_model(case)


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: f"{case.op}_{case.id}")
def test_quantized_transformers(case: Case) -> None:
    check_as_model(case)


@pytest.mark.parametrize("case", FORMS, ids=lambda case: case.id)
def test_forms_of_another_domain(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("role", ["do_rotary", "past_present_share_buffer"])
def test_attention_refuses_what_it_has_no_form_of(role: str) -> None:
    with pytest.raises(InputError, match=f"expects {role} 0, got 1"):
        build(f"{DOMAIN}.QAttention", {"num_heads": 2, role: 1})

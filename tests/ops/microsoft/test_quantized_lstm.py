"""DynamicQuantizeLSTM and its step operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.microsoft.rational import rational_sigmoid, rational_tanh
from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.as_model import check_as_model

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(18)
F32, I8, U8 = np.float32, np.int8, np.uint8
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def floats(*shape: int, spread: float = 1.0) -> Array:
    return RNG.normal(0, spread, shape).astype(F32)


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def lstm(
    id: str, *, batch: int = 1, dtype: Any = I8, direction: str = "forward", columns: bool = False, **given: Any
) -> Case:
    """One row at a time, as onnxruntime quantises the rows of a thread together."""
    steps, width, hidden, directions = 7, 5, 6, len(DIRECTIONS[direction])
    by = (directions, 4 * hidden) if columns else (directions,)
    quants = [part for _ in range(2) for part in (RNG.uniform(0.002, 0.006, by).astype(F32), np.zeros(by, dtype))]
    if dtype == U8:
        quants[1] += U8(128)
        quants[3] += U8(128)
    inputs = (
        floats(steps, batch, width),
        integers(dtype, directions, width, 4 * hidden),
        integers(dtype, directions, hidden, 4 * hidden),
        floats(directions, 8 * hidden, spread=0.2) if given.get("bias", True) else None,
        given.get("lengths"),
        floats(directions, batch, hidden, spread=0.5) if given.get("states") else None,
        floats(directions, batch, hidden) if given.get("states") else None,
        floats(directions, 3 * hidden, spread=0.3) if given.get("peepholes") else None,
        *quants,
    )
    names = ("activations", "clip", "input_forget")
    attributes = {"hidden_size": hidden, "direction": direction, **{k: given[k] for k in names if k in given}}
    return Case(
        id,
        "DynamicQuantizeLSTM",
        inputs,
        attributes,
        opset=1,
        domain=DOMAIN,
        oracle="onnxruntime",
        outputs=(True, True, True),
        terms=steps * 4 * hidden,
    )


LAYERS = [
    lstm("int8"),
    lstm("uint8", dtype=U8),
    lstm("reverse", direction="reverse"),
    lstm("bidirectional", direction="bidirectional", states=True),
    lstm("columns", columns=True, states=True),
    lstm("columns_both_ways", columns=True, direction="bidirectional"),
    lstm("without_bias", bias=False),
    lstm("peepholes", peepholes=True, states=True),
    lstm("clip", clip=0.4, states=True),
    lstm("input_forget", input_forget=1),
    lstm("activations", activations=["HardSigmoid", "Relu", "Softsign"]),
    lstm("lengths", lengths=np.array([4], np.int32)),
    replace(lstm("last_states"), outputs=(False, True, True)),
]


def steps_case(id: str, *, direction: str = "forward", dtype: Any = I8, columns: bool = False, **given: Any) -> Case:
    """Worked out step by step, in loops."""
    steps, batch, hidden, directions = 4, 3, given.get("hidden", 9), len(DIRECTIONS[direction])
    by = (directions, 4 * hidden) if columns else (directions,)
    gates = floats(directions, steps, batch, 4 * hidden)
    r, scale, zero = integers(dtype, directions, hidden, 4 * hidden), RNG.uniform(0.001, 0.004, by).astype(F32), None
    zero = integers(dtype, *by)
    lengths = given.get("lengths")
    inputs = (gates, r, scale, zero, None, lengths, *[None] * 3)
    y, h, c = (
        np.zeros(shape, F32) for shape in ((steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2)
    )
    for d, is_reverse in enumerate(DIRECTIONS[direction]):
        weights = (r[d].astype(np.int64) - zero[d]) * scale[d].astype(np.float64)
        for b in range(batch):
            for t in range(steps)[:: -1 if is_reverse else 1]:
                if lengths is not None and t >= lengths[b]:
                    continue
                low, high = min(0.0, h[d, b].min()), max(0.0, h[d, b].max())
                size = F32((high - low) / 255) if high > low else F32(1)
                origin = np.rint(F32(-low) / size)
                whole = np.clip(np.rint(h[d, b] / size) + origin, 0, 255) - origin
                i, o, f, g = (gates[d, t, b] + (whole * np.float64(size)) @ weights).reshape(4, hidden)
                logistic = lambda v: 1 / (1 + np.exp(-v))
                c[d, b] = logistic(f) * c[d, b] + logistic(i) * np.tanh(g)
                h[d, b] = y[t, d, b] = logistic(o) * np.tanh(c[d, b])
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return Case(
        id,
        "QuantizedLstmSteps",
        inputs,
        {"direction": direction, "hidden_size": hidden},
        opset=1,
        domain="gpuexec",
        expected=(y, h, c),
        outputs=(True, True, True),
        terms=steps * 4 * hidden,
    )


STEPS = [
    steps_case("int8"),
    steps_case("uint8", dtype=U8, columns=True),
    steps_case("both_ways", direction="bidirectional"),
    steps_case("lengths", direction="bidirectional", lengths=np.array([4, 0, 2], np.int32)),
    steps_case("more_units_than_threads", hidden=260),
    replace(steps_case("only_last"), outputs=(False, True, True)),
]


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_dynamic_quantize_lstm(case: Case) -> None:
    check_as_model(case)


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.id)
def test_steps_of_quantized_lstm(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_rational_functions_are_near() -> None:
    x = np.linspace(-30, 30, 20001).astype(F32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(rational_tanh(x), np.tanh(wide), rtol=0, atol=4e-7)
    np.testing.assert_allclose(rational_sigmoid(x), 1 / (1 + np.exp(-wide)), rtol=0, atol=2e-7)
    assert np.isnan(rational_tanh(np.array([np.nan], F32))).all()


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


G, R, S, Z = spec(F32, 1, 4, 3, 8), spec(I8, 1, 2, 8), spec(F32, 1), spec(I8, 1)


@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ({"direction": "up"}, (G, R, S, Z), "expects direction among forward, reverse, bidirectional"),
        ({"activations": ["Tanh"]}, (G, R, S, Z), "expects 3 activations per direction (1)"),
        ({"hidden_size": 3}, (G, R, S, Z), "for hidden_size=3"),
        ({}, (G, spec(I8, 2, 2, 8), S, Z), "expects R to be [1, hidden, 4 * hidden]"),
        ({}, (spec(F32, 1, 4, 3, 4), R, S, Z), "expects gates [1, steps, batch, 8]"),
        ({}, (G, R, spec(F32, 2), Z), "expects R_scale to be"),
        ({}, (G, R, S, spec(U8, 1)), "expects R_zero_point of type int8"),
        ({}, (G, R, S, spec(I8, 1, 8)), "as many zero points of R as scales"),
        ({}, (G, R, S, Z, spec(F32, 1, 8)), "expects B to be float32[1,16]"),
        ({}, (G, R, S, Z, None, spec(np.int64, 3)), "expects sequence_lens to be int32[3]"),
        ({}, (G, R, S, Z, None, None, spec(F32, 1, 3, 3)), "expects initial_h to be float32[1,3,2]"),
    ],
)
def test_what_does_not_fit_is_refused(
    attributes: dict[str, Any], inputs: tuple[TensorSpec | None, ...], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        build("gpuexec.QuantizedLstmSteps", attributes).infer(*inputs)
    assert message in str(caught.value)

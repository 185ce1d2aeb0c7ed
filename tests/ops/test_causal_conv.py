"""CausalConvWithState: by the reference, by sums worked out in double, and in two calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.nn.causal_conv import FLOATS, CausalConvWithState
from tests.ops.direct import lower_and_run
from tests.ops.harness import Array, Case, run_case


def sample(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def convolve(
    id: str,
    sizes: tuple[int, int, int, int],
    given: str = "bp",
    dtype: Any = np.float32,
    outputs: tuple[bool, ...] = (True, True),
    **attributes: Any,
) -> Case:
    """A case of ``[batch, channels, length, taps]``, with bias (b) and past state (p) if named."""
    batch, channels, length, taps = sizes
    x, weight = sample(batch, channels, length), sample(channels, 1, taps, seed=2)
    bias = sample(channels, seed=3) if "b" in given else None
    past = sample(batch, channels, taps - 1, seed=4) if "p" in given else None
    inputs = tuple(array if array is None else array.astype(dtype) for array in (x, weight, bias, past))
    return Case(
        id, "CausalConvWithState", inputs, attributes, outputs=outputs, opset=27, terms=taps + 1,
        expected=in_double(inputs, attributes.get("activation", "none")),
    )  # fmt: skip


def in_double(inputs: tuple[Array | None, ...], activation: str) -> tuple[Array, ...]:
    """Return both outputs, each column's sum by itself."""
    x, weight, bias, past = inputs
    assert x is not None and weight is not None
    batch, channels, length = x.shape
    taps = weight.shape[2]
    z = np.zeros((batch, channels, taps - 1 + length))
    if past is not None:
        z[:, :, : taps - 1] = past
    z[:, :, taps - 1 :] = x
    y = np.zeros(x.shape)
    for b, c, t in np.ndindex(*x.shape):
        y[b, c, t] = weight[c, 0].astype(float) @ z[b, c, t : t + taps] + (0 if bias is None else float(bias[c]))
    if activation != "none":
        y = y / (1 + np.exp(-y))
    return y.astype(x.dtype), z[:, :, length:].astype(x.dtype)


SIZES = (2, 3, 7, 4)
CASES = [
    *(
        convolve(f"{dtype_row(t).name}-{a}", SIZES, dtype=t, activation=a)
        for t in FLOATS
        for a in ("none", "silu", "swish")
    ),
    *(convolve(f"given-{given}", SIZES, given) for given in ("", "b", "p")),
    convolve("shorter-than-the-state", (2, 3, 2, 5)),
    convolve("one-step", (2, 300, 1, 4), activation="silu"),
    convolve("one-tap", (2, 3, 4, 1)),
    convolve("long", (1, 2, 700, 3)),
    convolve("no-columns", (2, 3, 0, 4)),
    convolve("no-columns-no-past", (2, 3, 0, 4), ""),
    convolve("no-channels", (2, 0, 5, 4)),
    convolve("no-batch", (0, 3, 5, 4)),
    convolve("output-alone", SIZES, outputs=(True, False)),
    convolve("state-alone", SIZES, outputs=(False, True)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cases(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_reference_agrees(checks: str, activation: str) -> None:
    run_case(dataclasses.replace(convolve("reference", SIZES, activation=activation), expected=None), checks)


def test_views(checks: str) -> None:
    case = convolve("views", SIZES)
    x, weight, bias, past = (array for array in case.inputs if array is not None)
    across = np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    run_case(dataclasses.replace(case, inputs=(across, weight[:, :, ::-1][:, :, ::-1], bias, past)), checks)
    backwards = x[::-1, :, ::-1], weight, bias, past[:, ::-1]
    run_case(dataclasses.replace(case, inputs=backwards, expected=in_double(backwards, "none")), checks)


def test_numbers_that_are_none_reach_as_far_as_the_taps(checks: str) -> None:
    case = convolve("special", (1, 3, 6, 3), activation="silu")
    x = np.array(case.inputs[0])
    x[0, 0, 1], x[0, 1, 2], x[0, 2, 3] = np.nan, np.inf, -np.inf
    inputs = (x, *case.inputs[1:])
    with np.errstate(all="ignore"):
        expected = in_double(inputs, "silu")
    assert np.isnan(expected[0][0, 0]).tolist() == [False, True, True, True, False, False]
    run_case(dataclasses.replace(case, inputs=inputs, expected=expected), checks)


def test_state_joins_two_calls() -> None:
    op = CausalConvWithState(activation="silu")
    x, weight, bias, _ = convolve("", (2, 3, 9, 4)).inputs
    assert x is not None
    whole, last = op.compute(x, weight, bias)
    first, state = op.compute(x[:, :, :2], weight, bias)
    second, after = op.compute(x[:, :, 2:], weight, bias, state)
    assert first is not None and second is not None
    np.testing.assert_array_equal(np.concatenate((first, second), 2), whole)
    np.testing.assert_array_equal(after, last)


def test_each_output_may_be_absent() -> None:
    case = convolve("", SIZES)
    op = CausalConvWithState()
    together = lower_and_run(op, case.inputs)
    for wanted, expected in zip(((True,), (False, True)), together, strict=True):
        (alone,) = lower_and_run(op, case.inputs, wanted=wanted)
        np.testing.assert_array_equal(alone, expected)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 12), st.integers(1, 6)),
    st.sampled_from(["", "b", "p", "bp"]),
    st.sampled_from(FLOATS),
    st.sampled_from(["none", "silu"]),
)
def test_any_sizes(checks: str, sizes: tuple[int, int, int, int], given: str, dtype: Any, activation: str) -> None:
    run_case(convolve("any", sizes, given, dtype, activation=activation), checks)


def test_attributes_are_those_of_onnx() -> None:
    (attribute,) = onnx.defs.get_schema("CausalConvWithState", 27).attributes.values()
    assert (attribute.name, attribute.default_value.s.decode()) == ("activation", CausalConvWithState().activation)


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


X, WEIGHT = spec(2, 3, 7), spec(3, 1, 4)


@pytest.mark.parametrize(
    ("specs", "activation", "message"),
    [
        ((spec(2, 3, 7, dtype=np.float64), WEIGHT), "none", "input of type float32, float16, bfloat16"),
        ((X, spec(3, 1, 4, dtype=np.float16)), "none", "weight of type float32"),
        ((X, WEIGHT), "relu", "activation none, silu, swish, got 'relu'"),
        ((spec(3, 7), WEIGHT), "none", r"input \[batch, channels, length\]"),
        ((X, spec(2, 1, 4)), "none", r"weight \[3, 1, taps\]"),
        ((X, spec(3, 2, 4)), "none", r"weight \[3, 1, taps\]"),
        ((X, spec(3, 1, 0)), "none", r"weight \[3, 1, taps\]"),
        ((X, WEIGHT, spec(4)), "none", r"bias of shape \[3\]"),
        ((X, WEIGHT, None, spec(2, 3, 4)), "none", r"past_state of shape \[2, 3, 3\]"),
    ],
)
def test_infer_refuses(specs: tuple[TensorSpec | None, ...], activation: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("CausalConvWithState", {"activation": activation}).infer(*specs)

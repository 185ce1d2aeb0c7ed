"""Derivative rules, each with all its parts, against differences in double."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from gpuexec.ir.operator import find_operator
from gpuexec.passes.derivatives import OF_ALL_OUTPUTS, PARTS, RULES
from tests.passes.derivative_examples import EXAMPLES, IMAGE, LAST, ROW, SQUARE, A, Example, one, several
from tests.passes.gradients import gradient, make, node, run, sample

BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_slopes_are_those_of_differences(backend: gx.BackendType, example: Example) -> None:
    example.check(backend)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_slopes_of_slopes_are_those_of_differences(example: Example) -> None:
    example.check_twice(gx.BackendType.CPU)


# Each example in float, and in half or bfloat16 in turns.
IN_OTHER_TYPES = [
    pytest.param(example, dtype, id=f"{example.id}-{np.dtype(dtype)}")
    for number, example in enumerate(each for each in EXAMPLES if "step" not in each.id)
    for dtype in (np.float32, (np.float16, ml_dtypes.bfloat16)[number % 2])
]


@pytest.mark.parametrize(("example", "dtype"), IN_OTHER_TYPES)
def test_slopes_in_other_types_are_those_in_double(example: Example, dtype: Any) -> None:
    rounded = replace(example, inputs={key: x.astype(dtype).astype(np.float64) for key, x in example.inputs.items()})
    bound = 64 * float(ml_dtypes.finfo(dtype).eps)
    pairs = zip(example.differentiate(BACKENDS[0], dtype), rounded.differentiate(BACKENDS[0]), strict=True)
    for got, expected in pairs:
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=bound * np.abs(expected).max())


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_slopes_of_what_stretches(data: st.DataObject) -> None:
    """Any two shapes of rank to 5 that stretch to one; extents of 0 too."""
    whole = data.draw(st.lists(st.integers(0, 3), max_size=5))
    shapes = []
    for _ in range(2):
        kept = whole[data.draw(st.integers(0, len(whole))) :]
        shapes.append(tuple(extent if data.draw(st.booleans()) else 1 for extent in kept))
    op = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "Max"]))
    several(op, sample(*shapes[0]), sample(*shapes[1], seed=1)).check(data.draw(st.sampled_from(BACKENDS)))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_slopes_of_products_of_any_ranks(data: st.DataObject) -> None:
    rows, inner, columns = (data.draw(st.integers(1, 3)) for _ in range(3))
    lead = data.draw(st.lists(st.integers(1, 2), max_size=2))
    a = data.draw(st.sampled_from([(inner,), (rows, inner), (*lead, rows, inner), (1, *lead[1:], rows, inner)]))
    b = data.draw(st.sampled_from([(inner,), (inner, columns), (*lead, inner, columns)]))
    several("MatMul", sample(*a), sample(*b, seed=1)).check(data.draw(st.sampled_from(BACKENDS)))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_slopes_of_convolutions(data: st.DataObject) -> None:
    groups, stride, dilation = (data.draw(st.integers(1, 2)) for _ in range(3))
    kernel, begin, end = (data.draw(st.integers(low, 2)) for low in (1, 0, 0))
    extent = data.draw(st.integers((kernel - 1) * dilation + 1, 6))
    channels = data.draw(st.integers(1, 2))
    attributes = {"strides": [stride], "dilations": [dilation], "pads": [begin, end], "group": groups}
    x, w = sample(2, channels * groups, extent), sample(2 * groups, channels, kernel)
    several("Conv", x, w, sample(2 * groups), **attributes).check(data.draw(st.sampled_from(BACKENDS)))


TIES = [
    (one("Max", np.array([1.0, 2.0]), b=np.array([1.0, 1.0])), [0.5, 1.0]),
    (one("ReduceMax", np.array([1.0, 3.0, 3.0, 0.0])), [0.0, 0.5, 0.5, 0.0]),
    (one("Relu", np.array([-1.0, 0.0, 1.0])), [0.0, 0.0, 1.0]),
    (one("Abs", np.array([-1.0, 0.0, 1.0])), [-1.0, 0.0, 1.0]),
    (one("ReduceL2", np.zeros(3)), [0.0, 0.0, 0.0]),
    (one("Clip", np.array([0.0, 1.0, 2.0, 3.0]), low=np.array(1.0), high=np.array(2.0)), [0.0, 1.0, 1.0, 0.0]),
    (one("Max", np.array([np.nan, 2.0]), b=np.array([1.0, 1.0])), [0.0, 1.0]),
    (Example("Clip_by_low", [node("Clip", "x a b", "y0")], {"a": np.array(1.0)},
             {"x": np.array([np.nan, 0.0, 1.0, 2.0]), "b": np.array(2.0)}), 1.0),
    (Example("Clip_by_high", [node("Clip", "x b a", "y0")], {"a": np.array(2.0)},
             {"x": np.array([np.nan, 2.0, 3.0, 4.0]), "b": np.array(1.0)}), 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("example", "expected"), TIES, ids=lambda item: getattr(item, "id", ""))
def test_slopes_at_kinks(example: Example, expected: list[float] | float) -> None:
    nodes = [*example.nodes, gradient("a", "g", xs=["a"], y="y0")]
    (slope,) = run(make(nodes, example.inputs, ["g"], example.constants), example.inputs)
    np.testing.assert_array_equal(slope, expected)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean"])
def test_more_elements_than_half_can_count_share_the_slope(op: str) -> None:
    count = 100_000
    nodes = [node(op, "a", "m"), node("Mul", "m weight", "y"), gradient("a", "g", xs=["a"], y="y")]
    inputs = {"a": np.zeros(count, np.float16)}
    (slope,) = run(make(nodes, inputs, ["g"], {"weight": np.float16(1000)}), inputs)
    np.testing.assert_array_equal(slope, np.full(count, np.float16(1000 / count)))


def test_slopes_of_slopes_at_a_kink_are_numbers() -> None:
    nodes = [
        node("ReduceL2", "a", "n"),
        node("Mul", "n b", "y"),
        gradient("a b", "g", "once", xs=["a"], zs=["b"], y="y"),
        gradient("b a", "h", "twice", xs=["b"], zs=["a"], y="g"),
    ]
    inputs = {"a": np.zeros(3), "b": np.ones(1)}
    (slope,) = run(make(nodes, inputs, ["h"]), inputs)
    np.testing.assert_array_equal(slope, np.zeros(1))


@pytest.mark.parametrize("to", [2, 7, 9, 13])
def test_casts_to_what_has_no_slope_are_steps(to: int) -> None:
    nodes = [node("Cast", "a", "s", to=to), node("Cast", "s", "t", to=11), node("Mul", "t a", "y")]
    (slope,) = run(make([*nodes, gradient("a", "g", xs=["a"], y="y")], {"a": A * 3}, ["g"]), {"a": A * 3})
    (step,) = run(make(nodes[:2], {"a": A * 3}, ["t"]), {"a": A * 3})
    np.testing.assert_array_equal(slope, step)


def test_a_cast_to_the_type_of_integers_is_refused() -> None:
    nodes = [
        node("CastLike", "a i", "s"),
        node("Cast", "s", "y", to=11),
        gradient("a i", "g", xs=["a"], zs=["i"], y="y"),
    ]
    inputs = {"a": A, "i": np.arange(2)}
    with pytest.raises(gx.InputError, match=r"SumTo .* expects input of type .*, got int64"):
        run(make(nodes, inputs, ["g"]), inputs)


def test_what_nobody_needs_is_not_made() -> None:
    """The derivative by an integer exponent has no type; no other pass is there to drop it."""
    nodes = [node("Pow", "a n", "y"), gradient("a n", "g", xs=["a"], zs=["n"], y="y")]
    inputs = {"a": A, "n": np.array(3)}
    (slope,) = run(gx.load(make(nodes, inputs, ["g"]), disabled_passes=["remove_dead"]), inputs)
    np.testing.assert_allclose(slope, 3 * A**2)


REFUSALS = [
    (one("Shrink"), "Shrink 'y0' has no derivative here; known are Abs, Acos"),
    (one("Conv", sample(1, 1, 4), w=sample(1, 1, 2), auto_pad="SAME_UPPER"), "Conv 'y0' .* with auto_pad=SAME_UPPER"),
    (one("ConvTranspose", sample(1, 1, 4), w=sample(1, 1, 2), output_shape=[5]), "ConvTranspose 'y0' .* output_shape"),
    (one("AveragePool", sample(1, 1, 4), kernel_shape=[3], ceil_mode=1), "AveragePool 'y0' .* with ceil_mode=1"),
    (one("Attention", IMAGE, k=IMAGE, v=IMAGE), "Attention 'y0' has no derivative here; known are Abs"),
    (one("Resize", IMAGE, roi=None, scales=np.ones(4, np.float32), mode="linear"), "Resize 'y0' .* with mode=linear"),
    (one("Einsum", SQUARE, equation="ii->i"), "Einsum 'y0' .* names an axis twice"),
    (one("Dropout", ratio=np.float32(0.5), on=np.bool_(False)), "Dropout 'y0' .* where training_mode is given"),
    (Example("", [node("Pad", "x pads a", "y0")], {"a": np.array(1.0)}, {"x": A, "pads": np.ones(4, np.int64)}),
     "Pad 'y0' has no derivative here by its input %a"),
    (Example("", [node("LayerNormalization", "a s", "q p y0")], {"a": A}, {"s": ROW}), "outputs behind %q"),
    (Example("", [node("MaxPool", "a", "m i", kernel_shape=[2]), node("Cast", "i", "j", to=11),
                  node("Mul", "m j", "y0")], {"a": sample(1, 1, 4)}), "MaxPool 'm' .* of its outputs behind the first"),
    (Example("", [node("TopK", "a k", "y0 i")], {"a": A}, {"k": LAST * -1}), "TopK 'y0' has no derivative here"),
    (Example("", [node("Cast", "a", "h", to=17), node("Cast", "h", "y0", to=11)], {"a": A}),
     "Cast 'h' has no derivative here to float8e4m3fn"),
    (one("ScatterElements", A, at=np.array([[0]]), updates=np.ones((1, 1)), reduction="max"), "with reduction=max"),
    (one("BatchNormalization", A, s=ROW, b=ROW, m=ROW, v=ROW, training_mode=1), "BatchNormalization 'y0' .* training"),
]  # fmt: skip


@pytest.mark.parametrize(("example", "message"), REFUSALS, ids=lambda item: str(item)[:12])
def test_load_refuses(example: Example, message: str) -> None:
    nodes = [*example.nodes, gradient("a", "g", xs=["a"], y="y0")]
    with pytest.raises(gx.UnsupportedError, match=f"Gradient 'slopes': .*{message}"):
        gx.load(make(nodes, example.inputs, ["g"], example.constants))


def test_every_rule_has_an_example() -> None:
    used = {each.op_type for example in EXAMPLES for each in example.nodes}
    known = {*RULES, *OF_ALL_OUTPUTS, *PARTS}
    assert {name for name in known if "." not in name} <= used
    assert all(find_operator(name) is not None for name in known)

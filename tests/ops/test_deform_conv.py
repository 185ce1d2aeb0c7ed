"""DeformConv."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import accumulator, dtypes_of
from gpuexec.ops.nn.deform_conv import DeformConv
from tests.ops.harness import Array, Case, expect, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")
NAN = float("nan")


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0, scale: float = 1.0) -> Array:
    return np.random.default_rng([*shape, seed]).normal(0, scale, shape).astype(np.float32).astype(dtype)


def count_windows(x: Array, w: Array, attributes: dict[str, Any]) -> tuple[int, ...]:
    axes = x.ndim - 2
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * axes)
    spans = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], dilations)]
    return tuple((x.shape[2 + k] + pads[k] + pads[axes + k] - spans[k]) // strides[k] + 1 for k in range(axes))


def convolve(x: Array, w: Array, offset: Array, bias: Array | None, mask: Array | None, **attributes: Any) -> Array:
    """Return the answer in double: a sample is the sum of all elements, weighed by their distance along each axis."""
    x, w, offset = (array.astype(accumulator(array.dtype)).astype(np.float64) for array in (x, w, offset))
    axes, kernel, counts = x.ndim - 2, w.shape[2:], count_windows(x, w, attributes)
    group, offset_group = attributes.get("group", 1), attributes.get("offset_group", 1)
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * axes)
    moved = offset.reshape(x.shape[0], offset_group, *kernel, axes, *counts)
    masks = np.ones(()) if mask is None else mask.reshape(x.shape[0], offset_group, *kernel, *counts)
    y = np.zeros((x.shape[0], w.shape[0], *counts))
    for n, place in ((n, place) for n in range(x.shape[0]) for place in np.ndindex(*counts)):
        for tap in np.ndindex(*kernel):
            for own in range(offset_group):
                weights = np.ones(())
                for k in range(axes):
                    at = place[k] * strides[k] - pads[k] + tap[k] * dilations[k] + moved[(n, own, *tap, k, *place)]
                    near = np.maximum(0, 1 - np.abs(np.arange(x.shape[2 + k]) - at))
                    weights = np.multiply.outer(weights, near)
                if mask is not None:
                    weights = weights * float(masks[(n, own, *tap, *place)])
                part = x.shape[1] // offset_group
                for c in range(own * part, (own + 1) * part):
                    outs = slice(c // w.shape[1] * (w.shape[0] // group), (c // w.shape[1] + 1) * (w.shape[0] // group))
                    sample = float((x[n, c] * weights).sum())
                    y[(n, outs, *place)] += w[(outs, c % w.shape[1], *tap)] * sample
    return y if bias is None else y + bias.astype(np.float64).reshape(-1, *(1,) * axes)


def deform(
    id: str,
    x: Array,
    w: Array,
    has_bias: bool = False,
    has_mask: bool = False,
    reach: float = 1.0,
    seed: int = 0,
    **attributes: Any,
) -> Case:
    """A case with offsets drawn at random, as far as ``reach``."""
    counts, axes, taps = count_windows(x, w, attributes), x.ndim - 2, int(np.prod(w.shape[2:]))
    lists = taps * attributes.get("offset_group", 1)
    offset = numbers(x.shape[0], lists * axes, *counts, dtype=x.dtype, scale=reach, seed=seed)
    bias = numbers(w.shape[0], dtype=x.dtype) if has_bias else None
    mask = numbers(x.shape[0], lists, *counts, dtype=x.dtype) if has_mask else None
    y = convolve(x, w, offset, bias, mask, **attributes).astype(accumulator(x.dtype)).astype(x.dtype)
    inputs = (x, w, offset, bias, mask)
    terms = 16 * w.shape[1] * taps
    return Case(id, "DeformConv", inputs, attributes, expected=(y,), terms=terms)


def plain(id: str, x: Array, w: Array, **attributes: Any) -> Case:
    """A case without offsets: a convolution."""
    (y,) = expect(Case(id, "Conv", (x, w), attributes))
    offset = np.zeros((x.shape[0], (x.ndim - 2) * int(np.prod(w.shape[2:])), *y.shape[2:]), x.dtype)
    return Case(id, "DeformConv", (x, w, offset), attributes, expected=(y,), terms=2 * w[0].size)


X, W = numbers(2, 4, 6, 5), numbers(6, 4, 3, 2)
CASES = [
    *(deform(dtype.name, numbers(1, 2, 4, 5, dtype=dtype), numbers(3, 2, 2, 3, dtype=dtype), True, True)
      for dtype in FLOATS),
    deform("alone", X, W),
    deform("bias", X, W, has_bias=True),
    deform("mask", X, W, has_mask=True),
    deform("pads", X, W, pads=[1, 0, 2, 1]),
    deform("strides", X, W, strides=[2, 3]),
    deform("dilations", X, W, dilations=[2, 3], kernel_shape=[3, 2]),
    deform("groups", X, numbers(6, 2, 3, 2), True, True, group=2),
    deform("depthwise", X, numbers(4, 1, 3, 2), group=4),
    deform("offset_groups", X, W, True, True, offset_group=2),
    deform("groups_of_both_kinds", X, numbers(6, 2, 3, 2), True, True, group=2, offset_group=4, pads=[1, 1, 1, 1]),
    deform("far", X, W, reach=6.0),
    deform("more_than_a_tile", numbers(2, 5, 9, 9), numbers(70, 5, 2, 2), True, True),
    deform("line", numbers(2, 3, 7), numbers(4, 3, 3), True, True, pads=[1, 1]),
    deform("volume", numbers(1, 2, 3, 4, 3), numbers(3, 2, 2, 2, 2), True, True, pads=[0, 1, 0, 0, 0, 1]),
    deform("strided", numbers(4, 4, 6, 10)[::-2, :, ::-1, ::2], numbers(6, 4, 2, 3).swapaxes(2, 3)),
    replace(deform("opset_19", X, W, True, True), opset=19),
    plain("no_offsets", X, W, pads=[1, 1, 1, 1], strides=[2, 1]),
    plain("no_offsets_in_a_volume", numbers(1, 2, 4, 4, 4), numbers(3, 2, 3, 3, 3), pads=[1] * 6),
    # Neighbours of weight 0 are not looked at; an offset that is no number reads 0.
    Case("whole_offsets_beside_nan", "DeformConv",
         (np.array([[[[1, NAN], [3, NAN]]]], np.float32), np.ones((1, 1, 1, 1), np.float32),
          np.zeros((1, 2, 2, 2), np.float32)),
         expected=(np.array([[[[1, NAN], [3, NAN]]]], np.float32),)),
    Case("offsets_without_a_number", "DeformConv",
         (np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 1), np.float32),
          np.array([[[[NAN, 0]], [[0, np.inf]]]], np.float32)),
         expected=(np.zeros((1, 1, 1, 2), np.float32),)),
    Case("no_number_of_a_mask_where_nothing_is_seen", "DeformConv",
         (np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 1), np.float32), np.full((1, 2, 1, 2), 9, np.float32),
          None, np.array([[[[NAN, 2]]]], np.float32)),
         expected=(np.array([[[[NAN, 0]]]], np.float32),)),
    Case("no_batch", "DeformConv", (X[:0], W, np.zeros((0, 12, 4, 4), np.float32)),
         expected=(np.zeros((0, 6, 4, 4), np.float32),)),
    Case("no_channels", "DeformConv", (X[:, :0], W[:, :0], np.zeros((2, 12, 4, 4), np.float32), numbers(6)),
         expected=(np.broadcast_to(numbers(6)[:, None, None], (2, 6, 4, 4)),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_deform_conv(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(2, 6), st.integers(2, 6)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from([1, 2]),
    st.integers(0, 99),
)
def test_any_form_is_the_sum_over_all_elements(
    checks: str,
    extents: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: list[int],
    groups: int,
    seed: int,
) -> None:
    x, w = numbers(1, 2, *extents, seed=seed), numbers(2, 2 // groups, *kernel, seed=seed)
    attributes = {"strides": list(strides), "pads": pads, "group": groups, "offset_group": 3 - groups}
    run_case(deform("drawn", x, w, seed % 2 == 0, seed % 3 == 0, reach=seed / 30, seed=seed, **attributes), checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("DeformConv").attributes
    given = {name: onnx.helper.get_attribute_value(each.default_value) for name, each in attributes.items()
             if each.default_value.type}  # fmt: skip
    assert DeformConv(**given) == DeformConv()
    assert set(attributes) == {f.name for f in dataclasses.fields(DeformConv)}


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({}, "int32[1,1,3,3] int32[1,1,2,2] int32[1,8,2,2]", "expects input of type"),
        ({}, "float32[1,1,3,3] float16[1,1,2,2] float32[1,8,2,2]", "inputs of one type"),
        ({}, "float32[1,1,3,3,3,3] float32[1,1,2,2,2,2] float32[1,8,2,2,2,2]", "1 to 3 spatial axes"),
        ({"kernel_shape": (3, 3)}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,8,2,2]", r"kernel_shape \[2, 2\]"),
        ({"group": 2}, "float32[1,2,3,3] float32[3,1,2,2] float32[1,8,2,2]", "group=2 divides"),
        ({}, "float32[1,2,3,3] float32[2,1,2,2] float32[1,8,2,2]", r"expects 1 input channels .* group=1"),
        ({"offset_group": 2}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,16,2,2]", "offset_group=2 divides"),
        ({}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,4,2,2]", r"expects offset \[1, 8, 2, 2\]"),
        ({}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,8,3,2]", r"expects offset \[1, 8, 2, 2\]"),
        ({}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,8,2,2] float32[2]", "a bias of 1"),
        ({}, "float32[1,1,3,3] float32[1,1,2,2] float32[1,8,2,2] float32[1] float32[1,8,2,2]", r"mask \[1, 4, 2, 2\]"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], specs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeformConv(**attributes).infer(*map(parse_spec, specs.split()))

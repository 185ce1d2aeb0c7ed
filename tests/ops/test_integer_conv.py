"""ConvInteger and QLinearConv."""

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
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.quant.integer_conv import ConvByteLines, ConvByteWords, ConvInteger, QLinearConv
from gpuexec.ops.quant.integer_words import find_pitch
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Array, Case, run_case
from tests.ops.test_conv import direct_sum

RNG = np.random.default_rng(13)
U8, I8 = np.uint8, np.int8


def integers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True), dtype)


def sum_of(x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, attributes: dict[str, Any]) -> Array:
    """The sums by the definition; doubles hold them."""
    left = x.astype(np.int64) - (0 if x_zero is None else x_zero.astype(np.int64).reshape(()))
    zero = 0 if w_zero is None else w_zero.astype(np.int64)
    if isinstance(zero, np.ndarray) and zero.size > 1:
        zero = zero.reshape(-1, *(1,) * (w.ndim - 1))
    return direct_sum(left, w.astype(np.int64) - zero, None, attributes).astype(np.int64)


def conv(
    id: str, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **attributes: Any
) -> Case:
    sums = sum_of(x, w, x_zero, w_zero, attributes)
    inputs: tuple[Array | None, ...] = (x, w)
    if x_zero is not None or w_zero is not None:
        inputs = (x, w, x_zero) if w_zero is None else (x, w, x_zero, w_zero)
    return Case(id, "ConvInteger", inputs, attributes, opset=10, expected=(sums.astype(np.int32),))


INTEGER = [
    *(
        conv(f"{x.__name__}_{w.__name__}", integers(x, 2, 3, 6, 7), integers(w, 4, 3, 3, 3), integers(x), integers(w))
        for x in (U8, I8)
        for w in (U8, I8)
    ),
    conv("without_zeros", integers(U8, 1, 3, 5, 5), integers(U8, 4, 3, 3, 3), pads=[1, 1, 1, 1]),
    conv("signed_without_zeros", integers(I8, 1, 3, 5, 5), integers(I8, 4, 3, 3, 3), pads=[1, 1, 1, 1]),
    conv("zeros_of_channels", integers(U8, 1, 3, 5, 5), integers(I8, 4, 3, 2, 2), integers(U8), integers(I8, 4)),
    conv(
        "zeros_of_one_element", integers(U8, 1, 3, 5), integers(I8, 4, 3, 2), integers(U8, 1, 1, 1, 1), integers(I8, 1)
    ),
    conv("w_zero", integers(I8, 1, 3, 5, 5), integers(I8, 4, 3, 2, 2), None, integers(I8)),
    conv(
        "all_attributes",
        integers(U8, 2, 4, 9, 8),
        integers(I8, 6, 2, 3, 2),
        *(integers(U8), integers(I8)),
        group=2,
        strides=[2, 1],
        dilations=[1, 2],
        pads=[1, 0, 2, 3],
        kernel_shape=[3, 2],
    ),
    conv("one_axis", integers(U8, 2, 3, 9), integers(I8, 5, 3, 4), integers(U8), integers(I8), pads=[2, 1]),
    conv("three_axes", integers(U8, 1, 2, 4, 5, 6), integers(I8, 3, 2, 2, 3, 2), integers(U8), integers(I8)),
    conv("pointwise", integers(U8, 2, 7, 5, 5), integers(I8, 9, 7, 1, 1), integers(U8), integers(I8)),
    conv("tiles", integers(U8, 1, 9, 12, 11), integers(I8, 70, 9, 3, 3), integers(U8), integers(I8), pads=[1, 1, 1, 1]),
    conv("large_tiles", integers(U8, 1, 4, 40, 32), integers(I8, 1024, 4, 1, 1), integers(U8), integers(I8)),
    conv("whole_tiles", integers(U8, 1, 4, 8, 8), integers(I8, 128, 2, 1, 1), integers(U8), integers(I8), group=2),
    conv("by_channel", integers(U8, 2, 3, 6, 6), integers(I8, 3, 1, 3, 3), integers(U8), integers(I8), group=3),
    conv("multiplied", integers(I8, 1, 2, 6, 6), integers(U8, 4, 1, 3, 3), integers(I8), integers(U8, 4), group=2),
    conv("one_output", integers(U8, 1, 5, 6, 6), integers(I8, 1, 5, 3, 3), integers(U8), pads=[1, 1, 1, 1]),
    conv("strided", integers(U8, 5, 6, 3, 2).T[::-1], integers(I8, 3, 3, 3, 4).T, integers(U8), integers(I8)),
    conv("no_images", integers(U8, 0, 3, 5, 5), integers(I8, 4, 3, 3, 3)),
    conv("no_channels", integers(U8, 1, 0, 5, 5), integers(I8, 4, 0, 3, 3)),
    conv("extremes", np.full((1, 40, 5, 5), 255, U8), np.full((2, 40, 5, 5), -128, I8), np.array(0, U8)),
    Case("reference", "ConvInteger", (integers(U8, 1, 1, 5, 5), integers(U8, 1, 1, 3, 3), np.array(7, U8)), opset=10),
    *(
        Case(
            f"auto_pad_{mode}",
            "ConvInteger",
            (integers(U8, 1, 2, 6, 7), integers(U8, 3, 2, 3, 2), np.array(100, U8)),
            {"auto_pad": mode, "strides": [2, 2]},
            opset=10,
            oracle="onnxruntime",
        )
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
]


def quantised(
    id: str,
    x: Array,
    w: Array,
    y: Any = U8,
    *,
    bias: bool = False,
    by_channel: bool = False,
    channels_last: bool = False,
    **attributes: Any,
) -> Case:
    """The result is rounded before the zero point is added."""
    first = np.moveaxis(x, -1, 1) if channels_last else x
    outs, rank = w.shape[0], x.ndim
    x_zero, w_zero = integers(x.dtype), integers(w.dtype, *((outs,) if by_channel else ()))
    x_scale, y_scale, y_zero = np.float32(0.013), np.float32(0.9), integers(y)
    w_scale = RNG.uniform(0.005, 0.05, (outs,) if by_channel else ()).astype(np.float32)
    addend = RNG.integers(-5000, 5000, outs).astype(np.int32) if bias else None
    sums = sum_of(first, w, x_zero, w_zero, attributes)
    if addend is not None:
        sums += addend.reshape(-1, *(1,) * (rank - 2))
    factor = x_scale * w_scale / y_scale
    if by_channel:
        factor = factor.reshape(-1, *(1,) * (rank - 2))
    limits = np.iinfo(y)
    whole = np.rint(sums.astype(np.float32) * factor).astype(np.int64) + y_zero
    expected = np.clip(whole, limits.min, limits.max).astype(y)
    inputs: tuple[Array, ...] = (x, np.array(x_scale), x_zero, w, w_scale, w_zero, np.array(y_scale), y_zero)
    if channels_last:
        expected, attributes = np.moveaxis(expected, 1, -1), {**attributes, "channels_last": 1}
    given = inputs if addend is None else (*inputs, addend)
    domain = "com.microsoft" if channels_last else ""
    return Case(
        id,
        "QLinearConv",
        given,
        attributes,
        opset=1 if domain else 10,
        domain=domain,
        expected=(np.ascontiguousarray(expected),),
    )


def with_unit_scales(id: str, x: Array, w: Array, *, y_scale: float, expected: list[int], dtype: Any) -> Case:
    one, zero = np.array(1, np.float32), np.array(0, U8)
    inputs = (x, one, zero, w, one, np.array(0, I8), np.array(y_scale, np.float32), np.array(1, dtype))
    return Case(id, "QLinearConv", inputs, opset=10, expected=(np.array(expected, dtype).reshape(1, 1, -1),))


QUANTISED = [
    *(
        quantised(f"{x.__name__}_{w.__name__}_{y.__name__}", integers(x, 1, 3, 6, 6), integers(w, 4, 3, 3, 3), y)
        for x in (U8, I8)
        for w in (U8, I8)
        for y in (U8, I8)
    ),
    quantised("bias", integers(U8, 2, 3, 6, 6), integers(I8, 4, 3, 3, 3), bias=True, pads=[1, 1, 1, 1]),
    quantised("scales_of_channels", integers(U8, 2, 3, 6, 6), integers(I8, 4, 3, 3, 3), bias=True, by_channel=True),
    quantised(
        "by_channel", integers(U8, 2, 3, 6, 6), integers(I8, 3, 1, 3, 3), I8, bias=True, by_channel=True, group=3
    ),
    quantised("groups", integers(U8, 2, 4, 6, 6), integers(I8, 6, 2, 3, 3), by_channel=True, bias=True, group=2),
    quantised("channels_last", integers(U8, 2, 6, 5, 3), integers(I8, 4, 3, 3, 2), bias=True, channels_last=True),
    quantised(
        "channels_last_by_channel", integers(U8, 2, 6, 5, 4), integers(I8, 4, 1, 3, 3), channels_last=True, group=4
    ),
    quantised("one_axis", integers(U8, 2, 3, 9), integers(I8, 5, 3, 4), pads=[2, 1], strides=[2]),
    quantised("three_axes", integers(U8, 1, 2, 4, 5, 6), integers(I8, 3, 2, 2, 3, 2), dilations=[1, 2, 1]),
    quantised("tiles", integers(U8, 3, 5, 9, 11), integers(I8, 70, 5, 3, 3), bias=True, by_channel=True),
    quantised("large_tiles", integers(U8, 1, 4, 40, 32), integers(I8, 1024, 4, 1, 1)),
    quantised("strided", integers(U8, 5, 6, 3, 2).T[::-1], integers(I8, 3, 3, 3, 4).T),
    quantised("no_images", integers(U8, 0, 3, 5, 5), integers(I8, 4, 3, 3, 3)),
    with_unit_scales(
        "halves_to_even",
        np.array([1, 3, 5, 7, 250], U8).reshape(1, 1, -1),
        np.ones((1, 1, 1), I8),
        y_scale=2,
        expected=[1, 3, 3, 5, 126],
        dtype=I8,
    ),
    with_unit_scales(
        "saturates",
        np.array([0, 255], U8).reshape(1, 1, -1),
        np.full((1, 1, 1), -3, I8),
        y_scale=1e-3,
        expected=[1, 0],
        dtype=U8,
    ),
]


@pytest.mark.parametrize("case", [*INTEGER, *QUANTISED], ids=lambda case: f"{case.op}_{case.id}")
def test_convolutions_of_integers(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.sampled_from([U8, I8]),
    st.sampled_from([U8, I8]),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 2),
)
def test_convolutions_of_any_integers(
    checks: str, x: Any, w: Any, extents: tuple[int, int, int, int], pad: int
) -> None:
    ins, outs, taps, stride = extents
    images, weights = integers(x, 2, ins, 5, 4), integers(w, outs, ins, taps, 2)
    run_case(
        conv("any", images, weights, integers(x), integers(w, outs), pads=[pad, 0, 1, pad], strides=[stride, 1]), checks
    )


@pytest.mark.parametrize("name", ["ConvInteger", "QLinearConv"])
def test_attributes_are_those_of_the_schema(name: str) -> None:
    schema, op = onnx.defs.get_schema(name), build(name, {})
    names = {field.name for field in dataclasses.fields(op)}  # type: ignore[arg-type]
    assert names - {"channels_last"} == set(schema.attributes)
    assert getattr(op, "auto_pad") == schema.attributes["auto_pad"].default_value.s.decode()  # noqa: B009
    assert getattr(op, "group") == schema.attributes["group"].default_value.i  # noqa: B009


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


X, W, SCALE, ZERO = spec(U8, 1, 3, 5, 5), spec(I8, 4, 3, 3, 3), spec(np.float32), spec(U8)
Q = (X, SCALE, ZERO, W, SCALE, spec(I8), SCALE, ZERO)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (ConvInteger(), (spec(np.int16, 1, 3, 5, 5), W), "expects x of type uint8, int8"),
        (ConvInteger(), (X, None), "lacks its w"),
        (ConvInteger(), (spec(U8, 1, 3), W), "equal rank with 1 to 3 spatial axes"),
        (ConvInteger(), (spec(U8, 1, 4, 5, 5), W), "expects 3 input channels"),
        (ConvInteger(group=0), (X, W), "group=0"),
        (ConvInteger(kernel_shape=(2, 2)), (X, W), "expects kernel_shape [3, 3], as the weight has it, got [2, 2]"),
        (ConvInteger(), (X, W, spec(I8)), "expects x_zero_point of type uint8"),
        (ConvInteger(), (X, W, ZERO, spec(I8, 3)), "w_zero_point to be one int8, or one for each output channel (4)"),
        (QLinearConv(), (*Q[:4], spec(np.float32, 3), *Q[5:]), "w_scale to be one float32"),
        (QLinearConv(), (X, spec(np.float16), *Q[2:]), "expects x_scale of type float32"),
        (QLinearConv(), (*Q[:6], spec(np.float32, 4), ZERO), "expects y_scale to be one number"),
        (QLinearConv(), (*Q[:7], None), "lacks its y_zero_point"),
        (QLinearConv(), (*Q, spec(np.int32, 3)), "expects a bias of int32[4]"),
    ],
)
def test_what_does_not_fit_is_refused(op: Any, inputs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        op.infer(*inputs)
    assert message in str(caught.value)


WEIGHTED = [
    *(
        (x, w, y, extents, attributes)
        for (x, w, y), (extents, attributes) in zip(
            [(U8, I8, U8), (I8, U8, I8), (U8, U8, U8), (I8, I8, I8), (U8, I8, I8), (I8, U8, U8), (U8, I8, U8)],
            [
                ((1, 3, 23, 19, 67, 7, 3), {"pads": [3, 1, 3, 1], "strides": [2, 2]}),
                ((2, 34, 9, 8, 130, 3, 3), {"pads": [1, 1, 1, 1]}),
                ((1, 520, 5, 4, 20, 3, 2), {"pads": [1, 0, 1, 1]}),  # in slices
                ((3, 16, 12, 11, 33, 1, 1), {"strides": [2, 3]}),
                ((2, 6, 11, 13, 24, 3, 3), {"group": 3, "pads": [0, 2, 1, 0]}),
                ((1, 17, 14, 13, 5, 2, 3), {"dilations": [2, 3], "pads": [2, 2, 2, 2]}),
                ((1, 40, 12, 12, 64, 5, 4), {"group": 2, "strides": [1, 2]}),
            ],
            strict=True,
        )
    ),
]


@pytest.mark.parametrize(("x", "w", "y", "extents", "attributes"), WEIGHTED)
def test_convolutions_with_a_weight(
    checks: str, x: Any, w: Any, y: Any, extents: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    batch, ins, height, width, outs, *taps = extents
    images = integers(x, batch, ins, height, width)
    weights = integers(w, outs, ins // attributes.get("group", 1), *taps)
    case = quantised("weight", images, weights, y, bias=True, by_channel=True, **attributes)
    run_case(dataclasses.replace(case, const=(3,)), checks)


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("taps", [(3, 3), (7,), (2, 1, 1)])
def test_a_weight_is_packed_alike_in_any_blocks(dtype: Any, axis: int, taps: tuple[int, ...]) -> None:
    groups, channels = 3, 70
    weights = integers(dtype, groups * 50, channels, *taps)
    form = ConvByteWords(groups, 50, channels)
    whole, parts = (np.zeros(form.infer(TensorSpec.of(weights)).shape, np.uint32) for _ in range(2))
    form.pack(weights, (0,) * weights.ndim, whole)
    for first in range(0, weights.shape[axis], 64):
        at = [0] * weights.ndim
        at[axis] = first
        form.pack(weights[:, first : first + 64] if axis else weights[first : first + 64], tuple(at), parts)
    np.testing.assert_array_equal(parts, whole)
    centred = weights.astype(np.int64) - (128 if dtype is U8 else 0)
    sums = centred.reshape(groups, 50, -1).sum(2)
    np.testing.assert_array_equal(whole[:, -1, :50].view(np.int32), sums)
    words = whole[:, :-1].view(I8)
    np.testing.assert_array_equal(words.reshape(*whole[:, :-1].shape, 4).sum((1, 3), dtype=np.int64)[:, :50], sums)


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("extents", [(1, 16, 16, 64, 3), (2, 64, 8, 128, 1), (1, 256, 12, 64, 3)], ids=str)
def test_work_of_tiles_is_as_counted(extents: tuple[int, ...], dtype: type) -> None:
    batch, ins, extent, outs, taps = extents
    weight = floats(outs, ins, taps, taps, dtype=dtype)
    attributes = {"pads": [taps // 2] * 4}
    found = compare(
        CountedCase(
            "ConvInteger",
            "integer_conv",
            {"x": (batch, ins, extent, extent)},
            {"w": weight},
            attributes,
            dtype,
            target="sm_75",
        )
    )
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    # Of 16 channels a place is half of a sector, whose other half a warp may ask for at once.
    assert 0.85 <= counted / found.work.l2_nbytes <= 1.02
    assert found.work.wavefronts == pytest.approx(count_wavefronts(found.counts, 2), rel=0.1)
    assert found.work.flops == 2 * batch * outs * extent**2 * ins * taps**2


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("taps", [(3, 3), (7,), (2, 1, 1)])
def test_lines_have_the_bytes_of_words(dtype: Any, axis: int, taps: tuple[int, ...]) -> None:
    groups, outs, channels = 3, 50, 70
    weights = integers(dtype, groups * outs, channels, *taps)
    words_form, form = ConvByteWords(groups, outs, channels), ConvByteLines(groups, outs, channels)
    words = np.zeros(words_form.infer(TensorSpec.of(weights)).shape, np.uint32)
    lines = np.zeros(form.infer(TensorSpec.of(weights)).shape, U8)
    words_form.pack(weights, (0,) * weights.ndim, words)
    for first in range(0, weights.shape[axis], 64):
        at = [0] * weights.ndim
        at[axis] = first
        form.pack(weights[:, first : first + 64] if axis else weights[first : first + 64], tuple(at), lines)
    depth = 4 * (words.shape[1] - 1)
    pitch = find_pitch(depth)
    laid = lines[:, : outs * pitch].reshape(groups, outs, pitch)
    np.testing.assert_array_equal(laid[..., :depth], words[:, :-1, :outs].transpose(0, 2, 1).copy().view(U8))
    np.testing.assert_array_equal(lines[:, outs * pitch :].view(np.uint32)[:, :outs], words[:, -1, :outs])
    assert not laid[..., depth:].any()

"""Prepared convolutions, pooling, recurrent layers and quantisation: they give the bits of compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ops.nn import conv_host, rnn
from tests.ops.prepared import check_prepared

Array = np.ndarray[Any, Any]


def make(*shape: int, dtype: Any = np.float32) -> Array:
    """Return reproducible content."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (values if np.dtype(dtype).kind == "f" else np.clip(values * 50, 0, 100)).astype(dtype)


def is_prepared(op: Operator, inputs: Sequence[Array | None], known: set[int], wanted: Sequence[bool] = ()) -> bool:
    """Return whether an operator is prepared; if so, it is to give the bits of ``compute``."""
    computed = op.compute(*inputs)
    computed = tuple([y if w else None for y, w in zip(computed, wanted or [True] * len(computed), strict=True)])
    return check_prepared(op.name, op, inputs, known, computed)


DEPTHWISE: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 9, 7), 1, (3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 6, 9, 7), 2, (3, 2), {"pads": (2, 0, 1, 1)}),
    ((1, 6, 9, 8), 1, (3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 5, 11, 13), 1, (3, 5), {"pads": (2, 2, 0, 4), "strides": (2, 3), "dilations": (2, 1)}),
    ((1, 5, 11, 13), 2, (2, 2), {"strides": (3, 1), "dilations": (3, 4)}),
    ((1, 4, 8, 8), 1, (3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ((2, 3, 5, 6, 7), 1, (3, 2, 3), {"pads": (1, 0, 1, 1, 1, 1), "strides": (1, 2, 2)}),
    ((1, 4, 30), 1, (5,), {"pads": (2, 2)}),
    ((1, 4, 6, 6), 1, (1, 1), {"strides": (3, 3)}),
]


@pytest.mark.parametrize("piece", [1 << 9, 1 << 12, 1 << 18])
@pytest.mark.parametrize("row", DEPTHWISE, ids=str)
def test_depthwise_convolution_gives_the_same_bits(row: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes are flat where the weight is constant, and taps apart where not."""
    monkeypatch.setattr(conv_host, "_PIECE", piece)
    shape, multiple, kernel, attributes = row
    channels = shape[1]
    op = build("Conv", {"group": channels, **attributes})
    inputs = [make(*shape), make(channels * multiple, 1, *kernel), make(channels * multiple)]
    inputs[0][0, 0] = -0.0
    assert is_prepared(op, inputs, {1, 2})
    assert is_prepared(op, inputs, set())


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_padding_is_not_multiplied_by_weights_that_are_not_finite(bad: float) -> None:
    """Outputs at borders see what lies inside alone."""
    w = make(4, 1, 3, 3)
    w[1, 0, 0, 0] = bad
    assert is_prepared(build("Conv", {"group": 4, "pads": (1, 1, 1, 1)}), [make(1, 4, 6, 6), w], {1})


@pytest.mark.parametrize("piece", [1 << 9, 1 << 18])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("extent", [9, 50])
def test_patches_give_the_same_bits(piece: int, group: int, extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding is filled anew in each run, around small inputs and large ones."""
    monkeypatch.setattr(conv_host, "_PIECE", piece)
    op = build("Conv", {"pads": (1, 0, 2, 3), "strides": (2, 1), "group": group})
    assert is_prepared(op, [make(2, 4, extent, 11), make(6, 4 // group, 3, 3), make(6)], {1})


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("known", [set(), {1, 2}])
def test_halves_give_the_same_bits(dtype: Any, known: set[int]) -> None:
    """They are widened in scratch; a bias must be known."""
    inputs = [make(1, 4, 6, 7).astype(dtype), make(4, 1, 3, 3).astype(dtype), make(4).astype(dtype)]
    op = build("Conv", {"pads": (1, 1, 1, 1), "group": 4})
    assert is_prepared(op, inputs, known) == bool(known)
    assert is_prepared(op, inputs[:2], known & {1})


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"kernel_shape": (1, 3), "pads": (0, 2, 0, 2)},
        {"kernel_shape": (3, 1), "dilations": (2, 1), "ceil_mode": 1, "strides": (2, 2)},
    ],
    ids=str,
)
def test_pooling_gives_the_same_bits(name: str, attributes: dict[str, Any]) -> None:
    """Passes over one axis after the other, and sums of taps, are those of ``compute``."""
    wanted = (True, False) if name == "MaxPool" else (True,)
    assert is_prepared(build(name, attributes), [make(2, 3, 9, 8)], set(), wanted)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("wanted", [0b111, 0b001, 0b110])
def test_recurrent_layers_give_the_same_bits(name: str, direction: str, wanted: int) -> None:
    """Whole sequences are prepared, whichever outputs are wanted."""
    count = 2 if direction == "bidirectional" else 1
    gates = rnn.LSTM.gates if name == "LSTM" else rnn.GRU.gates if name == "GRU" else rnn.RNN.gates
    op = build(name, {"hidden_size": 6, "direction": direction})
    weights = [make(count, gates * 6, 5), make(count, gates * 6, 6), make(count, 2 * gates * 6)]
    states = [make(count, 3, 6)] * (2 if name == "LSTM" else 1)
    outputs = len(states) + 1
    chosen = [bool(wanted >> place & 1) for place in range(outputs)]
    assert is_prepared(op, [make(4, 3, 5), *weights, None, *states], {1, 2, 3}, chosen)
    assert is_prepared(op, [make(4, 3, 5), *weights[:2]], {1, 2}, chosen)
    assert is_prepared(op, [make(3, 4, 5).transpose(1, 0, 2), *weights, None, *states], {1, 2, 3}, chosen)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_few_rows_give_the_same_bits(name: str) -> None:
    """Their weights are multiplied as they lie."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    for attributes in ({}, {"linear_before_reset": 1} if name == "GRU" else {}):
        op = build(name, {"hidden_size": 33, **attributes})
        inputs = [make(1, 1, 5), make(1, gates * 33, 5), make(1, gates * 33, 33), make(1, 2 * gates * 33)]
        assert is_prepared(op, inputs, {1, 2, 3})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("known", [set(), {1, 2}])
def test_quantisation_gives_the_same_bits(dtype: Any, known: set[int]) -> None:
    """Numbers out of range saturate, NaN gives the zero point."""
    x = np.array([[0.1, -1e30, np.inf, np.nan, 2.5, -0.0], [3.5, -np.inf, 1e9, -7.25, 0.75, 1e-30]], np.float32)
    scale, zero = np.array([0.5, 2.0], np.float32), np.array([3, 0], dtype)
    assert is_prepared(build("QuantizeLinear", {"axis": 0}), [x, scale, zero], known)
    assert is_prepared(build("DequantizeLinear", {"axis": 0}), [make(2, 6, dtype=dtype), scale, zero], known)


def test_dynamic_quantisation_gives_the_same_bits() -> None:
    """The range may be of zeros, of one sign, or hold NaN."""
    op = build("DynamicQuantizeLinear", {})
    for x in (make(3, 5), np.abs(make(3, 5)), np.zeros((2, 2), np.float32), np.array([np.nan, -2, 1], np.float32)):
        assert is_prepared(op, [x], set())


@pytest.mark.parametrize("group", [1, 6])
@pytest.mark.parametrize("ins", [6, 300])
def test_convolutions_of_bytes_give_the_same_bits(group: int, ins: int) -> None:
    """Sums are exact in float, or in double where there are many terms."""
    ins = ins // group * group if group == 1 else 6
    x, w = make(1, ins, 5, 6, dtype=np.uint8), make(6, ins // group, 3, 3, dtype=np.int8)
    one, zero = np.array(0.05, np.float32), np.array(7, np.uint8)
    attributes = {"pads": (1, 1, 1, 1), "group": group}
    assert is_prepared(build("ConvInteger", attributes), [x, w, zero], {1, 2})
    bias = np.arange(-3, 3).astype(np.int32) * 100
    rest = [np.abs(make(6)), np.zeros(6, np.int8), np.array(9.0, np.float32), zero, bias]
    assert is_prepared(build("QLinearConv", attributes), [x, one, zero, w, *rest], set(range(1, 9)))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("ins", [4, 600])
def test_transposed_convolution_gives_the_same_bits(group: int, ins: int) -> None:
    """Taps may overlap; a small constant weight is laid out once."""
    for attributes in ({"strides": (2, 2)}, {"strides": (1, 2), "pads": (1, 0, 1, 1)}):
        op = build("ConvTranspose", {"group": group, **attributes})
        inputs = [make(2, ins, 4, 5), make(ins, 3, 3, 2), make(3 * group)]
        assert is_prepared(op, inputs, {1})
        assert is_prepared(op, inputs, set())


@pytest.mark.parametrize("known", [set(), {1, 2, 3, 4}])
def test_batch_normalization_gives_the_same_bits(known: set[int]) -> None:
    """Constant factors are computed once."""
    inputs = [make(2, 3, 4), make(3), make(3), make(3), np.abs(make(3))]
    assert is_prepared(build("BatchNormalization", {}), inputs, known, (True, False, False))


@pytest.mark.parametrize("inner", [5, 258, 259, 700])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_products_of_bytes_give_the_same_bits(inner: int, batch: tuple[int, ...]) -> None:
    """Long sums are added in pieces that floats hold; the right operand may be known."""
    a, b = make(*batch, 3, inner, dtype=np.uint8), make(inner, 4, dtype=np.int8) - 50
    a[..., :2], b[:, :2] = 255, -128
    a_zero, b_zero = np.array(0, np.uint8), np.array([0, 1, -2, 127], np.int8)
    for known in (set(), {1, 2, 3}):
        assert is_prepared(build("MatMulInteger", {}), [a, b, a_zero, b_zero], known)
        assert is_prepared(build("MatMulInteger", {}), [a, b.astype(np.int8)], known)
    one, zero = np.array(0.01, np.float32), np.array(7, np.uint8)
    inputs = [a, one, a_zero, b, np.abs(make(4)), b_zero, np.array(9.0, np.float32), zero]
    assert is_prepared(build("QLinearMatMul", {}), inputs, set(range(1, 8)))

"""Sentis's functional methods, compared with NumPy or hand-computed results, on CPU and simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.importer import run_oracle, to_model
from gpuexec.model.tracing.methods import METHODS
from tests.model.tracing.tracing import Array, check_devices, trace

fn = gx.fn
X = np.array([[-1.5, -0.5, 0.0, 0.75], [1.0, 2.5, -2.0, 3.0], [0.25, -3.5, 1.75, -0.25]], np.float32)
Y = np.array([[0.5, -1.0, 2.0, 0.75], [-2.0, 1.5, 0.5, -3.0], [1.0, 2.0, -0.5, 0.125]], np.float32)
UNIT = X / np.float32(4)  # within -1 and 1
POSITIVE = np.abs(Y)
I = np.array([[1, -2, 7], [12, 5, -9]])
J = np.array([[3, 4, -2], [5, -7, 2]])
B, C = X > 0, Y > 0
ROW = np.arange(6, dtype=np.float32)
IMAGE = np.sin(np.arange(2 * 4 * 6 * 6, dtype=np.float32)).reshape(2, 4, 6, 6)
LINE, BLOCK = IMAGE[:, :, 0].copy(), IMAGE[:1, :2].reshape(1, 2, 2, 3, 6)
SCALE = np.array([0.5, 1.0, 2.0, -1.0], np.float32)
BIAS = np.array([0.0, 1.0, -1.0, 0.25], np.float32)

Case = tuple[Callable[..., Any], tuple[Array, ...], Any]
CASES: dict[str, Case] = {}


def case(name: str, function: Callable[..., Any], *arrays: Array, expected: Any = None) -> None:
    """Add a case; what is expected may be a function of the arrays, and is NumPy's if not given."""
    with np.errstate(all="ignore"):
        result = function(*arrays) if expected is None else expected(*arrays) if callable(expected) else expected
    CASES[name] = (function, arrays, result)


def elementwise(name: str, *arrays: Array, expected: Callable[..., Any] | None = None) -> None:
    """Add a case of the function of that name; expected is NumPy's of the same name."""
    ours = METHODS[name]
    case(name, getattr(fn, ours), *arrays, expected=expected or getattr(np, ours))


def windows(x: Array, kernel: tuple[int, ...], stride: int) -> Array:
    """Return the windows of [batch, channels, ...] as [batch, channels, ..., window]."""
    axes = tuple(range(2, x.ndim))
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, axes)
    found = found[(slice(None), slice(None), *[slice(None, None, stride)] * len(kernel))]
    return found.reshape(*found.shape[: x.ndim], -1)


def convolve(x: Array, w: Array, stride: int = 1) -> Array:
    """Convolve without padding, in float64."""
    found = windows(x.astype(np.float64), w.shape[2:], stride)
    return np.einsum("nc...k,ock->no...", found, w.reshape(*w.shape[:2], -1)).astype(np.float32)


def spread(x: Array, w: Array, stride: int) -> Array:
    """Do the reverse of a convolution: put each element's kernel, weighted, where it stands."""
    kernel = w.shape[2:]
    shape = [(n - 1) * stride + k for n, k in zip(x.shape[2:], kernel, strict=True)]
    result = np.zeros((x.shape[0], w.shape[1], *shape), np.float64)
    for place in np.ndindex(*x.shape[2:]):
        key = tuple(slice(p * stride, p * stride + k) for p, k in zip(place, kernel, strict=True))
        result[(slice(None), slice(None), *key)] += np.einsum("nc,co...->no...", x[(..., *place)], w)
    return result.astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True), np.float32)


def normalize(x: Array, axes: tuple[int, ...]) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def wide(x: Array) -> Array:
    """Return a row of channels as [channels, 1, 1]."""
    return x.reshape(-1, 1, 1)


ERF = np.vectorize(math.erf, otypes=[np.float32])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def below(x: Array, values: Any) -> Array:
    return np.where(x > 0, x, values).astype(np.float32)


# creation
STRIDED = np.array([[1, 3], [2, 4], [3, 5]], np.float32)
case("AsStrided", lambda x: fn.as_strided(x, (3, 2), (1, 2), 1), ROW, expected=STRIDED)
case("Zeros", lambda x: fn.zeros((2, x.shape[0])) + x, ROW, expected=lambda x: np.zeros((2, 6)) + x)
elementwise("ZerosLike", I)
case("Ones", lambda x: fn.ones((2, 6), np.float32) + x, ROW, expected=lambda x: np.ones((2, 6), np.float32) + x)
elementwise("OnesLike", X)
case("ARange", lambda x: fn.arange(1, 11, 2) + fn.arange(x.shape[0])[:5], ROW, expected=np.array([1, 4, 7, 10, 13]))
case("LinSpace", lambda x: fn.linspace(x[0], x[5], 11), ROW, expected=np.linspace(0, 5, 11, dtype=np.float32))
case("LogSpace", lambda x: fn.logspace(x[0], x[2], 5), ROW, expected=np.logspace(0, 2, 5, dtype=np.float32))
case("Full", lambda x: fn.full((2, 3), x[3]), ROW, expected=np.full((2, 3), 3, np.float32))
case("FullLike", lambda x: fn.full_like(x, 7), I, expected=np.full_like(I, 7))
# transformation
case("Concat", lambda x, y: fn.concat([x, y], 1), X, Y, expected=np.concatenate([X, Y], 1))
PLACES = np.array([[0, 2, 1], [3, 3, 0]])
case("Gather", lambda x, i: fn.gather(x, 1, i), X, PLACES, expected=np.take_along_axis(X[:2], PLACES, 1))
case("IndexSelect", lambda x, i: fn.index_select(x, 1, i), X, PLACES[0], expected=X[:, PLACES[0]])
case("MoveDim", lambda x: fn.move_dim(x, 0, -1), IMAGE, expected=np.moveaxis(IMAGE, 0, -1))
case("Narrow", lambda x: fn.narrow(x, 1, 1, 2), X, expected=X[:, 1:3])
case("NonZero", lambda x: fn.non_zero(x > 0), X, expected=np.nonzero(X > 0))
case("Permute", lambda x: fn.permute(x, (2, 0, 3, 1)), IMAGE, expected=IMAGE.transpose(2, 0, 3, 1))
case("Reshape", lambda x: fn.reshape(x, (2, -1)), X, expected=X.reshape(2, -1))
case("Select", lambda x: fn.select(x, 1, 2), X, expected=X[:, 2])
SCATTERED = X.copy()
SCATTERED[0, [0, 2]] = Y[0, :2]
case("Scatter", lambda x, i, y: fn.scatter(x, 1, i, y), X, PLACES[:1, :2], Y[:1, :2], expected=SCATTERED)
case("SelectScatter", lambda x, y: fn.select_scatter(x, y, 0, 1), X, Y[0], expected=np.stack([X[0], Y[0], X[2]]))
case("SliceScatter", lambda x, y: fn.slice_scatter(x, y, 1, 1, 4, 2), X, Y[:, :2], expected=np.stack(
    [X[:, 0], Y[:, 0], X[:, 2], Y[:, 1]], 1))  # fmt: skip
ADDED = X.copy()
np.add.at(ADDED, (np.array([[0], [1]]), PLACES), Y[:2, :3])
case("ScatterAdd", lambda x, i, y: fn.scatter_add(x, 1, i, y), X, PLACES, Y[:2, :3], expected=ADDED)
case("Split", lambda x: fn.split_sizes(x, [1, 3], 1), X, expected=[X[:, :1], X[:, 1:]])
case("Squeeze", lambda x: fn.squeeze(x), X[:, None], expected=X)
case("Stack", lambda x, y: fn.stack([x, y], 1), X, Y, expected=np.stack([X, Y], 1))
case("Take", lambda x, i: fn.take(x, i), X, I[:1, :1] + 3, expected=X.reshape(-1)[I[:1, :1] + 3])
case("Tile", lambda x: fn.tile(x, (2, 3)), X, expected=np.tile(X, (2, 3)))
case("Transpose", lambda x: fn.swapaxes(x, 1, 3), IMAGE, expected=IMAGE.swapaxes(1, 3))
case("Unsqueeze", lambda x: fn.unsqueeze(x, 1), X, expected=X[:, None])
case("Where", lambda c, x, y: fn.where(c, x, y), B, X, Y, expected=np.where(B, X, Y))
# pointwise
for _name in ("Abs", "Ceil", "Floor", "Sign", "Square", "Trunc", "Positive"):
    elementwise(_name, X)
for _name in ("Cos", "Cosh", "Deg2Rad", "Exp", "Expm1", "Rad2Deg", "Sin", "Sinh", "Tan", "Tanh", "Neg"):
    elementwise(_name, X)
for _name in ("Acos", "Asin", "Atan", "Atanh"):
    elementwise(_name, UNIT)
for _name in ("Log", "Log10", "Log1P", "Log2", "Reciprocal", "Sqrt"):
    elementwise(_name, POSITIVE)
for _name in ("Add", "Atan2", "Div", "FMod", "FloorDivide", "LogAddExp", "Max", "Min", "Mul", "Remainder", "Sub"):
    elementwise(_name, X, Y)
for _name in ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"):
    elementwise(_name, I, np.where(I > 0, I, J))
for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    elementwise(_name, I, J)
for _name in ("LogicalAnd", "LogicalOr", "LogicalXor"):
    elementwise(_name, X, Y)
elementwise("Acosh", POSITIVE + 1)
elementwise("Asinh", X)
elementwise("BitwiseNot", I)
elementwise("LogicalNot", X)
elementwise("Pow", POSITIVE, Y)
elementwise("FloatPower", POSITIVE, Y)
elementwise("Round", X)
SPECIAL = np.array([1, np.nan, np.inf, -np.inf, 0], np.float32)
for _name in ("IsFinite", "IsInf", "IsNaN"):
    elementwise(_name, SPECIAL)
case("Clamp", lambda x: fn.clamp(x, -1, 1), X, expected=np.clip(X, -1, 1))
case("Erf", lambda x: fn.erf(x), X, expected=ERF(X))
case("Frac", lambda x: fn.frac(x), X, expected=X - np.trunc(X))
case("Lerp", lambda x, y: fn.lerp(x, y, 0.25), X, Y, expected=X + np.float32(0.25) * (Y - X))
case("RSqrt", lambda x: fn.rsqrt(x), POSITIVE, expected=1 / np.sqrt(POSITIVE))
# reduction
case("ArgMax", lambda x: fn.arg_max(x, 1), X, expected=X.argmax(1))
case("ArgMin", lambda x: fn.arg_min(x, 1), X, expected=X.argmin(1))
for _name, _theirs in (
    ("ReduceMax", np.max), ("ReduceMin", np.min), ("ReduceMean", np.mean), ("ReduceProd", np.prod),
    ("ReduceSum", np.sum), ("ReduceVariance", np.var),
    ("ReduceL1", lambda x, a, keepdims: np.abs(x).sum(a, keepdims=keepdims)),
    ("ReduceL2", lambda x, a, keepdims: np.sqrt(np.square(x).sum(a, keepdims=keepdims))),
    ("ReduceLogSumExp", lambda x, a, keepdims: np.log(np.exp(x).sum(a, keepdims=keepdims))),
    ("ReduceSumSquare", lambda x, a, keepdims: np.square(x).sum(a, keepdims=keepdims)),
):  # fmt: skip
    case(_name, lambda x, f=METHODS[_name]: getattr(fn, f)(x, 1, keepdims=True), X,
         expected=_theirs(X, 1, keepdims=True))  # fmt: skip
# spectral
TURNS = 2 * np.pi * np.arange(8) / 8
HANN = 0.5 - 0.5 * np.cos(TURNS)
case("HannWindow", lambda x: fn.hann_window(8) + 0 * x[0], ROW, expected=HANN.astype(np.float32))
case("HammingWindow", lambda x: fn.hamming_window(8) + 0 * x[0], ROW,
     expected=(25 / 46 - 21 / 46 * np.cos(TURNS)).astype(np.float32))  # fmt: skip
case("BlackmanWindow", lambda x: fn.blackman_window(8) + 0 * x[0], ROW,
     expected=(0.42 - 0.5 * np.cos(TURNS) + 0.08 * np.cos(2 * TURNS)).astype(np.float32))  # fmt: skip
SIGNAL = np.sin(np.arange(40, dtype=np.float32) ** 1.3).reshape(2, 20)
SPECTRA = np.stack([np.fft.rfft(SIGNAL[:, s : s + 8] * HANN) for s in range(0, 13, 3)], 1)
case("STFT", lambda x: fn.stft(x, 3, fn.hann_window(8)), SIGNAL,
     expected=np.stack([SPECTRA.real, SPECTRA.imag], -1).astype(np.float32))  # fmt: skip
# comparison and other
ORDER = np.argsort(-X, 1, kind="stable")[:, :2]
case("TopK", lambda x: fn.top_k(x, 2, 1), X, expected=[np.take_along_axis(X, ORDER, 1), ORDER])
case("AtLeast1D", lambda x: fn.at_least_1d(x[0]), ROW, expected=ROW[:1])
case("AtLeast2D", lambda x: fn.at_least_2d(x), ROW, expected=ROW[None])
case("AtLeast3D", lambda x: fn.at_least_3d(x), X, expected=X[:, :, None])
case("BroadcastTo", lambda x: fn.broadcast_to(x, (2, 3, 4)), X, expected=np.broadcast_to(X, (2, 3, 4)))
case("Clone", lambda x: fn.clone(x), X, expected=X)
case("CumSum", lambda x: fn.cum_sum(x, 1), X, expected=np.cumsum(X, 1))
case("Diagonal", lambda x: fn.diagonal(x, 1), X, expected=np.diagonal(X, 1))
case("Einsum", lambda x, y: fn.einsum("ij,kj->ki", x, y), X, Y, expected=Y @ X.T)
case("Flip", lambda x: fn.flip(x, 1), X, expected=np.flip(X, 1))
case("FlipLR", lambda x: fn.flip_lr(x), X, expected=np.fliplr(X))
case("FlipUD", lambda x: fn.flip_ud(x), X, expected=np.flipud(X))
case("Ravel", lambda x: fn.ravel(x), X, expected=np.ravel(X))
case("TriL", lambda x: fn.tri_l(x, -1), X, expected=np.tril(X, -1))
case("TriU", lambda x: fn.tri_u(x, 1), X, expected=np.triu(X, 1))
case("MatMul", lambda x, y: fn.matmul(x, y.T), X, Y, expected=X @ Y.T)
# networks
for _rank, _x in ((1, LINE), (2, IMAGE), (3, BLOCK)):
    _c = _x.shape[1]
    _w = np.cos(np.arange(3 * _c * 2**_rank, dtype=np.float32)).reshape(3, _c, *[2] * _rank)
    case(f"Conv{_rank}D", lambda x, w, r=_rank: getattr(fn, f"conv_{r}d")(x, w, stride=2 if r < 3 else 1), _x, _w,
         expected=convolve(_x, _w, 2 if _rank < 3 else 1))  # fmt: skip
    _v = _w.swapaxes(0, 1).copy()
    case(f"ConvTranspose{_rank}D", lambda x, w, r=_rank: getattr(fn, f"conv_transpose_{r}d")(x, w, stride=2), _x, _v,
         expected=spread(_x, _v, 2))  # fmt: skip
    _found = windows(_x, (2,) * _rank, 2)
    case(f"AvgPool{_rank}D", lambda x, r=_rank: getattr(fn, f"avg_pool_{r}d")(x, 2), _x, expected=_found.mean(-1))
    case(f"MaxPool{_rank}D", lambda x, r=_rank: getattr(fn, f"max_pool_{r}d")(x, 2), _x, expected=_found.max(-1))
case("Relu", fn.relu, X, expected=np.maximum(X, 0))
case("Relu6", fn.relu6, X * 4, expected=np.clip(X * 4, 0, 6))
case("HardSwish", fn.hard_swish, X, expected=X * np.clip(X / 6 + np.float32(0.5), 0, 1))
case("Elu", lambda x: fn.elu(x, 0.5), X, expected=below(X, 0.5 * np.expm1(X)))
case("Selu", fn.selu, X, expected=(below(X, 1.6732632423543772 * np.expm1(X)) * np.float32(1.0507009873554805)))
case("Celu", lambda x: fn.celu(x, 0.5), X, expected=below(X, 0.5 * np.expm1(X / 0.5)))
case("LeakyRelu", lambda x: fn.leaky_relu(x, 0.25), X, expected=below(X, 0.25 * X))
case("PRelu", lambda x, s: fn.p_relu(x, s), X, SCALE, expected=below(X, X * SCALE))
case("Gelu", fn.gelu, X, expected=X * np.float32(0.5) * (1 + ERF(X / np.float32(np.sqrt(2)))))
case("Mish", fn.mish, X, expected=X * np.tanh(np.log1p(np.exp(X))))
case("Softsign", fn.softsign, X, expected=X / (1 + np.abs(X)))
case("Softplus", fn.softplus, X, expected=np.log1p(np.exp(X)))
case("Softmax", fn.softmax, X, expected=softmax(X))
case("LogSoftmax", fn.log_softmax, X, expected=np.log(softmax(X)))
case("Sigmoid", fn.sigmoid, X, expected=sigmoid(X))
case("HardSigmoid", fn.hard_sigmoid, X * 2, expected=np.clip(X / 3 + np.float32(0.5), 0, 1))
MEAN, VARIANCE = BIAS * 2, np.abs(SCALE)
case("BatchNorm", fn.batch_norm, IMAGE, SCALE, BIAS, MEAN, VARIANCE,
     expected=(IMAGE - wide(MEAN)) / np.sqrt(wide(VARIANCE) + np.float32(1e-5)) * wide(SCALE) + wide(BIAS))  # fmt: skip
case("InstanceNorm", fn.instance_norm, IMAGE, SCALE, BIAS,
     expected=(normalize(IMAGE.astype(np.float64), (2, 3)) * wide(SCALE) + wide(BIAS)).astype(np.float32))  # fmt: skip
SQUARES = np.pad(np.square(IMAGE), ((0, 0), (1, 1), (0, 0), (0, 0)))
BESIDE = SQUARES[:, :-2] + SQUARES[:, 1:-1] + SQUARES[:, 2:]
case("LocalResponseNorm", lambda x: fn.local_response_norm(x, 3, 0.5, 0.75, 2.0), IMAGE,
     expected=IMAGE / (2 + np.float32(0.5 / 3) * BESIDE) ** np.float32(0.75))  # fmt: skip
case("OneHot", lambda i: fn.one_hot(i, 4), PLACES, expected=np.eye(4, dtype=np.int64)[PLACES])
SHUFFLED = IMAGE.reshape(2, 1, 2, 2, 6, 6).transpose(0, 1, 4, 2, 5, 3).reshape(2, 1, 12, 12)
case("PixelShuffle", lambda x: fn.pixel_shuffle(x, 2), IMAGE, expected=SHUFFLED)
case("PixelUnshuffle", lambda x: fn.pixel_unshuffle(x, 2), SHUFFLED, expected=IMAGE)
case("Interpolate", lambda x: fn.interpolate(x, scale_factor=2), IMAGE, expected=IMAGE.repeat(2, 2).repeat(2, 3))
# Places half-way between four pixels, at a pixel, and half a pixel outside.
GRID = np.array([[[[0.0, 0.0], [-5 / 6, -5 / 6], [-1.0, -5 / 6]]]] * 2, np.float32)
FOUR = IMAGE[:, :, 2:4, 2:4].mean((2, 3))
case("GridSample", lambda x, g: fn.grid_sample(x, g), IMAGE, GRID,
     expected=np.stack([FOUR, IMAGE[:, :, 0, 0], IMAGE[:, :, 0, 0] / 2], -1)[:, :, None])  # fmt: skip
BOXES = np.array([[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4], [0, 0, 1, 1]], np.float32)
case("NMS", lambda b, s: fn.nms(b, s, 0.5), BOXES, np.array([0.5, 0.9, 0.7, 0.8], np.float32),
     expected=np.array([1, 3, 2]))  # fmt: skip

DRAWN = {"Bernoulli", "Multinomial", "Normal", "NormalLike", "Rand", "RandLike", "RandInt", "RandIntLike", "RandN"}
DRAWN |= {"RandNLike", "RandomChoice"}


def test_every_method_is_there_and_tried() -> None:
    assert set(CASES) | DRAWN == set(METHODS)
    assert not set(CASES) & DRAWN
    assert len(METHODS) == 177
    assert [name for name in METHODS.values() if name not in fn.__all__] == []


@pytest.mark.parametrize("name", CASES)
def test_method(name: str) -> None:
    function, arrays, expected = CASES[name]
    check_devices(function, *arrays, expected=expected, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_method_has_a_form_in_onnx_that_another_engine_runs(name: str) -> None:
    function, arrays, expected = CASES[name]
    model = trace(function, *arrays)
    written = to_model(model.info.graph)
    onnx.checker.check_model(written, full_check=True)
    _, results = run_oracle(written, {port.name: array for port, array in zip(model.inputs, arrays, strict=True)})
    wanted = expected if isinstance(expected, (tuple, list)) else [expected]
    for got, each in zip(results.values(), map(np.asarray, wanted), strict=True):
        assert (got.dtype, got.shape) == (each.dtype, each.shape)
        np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)

"""Layers of neural networks, channels first: activations, normalization, convolution, pooling, resizing, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.array_program.nodes import add_node
from gpuexec.array_program.promotion import FLOAT32, FLOAT64, as_symbolic, cast, kind_of, promote
from gpuexec.array_program.shaping import extent, find_axis, reshape, shape_vector, transpose
from gpuexec.array_program.symbolic import SymbolicArray
from gpuexec.array_program.tracer import find_tracer
from gpuexec.errors import InputError

Ints = int | Sequence[int]
_RESIZE_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear",
                 "cubic": "cubic", "bicubic": "cubic"}  # fmt: skip


def _float(x: Any) -> SymbolicArray:
    """Return an array of floating-point numbers; integers become float64, as NumPy has it."""
    array = as_symbolic(x)
    return cast(array, FLOAT64) if array.dtype.kind in "iub" else array


def relu(x: Any) -> SymbolicArray:
    """Let no element be below 0."""
    return add_node("Relu", as_symbolic(x))


def relu6(x: Any) -> SymbolicArray:
    """Let no element be below 0 or above 6."""
    array = as_symbolic(x)
    low, high = (as_symbolic(n, array.dtype, array._tracer) for n in (0, 6))
    return add_node("Clip", array, low, high)


def sigmoid(x: Any) -> SymbolicArray:
    """Give 1 / (1 + exp(-x))."""
    return add_node("Sigmoid", _float(x))


def hard_sigmoid(x: Any, alpha: float = 1 / 6, beta: float = 0.5) -> SymbolicArray:
    """Give alpha x + beta between 0 and 1."""
    return add_node("HardSigmoid", _float(x), alpha=float(alpha), beta=float(beta))


def hard_swish(x: Any) -> SymbolicArray:
    """Give x times its hard sigmoid."""
    return add_node("HardSwish", _float(x))


def swish(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Give x times the sigmoid of alpha x."""
    array = _float(x)
    return array * sigmoid(array * alpha if alpha != 1 else array)


silu = swish


def elu(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Give alpha (exp(x) - 1) below 0."""
    return add_node("Elu", _float(x), alpha=float(alpha))


def selu(x: Any) -> SymbolicArray:
    """Give the scaled exponential unit, with the constants of its paper."""
    return add_node("Selu", _float(x))


def celu(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Give alpha (exp(x / alpha) - 1) below 0."""
    return add_node("Celu", _float(x), alpha=float(alpha))


def leaky_relu(x: Any, alpha: float = 0.01) -> SymbolicArray:
    """Multiply by alpha below 0."""
    return add_node("LeakyRelu", _float(x), alpha=float(alpha))


def prelu(x: Any, slope: Any) -> SymbolicArray:
    """Multiply by slopes below 0; they broadcast to the array."""
    array = _float(x)
    return add_node("PRelu", array, as_symbolic(slope, array.dtype, array._tracer))


p_relu = prelu


def gelu(x: Any, approximate: str = "none") -> SymbolicArray:
    """Weigh by the Gaussian distribution, exactly or by ``"tanh"``."""
    return add_node("Gelu", _float(x), approximate=approximate)


def mish(x: Any) -> SymbolicArray:
    """Give x tanh(softplus(x))."""
    return add_node("Mish", _float(x))


def softsign(x: Any) -> SymbolicArray:
    """Give x / (1 + |x|)."""
    return add_node("Softsign", _float(x))


def softplus(x: Any) -> SymbolicArray:
    """Give log(1 + exp(x))."""
    return add_node("Softplus", _float(x))


def softmax(x: Any, axis: int = -1) -> SymbolicArray:
    """Give exponentials of an axis divided by their sum."""
    array = _float(x)
    return add_node("Softmax", array, axis=find_axis(array, axis))


def log_softmax(x: Any, axis: int = -1) -> SymbolicArray:
    """Give the logarithm of the softmax."""
    array = _float(x)
    return add_node("LogSoftmax", array, axis=find_axis(array, axis))


def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize each channel by a mean and a variance that are given."""
    array = _float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias, mean, variance)]
    return array._tracer.apply("BatchNormalization", [array, *rows], attributes={"epsilon": float(epsilon)})[0]


def instance_norm(x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize each channel of each item by its own mean and variance."""
    array = _float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    return array._tracer.apply("InstanceNormalization", [array, *rows], attributes={"epsilon": float(epsilon)})[0]


def group_norm(x: Any, num_groups: int, scale: Any, bias: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize groups of channels of each item by their mean and variance."""
    array = _float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    attributes = {"num_groups": num_groups, "epsilon": float(epsilon)}
    return array._tracer.apply("GroupNormalization", [array, *rows], attributes=attributes)[0]


def layer_norm(x: Any, scale: Any = None, bias: Any = None, axis: int = -1, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize the axes from ``axis`` on by their mean and variance."""
    array = _float(x)
    axis = find_axis(array, axis)
    if scale is None:
        scale = np.ones([_fixed(array, i, "layer_norm") for i in range(axis, array.ndim)])
    rows = [None if each is None else as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    attributes = {"axis": axis, "epsilon": float(epsilon)}
    return array._tracer.apply("LayerNormalization", [array, *rows], attributes=attributes)[0]


def rms_norm(x: Any, scale: Any = None, axis: int = -1, epsilon: float = 1e-5) -> SymbolicArray:
    """Divide the axes from ``axis`` on by the root of their mean square."""
    array = _float(x)
    axis = find_axis(array, axis)
    if scale is None:
        scale = np.ones([_fixed(array, i, "rms_norm") for i in range(axis, array.ndim)])
    attributes = {"axis": axis, "epsilon": float(epsilon)}
    weight = as_symbolic(scale, array.dtype, array._tracer)
    return array._tracer.apply("RMSNormalization", [array, weight], attributes=attributes)[0]


def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> SymbolicArray:
    """Normalize each element by the squares of channels beside its own."""
    array = _float(x)
    return add_node("LRN", array, size=size, alpha=float(alpha), beta=float(beta), bias=float(k))


def conv(
    x: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Any = 0, dilation: Ints = 1, groups: int = 1
) -> SymbolicArray:
    """Convolve [batch, channels, ...] with a weight [outputs, channels / groups, ...].

    ``padding`` is a number for all sides, one for each axis, a (before, after) for each axis, or ``"same"`` or
    ``"valid"``.
    """
    array, given = _operands(x, weight, bias)
    rank = array.ndim - 2
    attributes = {"strides": _spread(stride, rank), "dilations": _spread(dilation, rank), "group": groups}
    attributes |= _read_padding(padding, rank)
    return array._tracer.apply("Conv", given, attributes=attributes)[0]


def conv_transpose(
    x: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Any = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> SymbolicArray:  # fmt: skip
    """Do the reverse of a convolution in shape, by a weight [channels, outputs / groups, ...]."""
    array, given = _operands(x, weight, bias)
    rank = array.ndim - 2
    attributes: dict[str, Any] = {"strides": _spread(stride, rank), "dilations": _spread(dilation, rank)}
    attributes |= {"group": groups, "output_padding": _spread(output_padding, rank), **_read_padding(padding, rank)}
    return array._tracer.apply("ConvTranspose", given, attributes=attributes)[0]


def avg_pool(
    x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> SymbolicArray:  # fmt: skip
    """Average windows; they stand side by side unless a stride is given."""
    array = _float(x)
    attributes = _window(array, kernel_size, stride, padding, ceil_mode)
    return add_node("AveragePool", array, count_include_pad=int(count_include_pad), **attributes)


def max_pool(
    x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Any = 0, dilation: Ints = 1, ceil_mode: bool = False
) -> SymbolicArray:
    """Give the largest of windows; they stand side by side unless a stride is given."""
    array = _float(x)
    attributes = _window(array, kernel_size, stride, padding, ceil_mode)
    return add_node("MaxPool", array, dilations=_spread(dilation, array.ndim - 2), **attributes)


def _of_rank(function: Any, rank: int, name: str) -> Any:
    """Return a function on [batch, channels, ...] that takes only arrays of a number of spatial axes."""

    def checked(x: Any, *arguments: Any, **options: Any) -> SymbolicArray:
        array = as_symbolic(x)
        if array.ndim != rank + 2:
            raise InputError(f"{name} takes arrays of {rank + 2} axes, batch and channels first, got {array!r}.")
        return function(array, *arguments, **options)  # type: ignore[no-any-return]

    checked.__name__ = checked.__qualname__ = name
    checked.__doc__ = f"Do as {function.__name__}, along {rank} ax{'i' if rank == 1 else 'e'}s."
    return checked


conv_1d, conv_2d, conv_3d = (_of_rank(conv, n, f"conv_{n}d") for n in (1, 2, 3))
conv_transpose_1d, conv_transpose_2d, conv_transpose_3d = (
    _of_rank(conv_transpose, n, f"conv_transpose_{n}d") for n in (1, 2, 3)
)
avg_pool_1d, avg_pool_2d, avg_pool_3d = (_of_rank(avg_pool, n, f"avg_pool_{n}d") for n in (1, 2, 3))
max_pool_1d, max_pool_2d, max_pool_3d = (_of_rank(max_pool, n, f"max_pool_{n}d") for n in (1, 2, 3))


def global_avg_pool(x: Any) -> SymbolicArray:
    """Average each channel."""
    return add_node("GlobalAveragePool", _float(x))


def global_max_pool(x: Any) -> SymbolicArray:
    """Give the largest of each channel."""
    return add_node("GlobalMaxPool", _float(x))


def pixel_shuffle(x: Any, upscale_factor: int) -> SymbolicArray:
    """Turn channels into blocks of pixels: [n, c f f, h, w] to [n, c, h f, w f]."""
    return add_node("DepthToSpace", as_symbolic(x), blocksize=upscale_factor, mode="CRD")


def pixel_unshuffle(x: Any, downscale_factor: int) -> SymbolicArray:
    """Turn blocks of pixels into channels: [n, c, h f, w f] to [n, c f f, h, w]."""
    array, f = as_symbolic(x), downscale_factor
    n, c, h, w = array.shape
    blocks = reshape(array, (n, c, h // f, f, w // f, f))
    return reshape(transpose(blocks, (0, 1, 3, 5, 2, 4)), (n, c * f * f, h // f, w // f))


def interpolate(
    x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False,
    antialias: bool = False,
) -> SymbolicArray:  # fmt: skip
    """Resize the spatial axes, to sizes that may be symbolic or by factors."""
    array = as_symbolic(x)
    if mode not in _RESIZE_MODES or (size is None) == (scale_factor is None):
        raise InputError(
            f"interpolate takes size or scale_factor, and mode {', '.join(_RESIZE_MODES)}; got size={size}, "
            f"scale_factor={scale_factor}, mode={mode!r}."
        )
    axes = tuple(range(2, array.ndim))
    attributes: dict[str, Any] = {"mode": _RESIZE_MODES[mode], "axes": axes, "antialias": int(antialias)}
    if mode == "nearest":
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif align_corners:
        attributes["coordinate_transformation_mode"] = "align_corners"
    tracer = array._tracer
    inputs: list[SymbolicArray | None] = [array, None]
    if size is not None:
        sizes = [size] * len(axes) if isinstance(size, (int, SymbolicArray)) else list(size)
        inputs += [None, shape_vector(tracer, sizes)]
    else:
        factors = [scale_factor] * len(axes) if isinstance(scale_factor, (int, float)) else list(scale_factor)
        inputs.append(tracer.add_constant(np.array(factors, np.float32)))
    dims = (*array._known_dims()[:2], *(None for _ in axes))
    return tracer.apply("Resize", inputs, attributes=attributes, otherwise=[(array.dtype, dims)])[0]


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> SymbolicArray:
    """Attend: softmax(query key^T scale + mask) value, for [batch, heads, rows, size]; a mask of bools keeps."""
    tracer = find_tracer(query, key, value)
    dtype = promote(*(kind_of(each) for each in (query, key, value)))
    q, k, v = (as_symbolic(each, dtype, tracer) for each in (query, key, value))
    mask = None if attn_mask is None else as_symbolic(attn_mask, None, tracer)
    attributes = {"is_causal": int(is_causal), "scale": None if scale is None else float(scale)}
    return tracer.apply("Attention", [q, k, v, mask], attributes=attributes)[0]


def dropout(x: Any) -> SymbolicArray:
    """Return the array: nothing is dropped when a model is run."""
    return as_symbolic(x)


def _operands(x: Any, weight: Any, bias: Any) -> tuple[SymbolicArray, list[SymbolicArray | None]]:
    tracer = find_tracer(x, weight)
    dtype = promote(kind_of(x), kind_of(weight))
    if dtype.kind in "iub":
        dtype = FLOAT32 if dtype.itemsize < 4 else FLOAT64
    array, kernel = (as_symbolic(each, dtype, tracer) for each in (x, weight))
    if array.ndim != kernel.ndim or array.ndim < 3:
        raise InputError(f"a convolution of {array!r} by {kernel!r}: expected [batch, channels, ...] for both.")
    return array, [array, kernel, None if bias is None else as_symbolic(bias, dtype, tracer)]


def _spread(given: Ints, rank: int) -> tuple[int, ...]:
    listed = (given,) * rank if isinstance(given, int) else tuple(given)
    if len(listed) != rank:
        raise InputError(f"expected a number for each of {rank} spatial axes, got {given}.")
    return listed


def _read_padding(padding: Any, rank: int) -> dict[str, Any]:
    if padding in ("same", "valid"):
        return {"auto_pad": "SAME_UPPER" if padding == "same" else "VALID"}
    sides = [padding] * rank if isinstance(padding, int) else list(padding)
    if len(sides) != rank:
        raise InputError(f"expected a padding for each of {rank} spatial axes, got {padding!r}.")
    pairs = [(side, side) if isinstance(side, int) else tuple(side) for side in sides]
    return {"pads": (*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))}


def _window(
    array: SymbolicArray, kernel_size: Ints, stride: Ints | None, padding: Any, ceil_mode: bool
) -> dict[str, Any]:
    rank = array.ndim - 2
    kernel = _spread(kernel_size, rank)
    strides = kernel if stride is None else _spread(stride, rank)
    return {"kernel_shape": kernel, "strides": strides, "ceil_mode": int(ceil_mode), **_read_padding(padding, rank)}


def _fixed(array: SymbolicArray, axis: int, what: str) -> int:
    length = extent(array, axis)
    if not isinstance(length, int):
        raise InputError(f"{what} of {array!r} wants a scale: its extent {axis} is free.")
    return length

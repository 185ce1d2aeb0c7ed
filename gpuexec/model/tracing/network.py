"""Network layers, channels first: convolution, pooling, resizing, grid sampling, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import FLOAT32, FLOAT64, as_float, as_symbolic, kind_of, promote
from gpuexec.model.tracing.shaping import reshape, shape_vector, transpose
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "avg_pool", "avg_pool_1d", "avg_pool_2d", "avg_pool_3d", "conv", "conv_1d", "conv_2d", "conv_3d", "conv_transpose",
    "conv_transpose_1d", "conv_transpose_2d", "conv_transpose_3d", "dropout", "global_avg_pool", "global_max_pool",
    "grid_sample", "interpolate", "max_pool", "max_pool_1d", "max_pool_2d", "max_pool_3d", "pixel_shuffle",
    "pixel_unshuffle", "scaled_dot_product_attention",
]  # fmt: skip

Ints = int | Sequence[int]
_RESIZE_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear",
                 "cubic": "cubic", "bicubic": "cubic"}  # fmt: skip
# Of grid_sample: as torch names them, and as ONNX does.
_SAMPLING_MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
_SAMPLING_PADDINGS = ("zeros", "border", "reflection")


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
    """Apply a transposed convolution by a weight [channels, outputs / groups, ...]."""
    array, given = _operands(x, weight, bias)
    rank = array.ndim - 2
    attributes: dict[str, Any] = {"strides": _spread(stride, rank), "dilations": _spread(dilation, rank)}
    attributes |= {"group": groups, "output_padding": _spread(output_padding, rank), **_read_padding(padding, rank)}
    return array._tracer.apply("ConvTranspose", given, attributes=attributes)[0]


def avg_pool(
    x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> SymbolicArray:  # fmt: skip
    """Average windows, which do not overlap unless a stride is given."""
    array = as_float(x)
    attributes = _window(array, kernel_size, stride, padding, ceil_mode)
    return add_node("AveragePool", array, count_include_pad=int(count_include_pad), **attributes)


def max_pool(
    x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Any = 0, dilation: Ints = 1, ceil_mode: bool = False
) -> SymbolicArray:
    """Return the maximum of windows, which do not overlap unless a stride is given."""
    array = as_float(x)
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
    return add_node("GlobalAveragePool", as_float(x))


def global_max_pool(x: Any) -> SymbolicArray:
    """Return the maximum of each channel."""
    return add_node("GlobalMaxPool", as_float(x))


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


def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> SymbolicArray:
    """Read an image at places between -1 and 1.

    Args:
        x: [batch, channels, height, width].
        grid: [batch, rows, columns, 2]: x and y of each place; -1 and 1 are the edges of the image.
        mode: ``"bilinear"`` between four pixels, ``"bicubic"`` between sixteen, or the ``"nearest"``.
        padding_mode: Values outside: ``"zeros"``, the pixel at the ``"border"``, or the image's ``"reflection"``.
        align_corners: Whether -1 and 1 are the middles of the outer pixels, not their edges.

    Returns:
        [batch, channels, rows, columns].
    """
    image = as_symbolic(x)
    places = as_symbolic(grid, image.dtype, image._tracer)
    if image.ndim != 4 or places.ndim != 4 or mode not in _SAMPLING_MODES or padding_mode not in _SAMPLING_PADDINGS:
        raise InputError(
            f"grid_sample takes an image of 4 axes and places of 4, modes {', '.join(_SAMPLING_MODES)} and paddings "
            f"{', '.join(_SAMPLING_PADDINGS)}; got {image!r}, {places!r}, {mode!r}, {padding_mode!r}."
        )
    attributes = {"mode": _SAMPLING_MODES[mode], "padding_mode": padding_mode, "align_corners": int(align_corners)}
    return image._tracer.apply("GridSample", [image, places], attributes=attributes)[0]

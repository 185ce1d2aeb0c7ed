"""Stand-in for PyTorch over NumPy, as far as the GPU benchmarks call it: to see them run where there is no PyTorch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import erf
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]
_erf = np.vectorize(erf, otypes=[np.float32])


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor that differ from NumPy's."""

    def to(self, where: Any) -> Tensor:
        return self.astype(where) if isinstance(where, type) else self

    def cpu(self) -> Tensor:
        return self

    def float(self) -> Tensor:
        return self.astype(np.float32)

    def numpy(self) -> Array:
        return self.view(np.ndarray)

    def bool(self) -> Tensor:
        return self.astype(np.bool_)

    def transpose(self, first: Any, second: Any) -> Tensor:  # type: ignore[override]
        return np.swapaxes(self, first, second)

    def t(self) -> Tensor:
        return self.T

    def expand(self, *shape: int) -> Tensor:
        return wrap(np.broadcast_to(self, [have if n == -1 else n for have, n in zip(self.shape, shape, strict=True)]))

    def flatten(self, start: int = 0) -> Tensor:  # type: ignore[override]
        return self.reshape(*self.shape[:start], -1)

    def split(self, size: int, axis: int) -> list[Tensor]:
        return np.split(self, self.shape[axis] // size, axis)

    @property
    def device(self) -> str:
        return "cuda"

    def cos(self) -> Tensor:
        return np.cos(self)

    def sin(self) -> Tensor:
        return np.sin(self)

    def tanh(self) -> Tensor:
        return np.tanh(self)

    def sigmoid(self) -> Tensor:
        return 1 / (1 + np.exp(-self))

    def softmax(self, axis: int) -> Tensor:
        shifted = np.exp(self - self.max(axis, keepdims=True))
        return shifted / shifted.sum(axis, keepdims=True)

    def contiguous(self) -> Tensor:
        return self

    def copy_(self, other: Array) -> Tensor:
        self[...] = other
        return self


class Module:
    """A module with buffers."""

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)  # type: ignore[attr-defined]

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        setattr(self, name, tensor)

    def eval(self) -> Module:
        return self


class Event:
    """An event that notes the time of the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._time = 0.0

    def record(self) -> None:
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Return at once: all work is done when it is submitted."""

    def elapsed_time(self, last: Event) -> float:
        return (last._time - self._time) * 1e3


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let ``import torch`` give the stand-in, with a GPU that works."""
    module = make_torch()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def make_torch() -> Any:
    """Return the module."""
    torch = ModuleType("torch")
    cuda = SimpleNamespace(
        is_available=lambda: True,
        synchronize=lambda: None,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
        Stream=_make_stream,
        current_stream=_make_stream,
        stream=_enter,
        graph=_enter,
        Event=Event,
        empty_cache=lambda: None,
    )
    torch.__dict__.update(
        __version__="0",
        float32=np.float32,
        float16=np.float16,
        bfloat16=np.float16,
        nn=SimpleNamespace(Module=Module, functional=make_functional()),
        cuda=cuda,
        backends=SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)),
            cudnn=SimpleNamespace(allow_tf32=True, benchmark=False),
        ),
        set_grad_enabled=lambda is_on: None,
        from_numpy=wrap,
        cat=lambda tensors, axis: wrap(np.concatenate(tensors, axis)),
        arange=lambda *range, device: wrap(np.arange(*range, dtype=np.float32)),
        randn=lambda *shape, device, dtype=np.float32: wrap(np.random.default_rng(0).standard_normal(shape)).to(dtype),
        empty_like=lambda tensor: wrap(np.empty_like(tensor)),
        matmul=np.matmul,
        compile=lambda function, mode: function,
        compiler=SimpleNamespace(cudagraph_mark_step_begin=lambda: None),
    )
    return torch


def _make_stream() -> Any:
    return SimpleNamespace(wait_stream=lambda other: None)


@contextmanager
def _enter(thing: object, capture_error_mode: str = "global") -> Iterator[None]:
    yield


def wrap(array: Any) -> Tensor:
    """Return an array as a tensor, without a copy."""
    return np.asarray(array).view(Tensor)


def make_functional() -> Any:
    """Return ``torch.nn.functional``."""
    functions: list[Callable[..., Any]] = [
        linear,
        embedding,
        layer_norm,
        rms_norm,
        gelu,
        silu,
        scaled_dot_product_attention,
        relu,
        relu6,
        leaky_relu,
        instance_norm,
        conv2d,
        conv_transpose2d,
        max_pool2d,
        adaptive_avg_pool2d,
        interpolate,
    ]
    return SimpleNamespace(**{function.__name__: function for function in functions})


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    return x @ w.T if bias is None else x @ w.T + bias


def embedding(rows: Any, table: Any) -> Any:
    return table[np.asarray(rows)]


def layer_norm(x: Any, shape: Any, w: Any, bias: Any, epsilon: float) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * w + bias


def rms_norm(x: Any, shape: Any, w: Any, epsilon: float) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * w


def silu(x: Any) -> Any:
    return x * x.sigmoid()


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + wrap(_erf(x / 2**0.5)))


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, enable_gqa: bool = False
) -> Any:
    if enable_gqa:
        key, value = (np.repeat(each, query.shape[1] // key.shape[1], 1) for each in (key, value))
    scores = query @ np.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = wrap(np.where(attn_mask, scores, -np.inf))
    return scores.softmax(-1) @ value


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def relu6(x: Any) -> Any:
    return np.clip(x, 0, 6)


def leaky_relu(x: Any, slope: float) -> Any:
    return wrap(np.where(x > 0, x, slope * x))


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    flat = x.reshape(*x.shape[:2], -1)
    normal = (flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + eps)
    return (normal * weight[:, None] + bias[:, None]).reshape(x.shape)


def conv2d(x: Any, w: Any, bias: Any = None, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
    windows = _find_windows(x, w.shape[-1], stride, padding, 0.0)  # [n, c, rows, columns, taps, taps]
    parts = zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    y = wrap(np.concatenate([np.einsum("ncyxij,ocij->noyx", part, own) for part, own in parts], 1))
    return y if bias is None else y + bias[:, None, None]


def conv_transpose2d(x: Any, w: Any, stride: int) -> Any:
    """Return a transposed convolution whose windows don't overlap."""
    assert w.shape[-1] == stride
    spread = np.einsum("ncyx,coij->noyixj", x, w)
    return wrap(spread.reshape(*spread.shape[:2], x.shape[2] * stride, x.shape[3] * stride))


def max_pool2d(x: Any, taps: int, stride: int, padding: int) -> Any:
    return wrap(_find_windows(x, taps, stride, padding, -np.inf).max((-1, -2)))


def adaptive_avg_pool2d(x: Any, extent: int) -> Any:
    assert extent == 1
    return x.mean((2, 3), keepdims=True)


def interpolate(x: Any, scale_factor: int, mode: str, align_corners: bool = False) -> Any:
    if mode == "nearest":
        return x.repeat(scale_factor, 2).repeat(scale_factor, 3)
    assert mode == "bilinear"
    assert not align_corners
    for axis in (2, 3):
        extent = x.shape[axis]
        place = np.clip((np.arange(extent * scale_factor) + 0.5) / scale_factor - 0.5, 0, extent - 1)
        low = place.astype(int)
        share = (place - low).reshape([-1 if i == axis else 1 for i in range(4)]).astype(np.float32)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, np.minimum(low + 1, extent - 1), axis) * share
    return wrap(x)


def _find_windows(x: Any, taps: int, stride: int, padding: int, filler: float) -> Any:
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=filler)
    return np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (2, 3))[:, :, ::stride, ::stride]

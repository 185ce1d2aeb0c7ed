"""Strided inputs in plans: a dense vector and a view of it, and the same elements with gaps between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]


@operator("Window", "test")
@dataclass(frozen=True, slots=True)
class Window(Operator):
    """A view of a dense vector: shape, strides and start in elements. How a strided input comes to be in a plan."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        strides = tuple(stride * x.itemsize for stride in self.strides)
        return (as_strided(x[self.start :], self.shape, strides),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, Slot(x.buffer, x.offset_bytes + self.start * x.dtype.itemsize, y.spec, self.strides))


def memory_of(x: Array) -> tuple[Array, Window | None]:
    """Return the array and None where it is dense, else a vector of the memory it spans and the window it is there."""
    if is_dense(x):
        return np.array(x, order="C"), None
    steps = [(extent - 1) * stride for extent, stride in zip(x.shape, x.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    window = Window(x.shape, tuple(stride // x.itemsize for stride in x.strides), -low // x.itemsize)
    memory = np.full(high - low + x.itemsize, 0xA5, np.uint8).view(x.dtype)
    as_strided(memory[window.start :], x.shape, x.strides)[...] = x
    return memory, window


def is_dense(x: Array | None) -> bool:
    """Return whether elements lie one after the other; so does nothing."""
    return x is None or x.flags.c_contiguous or not x.size


def as_strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a window on memory; strides in bytes."""
    # NOTE: by bytes where an element is one, since as_strided knows float8e5m2 by no name.
    given = x.view(np.uint8) if x.itemsize == 1 else x
    return np.lib.stride_tricks.as_strided(given, shape, strides).view(x.dtype)


def spread_all(inputs: Sequence[Array | None], known: set[int]) -> list[Array | None]:
    """Return all inputs `spread` but those that planning knows."""
    return [x if x is None or i in known else spread(x) for i, x in enumerate(inputs)]


def spread(x: Array) -> Array:
    """Return the same elements in memory with a gap after each, and rows back to front."""
    if not x.ndim:
        return x
    roomy = np.full((*x.shape[:-1], 2 * x.shape[-1] + 1), np.asarray(0xA5).astype(x.dtype))
    view: Array = roomy[..., 1::2][::-1]
    view[...] = x
    return view

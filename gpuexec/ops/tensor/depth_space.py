"""DepthToSpace and SpaceToDepth, one strided copy each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.layout import reshaped, window


@operator("DepthToSpace")
@dataclass(frozen=True, slots=True)
class DepthToSpace(Operator):
    """Rearrangement of channels ``[n, c * b * b, h, w]`` into blocks of the plane ``[n, c, h * b, w * b]``.

    In mode DCR the channels are ordered block row, block column, c; in mode CRD c comes first.
    """

    blocksize: int
    mode: str = "DCR"
    tolerance = Tolerance.EXACT
    example = "float32[1,8,2,3] blocksize=2"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Divide the channels and multiply the plane."""
        self._divide(x.shape)
        n, c, h, w = x.shape
        b = self.blocksize
        return (x.with_shape((n, c // (b * b), h * b, w * b)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape, transpose, reshape."""
        divided, order = self._divide(x.shape)
        n, c, h, w = x.shape
        b = self.blocksize
        return (x.reshape(divided).transpose(order).reshape(n, c // (b * b), h * b, w * b),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy what is permuted."""
        x = inputs[0]
        assert x is not None
        return _prepare_permuted(x, out[0], *self._divide(x.shape))

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Copy once between the two six-axis shapes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        _copy_permuted(emit, y, x, *self._divide(x.shape))

    def _divide(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the input's six-axis shape, and the order in which the output has these axes."""
        b = self.blocksize
        if len(shape) != 4 or b < 1 or shape[1] % (b * b):
            raise InputError(
                f"DepthToSpace expects [n, c, h, w] with c divisible by blocksize^2 = {b * b}, got {list(shape)}."
            )
        n, c, h, w = shape
        if self.mode == "DCR":
            return (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
        if self.mode == "CRD":
            return (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
        raise InputError(f"DepthToSpace mode must be 'DCR' or 'CRD', got {self.mode!r}.")


@operator("SpaceToDepth")
@dataclass(frozen=True, slots=True)
class SpaceToDepth(Operator):
    """Rearrangement of blocks of the plane ``[n, c, h * b, w * b]`` into channels ``[n, b * b * c, h, w]``.

    In mode DCR the channels are ordered block row, block column, c; in mode CRD c comes first.
    """

    blocksize: int
    mode: str = "DCR"
    tolerance = Tolerance.EXACT
    example = "float32[1,2,4,6] blocksize=2"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Multiply the channels and divide the plane."""
        n, c, h, _, w, _ = self._divide(x.shape)
        return (x.with_shape((n, self.blocksize**2 * c, h, w)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape, transpose, reshape."""
        n, c, h, b, w, _ = divided = self._divide(x.shape)
        return (x.reshape(divided).transpose(self._order()).reshape(n, b * b * c, h, w),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy what is permuted."""
        x = inputs[0]
        assert x is not None
        return _prepare_permuted(x, out[0], self._divide(x.shape), self._order())

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Copy once between the two six-axis shapes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        _copy_permuted(emit, y, x, self._divide(x.shape), self._order())

    def _order(self) -> tuple[int, ...]:
        """Return the order in which the output has the six axes."""
        return (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)

    def _divide(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        b = self.blocksize
        if len(shape) != 4 or b < 1 or shape[2] % b or shape[3] % b:
            raise InputError(f"SpaceToDepth expects [n, c, h, w] with h and w divisible by {b}, got {list(shape)}.")
        if self.mode not in ("DCR", "CRD"):
            raise InputError(f"SpaceToDepth mode must be 'DCR' or 'CRD', got {self.mode!r}.")
        return shape[0], shape[1], shape[2] // b, b, shape[3] // b, b


def _prepare_permuted(
    x: Array, y: Array | None, divided: tuple[int, ...], order: tuple[int, ...]
) -> PreparedCalls | None:
    """Return the call that copies a tensor with divided and permuted axes."""
    if y is None or not y.size or not x.flags.c_contiguous or not y.flags.c_contiguous:
        return None
    moved = x.reshape(divided).transpose(order)
    return [partial(np.copyto, y.reshape(moved.shape), moved)]


def _copy_permuted(emit: Emitter, y: Slot, x: Slot, divided: Sequence[int], order: Sequence[int]) -> None:
    source = reshaped(emit, x, divided)
    shape = [divided[axis] for axis in order]
    strides = [source.strides[axis] for axis in order]
    emit.copy(window(y, shape, contiguous_strides(shape)), window(source, shape, strides))

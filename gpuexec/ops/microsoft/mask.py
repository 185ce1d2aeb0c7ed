"""Masks of com.microsoft attention, in five forms, as additive biases of the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import Shape, Strides, broadcast, broadcast_strides, ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import join
from gpuexec.ops.microsoft.expected import check_bias
from gpuexec.ops.tensor.layout import window

FLOATS: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
_SOURCE = "attention_mask.cu"
_THREADS = 256  # kThreads of attention_mask.cu
_MASK = np.dtype(np.int32)
_NONE, _ENDS, _RANGES, _FLAGS = range(4)  # MaskForm of attention_mask.cu
instantiate(_SOURCE, [f"mask_bias<{dtype_row(t).cuda}>" for t in FLOATS])


@operator("MaskBias", "gpuexec")
@dataclass(frozen=True, slots=True)
class MaskBias(Operator):
    """Additive bias of scores: a bias, and ``filter`` for keys that a mask takes out.

    Inputs: queries ``[batch, rows, ...]`` and keys ``[batch, heads, keys, size]`` for their extents, a mask of int32
    and a bias that broadcasts to ``[batch, heads, rows, keys]``, or either. A mask has one of the shapes ``[batch]``
    (how many keys take part), ``[2 * batch]`` (ends, then first keys), ``[3 * batch + 2]`` (the first ``batch`` count),
    ``[batch, keys]``, ``[batch, rows, keys]`` (0 takes out), or ``[batch, 1, most, most]`` of which the rows from the
    past's end on count. With ``has_room`` it may have fewer keys than there are, and so may the bias.
    """

    filter: float
    has_room: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self, q: TensorSpec, k: TensorSpec, mask: TensorSpec | None = None, bias: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the spec of the sum, with extent 1 on axes that nothing depends on.

        Raises:
            InputError: Types or shapes don't fit.
        """
        q = check_dtype(self.name, q, FLOATS, "queries")
        k = check_dtype(self.name, k, (q.dtype,), "keys")
        if q.rank != 3 or k.rank != 4:
            raise InputError(f"{self.name} expects queries of three axes and keys of four, got {q} and {k}.")
        if mask is not None:
            check_dtype(self.name, mask, (_MASK,), "mask")
        if bias is not None and check_dtype(self.name, bias, (q.dtype,), "attention_bias").rank != 4:
            raise InputError(f"{self.name} expects attention_bias [batch, heads, rows, keys], got {bias}.")
        shape = self._shape(q.shape, k.shape, _shape_of(mask), _shape_of(bias))
        return (q.with_shape(shape),)

    def compute(
        self, q: Array, k: Array, mask: Array | None = None, bias: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Add with NumPy, in float, rounded once."""
        shape = self._shape(q.shape, k.shape, _shape_of(mask), _shape_of(bias))
        added = np.zeros(shape, np.float32)
        if mask is not None:
            form = _form(mask.shape, q.shape[0])
            number = np.arange(shape[3])
            if form == _FLAGS:
                is_in = _flags(mask, q.shape, k.shape, shape) > 0
            else:
                ends = mask[: q.shape[0]].reshape(-1, 1, 1, 1)
                is_in = number < ends
                if form == _RANGES:
                    is_in &= number >= mask[q.shape[0] :].reshape(-1, 1, 1, 1)
            added += np.where(is_in, np.float32(0), np.float32(self.filter))
        with np.errstate(all="ignore"):
            if bias is not None:
                added += bias[..., : shape[3]]
            return (added.astype(q.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        q, k, mask, bias = (*inputs, None, None)[:4]
        y = outputs[0]
        assert q is not None and k is not None and y is not None
        form = _NONE
        flags: Strides = (0,) * 4
        if mask is not None:
            form = _form(mask.shape, q.shape[0])
            if form == _FLAGS:
                mask, flags = _flag_walk(mask, q.shape, k.shape, y.shape)
            else:
                mask = emit.contiguous(mask)
        biases: Strides = (0,) * 4 if bias is None else broadcast_strides(bias.shape[:3], bias.strides[:3], y.shape[:3])
        if bias is not None:
            biases = (*biases, bias.strides[3] if bias.shape[3] > 1 else 0)
        walk = join(y.shape, (biases, flags, (0, 0, 0, 1), (1, 0, 0, 0), y.strides))
        rule = pack_struct("<2qd", form, q.shape[0], self.filter)
        arguments: list[Argument] = [mask, bias, y, walk.pack(), rule]
        kernel = Kernel(_SOURCE, f"mask_bias<{dtype_row(y.dtype).cuda}>")
        blocks = max(1, ceil_div(walk.count, _THREADS))
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[2])

    def _shape(self, q: Shape, k: Shape, mask: Shape | None, bias: Shape | None) -> Shape:
        (batch, rows), keys = q[:2], k[2]
        if mask is not None and len(mask) in (2, 3):
            keys = min(keys, mask[-1])
        if bias is not None and bias[3] != 1:
            keys = min(keys, bias[3])
        extents = {1: (batch, 1, 1, keys), 2: (batch, 1, 1, keys), 3: (batch, 1, rows, keys), 4: (batch, 1, rows, keys)}
        shape: Shape = (1, 1, 1, keys)
        if bias is not None:
            check_bias(bias, q, k, bool(self.has_room))
        if mask is not None:
            self._check(mask, batch, rows, k[2])
            shape = extents[len(mask)]
        if bias is None:
            return shape
        return (*broadcast(shape[:3], bias[:3]), keys)

    def _check(self, mask: Shape, batch: int, rows: int, keys: int) -> None:
        first = mask[0] if mask else None
        is_wide = mask[-1:] == (keys,) or (bool(self.has_room) and mask[-1:] <= (keys,))
        fits = {
            1: first in (batch, 2 * batch, 3 * batch + 2),
            2: first == batch and is_wide,
            3: first == batch and mask[1:2] == (rows,) and is_wide,
            4: first == batch and mask[1:2] == (1,) and mask[-1] >= keys and mask[-2] >= keys,
        }
        if not fits.get(len(mask), False):
            raise InputError(
                f"{self.name} expects a mask [{batch}], [{2 * batch}], [{3 * batch + 2}], [{batch}, {keys}], "
                f"[{batch}, {rows}, {keys}] or [{batch}, 1, most, most], got {list(mask)}."
            )


def _shape_of(given: TensorSpec | Array | None) -> Shape | None:
    return None if given is None else given.shape


def _form(mask: Shape, batch: int) -> int:
    if len(mask) > 1:
        return _FLAGS
    return _RANGES if mask[0] == 2 * batch and batch else _ENDS


def _flags(mask: Array, q: Shape, k: Shape, shape: Shape) -> Array:
    """Return a mask of flags with four axes."""
    if mask.ndim == 2:
        return mask[:, np.newaxis, np.newaxis, : shape[3]]
    if mask.ndim == 3:
        return mask[:, np.newaxis, :, : shape[3]]
    past = k[2] - q[1]
    return mask[:, :, past : past + q[1], : shape[3]]


def _flag_walk(mask: Slot, q: Shape, k: Shape, shape: Shape) -> tuple[Slot, Strides]:
    """Return a mask of flags from its first row that counts on, and its strides along the four axes of the result."""
    batch, *middle, last = mask.strides
    batch = 0 if mask.shape[0] == 1 else batch
    if mask.spec.rank == 2:
        return mask, (batch, 0, 0, last)
    row = middle[-1]
    if mask.spec.rank == 4:
        mask = window(mask, (q[0], 1, *shape[2:]), (batch, 0, row, last), (k[2] - q[1]) * row)
    return mask, (batch, 0, row, last)

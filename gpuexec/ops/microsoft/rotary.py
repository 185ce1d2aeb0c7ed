"""RotaryEmbedding of com.microsoft, with tables of cosines and sines and a start position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.cache import launch_places
from gpuexec.ops.microsoft.mask import FLOATS
from gpuexec.ops.nn.rotary import RotaryEmbedding as Rotation

_INDEX = np.dtype(np.int64)


@operator("RotateHeads", "gpuexec")
@dataclass(frozen=True, slots=True)
class RotateHeads(Operator):
    """Rotation of pairs of each row of each head by its position, over twice the width of the tables.

    Inputs: ``[batch, rows, heads * size]`` (without ``heads``, a head is as long as what is turned) or
    ``[batch, heads, rows, size]``; positions ``[batch, rows]`` or ``[1, rows]``, or the first one alone; tables
    ``[positions, pairs]``, of half as many columns as are ``turned``, where that is given.
    """

    heads: int = 0
    interleaved: int = 0
    turned: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self, x: TensorSpec, positions: TensorSpec, cosines: TensorSpec, sines: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Types or shapes don't fit.
        """
        x = check_dtype(self.name, x, FLOATS)
        positions = check_dtype(self.name, positions, (_INDEX,), "position_ids")
        cosines = check_dtype(self.name, cosines, (x.dtype,), "cos_cache")
        if cosines.rank != 2 or x.rank not in (3, 4):
            raise InputError(
                f"{self.name} expects an input of three or four axes and tables of two, got {x}, {cosines}."
            )
        turned = 2 * cosines.shape[1]
        if self.turned not in (0, turned) or (not self.heads and turned and x.shape[-1] % turned):
            wanted = self.turned or f"a divisor of {x.shape[-1]}"
            raise InputError(f"{self.name} expects tables that turn {wanted} elements, two a column, got {cosines}.")
        if positions.rank < 2:
            if positions.size != 1:
                raise InputError(f"{self.name} expects position_ids [1] or [batch, rows], got {positions}.")
            positions = positions.with_shape(_extents(x.shape))
        return self._rotation(x.shape, cosines.shape).infer(x, cosines, sines, positions)

    def compute(
        self, x: Array, positions: Array, cosines: Array, sines: Array, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Count positions on, then turn with NumPy."""
        if positions.ndim < 2:
            batch, rows = _extents(x.shape)
            positions = np.broadcast_to(positions.reshape(()) + np.arange(rows), (batch, rows))
        return self._rotation(x.shape, cosines.shape).compute(x, cosines, sines, positions, out=out)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what the rotation works in, and positions where only the first is given."""
        x, positions, cosines, sines = inputs
        if x is None or positions is None or cosines is None:
            return []
        is_counted = positions.rank < 2
        places = TensorSpec((1, _extents(x.shape)[1]), _INDEX) if is_counted else positions
        rotation = self._rotation(x.shape, cosines.shape)
        return [*rotation.count_scratch((x, cosines, sines, places), outputs), places.nbytes if is_counted else 0]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Count positions on, then turn."""
        x, positions, cosines, sines = inputs
        if x is None or positions is None or cosines is None or not scratch:
            return None
        *others, memory = scratch
        calls: list[Callable[[], object]] = []
        if positions.ndim < 2:
            count = _extents(x.shape)[1]
            places = view_bytes(memory, (1, count), _INDEX)
            calls.append(partial(np.add, positions.reshape(()), np.arange(count)[np.newaxis], out=places))
            positions = places
        given, known = (x, cosines, sines, positions), (False, constant[2], constant[3], False)
        turned = self._rotation(x.shape, cosines.shape).prepare(given, out, known, others)
        return None if turned is None else [*calls, *turned]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the rotation, after a launch that counts positions where only the first is given."""
        x, positions, cosines, sines = inputs
        assert x is not None and positions is not None and cosines is not None
        if positions.spec.rank < 2:
            batch, rows = _extents(x.shape)
            made = [emit.temp(shape, _INDEX) for shape in ((batch,), (batch,), (batch, rows))]
            launch_places(emit, positions, None, made, (batch, rows))
            positions = made[2]
        self._rotation(x.shape, cosines.shape).lower(emit, (x, cosines, sines, positions), outputs)

    def _rotation(self, shape: tuple[int, ...], table: tuple[int, ...]) -> Rotation:
        turned = 2 * table[1]
        heads = self.heads or (shape[-1] // turned if turned else 1)
        size = shape[-1] if len(shape) == 4 else shape[-1] // max(1, heads)
        return Rotation(self.interleaved, heads, 0 if turned == size else turned)


def _extents(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], shape[-2]


@composite("RotaryEmbedding", DOMAIN)
@dataclass(frozen=True, slots=True)
class RotaryEmbedding(Composite):
    """Rotary embedding by tables, whose width is ``rotary_embedding_dim``. A packed batch is a batch of one."""

    inputs: ClassVar[int] = 4
    interleaved: int = 0
    is_packed_batching: int = 0
    num_heads: int = 0
    rotary_embedding_dim: int = 0
    scale: float = 1.0
    example = "float32[2,5,8] int64[1] float32[20,2] float32[20,2]"

    def __post_init__(self) -> None:
        """Check the scale, and that heads are given with a width."""
        if self.scale != 1:
            raise InputError(f"{self.name} expects scale 1, got {self.scale}.")
        if self.rotary_embedding_dim and not self.num_heads:
            raise InputError(f"{self.name} expects num_heads with rotary_embedding_dim {self.rotary_embedding_dim}.")

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Turn the heads."""
        return (sketch.add(RotateHeads(self.num_heads, self.interleaved, self.rotary_embedding_dim), *inputs),)

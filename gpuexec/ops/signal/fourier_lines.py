"""Launches of Fourier transforms: stages, twiddle tables and shared memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import dtype_row, dtypes_of
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.lib.strided import join

_SOURCE = "fourier.cu"
_THREADS = 256
SHARED_POINTS, MAX_STAGES = 1024, 32  # kSharedPoints and kMaxStages of fourier.cu
MAX_POINTS = 1 << 29
_LARGEST_RADIX = 31  # of a larger prime factor the convolution is cheaper
_MAX_BLOCKS, _MAX_BLOCKS_IN_SCRATCH = 4096, 256

instantiate(_SOURCE, [f"fourier<{dtype_row(dtype).cuda}>" for dtype in dtypes_of("float")])


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of a transform, one for each radix, directly or (chirped) within a longer power of two."""

    points: int
    radices: tuple[int, ...]
    is_chirped: bool


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a tensor, and the parameters of their transform.

    Attributes:
        length: Of the transform; samples beyond it don't count, those that lack are 0.
        axis: The axis of ``x`` and ``y`` that lines run along; the last axis holds real and imaginary parts.
        is_inverse: Whether to transform back.
        is_hermitian: Whether ``x`` is one half of a Hermitian spectrum and ``y`` real.
    """

    length: int
    axis: int
    is_inverse: bool = False
    is_hermitian: bool = False

    def launch(self, emit: Emitter, x: Slot, y: Slot, window: Slot | None = None) -> None:
        """Launch the transforms of all lines; ``window`` is dense and weighs samples."""
        stages = choose_stages(self.length)
        if stages.points > MAX_POINTS:
            raise InputError(f"Fourier transforms on a device have at most {MAX_POINTS} points, got {self.length}.")
        others = [axis for axis in range(x.spec.rank - 1) if axis != self.axis]
        lines = join([y.shape[a] for a in others], [[slot.strides[a] for a in others] for slot in (x, y)])
        per_block = max(1, SHARED_POINTS // stages.points)
        is_shared = stages.points <= SHARED_POINTS
        max_blocks = _MAX_BLOCKS if is_shared else _MAX_BLOCKS_IN_SCRATCH
        blocks = max(1, min(max_blocks, ceil_div(lines.count, per_block)))
        scratch = None if is_shared else emit.temp((blocks, 2, stages.points, 2), np.float64)
        chirp, spectrum = map(emit.constant, chirp_tables(self.length)) if stages.is_chirped else (None, None)
        near, step = abs(lines.inner_strides[0]), abs(x.strides[self.axis])
        packed = pack_struct(
            f"<10qd6i{MAX_STAGES}i",
            *(lines.count, per_block, self.length, stages.points),
            *(min(x.shape[self.axis], self.length), y.shape[self.axis]),
            *(x.strides[self.axis], x.strides[-1] if x.shape[-1] == 2 else 0, y.strides[self.axis], y.shape[-1]),
            self._scale(stages),
            *(self.is_inverse, self.is_hermitian, stages.is_chirped, 0 < near < step, len(stages.radices), 0),
            *stages.radices,
            *((0,) * (MAX_STAGES - len(stages.radices))),
        )
        arguments: list[Argument] = [
            x,
            window,
            y,
            emit.constant(root_table(int(stages.points))),
            chirp,
            spectrum,
            scratch,
        ]
        writes = [2] if scratch is None else [2, 6]
        kernel = Kernel(_SOURCE, f"fourier<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), [*arguments, lines.pack(), packed], writes=writes)

    def _scale(self, stages: Stages) -> float:
        scale = 1.0 / self.length if self.is_inverse else 1.0
        return scale / stages.points if stages.is_chirped else scale


@memoize(256)
def choose_stages(length: int) -> Stages:
    """Return the radices of a length: fours, a two, then odd primes; those of a power of two where one is too large."""
    rest, radices = length, []
    for radix in (4, 2, *range(3, _LARGEST_RADIX + 1, 2)):
        while rest % radix == 0:
            rest //= radix
            radices.append(radix)
    if rest > 1:
        points = 1 << (2 * length - 2).bit_length()
        return Stages(points, choose_stages(points).radices, True)
    return Stages(length, tuple(radices), False)


@memoize(64)
def root_table(points: int) -> Array:
    """Return ``[points, 2]``: real and imaginary part of ``exp(-2 pi i j / points)``."""
    return _turns(np.arange(points), points)


@memoize(64)
def chirp_tables(length: int) -> tuple[Array, Array]:
    """Return ``exp(-pi i j^2 / length)`` for j below the length, and the transform of its conjugate, wrapped around."""
    chirp = _turns(np.arange(length, dtype=np.int64) ** 2 % (2 * length), 2 * length)
    wave = np.zeros(choose_stages(length).points, np.complex128)
    wave[:length] = chirp[:, 0] - 1j * chirp[:, 1]
    wave[wave.size - length + 1 :] = wave[1:length][::-1]
    return chirp, np.fft.fft(wave).view(np.float64).reshape(-1, 2)


def _turns(parts: Array, whole: int) -> Array:
    """Return ``exp(-2 pi i parts / whole)`` as pairs; quarters of a turn are exact."""
    quarter, rest = np.divmod(4 * parts.astype(np.int64), whole)
    angle = rest * (np.pi / 2 / whole)
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.choose(quarter % 4, (cosine, -sine, -cosine, sine))
    imaginary = np.choose(quarter % 4, (-sine, -cosine, sine, cosine))
    return np.stack([real, imaginary], axis=-1)


# Operations on doubles of a term of a stage; instructions of a thread for one, and for a point apart from stages.
_TERM_FLOPS, _EACH_TERM, _EACH_POINT = 8, 22, 150


@work_of(_SOURCE, "fourier")
def _count_fourier(launch: Launch) -> Work:
    packed, scratch, blocks = launch.arguments[-1], launch.arguments[6], launch.grid[0]
    assert isinstance(packed, bytes)
    lines, per_block, _, points = struct.unpack_from("<4q", packed)
    _, _, is_chirped, _, stages = struct.unpack_from("<5i", packed, 11 * 8)
    radices = struct.unpack_from(f"<{stages}i", packed, 11 * 8 + 6 * 4)
    passes = 1 + is_chirped
    terms, in_turn = lines * points * passes * sum(radices), ceil_div(ceil_div(lines, per_block), blocks)
    own = ceil_div(per_block * points, _THREADS) * passes * sum(radices)  # terms of a thread for the lines of a block
    slots = [*launch.reads_from(), *launch.writes_to()]
    return Work(
        flops=_TERM_FLOPS * terms,
        instructions=(terms * _EACH_TERM + lines * points * _EACH_POINT) / 32,
        doubles=_TERM_FLOPS * terms / 32,
        wavefronts=0 if isinstance(scratch, Slot) else terms * 4 / 32,
        l2_nbytes=sum(map(count_slot_bytes, slots)) + (16 * terms if isinstance(scratch, Slot) else 0),
        rounds=in_turn * (2 + (own if isinstance(scratch, Slot) else ceil_div(own, 2))),
        barriers=in_turn * (1 + passes * (stages + 1)),
        shared_nbytes=32768,
    )

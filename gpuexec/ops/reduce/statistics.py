"""Statistics and Histogram of a tensor, added by taps and watches.

Of a tensor of any size come nine doubles, so that looking at a value costs a read of it on the device and 72 bytes on
the way to the host. Sums are taken in doubles, of distances from an element near by, in an order that follows from the
size alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Command, HostCall, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import COMPUTED, TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import widen_narrow
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import Walk, join

SOURCE = "statistics.cu"
# The words, in order: places are -1 where there is none; the last four are those of finite elements, NaN without any.
NANS, POSITIVE_INFS, NEGATIVE_INFS, FIRST_NAN, FIRST_INF, MINIMUM, MAXIMUM, MEAN, DEVIATION = range(9)
WORDS = 9
MAX_BINS = 256  # kMaxBins of statistics.cu
_SAMPLE_BYTES = 80  # sizeof(Sample) of statistics.cu
_THREADS = 256  # kBlockThreads of reduce.cuh
_BLOCK_TERMS = 16 * _THREADS
_MAX_BLOCKS = 1024
_DOUBLE, _COUNT = np.dtype(np.float64), np.dtype(np.int64)
# Statistics of an empty sample.
_NOTHING = np.array([0.0, 0.0, 0.0, -1.0, -1.0, *[np.nan] * 4])
instantiate(SOURCE, [f"{kernel}<{row.cuda}>" for kernel in ("take_samples", "count_bins") for row in COMPUTED])
instantiate(SOURCE, ["merge_all_samples"])


@operator("Statistics", "gpuexec")
@dataclass(frozen=True, slots=True)
class StatisticsOperator(Operator):
    """Counts and first places of NaN and infinities, and range, mean and deviation of finite elements.

    Without ``moments`` mean and deviation are NaN, and cost nothing. With ``floats_only`` there are none of other
    types, which hold neither NaN nor infinities.
    """

    moments: int = 1
    floats_only: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a spec of a size that does not depend on the input."""
        return (TensorSpec((WORDS,), _DOUBLE),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reduce with NumPy, in doubles."""
        words = _NOTHING.copy()
        if self._is_left_out(x.dtype):
            return (words,)
        finite = wide = x.reshape(-1).astype(np.float64, copy=False)
        is_finite = np.isfinite(wide)
        if not is_finite.all():
            is_nan, is_inf = np.isnan(wide), np.isinf(wide)
            above = np.count_nonzero(wide == np.inf)
            words[:3] = np.count_nonzero(is_nan), above, np.count_nonzero(is_inf) - above
            words[FIRST_NAN] = np.argmax(is_nan) if is_nan.any() else -1
            words[FIRST_INF] = np.argmax(is_inf) if is_inf.any() else -1
            finite = wide[is_finite]
        if finite.size:
            words[MINIMUM], words[MAXIMUM] = finite.min(), finite.max()
            if self.moments:
                with np.errstate(all="ignore"):
                    words[MEAN], words[DEVIATION] = finite.mean(), finite.std()
        return (words,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch samples of parts, then one block that merges them."""
        (x,), (words,) = inputs, outputs
        assert x is not None and words is not None
        if self._is_left_out(x.dtype):
            emit.copy(words, emit.constant(_NOTHING))
            return
        x = widen_narrow(emit, x)
        cuda = dtype_row(x.dtype).cuda
        blocks = _count_blocks(x.spec.size)
        has_sums = int32(bool(self.moments))
        samples = emit.temp((blocks, _SAMPLE_BYTES // 8), _DOUBLE)
        block = (_THREADS, 1, 1)
        emit.launch(
            Kernel(SOURCE, f"take_samples<{cuda}>"), (blocks, 1, 1), block, [x, samples, _walk(x), has_sums], writes=[1]
        )
        arguments: list[Argument] = [samples, words, int32(blocks), has_sums]
        emit.launch(Kernel(SOURCE, "merge_all_samples"), (1, 1, 1), block, arguments, writes=[1])

    def _is_left_out(self, dtype: np.dtype[Any]) -> bool:
        return bool(self.floats_only) and not dtype_row(dtype).is_float


@operator("Histogram", "gpuexec")
@dataclass(frozen=True, slots=True)
class HistogramOperator(Operator):
    """Counts of the finite elements in ``bins`` even parts of the range that their `StatisticsOperator` found."""

    bins: int = 64
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec, words: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a spec of a size that does not depend on the input."""
        check_dtype(self.name, words, (_DOUBLE,), "words")
        if words.shape != (WORDS,):
            raise InputError(f"Histogram expects the {WORDS} words of Statistics, got {words}.")
        if not 1 <= self.bins <= MAX_BINS:
            raise InputError(f"Histogram has 1 to {MAX_BINS} bins, got {self.bins}.")
        return (TensorSpec((self.bins,), _COUNT),)

    def compute(self, x: Array, words: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Count with NumPy, by the kernel's arithmetic."""
        wide = x.reshape(-1).astype(np.float64, copy=False)
        wide = wide[np.isfinite(wide)]
        with np.errstate(all="ignore"):
            width = words[MAXIMUM] - words[MINIMUM]
            places = (wide - words[MINIMUM]) / width * float(self.bins) if width > 0 else np.zeros_like(wide)
        bins = np.where(places < self.bins, np.maximum(places, 0), self.bins - 1).astype(np.int64)
        return (np.bincount(bins, minlength=self.bins).astype(np.int64, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch as many blocks as `StatisticsOperator` does."""
        (x, words), (counts,) = inputs, outputs
        assert x is not None and words is not None and counts is not None
        x, words = widen_narrow(emit, x), emit.contiguous(words)
        emit.fill(counts, 0)
        grid = (_count_blocks(x.spec.size), 1, 1)
        arguments: list[Argument] = [x, words, counts, _walk(x), int32(self.bins)]
        kernel = Kernel(SOURCE, f"count_bins<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, grid, (_THREADS, 1, 1), arguments, writes=[2])


def is_look(command: Command) -> bool:
    """Return whether a command is one of theirs, which only look at a value that others work with."""
    if isinstance(command, HostCall):
        return command.operator in (StatisticsOperator.name, HistogramOperator.name)
    # That of a blit lies in a folder.
    return isinstance(command, Launch) and command.kernel.source.rpartition("/")[2] == SOURCE


def _walk(x: Slot) -> bytes:
    """Return how a kernel walks a tensor: in row-major order, whatever its strides."""
    walk = join(x.shape, (x.strides, contiguous_strides(x.shape)))
    return Walk(walk.shape, walk.strides[:1]).pack()


def _count_blocks(size: int) -> int:
    return max(1, min(_MAX_BLOCKS, ceil_div(size, _BLOCK_TERMS)))

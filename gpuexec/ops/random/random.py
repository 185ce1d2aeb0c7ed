"""RandomNormal, RandomUniform, RandomNormalLike, RandomUniformLike and Bernoulli.

Each draws from a key; see `gpuexec.ops.random.random_key`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, element_count
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.random.numpy_generator import HOST_REASON, has_seed, make_generator
from gpuexec.ops.random.philox import Draw, numbers_per_block
from gpuexec.ops.random.random_key import check_key, take_key

FLOATS = dtypes_of("float")
_THREADS = 256
_BITS = ("u8", "u16", "u32", "u64")

for _name in ("random_uniform", "random_normal"):
    instantiate("random.cu", [f"{_name}<{dtype_row(dtype).cuda}>" for dtype in FLOATS])
instantiate("random.cu", [f"bernoulli<{dtype_row(dtype).cuda}, {bits}>" for dtype in FLOATS for bits in _BITS])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Random distribution: the kernel, NumPy's form, and the offset and factor of the operator."""

    kernel: str
    draw: Callable[[Draw, Array | None, int, np.dtype[Any]], Array]
    read_scale: Callable[[Any], tuple[float, float]]


# In double, then rounded: a span is no difference of rounded limits.
UNIFORM = Distribution("random_uniform", Draw.uniform, lambda op: (op.low, op.high - op.low))
NORMAL = Distribution("random_normal", Draw.normal, lambda op: (op.mean, op.scale))


@dataclass(frozen=True, slots=True)
class Drawing(Operator):
    """Base of RandomUniform, RandomNormal and their Likes: offset + number * factor, in a shape and type."""

    dtype: int | None = None
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT
    distribution: ClassVar[Distribution]
    flops_per_output = None
    is_random = True
    has_blits = True

    def find_shape(self) -> tuple[int, ...] | None:
        """Return the shape of an attribute; None: that of the input, which precedes the key."""
        return None

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the shape and type of the attributes and the input.

        Raises:
            InputError: The type is no float, or an extent is below 0.
        """
        like, key = self._split(inputs)
        shape = self.find_shape() if like is None else like.shape
        dtype = dtype_row(self.dtype if self.dtype is not None or like is None else like.dtype).numpy
        if dtype not in FLOATS:
            names = ", ".join(dtype_row(each).name for each in FLOATS)
            raise InputError(f"{self.name} gives {names}, got dtype {dtype.name}.")
        if shape is None or min(shape, default=0) < 0:
            raise InputError(f"{self.name} expects extents of 0 or more, got {list(shape or ())}.")
        check_key(key)
        return (TensorSpec(shape, dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Draw, scale, and round once."""
        like, key = self._split(inputs)
        (spec,) = self.infer(*([] if like is None else [TensorSpec(like.shape, like.dtype)]))
        wide = accumulator(spec.dtype)
        offset, factor = self._read_scale(wide)
        with np.errstate(all="ignore"):
            drawn = self.distribution.draw(Draw.of(self.seed, self.stream), key, element_count(spec.shape), wide)
            return (np.asarray(drawn * factor + offset).astype(spec.dtype).reshape(spec.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        y = _given(outputs[0])
        wide = accumulator(y.dtype)
        key, draw = take_key(emit, inputs, int(self.find_shape() is None)), Draw.of(self.seed, self.stream).pack()
        arguments = [y, int64(y.spec.size), *self._read_scale(wide), key, draw]
        launch_draws(emit, f"{self.distribution.kernel}<{dtype_row(y.dtype).cuda}>", y.spec.size, wide, arguments, [0])

    def _read_scale(self, dtype: np.dtype[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            return [dtype.type(number) for number in self.distribution.read_scale(self)]

    def _split(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Return the input whose shape counts, and the key."""
        first, second = (*inputs, None, None)[:2]
        return (first, second) if self.find_shape() is None else (None, first)


@operator("RandomUniform")
@dataclass(frozen=True, slots=True)
class RandomUniform(Drawing):
    """low + u * (high - low), with u of [0, 1); rounding to the type may reach ``high``."""

    dtype: int | None = 1
    high: float = 1.0
    low: float = 0.0
    shape: tuple[int, ...] = ()
    distribution = UNIFORM
    example = "shape=(2,3)"

    def find_shape(self) -> tuple[int, ...]:
        """Return the attribute."""
        return self.shape


@operator("RandomUniformLike")
@dataclass(frozen=True, slots=True)
class RandomUniformLike(Drawing):
    """RandomUniform in the shape of the input, and in its type unless ``dtype`` says another."""

    high: float = 1.0
    low: float = 0.0
    distribution = UNIFORM
    example = "float32[3] dtype=1"


@operator("RandomNormal")
@dataclass(frozen=True, slots=True)
class RandomNormal(Drawing):
    """mean + z * scale, with z of the standard normal distribution."""

    dtype: int | None = 1
    mean: float = 0.0
    scale: float = 1.0
    shape: tuple[int, ...] = ()
    distribution = NORMAL
    example = "shape=(2,3)"

    def find_shape(self) -> tuple[int, ...]:
        """Return the attribute."""
        return self.shape


@operator("RandomNormalLike")
@dataclass(frozen=True, slots=True)
class RandomNormalLike(Drawing):
    """RandomNormal in the shape of the input, and in its type unless ``dtype`` says another."""

    mean: float = 0.0
    scale: float = 1.0
    distribution = NORMAL
    example = "float32[3] dtype=1"


@operator("Bernoulli")
@dataclass(frozen=True, slots=True)
class Bernoulli(Operator):
    """1 where u < x, with u of [0, 1), else 0. With a ``seed`` the host draws, from NumPy's generator of binomials."""

    dtype: int | None = None
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None
    is_random = True
    has_blits = True

    def infer(self, x: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the input's shape, in ``dtype`` if it is given."""
        check_dtype("Bernoulli", x, FLOATS)
        check_key(key)
        return (TensorSpec(x.shape, dtype_row(_code(self.dtype, x)).numpy),)

    def compute(self, x: Array, key: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Draw, and compare."""
        dtype = self.infer(TensorSpec(x.shape, x.dtype))[0].dtype
        if has_seed(self.seed):
            chances = np.clip(np.nan_to_num(x.astype(np.float64)), 0, 1)
            return (np.asarray(make_generator(self.seed).binomial(1, chances)).astype(dtype),)
        wide = accumulator(x.dtype)
        drawn = Draw.of(None, self.stream).uniform(key, x.size, wide).reshape(x.shape)
        with np.errstate(invalid="ignore"):
            return (np.asarray(drawn < x.astype(wide)).astype(dtype),)

    def is_lowered(self, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether nothing is drawn from NumPy's generator."""
        return not has_seed(self.seed)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        x, y = emit.contiguous(_given(inputs[0])), _given(outputs[0])
        width = y.dtype.itemsize
        one = np.ones(1, y.dtype).view(f"u{width}")[0]
        launch_draws(
            emit,
            f"bernoulli<{dtype_row(x.dtype).cuda}, u{8 * width}>",
            y.spec.size,
            accumulator(x.dtype),
            [
                x,
                y,
                int64(y.spec.size),
                one,
                take_key(emit, inputs, 1),
                Draw.of(None, self.stream).pack(),
            ],
            [1],
        )


def launch_draws(
    emit: Emitter,
    expression: str,
    count: int,
    drawn: np.dtype[Any],
    arguments: Sequence[Argument],
    writes: Sequence[int],
) -> None:
    """Launch a kernel of random.cu, one thread per block of numbers of the type ``drawn``."""
    blocks = max(1, ceil_div(ceil_div(count, numbers_per_block(drawn)), _THREADS))
    emit.launch(Kernel("random.cu", expression), (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes)


def _code(dtype: int | None, x: TensorSpec) -> int:
    return dtype_row(x.dtype).code if dtype is None else dtype


def _given(slot: Slot | None) -> Slot:
    assert slot is not None
    return slot

"""RandomNormal, RandomUniform, their Likes and Bernoulli. Each draws from a key; see `gpuexec.ops.random_key`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.command import Argument, Kernel, Slot
from gpuexec.errors import InputError
from gpuexec.geometry import ceil_div, element_count
from gpuexec.operator import Array, Emitter, Operator, Tolerance, instantiate, operator
from gpuexec.ops.checks import check_dtype
from gpuexec.ops.layout import Slots
from gpuexec.ops.philox import Draw, numbers_per_block
from gpuexec.ops.random_key import check_key, take_key
from gpuexec.spec import TensorSpec, accumulator, dtype_row, dtypes_of

FLOATS = dtypes_of("float")
_THREADS = 256
_BITS = ("u8", "u16", "u32", "u64")

for _name in ("random_uniform", "random_normal"):
    instantiate("random.cu", [f"{_name}<{dtype_row(dtype).cuda}>" for dtype in FLOATS])
instantiate("random.cu", [f"bernoulli<{dtype_row(dtype).cuda}, {bits}>" for dtype in FLOATS for bits in _BITS])


@operator("RandomUniform")
@dataclass(frozen=True, slots=True)
class RandomUniform(Operator):
    """low + u * (high - low), with u of [0, 1); rounding to the type may reach ``high``."""

    dtype: int = 1
    high: float = 1.0
    low: float = 0.0
    seed: float | None = None
    shape: tuple[int, ...] = ()
    stream: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return what the attributes say."""
        return (_infer(self, self.shape, self.dtype, key),)

    def compute(self, key: Array | None = None, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        """Draw."""
        return (_scale_uniform(self, self.infer()[0], key),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        _launch(emit, "random_uniform", outputs[0], _limits(self), take_key(emit, inputs, 0), self)


@operator("RandomUniformLike")
@dataclass(frozen=True, slots=True)
class RandomUniformLike(Operator):
    """What RandomUniform gives, in the shape of the input, and in its type unless ``dtype`` says another."""

    dtype: int | None = None
    high: float = 1.0
    low: float = 0.0
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the input's shape."""
        return (_infer(self, x.shape, _code(self.dtype, x), key),)

    def compute(
        self, x: Array, key: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> tuple[Array, ...]:
        """Draw."""
        return (_scale_uniform(self, self.infer(TensorSpec(x.shape, x.dtype))[0], key),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        _launch(emit, "random_uniform", outputs[0], _limits(self), take_key(emit, inputs, 1), self)


@operator("RandomNormal")
@dataclass(frozen=True, slots=True)
class RandomNormal(Operator):
    """mean + z * scale, with z of the standard normal distribution."""

    dtype: int = 1
    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None
    shape: tuple[int, ...] = ()
    stream: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return what the attributes say."""
        return (_infer(self, self.shape, self.dtype, key),)

    def compute(self, key: Array | None = None, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        """Draw."""
        return (_scale_normal(self, self.infer()[0], key),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        numbers = (self.mean, self.scale)
        _launch(emit, "random_normal", outputs[0], numbers, take_key(emit, inputs, 0), self)


@operator("RandomNormalLike")
@dataclass(frozen=True, slots=True)
class RandomNormalLike(Operator):
    """What RandomNormal gives, in the shape of the input, and in its type unless ``dtype`` says another."""

    dtype: int | None = None
    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the input's shape."""
        return (_infer(self, x.shape, _code(self.dtype, x), key),)

    def compute(
        self, x: Array, key: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> tuple[Array, ...]:
        """Draw."""
        return (_scale_normal(self, self.infer(TensorSpec(x.shape, x.dtype))[0], key),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per block of numbers."""
        _launch(emit, "random_normal", outputs[0], (self.mean, self.scale), take_key(emit, inputs, 1), self)


@operator("Bernoulli")
@dataclass(frozen=True, slots=True)
class Bernoulli(Operator):
    """1 where u < x, with u of [0, 1), else 0."""

    dtype: int | None = None
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the input's shape, in ``dtype`` if it is given."""
        check_dtype("Bernoulli", x, FLOATS)
        check_key(key)
        return (TensorSpec(x.shape, dtype_row(_code(self.dtype, x)).numpy),)

    def compute(
        self, x: Array, key: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> tuple[Array, ...]:
        """Draw, and compare."""
        wide = accumulator(x.dtype)
        drawn = Draw.of(self.seed, self.stream).uniform(key, x.size, wide).reshape(x.shape)
        with np.errstate(invalid="ignore"):
            return (np.asarray(drawn < x.astype(wide)).astype(self.infer(TensorSpec(x.shape, x.dtype))[0].dtype),)

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
                np.int64(y.spec.size),
                one,
                take_key(emit, inputs, 1),
                Draw.of(self.seed, self.stream).pack(),
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


# ---------------------------------------------------------------- parts

_Uniform = RandomUniform | RandomUniformLike
_Normal = RandomNormal | RandomNormalLike


def _code(dtype: int | None, x: TensorSpec) -> int:
    return dtype_row(x.dtype).code if dtype is None else dtype


def _infer(op: _Uniform | _Normal, shape: Sequence[int], code: int, key: TensorSpec | None) -> TensorSpec:
    dtype = dtype_row(code).numpy
    if dtype not in FLOATS:
        names = ", ".join(dtype_row(each).name for each in FLOATS)
        raise InputError(f"{op.name} gives {names}, got dtype {dtype.name}.")
    if min(shape, default=0) < 0:
        raise InputError(f"{op.name} expects extents of 0 or more, got {list(shape)}.")
    check_key(key)
    return TensorSpec(tuple(shape), dtype)


def _scale_uniform(op: _Uniform, spec: TensorSpec, key: Array | None) -> Array:
    wide = accumulator(spec.dtype)
    low, span = _round(_limits(op), wide)
    with np.errstate(all="ignore"):
        y = Draw.of(op.seed, op.stream).uniform(key, element_count(spec.shape), wide) * span + low
        return np.asarray(y).astype(spec.dtype).reshape(spec.shape)


def _scale_normal(op: _Normal, spec: TensorSpec, key: Array | None) -> Array:
    wide = accumulator(spec.dtype)
    mean, scale = _round((op.mean, op.scale), wide)
    with np.errstate(all="ignore"):
        y = Draw.of(op.seed, op.stream).normal(key, element_count(spec.shape), wide) * scale + mean
        return np.asarray(y).astype(spec.dtype).reshape(spec.shape)


def _limits(op: _Uniform) -> tuple[float, float]:
    return op.low, op.high - op.low


def _round(numbers: Sequence[float], dtype: np.dtype[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return [dtype.type(number) for number in numbers]


def _launch(
    emit: Emitter,
    kernel: str,
    y: Slot | None,
    numbers: Sequence[float],
    key: Slot | None,
    op: _Uniform | _Normal,
) -> None:
    assert y is not None
    wide = accumulator(y.dtype)
    draw = Draw.of(op.seed, op.stream).pack()
    arguments = [y, np.int64(y.spec.size), *_round(numbers, wide), key, draw]
    launch_draws(emit, f"{kernel}<{dtype_row(y.dtype).cuda}>", y.spec.size, wide, arguments, [0])


def _given(slot: Slot | None) -> Slot:
    assert slot is not None
    return slot

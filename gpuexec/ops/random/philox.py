"""Philox 4x32-10, a counter-based random generator, to the same bits as philox.cuh.

J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011). A block of four words follows from a seed,
the number of the run, the stream of the node and the number of the block; nothing is remembered between them.
Logarithm, sine and cosine are series of sums and products, each rounded by itself, so that every device gives the same
bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import Array
from gpuexec.system.threads import share_work

_MASK = 0xFFFFFFFF
_WHOLE = 2**64 - 1
_LOW, _HALF = np.uint64(_MASK), np.uint64(32)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_GOLDEN = 0x9E3779B97F4A7C15
_LN2 = 0.6931471805599453
_HALF_PI = 1.5707963267948966
_SQRT2 = 1.4142135623730951
# Terms of the series by type: log as of atanh, sine and cosine up to pi / 4.
_TERMS = {np.dtype(np.float32): (6, 6), np.dtype(np.float64): (12, 10)}
# Blocks of a piece: their words stay in a core's cache, and threads seldom meet at the interpreter's lock.
_PIECE = 1 << 15
# Blocks up to which Python's integers are faster than NumPy's calls: 4 us a block to 90 us in all.
_FEW = 16
_Make = Callable[[Array, np.dtype[Any]], Array]


@dataclass(frozen=True, slots=True)
class Draw:
    """Random source of a node: ``seed`` of its own, or None for that of the key; ``stream`` tells nodes apart."""

    seed: int | None
    stream: int

    @staticmethod
    def of(seed: float | None, stream: int | None) -> Draw:
        """Return the random source of a node with these attributes; with a seed it does not depend on the stream."""
        if seed is None:
            return Draw(None, (stream or 0) & _MASK)
        # ONNX's seeds are 32-bit floats.
        return Draw(int(np.float32(seed).view(np.uint32)) << 32 | 0x5EED, 0)

    def pack(self) -> bytes:
        """Return the bytes of ``Draw`` of philox.cuh."""
        return struct.pack("<QIi", self.seed or 0, self.stream, self.seed is not None)

    def blocks(self, key: Array | None, count: int, first: int = 0) -> Array:
        """Return blocks ``[count, 4]`` of words, for the seed and run of a key (None: 0 and 0)."""
        return self.blocks_at(key, np.arange(first, first + count, dtype=np.uint64))

    def blocks_at(self, key: Array | None, numbers: Array) -> Array:
        """Return the blocks of these numbers, uint64 ``[count]``."""
        given, run = (0, 0) if key is None else (int(number) for number in np.asarray(key).reshape(2))
        seed = given if self.seed is None else self.seed
        seed = (seed + (run >> 32) * _GOLDEN) & _WHOLE
        return philox(numbers, self.stream, run & _MASK, seed)

    def uniform(self, key: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        """Return numbers of [0, 1), multiples of 2**-24 (float32) or 2**-53 (float64)."""
        return self._draw(key, count, dtype, to_uniform)

    def normal(self, key: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        """Return numbers of the standard normal distribution, by Box and Muller's transform."""
        return self._draw(key, count, dtype, _to_normal)

    def _draw(self, key: Array | None, count: int, dtype: np.dtype[Any], make: _Make) -> Array:
        """Return numbers made of blocks, in pieces that stay in the cache and are shared by the cores."""
        each = numbers_per_block(dtype)
        drawn = np.empty((ceil_div(count, each), each), dtype)

        def fill(number: int) -> None:
            piece = drawn[number * _PIECE : (number + 1) * _PIECE]
            piece[...] = make(self.blocks(key, len(piece), number * _PIECE), dtype)

        share_work(ceil_div(len(drawn), _PIECE), fill)
        return drawn.reshape(-1)[:count]


def philox(blocks: Array, stream: int, run: int, seed: int) -> Array:
    """Return the words ``[n, 4]`` of Philox 4x32-10 for counters (block, stream, run) and a seed of 64 bits."""
    keys = [((seed + n * _STEPS[0]) & _MASK, ((seed >> 32) + n * _STEPS[1]) & _MASK) for n in range(10)]
    if len(blocks) <= _FEW:
        words = [_philox_block(block, stream, run, keys) for block in blocks.tolist()]
        return np.array(words, np.uint64).reshape(-1, 4)
    c0, c1, c2, c3 = blocks & _LOW, blocks >> _HALF, np.full_like(blocks, stream), np.full_like(blocks, run)
    p0, p1 = np.empty_like(blocks), np.empty_like(blocks)
    for k0, k1 in keys:
        np.multiply(c0, np.uint64(_MULTIPLIERS[0]), out=p0)
        np.multiply(c2, np.uint64(_MULTIPLIERS[1]), out=p1)
        for product, other, key, high, low in ((p1, c1, k0, c0, c1), (p0, c3, k1, c2, c3)):
            np.right_shift(product, _HALF, out=high)
            np.bitwise_xor(high, other, out=high)
            np.bitwise_xor(high, np.uint64(key), out=high)
            np.bitwise_and(product, _LOW, out=low)
    return np.stack([c0, c1, c2, c3], axis=1)


def _philox_block(block: int, stream: int, run: int, keys: Sequence[tuple[int, int]]) -> tuple[int, int, int, int]:
    """Return the words of one block."""
    c0, c1, c2, c3 = block & _MASK, block >> 32, stream, run
    for k0, k1 in keys:
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK, p0 >> 32 ^ c3 ^ k1, p0 & _MASK
    return c0, c1, c2, c3


def numbers_per_block(dtype: np.dtype[Any]) -> int:
    """Return how many numbers a block gives: a word each for float32, two for float64."""
    return 4 if dtype == np.float32 else 2


def to_uniform(words: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers of [0, 1) made of blocks of words, as many per block as `numbers_per_block` says."""
    if dtype == np.float32:
        return (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    high, low = words[:, ::2] >> np.uint64(5), words[:, 1::2] >> np.uint64(6)
    return ((high << np.uint64(26)) | low).astype(np.float64) * 2.0**-53


def _to_normal(words: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers of the standard normal distribution made of blocks of words."""
    uniform = to_uniform(words, dtype)
    ulp = dtype.type(2.0**-24 if dtype == np.float32 else 2.0**-53)
    radius = np.sqrt(dtype.type(-2) * log_unit(uniform[:, ::2] + ulp))
    cosine, sine = turn(uniform[:, 1::2])
    return np.stack([radius * cosine, radius * sine], axis=2).reshape(uniform.shape)


def log_unit(x: Array) -> Array:
    """Return the natural logarithm of numbers of (0, 1]."""
    number = x.dtype.type
    mantissa, exponent = np.frexp(x)  # [0.5, 1)
    mantissa, exponent = mantissa * number(2), exponent - 1
    is_large = mantissa > number(_SQRT2)
    mantissa = np.where(is_large, mantissa * number(0.5), mantissa)
    exponent = exponent + is_large
    s = (mantissa - number(1)) / (mantissa + number(1))
    square = s * s
    terms = _TERMS[x.dtype][0]
    p = np.full_like(x, number(1.0 / (2 * terms - 1)))
    for k in range(terms - 2, -1, -1):
        p = p * square + number(1.0 / (2 * k + 1))
    return np.asarray(exponent.astype(x.dtype) * number(_LN2) + number(2) * s * p)


def turn(x: Array) -> tuple[Array, Array]:
    """Return cosine and sine of x turns, for x of [0, 1)."""
    number = x.dtype.type
    quarters = x * number(4)
    quadrant = quarters.astype(np.int32)
    part = quarters - quadrant.astype(x.dtype)
    is_upper = part > number(0.5)
    angle = np.where(is_upper, number(1) - part, part) * number(_HALF_PI)
    square = angle * angle
    cosine, sine = np.ones_like(x), np.ones_like(x)
    for k in range(_TERMS[x.dtype][1] - 1, 0, -1):
        sine = number(1) - square * sine * number(1.0 / (2 * k * (2 * k + 1)))
        cosine = number(1) - square * cosine * number(1.0 / (2 * k * (2 * k - 1)))
    sine = angle * sine
    cosine, sine = np.where(is_upper, sine, cosine), np.where(is_upper, cosine, sine)
    is_odd = quadrant % 2 == 1
    cosine, sine = np.where(is_odd, -sine, cosine), np.where(is_odd, cosine, sine)
    is_back = quadrant >= 2
    return np.where(is_back, -cosine, cosine), np.where(is_back, -sine, sine)

"""MurmurHash3: 32-bit hashes of numbers on the device, and of strings on the host.

The hash is MurmurHash3_x86_32: https://github.com/aappleby/smhasher/blob/61a0530f28277f2e850bfc39600ce61d02b518de/src/MurmurHash3.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.microsoft.activation import DOMAIN

_SOURCE = "murmur_hash3.cu"
_THREADS = 256  # kThreads of murmur_hash3.cu
_NUMBERS = tuple(np.dtype(t) for t in (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64))
_BITS = {4: "u32", 8: "u64"}
_WORD = np.dtype("<u4")
instantiate(_SOURCE, [f"murmur_hash3<{bits}>" for bits in _BITS.values()])


@operator("MurmurHash3", DOMAIN)
@dataclass(frozen=True, slots=True)
class MurmurHash3(Operator):
    """The hash of each element's bytes, of a string's in UTF-8: uint32 where ``positive``, else the same bits as int32.

    Of ``seed`` the low 32 bits count.
    """

    positive: int = 1
    seed: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "int32[2] | int64[2] | float32[2] | float64[2] | string[2] | uint32[2] | uint64[2]"
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Keep the shape."""
        x = check_dtype(self.name, x, (*_NUMBERS, STRING))
        return (TensorSpec(x.shape, np.dtype(np.uint32 if self.positive else np.int32)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Hash words of all elements at a time; strings one by one."""
        if x.dtype == STRING:
            hashes = np.array([_hash_bytes(text.encode(), self._seed) for text in x.reshape(-1).tolist()], _WORD)
        else:
            words = np.ascontiguousarray(x).reshape(-1).view(_WORD).reshape(x.size, x.dtype.itemsize // 4)
            hashes = _finish(_mix(np.full(x.size, self._seed, _WORD), words), x.dtype.itemsize)
        return (hashes.reshape(x.shape).view(np.uint32 if self.positive else np.int32),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        count = y.spec.size
        emit.launch(
            Kernel(_SOURCE, f"murmur_hash3<{_BITS[x.dtype.itemsize]}>"),
            (max(1, ceil_div(count, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(x), y, int64(count), np.uint32(self._seed)],
            writes=[1],
        )

    @property
    def _seed(self) -> int:
        return self.seed % 2**32


def _hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of a string's bytes."""
    whole = len(data) // 4
    hashes = _mix(np.full(1, seed, _WORD), np.frombuffer(data, _WORD, whole).reshape(1, whole))
    if len(data) % 4:
        hashes ^= _scramble(np.frombuffer(data[4 * whole :].ljust(4, b"\0"), _WORD))
    return int(_finish(hashes, len(data))[0])


def _mix(hashes: Array, words: Array) -> Array:
    """Return hashes with the words of each, [hashes, words], taken in from the first to the last."""
    for word in words.T:
        hashes = _rotate(hashes ^ _scramble(word), 13) * _WORD.type(5) + _WORD.type(0xE6546B64)
    return hashes


def _scramble(words: Array) -> Array:
    return _rotate(words * _WORD.type(0xCC9E2D51), 15) * _WORD.type(0x1B873593)


def _finish(hashes: Array, nbytes: int) -> Array:
    """Return hashes of ``nbytes`` bytes with every bit mixed into every other."""
    hashes = hashes ^ _WORD.type(nbytes % 2**32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> _WORD.type(shift)) * _WORD.type(factor)
    return hashes ^ hashes >> _WORD.type(16)


def _rotate(words: Array, bits: int) -> Array:
    return words << _WORD.type(bits) | words >> _WORD.type(32 - bits)

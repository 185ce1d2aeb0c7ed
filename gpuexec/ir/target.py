"""Compilation targets: a kind of device and its limits, usable without the device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gpuexec.errors import InputError

_KIB = 1024
# Dynamic shared memory a block may ask for, in KiB (CUDA C++ programming guide, technical specifications per compute
# capability).
_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
# Multiprocessors of the smallest device of each architecture, MIG's slices among them, for planning without a device.
# T400, a slice of an A100, RTX A400, Jetson Orin Nano, RTX 500, slices of an H100, a B200 and a B300, Jetson T4000, RTX
# PRO 500, GB10.
_MULTIPROCESSORS = {75: 6, 80: 14, 86: 6, 87: 4, 89: 16, 90: 16, 100: 16, 103: 16, 110: 12, 120: 14, 121: 48}
OLDEST_ARCHITECTURE = 75
_PREFIXES = {"cuda": "sm_", "pixel": "pixel_"}
# The address space of a process on x86-64: the memory limit of devices that report none.
ADDRESSABLE_BYTES = 1 << 47


@dataclass(frozen=True, slots=True)
class Target:
    """The device kind, architecture and limits that planning may depend on.

    ``kind`` is ``"cuda"``, ``"pixel"`` (a GPU whose memory is textures) or ``"cpu"``. The simulator runs plans of both
    kinds of GPU, the tracer those of kind ``cuda``.

    ``multiprocessors`` decides how many blocks a cooperative launch may have, and nothing else: never which kernel runs
    or in which order it adds, so a graph computes the same bits on every device of its kind. As the plans differ, so do
    the targets: a plan kept in a file is lowered again for the device it is opened on.
    """

    kind: str
    architecture: int = 0
    suffix: str = ""
    max_threads_per_block: int = 1024
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_bytes_per_block: int = 0
    warp_size: int = 32
    multiprocessors: int = 0
    # The largest size of a tensor, or of all tensors of a plan. It is no part of equality: it decides whether there is
    # a plan, and not which.
    memory_bytes: int = field(default=ADDRESSABLE_BYTES, compare=False)

    @property
    def name(self) -> str:
        """``"sm_90a"``, ``"pixel_90"`` or ``"cpu"``."""
        return f"{_PREFIXES[self.kind]}{self.architecture}{self.suffix}" if self.has_kernels else self.kind

    @property
    def compiled_for(self) -> str:
        """Architecture that kernels are compiled for: ``"sm_90a"``."""
        return f"{_PREFIXES['cuda']}{self.architecture}{self.suffix}"

    @property
    def has_kernels(self) -> bool:
        """True if plans hold launches; a ``cpu`` plan holds host calls only."""
        return self.kind != "cpu"

    @property
    def has_textures(self) -> bool:
        """True if memory is textures, so that every launch is a blit (`gpuexec.ops.lib.pixel`)."""
        return self.kind == "pixel"

    def with_memory(self, memory_bytes: int) -> Target:
        """Return the target with a limit of memory."""
        return replace(self, memory_bytes=memory_bytes)

    @staticmethod
    def named(name: str, multiprocessors: int | None = None) -> Target:
        """Return the target called ``"cpu"``, ``"sm_90"`` or ``"pixel_90"``.

        Args:
            name: The kind of device and its architecture.
            multiprocessors: Of the device; None: those of the smallest of the architecture.

        Raises:
            InputError: The name is unknown, the architecture is older than sm_75, or there are no multiprocessors.
        """
        if name == "cpu":
            return Target("cpu")
        match = re.fullmatch(r"(sm_|pixel_)([0-9]{1,4})([a-z]?)", name)
        if match is None:
            raise InputError(f"Target {name[:40]!r} is unknown; expected 'cpu' or a name like 'sm_90' or 'pixel_90'.")
        architecture = int(match[2])
        if architecture < OLDEST_ARCHITECTURE:
            raise InputError(
                f"Target {name!r} is older than sm_{OLDEST_ARCHITECTURE}, the oldest architecture supported."
            )
        known = max((a for a in _SHARED_KIB if a <= architecture), default=OLDEST_ARCHITECTURE)
        kind = next(kind for kind, prefix in _PREFIXES.items() if prefix == match[1])
        if multiprocessors is None:
            multiprocessors = _MULTIPROCESSORS[known]
        if multiprocessors < 1:
            raise InputError(f"Target {name!r} expects at least one multiprocessor, got {multiprocessors}.")
        return Target(
            kind,
            architecture,
            match[3],
            shared_bytes_per_block=_SHARED_KIB[known] * _KIB,
            multiprocessors=multiprocessors,
        )

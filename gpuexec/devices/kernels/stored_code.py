"""Compiled kernels stored in a program file, so that it starts without a compiler.

A kernel is found by the key of the kernel cache: the hash of its flattened source, its expression, architecture,
options and compiler. So code of an older version of a kernel is never taken for today's. Machine code of an
architecture also serves later ones of its generation, PTX all later ones: the driver translates it when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuexec.devices.kernels.kernel_cache import make_key
from gpuexec.ir.command import Kernel

_NAME = re.compile(r"(sm|compute)_([0-9]{2,4})([a-z]?)")
# Systems on a chip, whose machine code serves no other architecture, nor the reverse.
_ON_CHIP = frozenset({72, 87, 101, 110})


@dataclass(frozen=True, slots=True, eq=False)
class StoredKernel:
    """A compiled kernel: its cache key, architecture, compiler, symbol and code.

    ``architecture`` is ``"sm_80"`` for machine code, ``"compute_80"`` for PTX. ``registers``, ``shared_bytes`` and
    ``max_threads`` are what the compiler said (0 for PTX, which has not been given registers yet).
    """

    key: str
    kernel: Kernel
    architecture: str
    compiler: str
    lowered_name: str
    image: memoryview
    registers: int = 0
    shared_bytes: int = 0
    max_threads: int = 0

    @property
    def is_ptx(self) -> bool:
        """True if the code is PTX, which the driver has yet to translate."""
        return self.architecture.startswith("compute_")


@dataclass(frozen=True, slots=True, eq=False)
class StoredCode:
    """All kernels that a program carries, for any number of architectures."""

    kernels: tuple[StoredKernel, ...] = ()
    _by_key: dict[str, StoredKernel] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {each.key: each for each in self.kernels})

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures with code, each once, sorted: ``("compute_90", "sm_80", "sm_90")``."""
        return tuple(sorted({each.architecture for each in self.kernels}))

    @property
    def nbytes(self) -> int:
        """Bytes of all kernels."""
        return sum(each.image.nbytes for each in self.kernels)

    def find(self, kernel: Kernel, text: str, architecture: str, options: Sequence[str]) -> StoredKernel | None:
        """Find code for a kernel that runs on an architecture, machine code first; None where there is none.

        Args:
            kernel: Which.
            text: Its source, flattened; code of any other source is none of it.
            architecture: The device's: ``"sm_90"``.
            options: The compiler options it must have been compiled with.
        """
        fitting = [each for each in self.kernels if runs_on(each.architecture, architecture)]
        made_by = {(each.architecture, each.compiler) for each in fitting}
        for made_for, compiler in sorted(made_by, key=lambda row: _preference(row[0], architecture)):
            found = self._by_key.get(make_key(text, (kernel.expression,), made_for, options, compiler))
            if found is not None:
                return found
        return None


def runs_on(made_for: str, architecture: str) -> bool:
    """Return whether code made for ``sm_80`` or ``compute_80`` runs on a device of an architecture like ``sm_86``.

    Machine code serves its generation from its own number on, PTX all later ones; what has a letter (``sm_90a``)
    serves that architecture alone (CUDA C++ programming guide, binary and PTX compatibility).
    """
    code, device = _NAME.fullmatch(made_for), _NAME.fullmatch(architecture)
    if code is None or device is None:
        return False
    wanted, have = int(code[2]), int(device[2])
    if code[3]:
        return wanted == have and code[3] == device[3]
    if code[1] == "compute":
        return wanted <= have
    is_alone = not _ON_CHIP.isdisjoint((wanted, have))
    return wanted == have if is_alone else wanted <= have and wanted // 10 == have // 10


def _preference(made_for: str, architecture: str) -> tuple[bool, bool, int]:
    """Return the sort key of code: the device's own architecture, other machine code, then the newest."""
    match = _NAME.fullmatch(made_for)
    assert match is not None
    return made_for != architecture, match[1] == "compute", -int(match[2])

"""Kernel arguments as one block of bytes: values at natural alignment, and beside them the address of each value.

``address`` is what the driver calls ``void** kernelParams``. Patching a pointer is one store; nothing is built per launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_ADDRESS = np.dtype(np.uint64)


class PackedArguments:
    """The arguments of one launch.

    Args:
        values: NumPy scalars, ``bytes`` for structs (aligned to 16), and None for pointers, which are set later.
    """

    __slots__ = ("_block", "_offsets", "_places", "_pointers", "_values", "address")

    def __init__(self, values: Sequence[np.generic | bytes | None]) -> None:
        offsets, end = [], 0
        for value in values:
            alignment, size = (16, len(value)) if isinstance(value, bytes) else (8, 8) if value is None else (value.itemsize,) * 2
            end = -(-end // alignment) * alignment
            offsets.append(end)
            end += size
        self._values = tuple(values)
        self._offsets = tuple(offsets)
        # Room for one alignment step: NumPy's own allocations are aligned to 16 bytes, which is all a parameter needs.
        self._block = np.zeros(-(-max(end, 1) // 8), np.uint64)
        self._places = np.array([self._block.ctypes.data + offset for offset in offsets] or [0], np.uint64)
        self._pointers = {i: offset // 8 for i, (offset, value) in enumerate(zip(offsets, values, strict=True)) if value is None}
        self.address: int = self._places.ctypes.data
        block = self._block.view(np.uint8)
        for offset, value in zip(offsets, values, strict=True):
            if value is not None:
                data = value if isinstance(value, bytes) else value.tobytes()
                block[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        return len(self._values)

    def set_pointer(self, position: int, address: int) -> None:
        """Set the pointer argument at ``position``."""
        self._block[self._pointers[position]] = address

    def pointer(self, position: int) -> int:
        """Return the pointer argument at ``position``."""
        return int(self._block[self._pointers[position]])

    def kinds(self) -> tuple[str, ...]:
        """Return kind and size of each argument, as `Function.signature` spells them."""
        return tuple(_kind(value) for value in self._values)

    def items(self) -> tuple[Any, ...]:
        """Return the arguments as NumPy scalars: addresses as uint64, structs as void. For launches that take objects."""
        return tuple(
            _ADDRESS.type(self.pointer(i)) if value is None else np.frombuffer(value, f"V{len(value)}")[0] if isinstance(value, bytes) else value
            for i, value in enumerate(self._values)
        )

    def read(self) -> list[bytes]:
        """Return the present bytes of each argument."""
        block = self._block.tobytes()
        sizes = (8 if v is None else len(v) if isinstance(v, bytes) else v.itemsize for v in self._values)
        return [block[offset : offset + size] for offset, size in zip(self._offsets, sizes, strict=True)]


def _kind(value: np.generic | bytes | None) -> str:
    if value is None:
        return "P8"
    if isinstance(value, bytes):
        return f"s{len(value)}"
    letter = {"f": "f", "i": "i", "u": "u", "b": "b", "V": "f"}[value.dtype.kind]
    return f"{letter}{value.itemsize}"

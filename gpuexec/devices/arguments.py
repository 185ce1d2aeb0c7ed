"""Kernel argument blocks: values at natural alignment in one block of bytes, and the address of each value.

``address`` is what the driver calls ``void** kernelParams``. Patching a pointer is one store; nothing is built per
launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.ir.command import Launch

_ADDRESS = np.dtype(np.uint64)


class PackedArguments:
    """The arguments of one launch.

    Args:
        values: NumPy scalars, ``bytes`` for structs (aligned to 16), and None for pointers, which are set later.
        command: The plan's Launch, if there is one: it says which bytes are read and written.
        origin: The node it stems from.
    """

    __slots__ = (
        *("_block", "_bytes", "_offsets", "_places", "_pointers", "_values", "_words"),
        *("address", "command", "origin"),
    )

    def __init__(
        self, values: Sequence[np.generic | bytes | None], command: Launch | None = None, origin: str = ""
    ) -> None:
        self.command, self.origin = command, origin
        offsets, end = [], 0
        for value in values:
            alignment, size = _measure(value)
            end = -(-end // alignment) * alignment
            offsets.append(end)
            end += size
        self._values = tuple(values)
        self._offsets = tuple(offsets)
        # NumPy aligns to 16 bytes, the largest alignment of a parameter.
        self._block = np.zeros(-(-max(end, 1) // 8), np.uint64)
        # Storing by a memoryview takes half the time that storing in the array does.
        self._words = self._block.data
        self._bytes = self._words.cast("B")
        self._pointers = {i: offsets[i] // 8 for i, value in enumerate(values) if value is None}
        self._find_places()
        for offset, value in zip(offsets, values, strict=True):
            self._store(offset, value)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self._block.nbytes

    def update(self, values: Sequence[np.generic | bytes | None], *, is_whole: bool = False) -> None:
        """Replace the values by others of the same kinds and sizes; pointers stay.

        Args:
            values: The new ones.
            is_whole: Whether all are stored, not only other objects than those before.
        """
        for offset, new, old in zip(self._offsets, values, self._values, strict=True):
            if is_whole or new is not old:
                self._store(offset, new)
        self._values = tuple(values)

    def move(self, block: np.ndarray[Any, Any]) -> None:
        """Move the block to other memory, at a multiple of 16 bytes; what `find_pointer` returned is void then."""
        block[: self._block.size] = self._block
        self._block, self._words = block, block.data
        self._bytes = self._words.cast("B")
        self._find_places()

    def find_value(self, position: int) -> int:
        """Return the address of the argument at ``position``."""
        return int(self._places[position])

    def _find_places(self) -> None:
        start = self._block.ctypes.data
        self._places = np.array([start + offset for offset in self._offsets] or [0], np.uint64)
        self.address: int = self._places.ctypes.data

    def _store(self, offset: int, value: np.generic | bytes | None) -> None:
        if value is not None:
            data = value if isinstance(value, bytes) else value.tobytes()
            self._bytes[offset : offset + len(data)] = data

    def __len__(self) -> int:
        return len(self._values)

    def set_pointer(self, position: int, address: int) -> None:
        """Set the pointer argument at ``position``."""
        self._words[self._pointers[position]] = address

    def find_pointer(self, position: int) -> tuple[memoryview, int]:
        """Return the words of the block, and the index of the one that holds the pointer argument at ``position``."""
        return self._words, self._pointers[position]

    def pointer(self, position: int) -> int:
        """Return the pointer argument at ``position``."""
        return int(self._block[self._pointers[position]])

    def kinds(self) -> tuple[str, ...]:
        """Return kind and size of each argument, as `Function.signature` spells them."""
        return tuple(_kind(value) for value in self._values)

    def items(self) -> tuple[Any, ...]:
        """Return the arguments as NumPy scalars: addresses as uint64, structs as void."""
        rows = zip(self._values, self.read(), strict=True)
        return tuple(_as_scalar(data, _find_dtype(value, data)) for value, data in rows)

    def read(self) -> list[bytes]:
        """Return the present bytes of each argument."""
        block = self._block.tobytes()
        rows = zip(self._offsets, self._values, strict=True)
        return [block[offset : offset + _measure(value)[1]] for offset, value in rows]

    def find_offset(self, position: int) -> int:
        """Return the bytes into the block at which the argument at ``position`` begins."""
        return self._offsets[position]

    def view(self) -> memoryview:
        """Return the bytes of the block, which are those of another one once it is moved."""
        return self._bytes

    def read_number(self, at: int, width: int) -> int:
        """Return the unsigned integer of ``width`` bytes that stands ``at`` bytes into the block."""
        return int.from_bytes(self._bytes[at : at + width], "little")


class NodeArguments:
    """The arguments of a launch in a graph, with an address in place of its last one, which is a null pointer.

    All others are those of the block, whatever it holds.

    Args:
        arguments: The block, which is not moved any more.
        given: The address.
        given_nbytes: Bytes there that the launch may read.

    Attributes:
        address: As `PackedArguments.address`.
        given: As given.
        given_nbytes: As given.
    """

    __slots__ = ("_arguments", "_cell", "_places", "address", "given", "given_nbytes")

    def __init__(self, arguments: PackedArguments, given: int, given_nbytes: int) -> None:
        self._arguments, self.given, self.given_nbytes = arguments, given, given_nbytes
        self._cell = np.array([given], np.uint64)
        places = [arguments.find_value(position) for position in range(len(arguments) - 1)]
        self._places = np.array([*places, self._cell.ctypes.data], np.uint64)
        self.address: int = self._places.ctypes.data

    @property
    def command(self) -> Launch | None:
        """The plan's Launch."""
        return self._arguments.command

    @property
    def origin(self) -> str:
        """The node it stems from."""
        return self._arguments.origin

    def kinds(self) -> tuple[str, ...]:
        """Return kind and size of each argument."""
        return self._arguments.kinds()

    def pointer(self, position: int) -> int:
        """Return the pointer argument at ``position``."""
        is_last = position == len(self._arguments) - 1
        return self.given if is_last else self._arguments.pointer(position)

    def read(self) -> list[bytes]:
        """Return the present bytes of each argument."""
        return [*self._arguments.read()[:-1], self._cell.tobytes()]


def _measure(value: np.generic | bytes | None) -> tuple[int, int]:
    """Return alignment and size in bytes."""
    if value is None:
        return 8, 8
    return (16, len(value)) if isinstance(value, bytes) else (value.itemsize, value.itemsize)


def _find_dtype(value: np.generic | bytes | None, data: bytes) -> np.dtype[Any]:
    return np.dtype(f"V{len(data)}") if isinstance(value, bytes) else _ADDRESS if value is None else value.dtype


def _as_scalar(data: bytes, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(data, dtype)[0]


def _kind(value: np.generic | bytes | None) -> str:
    if value is None:
        return "P8"
    if isinstance(value, bytes):
        return f"s{len(value)}"
    letter = {"f": "f", "i": "i", "u": "u", "b": "b", "V": "f"}[value.dtype.kind]
    return f"{letter}{value.itemsize}"

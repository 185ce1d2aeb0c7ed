"""Resources of kernels as a cubin states them: an ELF file whose section ``.nv.info`` has a record for each function.

The compiler's log has the same figures, but on a machine with NVRTC 13 of 16 cores logs were seen that lacked entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpuexec.errors import KernelError

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<40xQ10xHHH")  # where section headers begin, bytes of one, how many, that of their names
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PAIR = struct.Struct("<II")
# Of a record of .nv.info: one byte for its form, one for what it says; two of its length, or of the value itself.
_RECORD = struct.Struct("<BBH")
_HAS_LENGTH = 4
_REGISTERS, _FRAME = 0x2F, 0x11
# From sm_90 on the first KiB of shared memory is the system's: cubins count it as the kernel's.
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a function: registers and bytes of stack of a thread, bytes of static shared memory of a block."""

    registers: int
    frame_bytes: int
    shared_bytes: int


def read_usage(image: bytes) -> dict[str, Usage]:
    """Return the resources of the kernels of a cubin by symbol.

    Raises:
        KernelError: It is no ELF file, or ends early.
    """
    try:
        return _read(image)
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise KernelError(f"A cubin of {len(image)} bytes can't be read: {error!r}.") from error


def _read(image: bytes) -> dict[str, Usage]:
    if not image.startswith(_MAGIC):
        raise ValueError(f"it begins with {image[:4]!r}, not with {_MAGIC!r}")
    first, size, count, names_at = _HEADER.unpack_from(image)
    headers = [_SECTION.unpack_from(image, first + i * size) for i in range(count)]
    sections = {_read_name(image, headers[names_at][4], header[0]): header for header in headers}
    symbols, info = sections[".symtab"], sections[".nv.info"]
    strings = headers[symbols[6]][4]
    records: dict[str, dict[int, int]] = {}
    for what, symbol, value in _list_records(image[info[4] : info[4] + info[5]]):
        (name,) = _SYMBOL.unpack_from(image, symbols[4] + symbol * _SYMBOL.size)[:1]
        records.setdefault(_read_name(image, strings, name), {})[what] = value
    reserved = _RESERVED_BYTES if _RESERVED in sections else 0
    usage = {}
    for function, said in records.items():
        if _REGISTERS in said:
            own = sections.get(f".nv.shared.{function}")
            shared = max(own[5] - reserved, 0) if own else 0
            usage[function] = Usage(said[_REGISTERS], said.get(_FRAME, 0), shared)
    return usage


def _list_records(info: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield what a record says, the number of its symbol and the value, for those of registers and of stack."""
    at = 0
    while at < len(info):
        form, what, length = _RECORD.unpack_from(info, at)
        at += _RECORD.size
        if form != _HAS_LENGTH:
            continue
        if what in (_REGISTERS, _FRAME):
            yield what, *_PAIR.unpack_from(info, at)
        at += length


def _read_name(image: bytes, strings: int, offset: int) -> str:
    start = strings + offset
    return image[start : image.index(0, start)].decode()

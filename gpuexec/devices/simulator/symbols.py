"""Undefined symbols of a shared object, read before it is loaded.

A loader that finds a symbol missing undoes half a load, which has crashed processes of many threads. So objects are
checked first, and only one that will load is given to the loader.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER_OFFSETS, _HEADER_SIZES = 0x28, 0x3A  # offset of the section headers; size of one, and their number
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11
_STRONG = 1


def find_missing(path: Path) -> list[str]:
    """Return the symbols that a shared object needs and this process lacks, in the order of its table.

    Symbols of the object's libraries are loaded with the runtime library, which is linked with the same ones.
    """
    process = ctypes.CDLL(None)
    return [name for name in list_undefined(path.read_bytes()) if not hasattr(process, name)]


def list_undefined(content: bytes) -> list[str]:
    """Return the undefined symbols of an object; empty unless it is a 64-bit little-endian ELF file.

    Weak ones are left out: they may be missing.
    """
    if not content.startswith(_MAGIC):
        return []
    (start,) = struct.unpack_from("<Q", content, _HEADER_OFFSETS)
    size, count = struct.unpack_from("<HH", content, _HEADER_SIZES)
    sections = [_SECTION.unpack_from(content, start + size * index) for index in range(count)]
    names = []
    for _, kind, _, _, first, nbytes, link, *_ in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        strings = sections[link][4]
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(content[first : first + nbytes]):
            if section == 0 and info >> 4 == _STRONG:
                begin = strings + name
                names.append(content[begin : content.index(b"\0", begin)].decode())
    return names

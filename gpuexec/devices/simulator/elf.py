"""Symbols of ELF files: those that a shared object lacks, and those that an object file defines, given other names.

Read are files of 64 bits, little-endian: those of x86-64 and AArch64.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_MAGIC = b"\x7fELF\x02\x01"
_OFFSETS, _SIZES = 0x28, 0x3A  # offset of the section headers; size of one, and their number
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PLACE = struct.Struct("<QQ")
_PLACE_OFFSET = 24
_SYMBOL = struct.Struct("<IBBHQQ")
_NAME = struct.Struct("<I")
_SYMBOLS, _DYNAMIC_SYMBOLS = 2, 11
_GLOBAL = 1
_UNDEFINED = 0


class _Section(NamedTuple):
    """A section: where its header stands, its type, its place and size in bytes, and the section that belongs to it."""

    header: int
    kind: int
    offset: int
    nbytes: int
    link: int


def list_undefined(content: bytes) -> list[str]:
    """Return the undefined symbols of a shared object; empty unless it is a 64-bit little-endian ELF file.

    Weak ones are left out: they may be missing.
    """
    sections = _read_sections(content)
    names = []
    for table in sections:
        if table.kind != _DYNAMIC_SYMBOLS:
            continue
        strings = sections[table.link].offset
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(content[table.offset : table.offset + table.nbytes]):
            if section == _UNDEFINED and info >> 4 == _GLOBAL:
                names.append(_read_name(content, strings + name).decode())
    return names


def rename_defined(content: bytes, suffix: str) -> bytes:
    """Return an object file in which each name that it defines ends with a suffix.

    A linker takes equal names for one thing: of weak definitions (instances of templates, inline functions) it keeps
    the first, as of groups of sections, whose names are symbols that may be local. With a suffix of its own an object
    shares none of them. Names of sections and of what the object takes from others stay.

    Args:
        content: The file, as a compiler writes it.
        suffix: What no other object's names end with.

    Raises:
        ValueError: It is no 64-bit little-endian ELF file with a table of symbols.
    """
    sections = _read_sections(content)
    table = next((section for section in sections if section.kind == _SYMBOLS), None)
    if table is None:
        raise ValueError("expected an object file in 64-bit little-endian ELF with a table of symbols")
    strings = sections[table.link]
    renamed = bytearray(content)
    # The old strings stay in front: names of sections may be among them.
    names = bytearray(content[strings.offset : strings.offset + strings.nbytes])
    for at in range(table.offset, table.offset + table.nbytes, _SYMBOL.size):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(content, at)
        if name and section != _UNDEFINED:
            _NAME.pack_into(renamed, at, len(names))
            names += _read_name(content, strings.offset + name) + suffix.encode() + b"\0"
    _PLACE.pack_into(renamed, strings.header + _PLACE_OFFSET, len(renamed), len(names))
    return bytes(renamed + names)


def _read_sections(content: bytes) -> list[_Section]:
    if not content.startswith(_MAGIC):
        return []
    (start,) = struct.unpack_from("<Q", content, _OFFSETS)
    size, count = struct.unpack_from("<HH", content, _SIZES)
    if not count:  # more than 16 bits hold: the first header has the number in place of a size
        count = _SECTION.unpack_from(content, start)[5]
    sections = []
    for header in range(start, start + size * count, size):
        _, kind, _, _, offset, nbytes, link, *_ = _SECTION.unpack_from(content, header)
        sections.append(_Section(header, kind, offset, nbytes, link))
    return sections


def _read_name(content: bytes, start: int) -> bytes:
    return content[start : content.index(b"\0", start)]

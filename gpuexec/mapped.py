"""Files mapped into memory, and which bytes of a file an array lies in.

An array over a map takes no memory of its own: the system brings pages when they are touched and may drop them again.
Whoever only passes the content on (to a device) reads it by ranges instead, and touches no page. So a weight has two
ways to its bytes, and nothing but its array need be passed along.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import AccessError

Array = np.ndarray[Any, Any]


class FileSource:
    """The file under a map. It stays open, so that a newer one in its place changes nothing.

    Args:
        file: A descriptor, which is the source's from now on.
        name: What messages call it.
    """

    def __init__(self, file: int, name: str) -> None:
        self.name = name
        self._file = file
        self._close = weakref.finalize(self, os.close, file)
        found = os.fstat(file)
        self.nbytes = found.st_size
        self._written_ns = found.st_mtime_ns

    def check_unchanged(self) -> None:
        """Check that nobody wrote to the file since it was opened.

        Raises:
            AccessError: Its size or its time of writing is another.
        """
        found = os.fstat(self._file)
        if found.st_size != self.nbytes:
            changed = f"expected {self.nbytes} bytes, got {found.st_size}"
        elif found.st_mtime_ns != self._written_ns:
            changed = "it was written to"
        else:
            return
        raise AccessError(
            f"{self.name} changed since the model was loaded: {changed}. Load the model again, and put a new file"
            " in the place of an old one instead of writing into it."
        )

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Read bytes of the file into a buffer, past the map.

        Raises:
            AccessError: The file ends before, or can't be read.
        """
        done = 0
        while done < buffer.nbytes:
            try:
                count = os.preadv(self._file, [buffer[done:]], offset + done)
            except OSError as error:
                raise AccessError(f"{self.name} can't be read: {error.strerror or error}.") from error
            if not count:
                raise AccessError(
                    f"{self.name} ended early: {buffer.nbytes} bytes at offset {offset} asked for, got {done}."
                )
            done += count


class _Map(mmap.mmap):
    """A map that knows its file."""

    source: FileSource


@dataclass(frozen=True, slots=True)
class FileRange:
    """The bytes of a file that an array lies in, in the array's order."""

    source: FileSource
    offset: int
    nbytes: int


def map_file(file: int, name: str) -> memoryview:
    """Return the bytes of a file, mapped and read-only.

    Args:
        file: A descriptor of a regular file, which is the map's from now on, whatever happens.
        name: What messages call it.

    Raises:
        AccessError: It is no regular file.
        OSError: It can't be mapped.
    """
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise AccessError(f"{name} is no regular file.")
    source = FileSource(file, name)
    if not source.nbytes:
        return memoryview(b"")
    mapped = _Map(file, source.nbytes, access=mmap.ACCESS_READ)
    mapped.source = source
    return memoryview(mapped)


def find_range(array: Array) -> FileRange | None:
    """Return where in a mapped file an array lies; None where it does not, or not densely in its own order."""
    mapped = _find_map(array)
    if mapped is None or not array.flags.c_contiguous:
        return None
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    return FileRange(mapped.source, array.ctypes.data - start, array.nbytes)


def find_source(array: Array) -> FileSource | None:
    """Return the mapped file an array is a view of, dense or not; None where it has memory of its own."""
    mapped = _find_map(array)
    return None if mapped is None else mapped.source


def count_copied(made: Iterable[Array], of: Iterable[Array]) -> int:
    """Return the bytes of new arrays that are on the host only because what they were made of was brought from a file.

    Views of a file take none; neither counts what was made of arrays that are on the host anyway.
    """
    if all(find_source(array) is None for array in of):
        return 0
    return sum(array.nbytes for array in made if find_source(array) is None)


def drop_pages(view: memoryview) -> None:
    """Let the system take back the pages of a map that were touched; they come again when they are needed."""
    mapped = view.obj
    if isinstance(mapped, _Map) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def drop_pages_of(arrays: Iterable[Array]) -> None:
    """Do the same for the maps that arrays are views of."""
    maps = {id(mapped): mapped for mapped in map(_find_map, arrays) if mapped is not None}
    for mapped in maps.values():
        drop_pages(memoryview(mapped))


def _find_map(array: Array) -> _Map | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, _Map) else None

"""Memory-mapped files, and the byte ranges of arrays within them.

An array over a map identifies its content in the file, and takes no memory. It is never read through the map: a process
that touches a page of a truncated file is killed by SIGBUS. Content is read by file ranges instead, by `read_content`,
`read_pieces` and `FileSource.read_into`, which raise an AccessError for a file that changed or was truncated. So a
weight is represented by its array alone, and views of it (a slice, a transposition) stay views of the file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import AccessError, NotFoundError
from gpuexec.system.system_files import read_at

Array = np.ndarray[Any, Any]
# Content from here on stays in its file; smaller content is read when its model is.
MAPPED_NBYTES = 1 << 12
# Piece size of reads from a file, which bounds the host memory they take.
_PIECE_NBYTES = 1 << 24
# Alignment of content read from a file, enough for every element type.
_ALIGNMENT = 64
# Content read by `hold`, by its array.
_held: dict[int, Array] = {}


class FileSource:
    """The file under a map. It stays open, so that replacing the file by a newer one changes nothing.

    Args:
        file: A descriptor, which is the source's from now on.
        name: What messages call it.
        path: Where it was opened; None: that is not known.
    """

    def __init__(self, file: int, name: str, path: str | os.PathLike[str] | None = None) -> None:
        self.name = name
        self._path = None if path is None else os.path.abspath(path)
        self._file = file
        self._close = weakref.finalize(self, os.close, file)
        found = os.fstat(file)
        self.nbytes = found.st_size
        self._written_ns = found.st_mtime_ns

    def check_unchanged(self) -> None:
        """Check that the file has not been written to since it was opened.

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

    def locate(self) -> tuple[str, int, int]:
        """Return path, size and modification time, by which another process finds the same file; see `map_again`.

        Raises:
            AccessError: It was written to, or another file is in its place, or none.
        """
        self.check_unchanged()
        try:
            is_there = self._path is not None and os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except OSError:
            is_there = False
        if self._path is None or not is_there:
            raise AccessError(
                f"{self.name} is no longer where the model was loaded from, and its weights go to other processes by"
                " its path. Save the model again by Model.save, and send what load gives of that."
            )
        return self._path, self.nbytes, self._written_ns

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Read bytes of the file into a buffer, past the map.

        Raises:
            AccessError: The file ends before, or can't be read.
        """
        done = 0
        while done < buffer.nbytes:
            try:
                count = read_at(self._file, buffer[done:], offset + done)
            except OSError as error:
                raise AccessError(f"{self.name} can't be read: {error.strerror or error}.") from error
            if not count:
                raise AccessError(
                    f"{self.name} ended early: {buffer.nbytes} bytes at offset {offset} asked for, got {done}."
                )
            done += count

    def read_unchanged(self, offset: int, buffer: memoryview) -> None:
        """Read bytes of a file, checking before and after that it is as it was opened.

        Raises:
            AccessError: It was written to, cut, or can't be read.
        """
        self.check_unchanged()
        self.read_into(offset, buffer)
        self.check_unchanged()


class _Map(mmap.mmap):
    """A memory map that keeps its FileSource."""

    source: FileSource

    def __reduce__(self) -> tuple[object, ...]:
        return map_again, (self.source.name, *self.source.locate())


@dataclass(frozen=True, slots=True)
class FileRange:
    """The bytes of a file that an array lies in, in the array's order."""

    source: FileSource
    offset: int
    nbytes: int


def map_file(file: int, name: str, path: str | os.PathLike[str] | None = None) -> memoryview:
    """Return the bytes of a file, mapped and read-only.

    Args:
        file: A descriptor of a regular file, owned by the map from now on, also after an error.
        name: What messages call it.
        path: Where it was opened, so that other processes find it; None: they can't.

    Raises:
        AccessError: It is no regular file.
        OSError: It can't be mapped.
    """
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise AccessError(f"{name} is no regular file.")
    source = FileSource(file, name, path)
    if not source.nbytes:
        return memoryview(b"")
    mapped = _Map(file, source.nbytes, access=mmap.ACCESS_READ)
    mapped.source = source
    return memoryview(mapped)


def map_again(name: str, path: str, nbytes: int, written_ns: int) -> mmap.mmap:
    """Map a file that `FileSource.locate` described, in this process or another.

    Raises:
        NotFoundError: There is no such file.
        AccessError: It was written to since, or can't be mapped.
    """
    try:
        view = map_file(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), name, path)
    except FileNotFoundError as error:
        cure = "Weights in files are not part of a pickle: send them along, or save the model in one file."
        raise NotFoundError(f"There is no file {path}, which weights of the model are in. {cure}") from error
    except OSError as error:
        raise AccessError(f"{path} can't be mapped: {error.strerror or error}.") from error
    mapped = view.obj
    if not isinstance(mapped, _Map) or (mapped.source.nbytes, mapped.source._written_ns) != (nbytes, written_ns):
        raise AccessError(f"{path} changed since a model with weights in it was pickled. Pickle the model again.")
    return mapped


def find_view(array: Array) -> tuple[object, ...] | None:
    """Return the arguments with which `view_map` makes an equal array; None for no view of a mapped file."""
    mapped = _find_map(array)
    if mapped is None:
        return None
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    return mapped, array.dtype, array.shape, array.ctypes.data - start, array.strides


def view_map(mapped: mmap.mmap, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Array:
    """Return an array over a mapped file."""
    return np.ndarray(shape, dtype, memoryview(mapped), offset, strides)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a file for reading and return its descriptor, without blocking on one that is not regular (a pipe).

    Raises:
        NotFoundError: There is no such file.
        AccessError: It can't be opened, or is no regular file.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {os.fsdecode(path)}.") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise AccessError(f"{os.fsdecode(path)} can't be read: {reason}.") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise AccessError(f"{os.fsdecode(path)} can't be read: it is no regular file.")
    return file


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file.

    Raises:
        NotFoundError: There is no such file.
        AccessError: It can't be read, is no regular file, or ends before it should.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise AccessError(f"{os.fsdecode(path)} can't be read: {error.strerror or error}.") from error


def find_range(array: Array) -> FileRange | None:
    """Return the byte range of an array in a mapped file; None where it is in none, or not dense in its own order."""
    mapped = _find_map(array)
    if mapped is None or not array.flags.c_contiguous:
        return None
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    return FileRange(mapped.source, array.ctypes.data - start, array.nbytes)


def find_source(array: Array) -> FileSource | None:
    """Return the mapped file an array is a view of, dense or not; None where it has memory of its own."""
    mapped = _find_map(array)
    return None if mapped is None else mapped.source


def read_content(array: Array) -> Array:
    """Read the content of an array to the host: the array itself, or for a view of a file a read-only copy.

    The copy has the strides of the view, and is of the whole range of the file that these span.

    Raises:
        AccessError: The file was written to, cut, or can't be read.
    """
    mapped = _find_map(array)
    if mapped is None or not array.size:
        return array
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    room = np.empty(high - low + _ALIGNMENT, np.uint8)
    skip = -(room.ctypes.data + array.ctypes.data - low) % _ALIGNMENT
    content = room[skip : skip + high - low]
    mapped.source.read_unchanged(low - start, content.data)
    copied: Array = np.ndarray(array.shape, array.dtype, content, array.ctypes.data - low, array.strides)
    copied.flags.writeable = False
    return copied


def read_small_content(array: Array) -> Array:
    """Read the content of a small array to the host, as `read_content` does; large content stays in its file."""
    return read_content(array) if array.nbytes < MAPPED_NBYTES else array


def view_bytes(array: Array) -> memoryview:
    """Return the dense content of an array as bytes: a view where it is dense, in memory or in a file, else a copy."""
    dense = array if array.flags.c_contiguous else np.ascontiguousarray(read_content(array))
    return dense.reshape(-1).view(np.uint8).data


def hash_content(view: memoryview) -> bytes:
    """Return the SHA-256 of bytes; those of a map are read from its file.

    Raises:
        AccessError: The file was written to, cut, or can't be read.
    """
    hashing = hashlib.sha256()
    for piece in read_pieces(view):
        hashing.update(piece)
    return hashing.digest()


def read_view(view: memoryview) -> memoryview:
    """Return bytes on the host: those given, or a copy read from the file of a map.

    Raises:
        AccessError: The file was written to, cut, or can't be read.
    """
    return read_content(np.frombuffer(view, np.uint8)).data if view.nbytes else view


def read_pieces(view: memoryview, nbytes: int = _PIECE_NBYTES) -> Iterator[memoryview]:
    """Yield bytes in order, in pieces of a bounded size; those of a map are read from its file.

    Raises:
        AccessError: The file was written to, cut, or can't be read.
    """
    for first in range(0, view.nbytes, nbytes):
        yield read_view(view[first : first + nbytes])


def hold(array: Array) -> Array:
    """Read the content of an array as `read_content` does, once for as long as the array lives.

    Raises:
        AccessError: The file was written to, cut, or can't be read.
    """
    if _find_map(array) is None:
        return array
    key = id(array)
    held = _held.get(key)
    if held is None:
        held = _held[key] = read_content(array)
        weakref.finalize(array, _held.pop, key, None).atexit = False
    return held


def count_copied(made: Iterable[Array], of: Iterable[Array]) -> int:
    """Count the bytes of new arrays that are in host memory only because their sources were read from a file.

    Views of a file take none; neither counts what was made of arrays that are on the host anyway.
    """
    if all(find_source(array) is None for array in of):
        return 0
    return sum(array.nbytes for array in made if find_source(array) is None)


def _find_map(array: Array) -> _Map | None:
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, _Map) else None

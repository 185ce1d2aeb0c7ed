"""Where the bytes of a program come from: files, mapped files, memory, file objects, or a loader of one's own.

A loader answers three questions, from any thread: ``size()``, ``load(offset, size)`` and ``load_into(offset, size,
buffer)``. What it gives is checked, so whoever implements one need not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpuexec.errors import AccessError, ClosedError, GpuexecError, InputError, NotFoundError


class DataLoader(ABC):
    """Gives the bytes of a program; threads may call it at once. Subclass it, or have these three methods.

    ``close`` is called by nobody but its owner: what a program took from a loader stays good.
    """

    @abstractmethod
    def load(self, offset: int, size: int) -> Any:
        """Return ``size`` bytes from ``offset`` on: bytes, or anything with the buffer protocol."""

    @abstractmethod
    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Write ``size`` bytes from ``offset`` on to the start of a writable buffer."""

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes there are."""

    def close(self) -> None:  # noqa: B027  (not every loader has something to close)
        """Let go of what lies behind it; loading raises afterwards."""

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FileDataLoader(DataLoader):
    """Reads a file, each part when it is asked for; nothing is held beside what was asked.

    Raises:
        NotFoundError: There is no such file.
        AccessError: It can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = str(Path(path))
        self._lock = threading.Lock()
        with _naming(self._where):
            file, self._size = _open_regular(path)
        self._file: int | None = file

    def load(self, offset: int, size: int) -> memoryview:
        """Return bytes of the file."""
        _check_range(self._where, offset, size, self._size)  # before there is room for them
        content = bytearray(size)
        self.load_into(offset, size, memoryview(content))
        return memoryview(content).toreadonly()

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Read bytes of the file into a buffer."""
        _check_range(self._where, offset, size, self._size)
        with self._lock, _naming(self._where):  # `close` must not take the file from under a read
            if self._file is None:
                raise ClosedError(f"The loader of {self._where} is closed.")
            done = 0
            while done < size:
                count = os.preadv(self._file, [buffer[done:size]], offset + done)
                if not count:
                    raise _short(self._where, offset, size, done)
                done += count

    def size(self) -> int:
        """Return the size the file had when it was opened."""
        return self._size

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


class MmapDataLoader(DataLoader):
    """Maps a file: weights are read by the system where they are used, and shared by all processes that map it.

    Raises:
        NotFoundError: There is no such file.
        AccessError: It can't be opened or mapped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = str(Path(path))
        with _naming(self._where):
            file, self._size = _open_regular(path)
            try:
                mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ) if self._size else b""
            finally:
                os.close(file)
        self._view: memoryview | None = memoryview(mapped)

    def load(self, offset: int, size: int) -> memoryview:
        """Return a view of the map."""
        _check_range(self._where, offset, size, self._size)
        view = self._view
        if view is None:
            raise ClosedError(f"The loader of {self._where} is closed.")
        return view[offset : offset + size]

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Copy bytes of the map."""
        buffer[:size] = self.load(offset, size)

    def size(self) -> int:
        """Return the size the file had when it was mapped."""
        return self._size

    def close(self) -> None:
        """Forget the map; it ends with the last view of it."""
        self._view = None


class BufferDataLoader(DataLoader):
    """Gives views of bytes in memory, which must stay as they are.

    Raises:
        InputError: ``content`` is no dense buffer.
    """

    def __init__(self, content: Any) -> None:
        try:
            self._view: memoryview | None = memoryview(content).cast("B").toreadonly()
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected bytes or another dense buffer, got {type(content).__name__}.") from error
        self._size = self._view.nbytes

    def load(self, offset: int, size: int) -> memoryview:
        """Return a view."""
        _check_range("The buffer", offset, size, self._size)
        view = self._view
        if view is None:
            raise ClosedError("The loader of a buffer is closed.")
        return view[offset : offset + size]

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Copy bytes."""
        buffer[:size] = self.load(offset, size)

    def size(self) -> int:
        """Return the size of the buffer."""
        return self._size

    def close(self) -> None:
        """Let go of the buffer."""
        self._view = None


class FileLikeDataLoader(DataLoader):
    """Reads an object with ``seek`` and ``read``, from where it stands now; the object stays the caller's to close.

    Raises:
        InputError: The object lacks ``seek`` or ``read``, or can't seek.
        AccessError: It fails.
    """

    def __init__(self, file: BinaryIO) -> None:
        if not (hasattr(file, "seek") and hasattr(file, "read") and hasattr(file, "tell")):
            raise InputError(f"Expected a binary file with seek, tell and read, got {type(file).__name__}.")
        self._file: BinaryIO | None = file
        self._where = str(getattr(file, "name", None) or type(file).__name__)
        self._lock = threading.Lock()
        with _naming(self._where):
            self._start = file.tell()
            self._size = file.seek(0, os.SEEK_END) - self._start

    def load(self, offset: int, size: int) -> bytes:
        """Return bytes of the file."""
        _check_range(self._where, offset, size, self._size)
        with self._lock, _naming(self._where):
            if self._file is None:
                raise ClosedError(f"The loader of {self._where} is closed.")
            self._file.seek(self._start + offset)
            parts: list[bytes] = []
            left = size
            while left:
                part = self._file.read(left)
                if not part:
                    raise _short(self._where, offset, size, size - left)
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Copy bytes of the file."""
        buffer[:size] = self.load(offset, size)

    def size(self) -> int:
        """Return how many bytes there were behind the position the file had."""
        return self._size

    def close(self) -> None:
        """Let go of the file; it stays open."""
        with self._lock:
            self._file = None


def open_loader(source: Any) -> tuple[Any, bool]:
    """Return a loader for a loader, path, bytes or binary file, and whether it was made here and is to be closed.

    Raises:
        InputError: The source is none of these.
        AccessError: It can't be opened.
    """
    if all(callable(getattr(source, name, None)) for name in ("load", "load_into", "size")):
        return source, False
    if isinstance(source, str | os.PathLike):
        return MmapDataLoader(source), True
    if hasattr(source, "read"):
        return FileLikeDataLoader(source), True
    try:
        return BufferDataLoader(source), True
    except InputError:
        raise InputError(
            "Expected a path, bytes, a binary file, or a loader with load, load_into and size; "
            f"got {type(source).__name__}."
        ) from None


def measure(loader: Any) -> int:
    """Return the size that a loader gives.

    Raises:
        AccessError: It fails, or gives no size.
    """
    with _calling(loader, "size"):
        size = loader.size()
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise AccessError(f"{type(loader).__name__}.size() gave {size!r}, expected a number of bytes.")
    return size


def fetch(loader: Any, offset: int, size: int) -> memoryview:
    """Return bytes of a loader, read-only and exactly as many as asked for.

    Raises:
        AccessError: The loader fails, or gives something else.
    """
    with _calling(loader, f"load({offset}, {size})"):
        content = loader.load(offset, size)
    try:
        view = memoryview(content).cast("B").toreadonly()
    except (TypeError, ValueError) as error:
        raise AccessError(
            f"{type(loader).__name__}.load({offset}, {size}) gave {type(content).__name__}, expected bytes."
        ) from error
    if view.nbytes != size:
        raise AccessError(f"{type(loader).__name__}.load({offset}, {size}) gave {view.nbytes} bytes.")
    return view


def _open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return descriptor and size of a file; what is no regular one (a pipe without a writer) must not block."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise OSError("it is no regular file")
    return file, found.st_size


@contextlib.contextmanager
def _calling(loader: Any, call: str) -> Iterator[None]:
    """Turn what a loader of the user's raises into an error of ours."""
    try:
        yield
    except GpuexecError:
        raise
    except Exception as error:
        raise AccessError(f"{type(loader).__name__}.{call} failed: {type(error).__name__}: {error}.") from error


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {where}.") from error
    except (OSError, ValueError) as error:  # ValueError: a closed file object, a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise AccessError(f"{where} can't be read: {reason}.") from error


def _check_range(where: str, offset: int, size: int, most: int) -> None:
    if offset < 0 or size < 0 or offset + size > most:
        raise AccessError(f"{where} has {most} bytes; {size} at offset {offset} were asked for.")


def _short(where: str, offset: int, size: int, got: int) -> AccessError:
    return AccessError(f"{where} ended early: {size} bytes at offset {offset} asked for, got {got}.")

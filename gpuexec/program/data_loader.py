"""Data loaders: a program's bytes from files, mapped files, memory, file objects, or a loader of the user.

A loader answers three questions, from any thread: ``size()``, ``load(offset, size)`` and ``load_into(offset, size,
buffer)``.
"""

from __future__ import annotations

import contextlib
import io
import operator
import os
import stat
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO

from gpuexec.errors import AccessError, ClosedError, GpuexecError, InputError, NotFoundError
from gpuexec.system.mapped import map_file
from gpuexec.system.system_files import read_at


class DataLoader(ABC):
    """Gives the bytes of a program; threads may call it at once. Subclass it with two methods, or have all three.

    ``close`` is called by nobody but its owner: what a program took from a loader stays good.

    Example:
        >>> class Repeated(gx.DataLoader):
        ...     def load(self, offset, nbytes):
        ...         return memoryview(b"x" * nbytes)
        ...     def size(self):
        ...         return 100
        >>> bytes(Repeated().load(0, 3))
        b'xxx'
    """

    @abstractmethod
    def load(self, offset: int, size: int) -> Any:
        """Return ``size`` bytes from ``offset`` on: bytes, or anything with the buffer protocol.

        They must stay as they are: weights may be used where they lie.
        """

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Write ``size`` bytes from ``offset`` on to the start of a writable buffer, and nothing behind them.

        Unless a loader knows better, what it loads is copied there.
        """
        _write_into(buffer, self.load(offset, size))

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes there are."""

    def close(self) -> None:  # noqa: B027  (not every loader has something to close)
        """Close the source; loading raises afterwards."""

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FileDataLoader(DataLoader):
    """Reads a file, each part when it is asked for; nothing is held beside what was asked.

    The weights of a program are one part: all of them stay on the host. `MmapDataLoader` leaves them in the file.

    Raises:
        InputError: ``path`` is none.
        NotFoundError: There is no such file.
        AccessError: It can't be opened.

    Example:
        >>> with open("digits.onnx", "rb") as file:
        ...     first = file.read(4)
        >>> loader = gx.FileDataLoader("digits.onnx")
        >>> bytes(loader.load(0, 4)) == first
        True
        >>> loader.close()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = _name_path(path)
        self._lock = threading.Lock()
        with _naming(self._where):
            file, self._size = _open_regular(path)
        self._file: int | None = file
        # A loader that nobody closed gives its file back all the same.
        self._close = weakref.finalize(self, os.close, file)

    def load(self, offset: int, size: int) -> memoryview:
        """Return bytes of the file."""
        offset, size = _check_range(self._where, offset, size, self._size)  # before there is room for them
        content = bytearray(size)
        self.load_into(offset, size, memoryview(content))
        return memoryview(content).toreadonly()

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        """Read bytes of the file into a buffer."""
        offset, size = _check_range(self._where, offset, size, self._size)
        room = _check_room(buffer, size)
        with self._lock, _naming(self._where):  # `close` must not take the file from under a read
            if self._file is None:
                raise ClosedError(f"The loader of {self._where} is closed.")
            done = 0
            while done < size:
                count = read_at(self._file, room[done:size], offset + done)
                if not count:
                    raise _short(self._where, offset, size, done)
                done += count

    def size(self) -> int:
        """Return the size the file had when it was opened."""
        return self._size

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file = None
            self._close()


class MmapDataLoader(DataLoader):
    """Maps a file: weights stay in it until they are needed.

    What goes to a device is read piece by piece on its way, what the CPU computes from is read once. Nothing is read
    through the map, so a file that was written to or cut meanwhile is an AccessError that names it; what was read
    before stays good. Whoever writes a file anew should put another in its place, as `Program.save` does.

    Of views that `load` gives, a caller who touches them himself has no such protection: a system ends a process that
    reads what was cut off a map.

    Raises:
        InputError: ``path`` is none.
        NotFoundError: There is no such file.
        AccessError: It can't be opened or mapped.

    Example:
        >>> gx.Program.build({"forward": model}, backend="cpu").save("digits.gxp")
        >>> gx.Program.load(gx.MmapDataLoader("digits.gxp")).method_names
        ('forward',)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = _name_path(path)
        with _naming(self._where):
            file, self._size = _open_regular(path)
            self._view: memoryview | None = map_file(file, self._where, path)

    def load(self, offset: int, size: int) -> memoryview:
        """Return a view of the map."""
        return _take_view(self._view, self._where, offset, size, self._size)

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

    Example:
        >>> loader = gx.BufferDataLoader(b"0123456789")
        >>> bytes(loader.load(2, 3)), loader.size()
        (b'234', 10)
    """

    def __init__(self, content: Any) -> None:
        try:
            self._view: memoryview | None = memoryview(content).cast("B").toreadonly()
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected bytes or another dense buffer, got {type(content).__name__}.") from error
        self._size = self._view.nbytes

    def load(self, offset: int, size: int) -> memoryview:
        """Return a view."""
        return _take_view(self._view, "The buffer", offset, size, self._size)

    def size(self) -> int:
        """Return the size of the buffer."""
        return self._size

    def close(self) -> None:
        """Release the buffer."""
        self._view = None


class FileLikeDataLoader(DataLoader):
    """Reads an object with ``seek`` and ``read``, from where it stands now; the object stays the caller's to close.

    Raises:
        InputError: The object lacks ``seek``, ``tell`` or ``read``, or is one of text.
        AccessError: It fails, or can't seek.

    Example:
        >>> import io
        >>> bytes(gx.FileLikeDataLoader(io.BytesIO(b"0123456789")).load(2, 3))
        b'234'
    """

    def __init__(self, file: BinaryIO) -> None:
        is_file = all(callable(getattr(file, name, None)) for name in ("seek", "tell", "read"))
        if not is_file or isinstance(file, io.TextIOBase):
            raise InputError(f"Expected a binary file with seek, tell and read, got {type(file).__name__}.")
        self._file: BinaryIO | None = file
        self._where = str(getattr(file, "name", None) or type(file).__name__)
        self._lock = threading.Lock()
        with _naming(self._where):
            self._start = file.tell()
            file.seek(0, os.SEEK_END)
            self._size = max(0, file.tell() - self._start)

    def load(self, offset: int, size: int) -> bytes:
        """Return bytes of the file."""
        offset, size = _check_range(self._where, offset, size, self._size)
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
                is_bytes = isinstance(part, bytes | bytearray | memoryview)
                if not is_bytes or len(part) > left:
                    got = f"{len(part)} bytes" if is_bytes else f"a {type(part).__name__}"
                    raise AccessError(f"{self._where}.read({left}) gave {got}, expected up to {left} bytes.")
                parts.append(bytes(part))
                left -= len(part)
            return b"".join(parts)

    def size(self) -> int:
        """Return how many bytes there were behind the position the file had."""
        return self._size

    def close(self) -> None:
        """Release the file, which stays open."""
        with self._lock:
            self._file = None


def _open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return descriptor and size of a file; what is no regular one (a pipe without a writer) must not block."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise OSError("it is no regular file")
    return file, found.st_size


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Turn what a file, or a file object of the user's, raises into an error of ours."""
    try:
        yield
    except (GpuexecError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {where}.") from error
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise AccessError(f"{where} can't be read: {reason}.") from error


def _name_path(path: str | os.PathLike[str]) -> str:
    """Return a path as messages name it."""
    try:
        return os.fsdecode(path)
    except TypeError as error:
        raise InputError(f"Expected the path of a file, got {type(path).__name__}.") from error


def _take_view(view: memoryview | None, where: str, offset: int, size: int, whole: int) -> memoryview:
    """Return a view of bytes, unless their loader is closed (None)."""
    offset, size = _check_range(where, offset, size, whole)
    if view is None:
        raise ClosedError(f"{where}: the loader is closed.")
    return view[offset : offset + size]


def _check_range(where: str, offset: int, size: int, total: int) -> tuple[int, int]:
    """Return offset and size as ints, which NumPy's would wrap around."""
    try:
        first, count = operator.index(offset), operator.index(size)
    except TypeError as error:
        raise InputError(f"Offset and size are whole numbers of bytes, got {offset!r} and {size!r}.") from error
    if first < 0 or count < 0 or first + count > total:
        raise AccessError(f"{where} has {total} bytes; {count} at offset {first} were asked for.")
    return first, count


def _check_room(buffer: memoryview, size: int) -> memoryview:
    """Return a buffer by bytes, whatever its elements."""
    try:
        room = memoryview(buffer).cast("B")
    except TypeError as error:
        raise InputError(f"Expected a dense buffer to load into, got {type(buffer).__name__}.") from error
    if room.readonly or room.nbytes < size:
        kind = "a read-only one" if room.readonly else f"one of {room.nbytes}"
        raise InputError(f"Expected a writable buffer of at least {size} bytes to load into, got {kind}.")
    return room


def _write_into(buffer: memoryview, content: Any) -> None:
    raw = memoryview(content).cast("B")
    _check_room(buffer, raw.nbytes)[: raw.nbytes] = raw


def _short(where: str, offset: int, size: int, got: int) -> AccessError:
    return AccessError(f"{where} ended early: {size} bytes at offset {offset} asked for, got {got}.")

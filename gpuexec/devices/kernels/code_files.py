"""Compiled-code files: private cache folders, and ownership checks on the descriptor that is then loaded.

A cache of kernels is code that this process will run. So a cache's folder is made for the user alone, and nothing is
loaded that another user could have written: folder and file must be owned by the user or by root, and not writable by
group or others.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import stat
import tempfile
import threading
import warnings
from pathlib import Path

from gpuexec.errors import AccessError, NotFoundError
from gpuexec.system import knobs

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_lock = threading.Lock()
# The private folder and the process that made it: a fork makes its own.
_private: tuple[Path, int] | None = None
# Descriptors of the libraries that are loaded, by device and number of the file.
_libraries: dict[tuple[int, int], int] = {}


def cache_folder(name: str) -> Path:
    """Return the folder of one of the user's caches, not made yet.

    Without a home, or with settings that name no absolute path, it lies in `private_folder`, and a warning
    (RuntimeWarning) says so once.
    """
    base = knobs.kernel_cache_dir()
    if base is not None:
        return base / name
    if _private is None:
        warnings.warn(
            "There is no folder for compiled kernels: neither GPUEXEC_CACHE_DIR nor an absolute XDG_CACHE_HOME or HOME"
            " is set. They are kept for this process alone, and every process compiles them again.",
            RuntimeWarning,
            stacklevel=2,
        )
    return private_folder() / name


def private_folder() -> Path:
    """Return a folder of this process alone: made for the user only, removed when the process exits.

    Raises:
        OSError: It can't be made.
    """
    global _private
    with _lock:
        if _private is None or _private[1] != os.getpid():
            _private = Path(tempfile.mkdtemp(prefix="gpuexec-")), os.getpid()
            atexit.register(_remove, *_private)
        return _private[0]


def make_folder(folder: Path) -> None:
    """Make a folder for the user alone, with missing parents, and remove write permission of others from it.

    Raises:
        AccessError: It belongs to another user, or is a link.
        OSError: It can't be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o700)
    opened = _open_folder(folder)
    if opened is not None:
        os.close(opened)


def open_code(path: Path) -> int:
    """Return the descriptor of a file of code, checked with its folder.

    Raises:
        NotFoundError: There is none.
        AccessError: It, or its folder, is not the user's own or others may write to it; or it can't be read.
    """
    folder = None
    try:
        folder = _open_folder(path.parent)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = os.open(path, flags) if folder is None else os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    except OSError as error:
        raise AccessError(f"{path} can't be loaded: {error.strerror or error}.") from error
    finally:
        if folder is not None:
            os.close(folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise AccessError(f"{path} can't be loaded: it is no regular file.")
        if folder is not None:
            _check_owner(path, found)
        return file
    except BaseException:
        os.close(file)
        raise


def read_code(path: Path) -> bytes:
    """Return the content of a file of code.

    Raises:
        NotFoundError: As `open_code`.
        AccessError: As `open_code`.
    """
    with os.fdopen(open_code(path), "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise AccessError(f"{path} can't be loaded: {error.strerror or error}.") from error


def load_library(path: Path, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load a shared object by the descriptor it was checked on.

    The descriptor stays open, once for each file, since libraries stay loaded: a loader knows objects by their names,
    and would take another that comes to have the same number for this one.

    Raises:
        NotFoundError: As `open_code`.
        AccessError: As `open_code`.
        OSError: The loader refuses it.
    """
    file = open_code(path)
    if not os.path.exists(f"/proc/self/fd/{file}"):
        # Without /proc the name is resolved again, in a folder that no other user can change.
        os.close(file)
        return ctypes.CDLL(str(path), mode=mode)
    found = os.fstat(file)
    with _lock:
        kept = _libraries.setdefault((found.st_dev, found.st_ino), file)
    try:
        library = ctypes.CDLL(f"/proc/self/fd/{kept}", mode=mode)
    except BaseException:
        if kept == file:
            with _lock:
                del _libraries[found.st_dev, found.st_ino]
            os.close(file)
        raise
    finally:
        if kept != file:
            os.close(file)
    return library


def _open_folder(folder: Path) -> int | None:
    """Return the descriptor of a folder that is safe to use; None on systems without owners."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if os.path.islink(folder):
            raise AccessError(f"{folder} is a link, and a folder of compiled code must not be one.") from error
        raise
    try:
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and found.st_mode & _OTHERS_WRITE:
            # Files of other users are recognised by owner and permissions, one by one.
            os.fchmod(opened, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
            found = os.fstat(opened)
        _check_owner(folder, found)
        return opened
    except BaseException:
        os.close(opened)
        raise


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise AccessError(
            f"{path} belongs to user {found.st_uid}, not to this one ({os.geteuid()}), so code from it is not loaded."
            " Remove it, or point GPUEXEC_CACHE_DIR to a folder of your own."
        )
    if found.st_mode & _OTHERS_WRITE:
        raise AccessError(
            f"Others may write to {path} (mode {stat.S_IMODE(found.st_mode):o}), so code from it is not loaded."
            f" Run: chmod go-w {path}"
        )


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder, unless this is a fork of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

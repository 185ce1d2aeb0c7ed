"""Atomic file replacement: a file is replaced whole and synced to the disk, or left as it was.

Every file that the package writes is written so. The content goes to a new file of an unpredictable name in the same
folder, opened such that no link and no file of another's is written through, and removed on any failure.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpuexec.errors import AccessError

# Number of characters of the target's name in the temporary file's: with four bytes a character it fits the limit of
# 255.
_NAME_CHARACTERS = 48


@contextlib.contextmanager
def atomic_file(target: str | os.PathLike[str], *, mode: int | None = None, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces ``target`` atomically on success; refuse a target that is no regular file.

    A file behind links is replaced where it lies. Permissions and group of a file that is replaced stay; a group that
    can't be given to the new file gets no access to it. The content is on the disk before it takes its place, and the
    place is noted on the disk before this returns.

    Args:
        target: The path; behind its links.
        mode: Permissions of the file; None: those of the file in whose place it goes, else the process's usual ones.
        sync: Wait for the disk; False: for what is made again where it is lost, as in a cache.

    Raises:
        AccessError: The file can't be written: no such folder, no permission, no room, no regular file; names the path.
    """
    scratch: Path | None = None
    try:
        path, replaced = _resolve(target)
        scratch = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}")
        with _create(scratch, mode, replaced) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
        scratch = None
        if sync:
            _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or error
        if sys.platform == "win32" and isinstance(error, PermissionError):
            reason = f"{reason} (on Windows no file is replaced while a model or program read from it is held)"
        raise AccessError(f"{os.fsdecode(target)} can't be written: {reason}.") from error
    finally:
        if scratch is not None:
            with contextlib.suppress(OSError, ValueError):
                os.unlink(scratch)


def write_file(
    target: str | os.PathLike[str], content: bytes | str, *, mode: int | None = None, sync: bool = True
) -> None:
    """Write a whole file atomically, text in UTF-8; see `atomic_file`."""
    with atomic_file(target, mode=mode, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def put_in_place(part: Path, target: Path) -> None:
    """Give a file that was written bit by bit, and is whole and on the disk, its name; what bore that is replaced."""
    os.replace(part, target)
    _sync_folder(target.parent)


def _resolve(target: str | os.PathLike[str]) -> tuple[Path, os.stat_result | None]:
    """Return the path behind a target's links, and what is there now."""
    try:
        path = Path(os.path.realpath(os.fsdecode(target)))
        found = os.lstat(path)
    except FileNotFoundError:
        return path, None
    except ValueError as error:  # a zero byte
        raise OSError(str(error)) from error
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    return path, found


def _create(scratch: Path, mode: int | None, replaced: os.stat_result | None) -> BinaryIO:
    """Create the temporary file with permissions never wider than the final ones."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    wanted = mode if mode is not None else None if replaced is None else stat.S_IMODE(replaced.st_mode) & 0o777
    file = os.fdopen(os.open(scratch, flags | getattr(os, "O_CLOEXEC", 0), 0o666 if wanted is None else 0o600), "wb")
    try:
        if wanted is not None and hasattr(os, "fchmod"):
            if replaced is not None and os.fstat(file.fileno()).st_gid != replaced.st_gid:
                wanted = _give_group(file.fileno(), replaced.st_gid, wanted)
            os.fchmod(file.fileno(), wanted)
        return file
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def _give_group(file: int, group: int, mode: int) -> int:
    """Set the group of a file; return its permissions, without group permissions where the group can't be set."""
    try:
        os.fchown(file, -1, group)
    except OSError:
        return mode & ~0o070
    return mode


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk, on systems and file systems that can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

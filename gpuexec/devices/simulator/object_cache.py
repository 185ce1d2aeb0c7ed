"""Disk cache of shared objects, keyed by content.

A missing one is built once among all processes. An object ends with the SHA-256 of what stands before it, which loaders
ignore; one that was cut short or altered counts as absent, and so does one that another user could have written
(`gpuexec.devices.kernels.code_files`). It is renamed into place. Lock files stay: removing one would let two processes
lock different files of one name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuexec.devices.kernels.code_files import make_folder, read_code
from gpuexec.errors import AccessError
from gpuexec.system.atomic_file import write_file
from gpuexec.system.system_files import lock_file

_DIGEST_BYTES = 32


def make_key(*parts: str | Sequence[str]) -> str:
    """Return the name of an object: hex digits of a SHA-256 over everything that decides its bytes."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class ObjectCache:
    """Shared objects by key in one folder.

    A folder that can't be written, or belongs to another user, is replaced by a temporary one for the life of the
    process, with one warning.

    Args:
        folder: Made when first needed, for the user alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def has(self, key: str, suffix: str = ".so") -> bool:
        """Return whether the object of ``key`` is there."""
        return is_whole(self.folder / f"{key}{suffix}")

    def get(self, key: str, build: Callable[[Path], None], suffix: str = ".so") -> Path:
        """Return the object of ``key``; a missing one is built by ``build``, which writes to the path given."""
        path = self.folder / f"{key}{suffix}"
        if is_whole(path):
            return path
        try:
            make_folder(self.folder)
            with _hold(self.folder / f"{key}.lock"):
                if not is_whole(path):  # else another process built it first
                    self._build(path, build)
            return path
        except (OSError, AccessError) as error:
            if self._temporary is not None:
                raise
            self._temporary = tempfile.TemporaryDirectory(prefix="gpuexec-")
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            warnings.warn(
                f"The kernel cache {self.folder} can't be written ({reason}), so this process compiles its"
                " kernels for itself. Point GPUEXEC_CACHE_DIR to a writable folder.",
                RuntimeWarning,
                stacklevel=2,
            )
            self.folder = Path(self._temporary.name)
            return self.get(key, build, suffix)

    def _build(self, path: Path, build: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="build-") as scratch:
            made = Path(scratch) / path.name
            build(made)
            content = made.read_bytes()
            write_file(path, content + hashlib.sha256(content).digest(), mode=0o700, sync=False)


def is_whole(path: Path) -> bool:
    """Return whether the file exists, is safely owned, and ends with the checksum of the rest.

    Loading one cut short would crash.
    """
    try:
        content = read_code(path)
    except AccessError:
        return False
    body = memoryview(content)[:-_DIGEST_BYTES]
    return len(content) > _DIGEST_BYTES and hashlib.sha256(body).digest() == content[-_DIGEST_BYTES:]


@contextlib.contextmanager
def _hold(path: Path) -> Iterator[None]:
    """Hold a lock against other threads and processes; it is released when a process dies."""
    with open(path, "ab") as file:
        lock_file(file.fileno())
        yield

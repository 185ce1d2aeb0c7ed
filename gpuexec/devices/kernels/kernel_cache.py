"""Disk cache of compiled kernels, shared by all processes of a user.

One entry per kernel rather than one module per plan: plans differ in the set of kernels they use, so a module's key
would be the set, and a plan that adds one kernel would compile all of its neighbours again.

An entry is ``<key>.cubin``, which a driver loads as it is, and ``<key>.json``: a line with the checksum of both, then
what the compiler said. Both are renamed into place, and a compiling process holds a lock on ``<key>.lock``: so many
processes on an empty cache compile each kernel once. An entry whose checksum does not match counts as absent, and so
does one that another user could have written (`gpuexec.devices.kernels.code_files`). Lock files stay, since removing
one would
let two processes lock different files of one name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuexec.devices.kernels.code_files import make_folder, private_folder, read_code
from gpuexec.devices.kernels.nvrtc import CompiledKernel, Cubin
from gpuexec.errors import AccessError, KernelError
from gpuexec.system.atomic_file import write_file
from gpuexec.system.system_files import lock_file


@dataclass(frozen=True, slots=True)
class CachedCubin:
    """A cubin and the file it is kept in; ``path`` is None while it is held in memory only."""

    key: str
    cubin: Cubin
    path: Path | None
    was_compiled: bool


def make_key(text: str, expressions: Sequence[str], architecture: str, options: Sequence[str], compiler: str) -> str:
    """Return the key of an entry: SHA-256 over everything that decides its bytes.

    ``text`` is the flattened source, so an edit of an included file changes the key.
    """
    parts = json.dumps([text, list(expressions), architecture, list(options), compiler])
    return hashlib.sha256(parts.encode()).hexdigest()


class KernelCache:
    """Cubins by key: from memory, from disk, or compiled once.

    A folder that can't be written, or belongs to another user, costs a compile per process and no more: the first
    failure warns once (RuntimeWarning), ``fallback`` keeps its text, and entries stay in memory. Thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fallback: str | None = None
        self._entries: dict[str, CachedCubin] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: str, compile_entry: Callable[[], Cubin]) -> CachedCubin:
        """Return the entry of ``key``, compiling it only if neither memory nor disk has a valid one."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            entry = self._entries.get(key) or self._load(key) or self._compile(key, compile_entry)
            self._entries[key] = entry
            return entry

    def find(self, key: str) -> CachedCubin | None:
        """Return the entry of ``key`` if memory or disk has it; waits for nobody who is compiling it."""
        entry = self._entries.get(key) or self._load(key)
        if entry is not None:
            self._entries[key] = entry
        return entry

    def file_of(self, entry: CachedCubin) -> Path:
        """Return a file with the cubin: a private copy of this process, deleted when it ends.

        A driver reads the file by its name, so it must be one that can't have been changed since it was checked. Equal
        content has an equal name, since modules are known by theirs.

        Raises:
            KernelError: There is no folder for it.
        """
        name = f"{entry.key}-{hashlib.sha256(entry.cubin.image).hexdigest()[:32]}.cubin"
        try:
            path = private_folder() / name
            if not path.exists():
                write_file(path, entry.cubin.image, mode=0o600, sync=False)
            return path
        except (OSError, AccessError) as error:
            raise KernelError(f"A kernel can't be loaded without a file in a temporary folder: {error}") from error

    def close(self) -> None:
        """Drop the entries in memory. Entries on disk stay."""
        with self._guard:
            self._entries.clear()

    def _load(self, key: str) -> CachedCubin | None:
        path = self.folder / f"{key}.cubin"
        try:
            checksum, body = read_code(path.with_suffix(".json")).decode().split("\n", 1)
            image = read_code(path)
            if checksum != _checksum(image, body):
                return None
            described = json.loads(body)
            kernels = tuple(CompiledKernel(**kernel) for kernel in described["kernels"])
            return CachedCubin(
                key, Cubin(described["source"], image, kernels, described["log"]), path, was_compiled=False
            )
        except (AccessError, ValueError, TypeError, KeyError):  # absent, truncated, another's, or of another format
            return None

    def _compile(self, key: str, compile_entry: Callable[[], Cubin]) -> CachedCubin:
        with self._hold(key):
            if entry := self._load(key):  # another process compiled it first
                return entry
            cubin = compile_entry()
            return CachedCubin(key, cubin, self._store(key, cubin), was_compiled=True)

    @contextlib.contextmanager
    def _hold(self, key: str) -> Iterator[None]:
        """Hold the lock of ``key`` against every other process; it is released when a process dies."""
        with contextlib.ExitStack() as stack:
            try:
                if self.fallback is None:
                    make_folder(self.folder)
                    file = stack.enter_context(open(self.folder / f"{key}.lock", "ab"))
                    lock_file(file.fileno())
            except (OSError, AccessError) as error:
                self._fall_back(error)
            yield

    def _store(self, key: str, cubin: Cubin) -> Path | None:
        if self.fallback is not None:
            return None
        path = self.folder / f"{key}.cubin"
        kernels = [asdict(kernel) for kernel in cubin.kernels]
        body = json.dumps({"source": cubin.source, "kernels": kernels, "log": cubin.log})
        try:
            # The description goes last: it vouches for the image, so it must never exist without it.
            write_file(path, cubin.image, mode=0o600, sync=False)
            described = f"{_checksum(cubin.image, body)}\n{body}"
            write_file(path.with_suffix(".json"), described, mode=0o600, sync=False)
        except AccessError as error:
            self._fall_back(error)
            return None
        return path

    def _fall_back(self, error: OSError | AccessError) -> None:
        with self._guard:
            if self.fallback is not None:
                return
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            self.fallback = (
                f"The kernel cache {self.folder} can't be written ({reason}), so kernels are kept in memory and every"
                " process compiles them again. Point GPUEXEC_CACHE_DIR to a writable folder."
            )
        warnings.warn(self.fallback, RuntimeWarning, stacklevel=4)


def _checksum(image: bytes, body: str) -> str:
    return hashlib.sha256(image + body.encode()).hexdigest()

"""Compiled kernels on disk, shared by all processes of a user.

One entry per kernel rather than one module per plan: plans differ in the set of kernels they use, so a module's key
would be the set, and a plan that adds one kernel would compile all of its neighbours again.

An entry is ``<key>.cubin``, which a driver loads as it is, and ``<key>.json``: a line with the checksum of both, then
what the compiler said. Both are renamed into place, and whoever compiles holds a lock on ``<key>.lock``: so many
processes on an empty cache compile each kernel once. An entry whose checksum does not match counts as absent. Lock
files stay, since removing one would let two processes lock different files of one name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuexec.errors import KernelError
from gpuexec.runtime.nvrtc import CompiledKernel, Cubin


@dataclass(frozen=True, slots=True)
class CachedCubin:
    """A cubin and the file it can be loaded from; ``path`` is None while it is held in memory only."""

    key: str
    cubin: Cubin
    path: Path | None
    was_compiled: bool


def make_key(text: str, expressions: Sequence[str], architecture: str, options: Sequence[str], compiler: str) -> str:
    """Return the name of an entry: SHA-256 over everything that decides its bytes.

    ``text`` is the flattened source, so an edit of an included file changes the key.
    """
    parts = json.dumps([text, list(expressions), architecture, list(options), compiler])
    return hashlib.sha256(parts.encode()).hexdigest()


class KernelCache:
    """Cubins by key: from memory, from disk, or compiled once.

    A folder that can't be written costs a compile per process and no more: the first failure warns once
    (RuntimeWarning), ``fallback`` keeps its text, and entries stay in memory. Thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fallback: str | None = None
        self._entries: dict[str, CachedCubin] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def get(self, key: str, compile_entry: Callable[[], Cubin]) -> CachedCubin:
        """Return the entry of ``key``, compiling it only if neither memory nor disk has it whole."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            entry = self._entries.get(key) or self._load(key) or self._compile(key, compile_entry)
            self._entries[key] = entry
            return entry

    def file_of(self, entry: CachedCubin) -> Path:
        """Return a file that holds the cubin: the entry's own, or one in a temporary folder that lives until ``close``.

        Raises:
            KernelError: The cache is not writable and neither is a temporary folder.
        """
        if entry.path is not None:
            return entry.path
        try:
            with self._guard:
                self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="gpuexec-")
                path = Path(self._scratch.name) / f"{entry.key}.cubin"
                path.write_bytes(entry.cubin.image)
                return path
        except OSError as error:
            raise KernelError(
                f"A kernel can't be loaded without a file. {self.fallback} A temporary folder: {error}."
            ) from error

    def close(self) -> None:
        """Forget what memory holds and remove temporary files. Entries on disk stay."""
        with self._guard:
            self._entries.clear()
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None

    def _load(self, key: str) -> CachedCubin | None:
        path = self.folder / f"{key}.cubin"
        try:
            checksum, body = path.with_suffix(".json").read_text().split("\n", 1)
            image = path.read_bytes()
            if checksum != _checksum(image, body):
                return None
            described = json.loads(body)
            kernels = tuple(CompiledKernel(**kernel) for kernel in described["kernels"])
            return CachedCubin(
                key, Cubin(described["source"], image, kernels, described["log"]), path, was_compiled=False
            )
        except (OSError, ValueError, TypeError):  # absent, cut, or with other fields than now: the same as absent
            return None

    def _compile(self, key: str, compile_entry: Callable[[], Cubin]) -> CachedCubin:
        with self._hold(key):
            if entry := self._load(key):  # another process was here first
                return entry
            cubin = compile_entry()
            return CachedCubin(key, cubin, self._store(key, cubin), was_compiled=True)

    @contextlib.contextmanager
    def _hold(self, key: str) -> Iterator[None]:
        """Hold the lock of ``key`` against every other process; a process that dies lets go of it."""
        with contextlib.ExitStack() as stack:
            try:
                if self.fallback is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    file = stack.enter_context(open(self.folder / f"{key}.lock", "ab"))
                    fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                self._fall_back(error)
            yield

    def _store(self, key: str, cubin: Cubin) -> Path | None:
        if self.fallback is not None:
            return None
        path = self.folder / f"{key}.cubin"
        kernels = [asdict(kernel) for kernel in cubin.kernels]
        body = json.dumps({"source": cubin.source, "kernels": kernels, "log": cubin.log})
        try:
            # The description goes last: it vouches for the image, so it must never be there without it.
            _replace(path, cubin.image)
            _replace(path.with_suffix(".json"), f"{_checksum(cubin.image, body)}\n{body}".encode())
        except OSError as error:
            self._fall_back(error)
            return None
        return path

    def _fall_back(self, error: OSError) -> None:
        with self._guard:
            if self.fallback is not None:
                return
            reason = error.strerror or str(error)
            self.fallback = (
                f"The kernel cache {self.folder} can't be written ({reason}), so kernels are kept in memory and every"
                " process compiles them again. Point GPUEXEC_CACHE_DIR to a writable folder."
            )
        warnings.warn(self.fallback, RuntimeWarning, stacklevel=4)


def _checksum(image: bytes, body: str) -> str:
    return hashlib.sha256(image + body.encode()).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise

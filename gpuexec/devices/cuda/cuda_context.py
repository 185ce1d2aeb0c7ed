"""The CUDA context: the libraries, within which GPU each call of theirs is made, and the translation of its errors."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from gpuexec.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError
from gpuexec.ir.command import Kernel

SUCCESS = 0
OUT_OF_MEMORY = 2
NOT_READY = 600  # the one status of a query that is neither success nor error
# Statuses after which a context accepts nothing more (cudaError of the CUDA 13 runtime): ECC, NVLink, illegal address,
# timeout, destroyed context, assert, the family from hardware stack error to launch failure, and unknown.
FAULTS = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})


class _Thread(threading.local):
    """Current device and stream of the calling thread."""

    context: CudaContext | None = None


_THREAD = _Thread()


class CudaContext:
    """Makes a GPU current for the calls of one thread at a time, and converts CUDA's errors to the package's.

    After a fault every use raises DeviceLostError with the text of the first one. Shared by all threads: `calling`
    gives each call its own context. A call within another of the same GPU finds it current, and makes it so no more.

    Args:
        cupy: The module.
        driver: The module ``cuda.bindings.driver``.
        device: A `cupy.cuda.Device`.
        name: The GPU's name, for messages.
    """

    def __init__(self, cupy: Any, driver: Any, device: Any, name: str) -> None:
        self.cupy, self.driver, self.device, self.name = cupy, driver, device, name
        # The exception types CUDA's libraries raise; those without ``status`` mean that memory ran out.
        self.errors: tuple[type[BaseException], ...] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.memory.OutOfMemoryError,
        )
        self.lost: str | None = None
        # The last command that an event showed to be done.
        self.done: object = None

    def check_alive(self) -> None:
        """Check that the GPU can be used.

        Raises:
            DeviceLostError: A fault has ended the context.
        """
        if self.lost is not None:
            raise DeviceLostError(self.lost)

    def calling(self, what: str, kernel: Kernel | None = None) -> _Calling:
        """Return a context manager for one call; ``what`` and ``kernel`` go into the message if it fails."""
        return _Calling(self, what, kernel)

    def is_current(self) -> bool:
        """Return whether the calling thread is within a call of this GPU, and of no other's within that."""
        return _THREAD.context is self

    def check(self, results: tuple[Any, ...]) -> Any:
        """Return the result of a call of ``cuda.bindings.driver``, or raise the error it reports."""
        if results[0] != SUCCESS:
            raise self.cupy.cuda.driver.CUDADriverError(int(results[0]))
        return results[1] if len(results) > 1 else None

    def is_success(self, status: int) -> bool:
        """Return whether a query's status means done; raise for an error.

        Raises:
            DeviceLostError: It says neither. CuPy's own ``done`` would call that pending for ever.
        """
        if status in (SUCCESS, NOT_READY) and self.lost is None:
            return status == SUCCESS
        with self.calling("asking whether work is done"):
            raise self.cupy.cuda.runtime.CUDARuntimeError(status)

    def note_done(self, command: object) -> None:
        """Remember the last command known to be done, to name it should the context fail."""
        self.done = command or self.done

    def translate(self, error: BaseException, what: str, kernel: Kernel | None) -> DeviceError | KernelError:
        """Convert a CUDA error to the package's, and remember a fault."""
        status = getattr(error, "status", OUT_OF_MEMORY)
        where = f"{self.name}: {what}{f' {kernel}' if kernel else ''} failed: {error}"
        if status in FAULTS:
            known = "No command is known to be done" if self.done is None else f"Known to be done, last, is {self.done}"
            self.lost = self.lost or (
                f"{where}. A fault has ended the context, so this process can't use the GPU any more. {known};"
                " GPUEXEC_SYNC_EACH=1 finds the command that caused it."
            )
            return DeviceLostError(self.lost)
        if status == OUT_OF_MEMORY:
            return OutOfMemoryError(where)
        return KernelError(where) if kernel else DeviceError(where)


class _Calling:
    __slots__ = ("_context", "_kernel", "_outer", "_what")

    def __init__(self, context: CudaContext, what: str, kernel: Kernel | None) -> None:
        self._context, self._what, self._kernel = context, what, kernel

    def __enter__(self) -> None:
        context = self._context
        if context.lost is not None:
            raise DeviceLostError(context.lost)
        self._outer = _THREAD.context
        if self._outer is context:
            return
        try:
            context.device.__enter__()
        except context.errors as error:
            raise context.translate(error, self._what, self._kernel) from error
        _THREAD.context = context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context = self._context
        if self._outer is not context:
            _THREAD.context = self._outer
            try:
                context.device.__exit__(kind, error, trace)
            except context.errors as late:  # after a fault, restoring the caller's device fails too
                error = error or late
        if isinstance(error, context.errors):
            raise context.translate(error, self._what, self._kernel) from error

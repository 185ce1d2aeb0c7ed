"""CUDA error translation, and the context in which every CUDA call is made."""

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

    context: CallContext | None = None


_THREAD = _Thread()


class CallContext:
    """Makes a GPU current for the calls of one thread at a time, and converts CUDA's errors to the package's.

    After a fault every use raises DeviceLostError with the text of the first one. Shared by all threads: `calling`
    gives each call its own context. A call within another of the same GPU finds it current, and makes it so no more.

    Args:
        device: A `cupy.cuda.Device`.
        name: The GPU's name, for messages.
        errors: The exception types CUDA's libraries raise; those without ``status`` mean that memory ran out.
    """

    def __init__(self, device: Any, name: str, errors: tuple[type[BaseException], ...]) -> None:
        self.device, self.name, self.errors = device, name, errors
        self.lost: str | None = None
        # The last command that an event showed to be done.
        self.done: object = None

    def check(self) -> None:
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

    def __init__(self, context: CallContext, what: str, kernel: Kernel | None) -> None:
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

"""Compiler in the background: kernels of plans that are made while other plans run in their place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from gpuexec.devices.device import Device
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.errors import ClosedError, GpuexecError, KernelError, OutOfMemoryError
from gpuexec.ir.command import Kernel
from gpuexec.system.threads import WorkPool


class Compilation:
    """Kernels of a plan that are compiled in the background.

    Attributes:
        kernels: All of the plan's.
        error: Why they can't be; None: they can, or it is not known yet.
    """

    __slots__ = ("_is_done", "error", "kernels")

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = tuple(kernels)
        self.error: GpuexecError | None = None
        self._is_done = threading.Event()

    def is_done(self) -> bool:
        """Return whether nothing is compiled for the plan any more; never waits."""
        return self._is_done.is_set()

    def wait(self) -> None:
        """Wait until the kernels are compiled.

        Raises:
            GpuexecError: They can't be.
        """
        self._is_done.wait()
        if self.error is not None:
            raise self.error

    def end(self, error: GpuexecError | None = None) -> None:
        """Note that it is over, and what went wrong."""
        self.error = error
        self._is_done.set()


class BackgroundCompiler:
    """Compiles kernels for a device on a thread of its own, which is started when needed. Thread-safe.

    The thread is a daemon, and so are those that it shares its work with: a process may end while a compiler is at
    work.

    Args:
        device: What compiles.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool = WorkPool(1, "gpuexec-compile")
        self._changed = threading.Condition()
        # Those that are not over, and those of them that wait for `begin`.
        self._open: list[Compilation] = []
        self._held: list[tuple[Compilation, StoredCode]] = []
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Plans whose kernels are not there yet."""
        return len(self._open)

    def enter(self, kernels: Sequence[Kernel], code: StoredCode) -> Compilation | None:
        """Take up the kernels of a plan, to be compiled from `begin` on; None where none of generated text is missing.

        Args:
            kernels: All that the plan launches.
            code: Compiled beforehand.

        Raises:
            DeviceNotFoundError: There is no compiler.
        """
        if not self._device.list_uncompiled([kernel for kernel in kernels if kernel.text], code):
            return None
        compilation = Compilation(kernels)
        with self._changed:
            self._held.append((compilation, code))
            self._open.append(compilation)
        return compilation

    def begin(self) -> None:
        """Begin with what was taken up: the caller compiles nothing now that it would hold up."""
        if not self._held:
            return
        with self._changed:
            while self._held:
                compilation, code = self._held[0]
                try:
                    self._pool.submit(partial(self._compile, compilation, code))
                except OutOfMemoryError:  # no room for a thread: the caller does it
                    self._compile(compilation, code)
                # Whoever is interrupted here begins it twice, which does no harm.
                del self._held[0]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is compiled any more; False when the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def close(self) -> None:
        """Give up what was not begun; what is under way is not waited for. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            given_up, self._open, self._held = self._open, [], []
            self._changed.notify_all()
        for compilation in given_up:
            compilation.end(ClosedError("Its Worker was closed while kernels were compiled."))
        self._pool.close()

    def _compile(self, compilation: Compilation, code: StoredCode) -> None:
        error: GpuexecError | None = None
        try:
            # Those of text first: the others may be wanted by a plan that runs meanwhile, whose caller makes them.
            for kernels in ([kernel for kernel in compilation.kernels if kernel.text], compilation.kernels):
                if not self._is_closed:
                    self._device.compile(kernels, code)
        except GpuexecError as failure:
            error = failure
        except BaseException as failure:  # whatever it is, runs go on
            error = KernelError(f"Kernels could not be compiled in the background: {failure!r}.")
            error.__cause__ = failure
        with self._changed:
            if compilation in self._open:
                self._open.remove(compilation)
                compilation.end(error)
            self._changed.notify_all()

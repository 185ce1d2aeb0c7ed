"""Progress callbacks of long work, called between its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuexec.errors import InputError


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of reading or uploading weights, or of compiling kernels.

    Attributes:
        stage: ``"read"``: from the model's file to the host; ``"upload"``: to a device; ``"compile"``: kernels that
            are not loaded yet, whether they are compiled or found in a cache.
        name: Name of the current file, weight or kernel.
        done_nbytes: Bytes that have arrived.
        total_nbytes: Bytes in all, of this stage.
        done_kernels: Kernels that are there.
        total_kernels: Kernels in all, of this stage.
    """

    stage: str
    name: str
    done_nbytes: int = 0
    total_nbytes: int = 0
    done_kernels: int = 0
    total_kernels: int = 0

    @property
    def is_over(self) -> bool:
        """True if this is the last of its stage."""
        return self.done_nbytes >= self.total_nbytes and self.done_kernels >= self.total_kernels

    def __str__(self) -> str:
        if self.total_kernels:
            return f"{self.stage} {self.done_kernels} of {self.total_kernels} kernels ({self.name})"
        return f"{self.stage} {self.done_nbytes:,} of {self.total_nbytes:,} bytes ({self.name})"


# Called from the thread that does the work. An exception it raises ends the work, which leaves things as they were.
ProgressCallback = Callable[[Progress], None]


def check_progress_callback(callback: object) -> None:
    """Check that a progress callback is callable, or None.

    Raises:
        InputError: It can't be called.
    """
    if callback is not None and not callable(callback):
        raise InputError(f"progress takes a function of a Progress, or None, got a {type(callback).__name__}.")


class Listener:
    """The current progress callback, set for the duration of a call."""

    __slots__ = ("report",)

    def __init__(self, report: ProgressCallback | None = None) -> None:
        self.report = report

    @contextlib.contextmanager
    def instead(self, report: ProgressCallback | None) -> Iterator[None]:
        """Replace the callback within the context; None keeps the one before."""
        before = self.report
        self.report = before if report is None else report
        try:
            yield
        finally:
            self.report = before

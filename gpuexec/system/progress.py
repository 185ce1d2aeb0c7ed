"""Progress of long work: callbacks between its steps, and a line in a terminal where there is none."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from gpuexec.errors import InputError
from gpuexec.system import knobs

# What is counted in each stage that is not measured in bytes.
_COUNTED = {"compile": "kernels", "plan": "size classes"}
_WORDS = {"read": "reading weights", "upload": "uploading weights", "compile": "compiling", "plan": "planning"}
# How long a stage has taken before its line is shown, and how often that is written anew.
_SHOWN_AFTER_S, _WRITTEN_EVERY_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of reading or uploading weights, of planning or compiling.

    Attributes:
        stage: ``"read"``: weights from the model's file to the host; ``"upload"``: to a device; ``"plan"``: the size
            classes of a declared range; ``"compile"``: kernels that are not loaded yet, whether they are compiled or
            found in a cache.
        name: Name of the current file, weight, graph or kernel.
        done_nbytes: Bytes that have arrived.
        total_nbytes: Bytes in all, of this stage.
        done_count: Kernels or size classes that are there.
        total_count: Kernels or size classes in all, of this stage.

    Example:
        >>> stages = set()
        >>> with gx.Worker(model, backend="simulator", progress=lambda progress: stages.add(progress.stage)) as worker:
        ...     _ = worker.prepare(x)
        >>> "upload" in stages
        True
    """

    stage: str
    name: str
    done_nbytes: int = 0
    total_nbytes: int = 0
    done_count: int = 0
    total_count: int = 0

    @property
    def is_over(self) -> bool:
        """True if this is the last of its stage."""
        return self.done_nbytes >= self.total_nbytes and self.done_count >= self.total_count

    def __str__(self) -> str:
        if self.stage in _COUNTED:
            return f"{self.stage} {self.done_count} of {self.total_count} {_COUNTED[self.stage]} ({self.name})"
        return f"{self.stage} {self.done_nbytes:,} of {self.total_nbytes:,} bytes ({self.name})"

    def describe(self) -> str:
        """Describe the stage in words: ``"uploading weights"``."""
        return f"{_WORDS.get(self.stage, self.stage)} {_COUNTED.get(self.stage, '')}".rstrip()


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


class ProgressLine:
    """A line of text that shows the progress of stages that take longer than a second, and goes with them.

    It is written by the thread that does the work, between its steps, and by no other.

    Args:
        file: A terminal, or the output of a notebook's cell.
        clock: Seconds.
    """

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        # When each stage that is not over began: one may be a part of another.
        self._begun_s: dict[str, float] = {}
        self._written_s, self._width = 0.0, 0

    def __call__(self, progress: Progress) -> None:
        """Show how far a stage is."""
        now = self._clock()
        begun_s = self._begun_s.setdefault(progress.stage, now)
        if progress.is_over:
            del self._begun_s[progress.stage]
            self._clear()
        elif now - begun_s >= _SHOWN_AFTER_S and now - self._written_s >= _WRITTEN_EVERY_S:
            self._written_s = now
            self._write(f"{progress.describe()} {_share(progress)}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, or closed
            self._file.write(f"\r{text:{self._width}}")
            self._file.flush()
        self._width = max(self._width, len(text))

    def _clear(self) -> None:
        if self._width:
            self._write("")
            self._write("\r")
            self._width = 0


def open_progress_line() -> ProgressCallback | None:
    """Return a line on stderr, where that is a terminal or a notebook and GPUEXEC_PROGRESS does not say otherwise."""
    file = sys.stderr
    is_notebook = type(file).__module__.partition(".")[0] == "ipykernel"
    if file is None or not knobs.shows_progress() or not (is_notebook or file.isatty()):
        return None
    return ProgressLine(file)


def _share(progress: Progress) -> str:
    if progress.total_count:
        return f"{progress.done_count} of {progress.total_count}"
    return f"{progress.done_nbytes / 1e6:,.0f} of {progress.total_nbytes / 1e6:,.0f} MB"

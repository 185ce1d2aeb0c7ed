"""Progress lines: shown after a second, by the thread that works, in terminals and notebooks alone."""

from __future__ import annotations

import io
import sys
import threading

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.system.progress import Progress, ProgressLine, open_progress_line

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n, 6] x) => (float[n, 6] y) <float two = {2}> { a = Mul (x, two) b = Sigmoid (a) y = Sub (a, b) }"""


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Cell(io.StringIO):
    """The output of a notebook's cell, which is no terminal."""

    __module__ = "ipykernel.iostream"


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(file: io.StringIO) -> str:
    """Return what stands in the last line."""
    line: list[str] = []
    for part in file.getvalue().split("\r"):
        line[: len(part)] = part
    return "".join(line).rstrip()


def compiled(done: int, total: int = 11) -> Progress:
    """Return the progress of compiling."""
    return Progress("compile", "f.cu:f", done_count=done, total_count=total)


def test_a_line_comes_after_a_second_and_goes_at_the_end() -> None:
    file, clock = Terminal(), Clock()
    line = ProgressLine(file, clock)
    line(compiled(0))
    clock.now += 0.9
    line(compiled(1))
    assert file.getvalue() == ""
    clock.now += 0.1
    line(compiled(2))
    assert shown(file) == "compiling kernels 2 of 11"
    clock.now += 0.05  # it is not written more often than one can read
    line(compiled(3))
    assert shown(file) == "compiling kernels 2 of 11"
    line(compiled(11))
    assert shown(file) == "" and file.getvalue()


def test_what_is_done_within_a_second_leaves_no_trace() -> None:
    file, clock = Terminal(), Clock()
    line = ProgressLine(file, clock)
    for done in range(12):
        line(compiled(done))
    line(Progress("upload", "w", 5, 10))
    line(Progress("upload", "w", 10, 10))
    assert file.getvalue() == ""


def test_a_stage_within_another_does_not_begin_that_anew() -> None:
    file, clock = Terminal(), Clock()
    line = ProgressLine(file, clock)
    for number in range(4):
        line(Progress("plan", "g", done_count=number, total_count=4))
        line(compiled(0, 1))
        clock.now += 0.4
        line(compiled(1, 1))
    assert "planning size classes 3 of 4" in file.getvalue() and "compiling" not in file.getvalue()
    clock.now += 1
    line(Progress("upload", "w", 3_000_000, 20_000_000))
    clock.now += 1
    line(Progress("upload", "w", 4_000_000, 20_000_000))
    assert shown(file) == "uploading weights 4 of 20 MB"


def test_a_terminal_that_is_gone_is_no_matter() -> None:
    file, clock = Terminal(), Clock()
    line = ProgressLine(file, clock)
    line(compiled(0))
    file.close()
    clock.now += 2
    line(compiled(1))
    line(compiled(11))


@pytest.mark.parametrize(
    ("file", "value", "is_shown"),
    [(Terminal(), None, True), (Cell(), None, True), (io.StringIO(), None, False), (Terminal(), "0", False)],
)
def test_lines_are_for_terminals_and_notebooks_unless_switched_off(
    file: io.StringIO, value: str | None, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.delenv("GPUEXEC_PROGRESS", raising=False)
    if value is not None:
        monkeypatch.setenv("GPUEXEC_PROGRESS", value)
    assert (open_progress_line() is not None) == is_shown


def test_progress_says_what_is_counted() -> None:
    assert str(compiled(5)) == "compile 5 of 11 kernels (f.cu:f)" and not compiled(5).is_over
    assert str(Progress("upload", "w", 1000, 2000)) == "upload 1,000 of 2,000 bytes (w)"


@pytest.mark.parametrize("backend", ["simulator", "cpu"])
def test_a_worker_tells_of_kernels_and_classes_in_the_calling_thread(backend: str) -> None:
    told: list[Progress] = []
    threads = set()

    def tell(progress: Progress) -> None:
        threads.add(threading.current_thread())
        told.append(progress)

    model = gx.load(parser.parse_model(TEXT), dims={"n": (1, 64)})
    with gx.Worker(model, backend=backend, progress=tell) as worker:
        worker.run(np.ones((2, 6), np.float32))
        assert threads <= {threading.current_thread()}
        for stage in {each.stage for each in told}:
            rows = [each for each in told if each.stage == stage]
            assert rows[0].done_count == 0 and rows[-1].is_over
        assert ("compile" in {each.stage for each in told}) == (backend == "simulator")

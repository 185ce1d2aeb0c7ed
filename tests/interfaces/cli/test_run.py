"""Progress bars in a terminal while weights are uploaded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gpuexec.cli import main
from gpuexec.cli.run import show_progress
from gpuexec.system.progress import Progress
from tests.execution.weights.models import make_chain, save_inside


def test_bar_is_drawn_in_a_terminal_and_goes_at_the_end() -> None:
    file = io.StringIO()
    with show_progress(Console(file=file, force_terminal=True, width=100)) as tell:
        assert tell is not None
        tell(Progress("upload", "w", 500_000, 2_000_000))
    assert "uploading weights" in file.getvalue() and "0.5/2.0 MB" in file.getvalue()


def test_bar_counts_kernels() -> None:
    file = io.StringIO()
    with show_progress(Console(file=file, force_terminal=True, width=100)) as tell:
        assert tell is not None
        tell(Progress("compile", "f.cu:f", done_count=5, total_count=11))
    assert "compiling kernels" in file.getvalue() and "5/11" in file.getvalue()


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    with show_progress(Console(file=file)) as tell:
        assert tell is None
    assert not file.getvalue()


def test_run_reports_weights_it_reads_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's word for: it is a terminal
    path = save_inside(make_chain(2), tmp_path)
    assert main(["run", str(path), "--backend", "simulator", "--repeat", "0"]) == 0
    printed = capsys.readouterr().out
    assert "uploading weights" in printed

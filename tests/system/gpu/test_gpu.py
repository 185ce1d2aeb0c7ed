"""The runner of GPU tests after a failure, a lost device, a crash and a hang. It needs no GPU for that."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.system.gpu import __main__ as runner

FILE = """
import os, threading
import pytest
from gpuexec.errors import DeviceLostError

pytestmark = pytest.mark.gpu

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_loses_the_device():
    with pytest.raises(ValueError): raise DeviceLostError("gone")
def test_after_loss(): pass
def test_crashes(): os._exit(9)
def test_hangs(): threading.Event().wait()
def test_last(): pass
def test_skipped(): pytest.skip("not here")
"""


def test_every_test_of_a_file_gets_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HANG_S", 2)
    path = tmp_path / "test_sample.py"
    path.write_text(FILE)
    rows = runner.run_file(str(path), ["-p", "no:cacheprovider"], tmp_path)
    states = {row["test"].rpartition("::")[2]: row["state"] for row in rows}
    assert states == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_loses_the_device": "failed",
        "test_after_loss": "passed",
        "test_crashes": "failed",
        "test_hangs": "failed",
        "test_last": "passed",
        "test_skipped": "skipped",
    }
    messages = {row["test"].rpartition("::")[2]: row.get("message", "") for row in rows}
    assert "assert 1 == 2" in messages["test_fails"] and "gone" in messages["test_loses_the_device"]
    assert "ended with 9" in messages["test_crashes"] and "hung for 2 s" in messages["test_hangs"]
    ends = [ElementTree.parse(file).getroot() for file in tmp_path.glob("*.xml")]
    assert sum(int(suite.get("tests", 0)) for root in ends for suite in root) >= 3


def test_summary_names_failures_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = runner.Summary(tmp_path / "summary.txt")
    passed = {"test": "a::one", "state": "passed", "seconds": 1.0}
    failed = {"test": "a::two", "state": "failed", "message": "def f():\nE   assert 1 == 2\n"}
    summary.tell({"a.py": [passed, failed]})
    text = capsys.readouterr().out
    assert text == (tmp_path / "summary.txt").read_text()
    assert "a.py: 1 failed, 1 passed (1.0 s)" in text
    assert "FAILED a::two\n    E   assert 1 == 2" in text


def test_file_without_tests_is_no_failure_and_one_that_cannot_be_read_is(tmp_path: Path) -> None:
    empty, broken = tmp_path / "test_empty.py", tmp_path / "test_broken.py"
    empty.write_text("")
    broken.write_text("import nothing_of_that_name")
    assert runner.run_file(str(empty), [], tmp_path) == []
    (row,) = runner.run_file(str(broken), [], tmp_path)
    assert row["state"] == "failed"

"""gpuexec demo, --version, and ``python -m gpuexec``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.cli import demo, main

ROOT = Path(__file__).resolve().parents[3]


def test_demo_reads_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--backend", "cpu", "--repeat", "2"]) == 0
    text = capsys.readouterr().out
    accuracy = re.search(r"accuracy ([\d.]+) % \(\d+ of 360\)", text)
    assert accuracy is not None and float(accuracy[1]) >= 97 and "█" in text


def test_demo_takes_what_run_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--backend", "cpu", "--rows", "0:4", "--repeat", "1", "--show", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["right"] == 4 and found["outputs"]["logits"]["shape"] == [4, 10]
    assert main(["demo", "--backend", "cpu", "--dims", "batch=2", "--repeat", "1", "--show", "0"]) == 0
    assert "accuracy" not in capsys.readouterr().out


def test_demo_says_where_the_digits_should_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_MODEL", "letters.onnx")
    assert main(["demo"]) == 1
    assert "The digits are missing: neither " in capsys.readouterr().err


def test_version_and_the_module_are_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"gpuexec {gx.__version__}\n"
    command = [sys.executable, "-m", "gpuexec", "--version"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == f"gpuexec {gx.__version__}\n"

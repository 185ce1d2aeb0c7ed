"""gpuexec profile, end to end."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.cli import main
from tests.interfaces.cli.terminal import run_on_terminal

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")
DATA = f"image={ROOT / 'examples/data/digits.npz'}:images"


@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_profile_prints_layers_and_writes_trace_and_values(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, values = tmp_path / "trace.json", tmp_path / "rows.tsv"
    options = ["--backend", backend, "--input", DATA, "--rows", "0:4", "--runs", "3", "--warmup", "2"]
    assert main(["profile", DIGITS, *options, "--trace", str(trace), "--tsv", str(values)]) == 0
    text = capsys.readouterr().out
    assert f"backend  {backend.upper()}: asked for" in text
    assert re.search(r"3 runs after 2, as launches layer by layer: p10 [\d.]+ ms, p50 [\d.]+ ms, p90", text)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if len(line.split()) > 10}
    assert rows["layer"][:4] == ["layer", "operator", "runs", "times"]
    assert rows["layer2/conv+layer2/relu"][1:4] == ["gpuexec.FusedConv", "3", "3"]
    events = {line.split()[0]: line.split() for line in text.splitlines() if len(line.split()) == 4}
    assert events["schedule"][1] == "5" and events["analyse"][1] == "1"
    assert "0 implicit waits, reads or computations of the host" in text
    layers = [each for each in json.loads(trace.read_text())["traceEvents"] if each.get("cat") == "layer"]
    count = 5 * 7  # runs by layers
    assert len(layers) == count
    with open(values, newline="") as file:
        assert len(list(csv.DictReader(file, dialect="excel-tab"))) == count


def test_profile_takes_programs_and_adds_up_by_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits.gxp"
    gx.Program.build({"forward": DIGITS}, backend=gx.BackendType.CPU).save(path)
    assert main(["profile", str(path), "--backend", "cpu", "--by", "operator", "--runs", "2", "--limit", "2"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if len(line.split()) > 10]
    assert [row[0] for row in rows].count("operator") == 1 and "FLOP/s" in text
    shown = [row[0] for row in rows if row[1:3] in (["2", "2"], ["2", "4"])]
    assert len(shown) == 2 and set(shown) <= {"gpuexec.FusedConv", "MaxPool", "Mul", "Gemm", "Softmax"}
    assert "and 3 more" in text


def test_profile_reports_complexity_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", DIGITS, "--static", "--dims", "batch=2"]) == 0
    text = capsys.readouterr().out
    (row,) = (line.split() for line in text.splitlines() if line.split()[:1] == ["head"])
    assert row[1] == "Gemm" and "FLOP in all" in text and "backend" not in text


@pytest.mark.parametrize("option", [["--runs", "0"], ["--warmup", "-1"]])
def test_profile_refuses_counts_that_make_no_sense(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", DIGITS, *option]) == 1
    assert "--runs must be at least 1 and --warmup 0, got" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [50, 80, 100])
def test_a_narrow_terminal_lacks_columns_and_cuts_no_number(columns: int) -> None:
    text = run_on_terminal(columns, "profile", DIGITS, "--backend", "cpu", "--runs", "2")
    lines = text.splitlines()
    assert not re.search(r"\d…|…\d", text) and all(len(line) <= columns for line in lines)
    title = next(line for line in lines if line.split()[:1] == ["layer"])
    row = next(line for line in lines if line.split()[:1] == ["layer2/pool"])
    assert "share" in title and "avg ms" in title and re.search(r" \d+\.\d%  +\d+\.\d{4} ", row)
    assert "B/s" not in title and "left out to fit the width: B/s" in text


def test_a_table_that_is_no_terminals_is_whole_however_narrow_it_is_asked_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["profile", DIGITS, "--backend", "cpu", "--runs", "2"]) == 0
    text = capsys.readouterr().out
    title = next(line.split() for line in text.splitlines() if line.split()[:1] == ["layer"])
    assert title[-4:] == ["FLOP", "FLOP/s", "bytes", "B/s"] and "left out" not in text and "…" not in text


def test_complexity_adds_up_by_operator_and_keeps_to_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", DIGITS, "--static", "--by", "operator", "--limit", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Conv", "2"] in [line[:2] for line in lines] and ["and", "5", "more"] in lines
    assert sum(line[:1] in (["Conv"], ["Gemm"], ["MaxPool"], ["Relu"]) for line in lines) == 2


def test_files_are_written_whether_or_not_anybody_reads_what_is_printed(tmp_path: Path) -> None:
    trace, values = tmp_path / "trace.json", tmp_path / "rows.tsv"
    command = [sys.executable, "-u", "-m", "gpuexec", "profile", DIGITS, "--backend", "cpu"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, "--trace", str(trace), "--tsv", str(values)], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(trace.read_text())["traceEvents"] and values.read_text()

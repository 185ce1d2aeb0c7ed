"""gpuexec run --batch: rows in batches, written to .npy files, and gone on with after a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.cli import main, row_batches
from tests.interfaces.cli.terminal import ROOT, run_on_terminal

DIGITS = str(ROOT / "examples/models/digits.onnx")
ROWS, BATCH = 10_000, 128
# Counts rows on the disk up to one, and ends the process as it writes others later: those are there, not counted.
KILLED = """
import os, signal, sys
from gpuexec.cli import main, row_batches
counted, last, write = int(sys.argv[1]), int(sys.argv[2]), row_batches.RowFiles.write
def write_and_die(files, answer):
    row_batches._MARK_EVERY_S = 0 if files.done < counted else 1e9
    write(files, answer)
    if files.done >= last:
        for each in files._files.values():
            each.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
row_batches.RowFiles.write = write_and_die
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def images(tmp_path: Path) -> str:
    """A file of 10,000 pictures."""
    with np.load(ROOT / "examples/data/digits.npz") as data:
        np.save(tmp_path / "images.npy", np.resize(data["images"].astype(np.float32), (ROWS, 1, 8, 8)))
    return str(tmp_path / "images.npy")


def run_arguments(images: str, output: Path, *more: str, model: str = DIGITS) -> list[str]:
    given = ["--backend", "cpu", "--input", f"image={images}", "--batch", str(BATCH), "--output", str(output)]
    return ["run", model, *given, *more]


def test_every_output_has_a_file_of_all_rows(images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run_arguments(images, tmp_path / "out.npy")) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^10,000 rows in [\d.]+ s, [\d,]+ rows/s$", printed, re.M)
    assert f"{tmp_path / 'out.logits.npy'}: float32[10000,10]" in printed
    with gx.Worker(DIGITS, backend="cpu") as worker:
        outputs = worker.run(np.load(images))
    for name, expected in outputs.items():
        np.testing.assert_allclose(np.load(tmp_path / f"out.{name}.npy"), expected, rtol=1e-5, atol=1e-5)
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("counted", [BATCH, 40 * BATCH])
def test_killed_run_goes_on_behind_the_rows_it_counted(
    counted: int, images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole.npy", tmp_path / "killed.npy"
    assert main(run_arguments(images, whole)) == 0
    limits = [str(counted), str(40 * BATCH)]
    command = [sys.executable, "-c", KILLED, *limits, *run_arguments(images, killed)]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("killed.*.npy")) and len(list(tmp_path.glob("killed.*.part"))) == 2

    capsys.readouterr()
    assert main(run_arguments(images, killed, "--resume")) == 0
    printed = capsys.readouterr().out
    assert f"resumed at row {counted:,}\n" in printed and f"{ROWS - counted:,} rows in " in printed
    for name in ("logits", "probabilities"):
        assert (tmp_path / f"killed.{name}.npy").read_bytes() == (tmp_path / f"whole.{name}.npy").read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_interrupted_run_says_how_to_go_on(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = row_batches.RowFiles.write

    def interrupt(files: row_batches.RowFiles, answer: Mapping[str, Any]) -> None:
        if files.done == 5 * BATCH:
            raise KeyboardInterrupt
        write(files, answer)

    monkeypatch.setattr(row_batches.RowFiles, "write", interrupt)
    assert main(run_arguments(images, tmp_path / "out.npy")) == 130
    assert "stopped at row 640; --resume goes on from there" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(run_arguments(images, tmp_path / "out.npy", "--resume")) == 0
    assert "resumed at row 640" in capsys.readouterr().out


def test_run_interrupted_while_files_get_their_names_only_ends(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def interrupt(source: Path, target: Path) -> None:
        if Path(target).name == "out.probabilities.npy":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupt)
    assert main(run_arguments(images, tmp_path / "out.npy")) == 130
    assert (tmp_path / "out.logits.npy").exists() and not (tmp_path / "out.probabilities.npy").exists()
    monkeypatch.undo()
    assert main(run_arguments(images, tmp_path / "out.npy", "--resume")) == 0
    assert "resumed at row 10,000\n0 rows in " in capsys.readouterr().out
    for name in ("logits", "probabilities"):
        assert np.isfinite(np.load(tmp_path / f"out.{name}.npy")).all()
    assert not list(tmp_path.glob("*.part*"))


def test_run_that_fails_keeps_the_rows_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Rows of another shape from 64 on: as many columns as the largest number of a batch.
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Range", ["zero", "most", "one"], ["columns"]),
        helper.make_node("Add", ["x", "columns"], ["y"]),
    ]
    weights = [helper.make_tensor(name, TensorProto.INT64, [], [n]) for name, n in (("zero", 0), ("one", 1))]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 1])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["n", "columns"])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.repeat([[3], [4]], 64, axis=0))
    arguments = ["run", str(tmp_path / "m.onnx"), "--backend", "cpu", "--input", f"x={tmp_path / 'x.npy'}"]
    arguments += ["--batch", "16", "--output", str(tmp_path / "y.npy")]
    for more in ([], ["--resume"]):
        assert main([*arguments, *more]) == 1
        printed = capsys.readouterr()
        assert "stopped at row 64; --resume goes on from there" in printed.out
        assert "Output 'y' has rows of [3] before row 64, and then of [4]" in printed.err


def test_other_work_is_not_gone_on_with(images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.npy"
    command = [sys.executable, "-c", KILLED, str(BATCH), str(BATCH), *run_arguments(images, output)]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    gx.load(DIGITS).with_weights({"head.bias": np.ones(10, np.float32)}).save(tmp_path / "other.onnx")
    np.save(tmp_path / "other.npy", np.load(images) + 1)
    for word, arguments in {
        "batches of 128, now 64": run_arguments(images, output, "--batch", "64"),
        "inputs": run_arguments(str(tmp_path / "other.npy"), output),
        "model": run_arguments(images, output, model=str(tmp_path / "other.onnx")),
        "precision": run_arguments(images, output, "--precision", "bf16"),
    }.items():
        assert main([*arguments, "--resume"]) == 1
        assert f"{output} was begun with {word}" in capsys.readouterr().err
    (tmp_path / "out.logits.npy.part").write_bytes(b"")
    assert main(run_arguments(images, output, "--resume")) == 1
    assert "out.logits.npy.part has not the 128 rows that out.npy.part.json counts" in capsys.readouterr().err
    (tmp_path / "out.npy.part.json").write_text("[]")
    assert main(run_arguments(images, output, "--resume")) == 1
    assert "out.npy.part.json is no count of rows" in capsys.readouterr().err
    assert main(run_arguments(images, output)) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--resume"], "give --batch N, too"),
        (["--batch", "0", "--output", "o.npy"], "--batch must be at least 1, got 0"),
        (["--batch", "8"], "--output FILE.npy, got no --output"),
        (["--batch", "8", "--output", "o.npz"], "--output FILE.npy, got o.npz"),
        (["--batch", "8", "--output", "nowhere/o.npy"], "is no file in a folder that is there"),
        (["--batch", "8", "--output", "o.npy", "--repeat", "2"], "--repeat is about one run"),
        (["--batch", "8", "--output", "o.npy", "--check"], "--check is about one run"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", DIGITS, "--backend", "cpu", *options]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_inputs_of_other_rows_and_outputs_of_other_types_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {"x": ("float32", ("n", 2)), "y": ("float32", ("n", 2))}
    gx.graph(lambda x, y: x + y, specs).save(tmp_path / "sum.onnx")
    gx.graph(lambda x: x.astype(ml_dtypes.bfloat16), {"x": ("float32", ("n", 2))}).save(tmp_path / "half.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros((4, 2), np.float32), y=np.zeros((3, 2), np.float32))
    more = [
        "--backend",
        "cpu",
        "--input",
        str(tmp_path / "in.npz"),
        "--batch",
        "2",
        "--output",
        str(tmp_path / "o.npy"),
    ]
    assert main(["run", str(tmp_path / "sum.onnx"), *more]) == 1
    assert "as many rows of every input, got x 4, y 3" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "half.onnx"), *more]) == 1
    assert "is of a type that .npy files don't have" in capsys.readouterr().err


def test_terminal_has_a_bar(images: str, tmp_path: Path) -> None:
    printed = run_on_terminal(100, *run_arguments(images, tmp_path / "out.npy"))
    assert re.search(r"rows ━+.*\d+/10000 ", printed)

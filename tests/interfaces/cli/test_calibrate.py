"""gpuexec calibrate: batches from files and folders, what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import main
from tests.execution.calibration.networks import draw_batches, make_mlp

Out = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "mlp.onnx"
    onnx.save(make_mlp(), path)
    return str(path)


def read_scales(path: Path) -> dict[str, float]:
    constants = gx.load(path).info.graph.constants
    return {
        value.name: float(array)
        for value, array in constants.items()
        if value.name.endswith(".scale") and array.size == 1
    }


def test_batches_come_from_files_and_folders(model: str, tmp_path: Path, capsys: Out) -> None:
    out, folder, batches = tmp_path / "int8.onnx", tmp_path / "batches", draw_batches("mlp")
    folder.mkdir()
    np.savez(folder / "0.npz", x=batches[0])
    np.save(folder / "1.npy", batches[1])
    np.save(tmp_path / "x.npy", 2 * batches[1])
    arguments = ["calibrate", model, "-o", str(out), "--batch", str(folder), "--backend", "cpu"]
    assert main([*arguments, "--batch", str(tmp_path / "x.npy"), "--method", "entropy"]) == 0
    text = capsys.readouterr().out
    assert "x: int8, scale 0.0" in text and "b: int8" in text and "d: int8" in text
    assert f"written to {out}: weights take 1," in text
    wanted = gx.calibrate(model, [*batches, 2 * batches[1]], method="entropy", backend="cpu")
    wanted.save(tmp_path / "wanted.onnx")
    assert read_scales(out) == read_scales(tmp_path / "wanted.onnx")


def test_input_is_divided_into_batches(model: str, tmp_path: Path) -> None:
    x, out = draw_batches("mlp")[0], tmp_path / "int8.onnx"
    np.savez(tmp_path / "data.npz", rows=x)
    arguments = ["calibrate", model, "-o", str(out), "--input", f"x={tmp_path / 'data.npz'}:rows", "--backend", "cpu"]
    assert main([*arguments, "--rows", "0:10", "--batch-size", "4"]) == 0
    assert read_scales(out)["x.scale"] == np.float32(np.abs(x[:10]).max() / 127)
    with gx.Worker(gx.load(out), backend="cpu") as worker:
        assert worker.run(x)[0].shape == (16, 5)


def test_options_reach_the_model(model: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", draw_batches("mlp")[0])
    out = tmp_path / "int8.onnx"
    arguments = ["calibrate", model, "-o", str(out), "--batch", str(tmp_path / "x.npy"), "--backend", "cpu"]
    assert main([*arguments, "--keep", "th*", "first", "--per-tensor", "--activations", "uint8"]) == 0
    quantizing = [node for node in onnx.load(out).graph.node if node.op_type == "QuantizeLinear"]
    assert [node.input[0] for node in quantizing] == ["b"]
    assert {value.name: str(array.dtype) for value, array in gx.load(out).info.graph.constants.items()}[
        "b.zero"
    ] == "uint8"
    assert "w2.scale" in read_scales(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Calibration of 'mlp' needs batches to run, got none"),
        (["--batch", "{}"], "is a folder without .npz, .npy, .json files"),
        (
            ["--input", "x={}/x.npy", "--batch-size", "0"],
            "--batch-size 0 can't divide inputs by their first axis: x has 16",
        ),
        (["--batch", "{}/x.npy", "--keep", "nothing"], "no product or convolution is called 'nothing'"),
        (["--batch", "{}/wrong.npz"], "holds z, none of them an input"),
    ],
)
def test_what_is_wrong_is_said(model: str, tmp_path: Path, capsys: Out, arguments: list[str], message: str) -> None:
    folder = tmp_path / "inputs"
    folder.mkdir()
    (tmp_path / "empty").mkdir()
    np.save(folder / "x.npy", draw_batches("mlp")[0])
    np.savez(folder / "wrong.npz", z=np.zeros(3))
    where = tmp_path / "empty" if arguments[1:2] == ["{}"] else folder
    given = [each.format(where) for each in arguments]
    assert main(["calibrate", model, "-o", str(tmp_path / "out.onnx"), *given, "--backend", "cpu"]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "out.onnx").exists()


def test_model_is_not_overwritten(model: str, capsys: Out) -> None:
    assert main(["calibrate", model, "-o", model]) == 1
    assert "would overwrite a model; name another file: model.onnx" in capsys.readouterr().err

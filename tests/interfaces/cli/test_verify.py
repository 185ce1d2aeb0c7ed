"""gpuexec verify of ONNX files: comparison, gaps by layer, bisection, output and exit status."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from gpuexec.cli import main
from tests.execution.debugging.models import X, parse, wrong_tanh


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The model and its input, as the command line takes them."""
    model, x = tmp_path / "model.onnx", tmp_path / "x.npy"
    onnx.save(parse(), model)
    np.save(x, X)
    return [str(model), "--input", f"x={x}"]


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> list[str]:
    return ["--backend", str(request.param)]


def test_a_model_is_compared_with_another_engine(
    files: list[str], backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *files, *backend]) == 0
    assert "ok  y against onnxruntime: max abs" in capsys.readouterr().out
    assert main(["verify", *files, *backend, "--engine", "reference"]) == 0
    assert "ok  y against reference" in capsys.readouterr().out
    assert main(["verify", files[0], "--dims", "n=3", *backend]) == 0


def test_what_is_off_says_how_to_go_on(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with wrong_tanh(monkeypatch):
        assert main(["verify", *files, "--backend", "cpu"]) == 1
        text = capsys.readouterr().out
        assert "OFF y against onnxruntime" in text
        assert f"gpuexec verify {files[0]} --bisect" in text
        assert main(["verify", *files, "--backend", "cpu", "--bisect"]) == 1
    text = capsys.readouterr().out
    assert "0 passes: OFF" in text
    assert "verdict: the passes are correct" in text
    assert "Tanh 'tanh', value 'b'" in text


def test_gaps_are_printed_by_layer(
    files: list[str], backend: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["verify", *files, *backend, "--gap"]) == 0
    text = capsys.readouterr().out
    assert "against NumPy" in text
    for node in ("first", "tanh", "second", "softmax"):
        assert f"\n{node} " in text
    assert main(["verify", *files, *backend, "--gap", "onnxruntime"]) == 0
    assert "against onnxruntime" in capsys.readouterr().out
    other = parse()
    weight = onnx.numpy_helper.to_array(other.graph.initializer[1])
    other.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight * np.float32(0.5), "v"))
    onnx.save(other, tmp_path / "other.onnx")
    assert main(["verify", *files, *backend, "--gap", str(tmp_path / "other.onnx")]) == 1
    assert "furthest off by itself: MatMul 'second', 'c'" in capsys.readouterr().out


def test_outputs_that_agree_are_not_bisected(
    files: list[str], backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *files, *backend, "--bisect"]) == 0
    assert "verdict: the outputs agree" in capsys.readouterr().out


def test_a_program_is_measured_and_not_bisected(
    files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program, case = tmp_path / "model.gxp", tmp_path / "case.npz"
    np.savez(case, x=X)
    assert main(["compile", files[0], "-o", str(program), "--dim", "n=1..8", "--case", str(case)]) == 0
    capsys.readouterr()
    assert main(["verify", str(program), "--backend", "cpu", "--gap"]) == 0
    assert "\ntanh " in capsys.readouterr().out
    assert main(["verify", str(program), "--backend", "cpu", "--bisect"]) == 1
    assert "--bisect needs the ONNX file" in capsys.readouterr().err


def test_one_thing_is_asked_for_at_a_time(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *files, "--backend", "cpu", "--gap", "--bisect"]) == 1
    assert "give one of them" in capsys.readouterr().err
    assert main(["verify", files[0], "--backend", "cpu", "--method", "forward"]) == 1
    assert "is no program" in capsys.readouterr().err

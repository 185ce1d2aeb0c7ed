"""A model given as a program, and a program given as a model: errors that name the right call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import main
from tests.program.program_seeds import program_bytes

DIGITS = Path(__file__).resolve().parents[2] / "examples/models/digits.onnx"
Out = pytest.CaptureFixture[str]
TO_PROGRAM = r"expected an ONNX model, got a program of gpuexec.*Program\.load\(path\).*Module\(path\)"
TO_MODEL = r"Expected a program, got an ONNX model.*gpuexec\.load\(path\).*Program\.build"


def rename(tmp_path: Path, content: bytes, suffix: str) -> Path:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", [".gxp", ".onnx", ""])
def test_program_given_as_a_model_names_the_call_for_programs(tmp_path: Path, suffix: str) -> None:
    path = rename(tmp_path, program_bytes(), suffix)
    sources: list[Callable[[], object]] = [
        lambda: gx.load(path),
        lambda: gx.load(path.read_bytes()),
        lambda: gx.load(path.open("rb")),
        lambda: gx.Program.build({"forward": path}),
    ]
    for load in sources:
        with pytest.raises(gx.ModelError, match=TO_PROGRAM):
            load()


@pytest.mark.parametrize("suffix", [".gxp", ".onnx", ""])
def test_model_given_as_a_program_names_the_calls_for_models(tmp_path: Path, suffix: str) -> None:
    path = rename(tmp_path, DIGITS.read_bytes(), suffix)
    for source in (path, path.read_bytes(), path.open("rb")):
        with pytest.raises(gx.ModelError, match=TO_MODEL):
            gx.Program.load(source)


@pytest.mark.parametrize("folder", ["tests/program/format_1_0.gxp", "examples/models/digits.onnx"])
def test_right_kind_is_read_whatever_its_name(tmp_path: Path, folder: str) -> None:
    content = (DIGITS.parents[2] / folder).read_bytes()
    path = rename(tmp_path, content, ".bin")
    assert gx.Program.load(path) if folder.endswith("gxp") else gx.load(path)


def test_models_of_any_exporter_are_recognised_by_how_they_begin() -> None:
    for producer in ("", "pytorch"):
        model = onnx.load(DIGITS)
        model.producer_name = producer
        with pytest.raises(gx.ModelError, match=TO_MODEL):
            gx.Program.load(model.SerializeToString())


@pytest.mark.parametrize("command", ["info", "run", "explain", "compile", "verify"])
def test_command_line_says_what_the_file_is(tmp_path: Path, capsys: Out, command: str) -> None:
    output = ["-o", str(tmp_path / "out.gxp")] if command == "compile" else []
    assert main([command, str(rename(tmp_path, program_bytes(), ".onnx")), *output]) != 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "got a program of gpuexec" in said and "end in .gxp" in said
    if command != "compile":
        assert main([command, str(rename(tmp_path, DIGITS.read_bytes(), ".gxp"))]) != 0
        assert "got an ONNX model" in " ".join("".join(capsys.readouterr()).split())

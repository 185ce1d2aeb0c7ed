"""--providers of explain, and gpuexec tune, end to end without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuexec.cli import main
from gpuexec.planner.tune_file import Tuning, write_tuning
from tests.devices.libraries.models import product


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "product.onnx"
    product(512, 768, 768).save(path)
    return str(path)


def test_explain_says_which_provider_and_why(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", model, "--target", "sm_90", "--providers", "cublaslt", "cudnn"]
    assert main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["providers"]
    assert {each["provider"] for each in row["candidates"]} == {"gpuexec", "cublaslt"}
    assert not any(each["is_measured"] for each in row["candidates"])
    times = {row["problem"]: {"gpuexec": 7.5, "cublaslt": 5.25}}
    write_tuning(tmp_path / "tune.json", Tuning("H100", {}, times))
    assert main([*command, "--tuning", str(tmp_path / "tune.json")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "call cublaslt product 512x768x768, float32" in told
    assert "gpuexec 7.5 us measured; cublaslt 5.2 us measured" in told


def test_tune_needs_a_gpu_and_writes_nothing_without(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpuexec.execution.worker as workers
    from gpuexec.errors import DeviceNotFoundError

    def refuse(*_: object) -> None:
        raise DeviceNotFoundError("There is no GPU here.")

    monkeypatch.setattr(workers, "find_backend", refuse)
    assert main(["tune", model, "--out", str(tmp_path / "tune.json")]) == 1
    assert "There is no GPU here." in capsys.readouterr().err
    assert not (tmp_path / "tune.json").exists()


def test_tune_does_not_write_over_what_is_no_tune_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.json").write_text("{}")
    assert main(["tune", model, "-o", str(tmp_path / "notes.json")]) == 1
    assert "is no tune file" in capsys.readouterr().err and (tmp_path / "notes.json").read_text() == "{}"

"""--json of every command that has it: JSON alone, in the names of `to_dict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import COMMANDS, main
from gpuexec.system.records import encode
from tests.model.control_models import MODELS

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")
DATA = ROOT / "examples/data/digits.npz"
CPU = ["--backend", "cpu"]
SHAPES = {"forward": {"image": ((1, 4), 1, 8, 8)}}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == status
    said = capsys.readouterr()
    assert not said.err

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found: dict[str, Any] = json.loads(said.out, parse_constant=refuse)
    return found


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "digits.gxp"
    case = gx.Case({"image": np.zeros((2, 1, 8, 8), np.float32)})
    gx.Program.build({"forward": DIGITS}, backend="cpu", cases={"forward": [case]}, shapes=SHAPES).save(path)
    return str(path)


@pytest.fixture
def divided(tmp_path: Path) -> str:
    """A model that the host takes part in."""
    onnx.save(MODELS["loop_in_if_in_scan"].parse(), tmp_path / "divided.onnx")
    return str(tmp_path / "divided.onnx")


def test_run_gives_times_outputs_and_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--input", f"image={DATA}:images", "--labels", f"{DATA}:labels", "--rows", "0:8"]
    found = run_json(capsys, "run", DIGITS, *CPU, *data, "--repeat", "2", "--check")
    assert found["outputs"]["logits"] == {"dtype": "float32", "shape": [8, 10]}
    assert found["right"] == 8 and found["timing"]["runs"] == 2 and found["timing"]["p50_ms"] > 0
    assert [each["is_close"] for each in found["checks"]] == [True, True]
    with gx.Worker(DIGITS, backend="cpu") as worker:
        assert set(found["report"]) == set(worker.report().to_dict())


def test_info_is_the_models_own_description(capsys: pytest.CaptureFixture[str], program: str) -> None:
    described = gx.load(DIGITS).to_dict()
    assert run_json(capsys, "info", DIGITS) == {"path": DIGITS, **described}
    assert described["inputs"] == [
        {"name": "image", "type": "float32[batch,1,8,8]", "dtype": "float32", "shape": ["batch", 1, 8, 8]}
    ]
    assert (described["operators"]["Conv"], described["bodies"], described["opset"]) == (2, 0, 21)
    found = run_json(capsys, "info", program)
    method = found["methods"]["forward"]
    assert found["nbytes"] == Path(program).stat().st_size and method["cases"] == 1
    assert method["plans"]["cpu"][0]["commands"] > 0 and method["inputs"] == described["inputs"]


def test_profile_is_the_profilers_own_description(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["profile", DIGITS, *CPU, "--dims", "batch=2"]
    found = run_json(capsys, *options, "--runs", "3", "--by", "operator")
    assert len(found["runs"]) == 3 and found["by"] == "operator" and found["syncs"] == 0
    assert {row["name"] for row in found["summary"]} >= {"gpuexec.FusedConv", "Gemm"}
    assert all(row["runs"] == 3 for row in found["summary"]) and found["report"]["runs"] == 4
    with gx.Profiler() as profiler, gx.Worker(DIGITS, backend="cpu") as worker:
        worker.run(np.zeros((2, 1, 8, 8), np.float32))
    assert set(profiler.to_dict()) < set(found)
    work = run_json(capsys, *options, "--static")["work"]
    assert [row["operator"] for row in work if row["node"] == "head"] == ["Gemm"]


@pytest.mark.parametrize("target", [["--target", "cpu"], CPU, ["--target", "sm_90"]])
def test_explain_gives_plans_of_every_target(target: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "explain", DIGITS, *target, "--dims", "batch=2")
    (plan,) = found["plans"]
    assert plan["target"] == found["target"] and plan["arena_nbytes"] >= plan["arena_lower_bound"] > 0
    assert {"origin", "command", "after"} == set(plan["commands"][0]) and found["is_whole"]
    assert len(found["predictions"]) == (found["target"] == "sm_90")


def test_explain_says_what_the_host_does_between_plans(divided: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "explain", divided, *CPU)
    assert not found["is_whole"] and found["host"] and {part["does"] for part in found["host"]} <= {
        "read", "compute", "repeat"
    }  # fmt: skip
    assert len(found["plans"]) == found["report"]["plans"]


@pytest.mark.parametrize(
    ("options", "key"),
    [([], "outputs"), (["--gap"], "gaps"), (["--bisect"], "verdict")],
    ids=["plain", "gap", "bisect"],
)
def test_verify_gives_what_it_found(options: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "verify", DIGITS, *CPU, "--dims", "batch=2", *options)
    assert found["is_close"] and found[key] and found["backend"] == "cpu"


def test_verify_fails_with_json_too(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "verify", program, *CPU)
    assert found["is_close"] and [row["output"] for row in found["outputs"]] == ["logits", "probabilities"]
    found = run_json(capsys, "verify", DIGITS, *CPU, "--dims", "batch=2", "--rtol", "0", "--atol", "0", status=1)
    assert not found["is_close"]


def test_doctor_gives_versions_backends_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "doctor")
    assert found["version"] == gx.__version__ and found["packages"]["numpy"] == np.__version__
    assert found["backends"]["cpu"] == {"works": True, "about": "cpu"} and "GPUEXEC_CPU_THREADS" in found["settings"]


def test_every_command_says_what_it_does_and_the_rest_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n    {command} " in said for command in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["benchmark"])
    assert ended.value.code == 2


def test_records_are_plain_data() -> None:
    gap = gx.gap_of(np.float32([1, 2]), np.float32([1, 2])).to_dict()
    assert gap["snr_db"] == "inf" and gap["is_close"] is True and gap["size"] == 2
    rows = encode({"a": (np.int64(3), float("nan")), 4: {"z", "b"}, "t": gx.BackendType.CPU, "x": np.zeros((2, 3))})
    assert rows == {
        "a": [3, "nan"], "4": ["b", "z"], "t": "cpu", "x": {"dtype": "float64", "shape": [2, 3]}
    }  # fmt: skip
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows

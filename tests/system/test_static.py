"""Linter, formatter and type checker over the sources, and proof that they would fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, input=given, capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--output-format", "concise", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
    ],
    ids=["rules", "format", "types"],
)
def test_sources_pass(command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "source", "is_allowed"),
    [
        ("gpuexec/ops/nn/norm.py", "import onnx", False),
        ("gpuexec/model/model.py", "from onnx import helper", False),
        ("gpuexec/importer/load.py", "import onnx", True),
        ("gpuexec/compat/onnx_backend.py", "import onnx", True),
        ("gpuexec/planner/lower.py", "import cupy", False),
        ("gpuexec/importer/load.py", "from . import order", False),
        ("gpuexec/devices/cuda/cuda.py", "import cupy", True),
        ("gpuexec/devices/kernels/kernel_library.py", "import cupy", True),
        ("gpuexec/execution/results/tensor.py", "import cupy", True),
    ],
)
def test_import_outside_of_its_rooms_breaks_a_rule(path: str, source: str, is_allowed: bool) -> None:
    done = run("ruff", "check", "--select", "TID", "--stdin-filename", path, "-", given=f"{source}\n")
    assert (done.returncode == 0) == is_allowed, done.stdout
    assert is_allowed or "TID25" in done.stdout


def test_types_are_checked_strictly(tmp_path: Path) -> None:
    (tmp_path / "loose.py").write_text("def double(x):\n    return x + x\n")
    done = run("mypy", str(tmp_path / "loose.py"))
    assert done.returncode != 0
    assert "no-untyped-def" in done.stdout


def test_format_is_checked() -> None:
    assert run("ruff", "format", "--check", "--stdin-filename", "gpuexec/x.py", "-", given="x = 'a'\n").returncode != 0

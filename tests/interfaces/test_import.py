"""`import gpuexec`: light, with features loaded on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("onnx", "cupy", "rich", "asyncio", "onnxruntime", "safetensors", "cuda.bindings")


def load(statement: str) -> set[str]:
    """Run a statement in a fresh Python and return the names of ``HEAVY`` it loaded."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*(n for n in {HEAVY} if n in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_import_loads_no_heavy_library() -> None:
    assert load("import gpuexec") == set()


@pytest.mark.parametrize("name", ["onnx", "rich", "asyncio"])
def test_loading_one_is_seen(name: str) -> None:
    assert name in load(f"import gpuexec, {name}")

"""Host memory of weight uploads, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.execution.weights.models import make_chain, save_inside, save_program

ROOT = Path(__file__).resolve().parents[3]
LAYERS, SIDE = 3, 4096
NBYTES = LAYERS * SIDE * SIDE * 4  # 192 MiB
MAX_EXTRA = 128 << 20
IS_LINUX = Path("/proc/self/clear_refs").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("weights")
    model = make_chain(LAYERS, SIDE)
    save_program(model, made)
    save_inside(model, made)
    yield made
    for path in made.iterdir():
        path.unlink()


def measure(path: Path) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.execution.weights.peak", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows: dict[str, int] = json.loads(done.stdout)
    return rows


@pytest.mark.skipif(not IS_LINUX, reason="peaks of resident memory are read from /proc")
@pytest.mark.parametrize("name", ["beside.onnx", "model.gxp"])
def test_weights_in_files_take_two_blocks_of_the_host(folder: Path, name: str) -> None:
    rows = measure(folder / name)
    assert rows["uploaded"] == NBYTES
    assert rows["extra"] <= MAX_EXTRA


@pytest.mark.skipif(not IS_LINUX, reason="peaks of resident memory are read from /proc")
def test_weights_in_the_model_take_one_copy_of_the_file(folder: Path) -> None:
    rows = measure(folder / "inside.onnx")
    assert rows["uploaded"] == NBYTES
    assert rows["extra"] <= NBYTES + MAX_EXTRA

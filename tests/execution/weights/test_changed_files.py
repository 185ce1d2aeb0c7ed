"""Weight files written to or truncated while a model that maps them is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.execution.resources import upload as uploading
from tests.execution.weights.models import SIDE, make_chain, save_beside, save_program

ROOT = Path(__file__).resolve().parents[3]
X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)
TYPES = ["cpu", "simulator"]


@pytest.fixture(params=TYPES)
def type(request: pytest.FixtureRequest) -> gx.BackendType:
    return gx.BackendType(request.param)


def cut(path: Path) -> None:
    os.truncate(path, 4096)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    os.utime(path, ns=(1, 1))


CHANGES = {
    "cut": (cut, f"expected {3 * SIDE * SIDE * 4} bytes, got 4096"),
    "overwritten": (overwrite, "it was written to"),
}
Change = tuple[Callable[[Path], None], str]


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Change:
    return CHANGES[request.param]


@pytest.mark.parametrize("backend", TYPES)
def test_no_page_of_a_map_is_ever_touched(tmp_path: Path, backend: str) -> None:
    """Whatever is done with a model: run, compare, save, compile, compress, exchange weights."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.execution.weights.unreadable", str(tmp_path), backend],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "weights exchanged"


def test_change_after_loading_is_reported_at_the_first_run(
    tmp_path: Path, type: gx.BackendType, change: Change
) -> None:
    write, message = change
    model = gx.load(save_beside(make_chain(3), tmp_path))
    write(tmp_path / "weights.bin")
    with gx.Worker(model, backend=type) as worker:
        for _ in range(2):  # and the Worker stays usable
            with pytest.raises(gx.AccessError, match=rf"Weight %w\d: 'weights\.bin' changed .*{message}"):
                worker.run(X)


def test_change_after_the_first_run_changes_nothing(tmp_path: Path, type: gx.BackendType, change: Change) -> None:
    write, _ = change
    model = gx.load(save_beside(make_chain(3), tmp_path))
    with gx.Worker(model, backend=type) as worker:
        worker.schedule(X)
        before = worker.read_output("y")
        write(tmp_path / "weights.bin")
        worker.schedule(X)
        np.testing.assert_array_equal(worker.read_output("y"), before)
        with gx.Worker(model, backend=type) as other:
            other.schedule(X)
            np.testing.assert_array_equal(other.read_output("y"), before)


def test_change_during_the_upload_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    write, message = change
    monkeypatch.setattr(uploading, "BLOCK_NBYTES", 1 << 16)
    model = gx.load(save_beside(make_chain(3), tmp_path))
    reported: list[gx.Progress] = []

    def tell(progress: gx.Progress) -> None:
        reported.append(progress)
        if len(reported) == 2:
            write(tmp_path / "weights.bin")

    expected = rf"Weight %w\d: 'weights\.bin' (changed .*{message}|ended early)"
    backend = gx.BackendType("simulator")
    with gx.Worker(model, backend=backend, progress=tell) as worker, pytest.raises(gx.AccessError, match=expected):
        worker.run(X)
    assert len(reported) >= 2


def test_change_of_a_program_is_reported(tmp_path: Path, type: gx.BackendType) -> None:
    path = save_program(make_chain(3), tmp_path)
    program = gx.Program.load(path, backend=type)
    cut(path)
    with pytest.raises(gx.AccessError, match=r"model\.gxp changed since the model was loaded"):
        run_method(program)


def run_method(program: gx.Program) -> Any:
    with program.load_method("forward") as method:
        method.set_input(0, X)
        method.execute()
        return method.get_output(0).readback_and_clone()


def test_saving_and_compiling_a_changed_model_leave_nothing(tmp_path: Path, change: Change) -> None:
    write, message = change
    (tmp_path / "out").mkdir()
    model = gx.load(save_beside(make_chain(3), tmp_path))
    program = gx.Program.load(save_program(make_chain(3), tmp_path))
    write(tmp_path / "model.gxp")
    model = gx.load(save_beside(make_chain(3), tmp_path))
    write(tmp_path / "weights.bin")
    works: list[Callable[[], Any]] = [
        lambda: model.save(tmp_path / "out" / "a.onnx"),
        lambda: model.save(tmp_path / "out" / "b.onnx", external_data=True),
        lambda: gx.Program.build({"m": model}, backend=gx.BackendType.CPU),
        lambda: program.save(tmp_path / "out" / "c.gxp"),
        lambda: model.compress_weights("int8"),
        lambda: gx.measure_weights(model, model),
    ]
    for work in works:
        with pytest.raises(gx.AccessError, match="changed since the model was loaded"):
            work()
    assert not list((tmp_path / "out").iterdir()), message


def test_weights_from_a_file_that_was_cut_are_refused_and_the_old_ones_stay(
    tmp_path: Path, type: gx.BackendType
) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "other.safetensors"
    save_file({f"w{i}": np.eye(SIDE, dtype=np.float32) for i in range(3)}, path)
    with gx.Worker(gx.load(make_chain(3)), backend=type) as worker:
        worker.schedule(X)
        before = worker.read_output("y")
        weights = gx.NamedDataMap.load(path)
        cut(path)
        with pytest.raises(gx.AccessError, match=r"other\.safetensors changed since"):
            worker.replace_weights(weights)
        worker.schedule(X)
        np.testing.assert_array_equal(worker.read_output("y"), before)

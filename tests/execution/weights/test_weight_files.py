"""Weights: narrow types, and files that the host's bytes are windows on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.system.mapped import find_source
from tests.devices.backends import is_tracer
from tests.execution.weights.models import SIDE, make_chain, save_beside, save_inside

X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)


@pytest.mark.feature("S77")
@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_weights_are_stored_narrow_and_widened_by_their_readers(kind: str, backend: Backend) -> None:
    model = gx.load(make_chain(2))
    compressed = model.compress_weights(kind)
    assert {node.operator.name for node in compressed.graph.nodes} == {"gpuexec.NarrowMatMul"}
    assert {node.operator.name for node in model.graph.nodes} == {"MatMul"}  # what was compressed stays as it was
    with gx.Worker(model, backend=backend) as one, gx.Worker(compressed, backend=backend) as other:
        expected, got = one.run(X)[0], other.run(X)[0]
        assert other.memory_stats()["weights"] <= 2 * SIDE * SIDE * 2 < one.memory_stats()["weights"]
        assert sum(len(plan.segment.commands) for plan in other.plans) == 2
    if not is_tracer(backend):
        np.testing.assert_allclose(got, expected, atol=0.05 * np.abs(expected).max())
        assert not np.array_equal(got, expected)
    assert "output snr" in str(gx.measure_weights(model, compressed, {"x": X}))


@pytest.mark.feature("E5", "B18")
def test_weights_in_files_take_nothing_of_the_host_after_the_upload(tmp_path: Path, backend: Backend) -> None:
    model = gx.load(save_beside(make_chain(2), tmp_path))
    with gx.Worker(model, backend=backend) as worker:
        worker.run(X)
    # All that is left are windows on the file, whose pages are the system's to take back, and can be read again.
    assert all(find_source(array) is not None for array in model.graph.constants.values())
    with gx.Worker(model, backend=backend) as again:
        again.run(X)


@pytest.mark.feature("E14")
def test_weights_in_files_stay_there_until_a_device_reads_them(tmp_path: Path, backend: Backend) -> None:
    model = gx.load(save_beside(make_chain(2), tmp_path))
    with gx.Worker(model, backend=backend) as worker:
        (before,) = worker.run(X)
        assert all(find_source(array) is not None for array in model.graph.constants.values())
        assert worker._engine.planning.weights.nbytes == 2 * SIDE * SIDE * 4
        (tmp_path / "weights.bin").write_bytes(b"")
        np.testing.assert_array_equal(worker.run(X)[0], before)


@pytest.mark.feature("S11")
def test_progress_of_weights_is_reported(tmp_path: Path, backend: Backend) -> None:
    seen: list[gx.Progress] = []
    model = gx.load(save_inside(make_chain(2), tmp_path), progress=seen.append)
    assert [each.stage for each in seen] == ["read", "read"]
    with gx.Worker(model, backend=backend, progress=seen.append) as worker:
        worker.prepare()
    if backend.device.target.has_kernels:
        assert seen[-1].stage == "upload" and seen[-1].done_nbytes == seen[-1].total_nbytes == 2 * SIDE * SIDE * 4

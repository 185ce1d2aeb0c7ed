"""Smoke tests of the GPU benchmarks, on the simulator and over the stand-in for CuPy and the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cuda.cuda import CudaDevice
from tests.bench import run_gpu
from tests.bench.gpu_launches import measure_launches
from tests.bench.gpu_models import measure_models
from tests.bench.models import SMALL_MODELS
from tests.devices.cupy_standin import Standin, install
from tests.devices.opening import make_simulator


@pytest.fixture
def cuda_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    below = make_simulator()
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path))
    device = CudaDevice()
    yield device
    device.close()
    below.close()


def test_results_are_written_as_text_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    options = ["--device", "simulator", "--small", "--model", "mlp", "--repeat", "2", "--out", str(tmp_path)]
    assert run_gpu.main(options) == 0
    written = json.loads((tmp_path / "bench-gpu.json").read_text())
    (row,) = written["figures"][0]["rows"]
    assert row["model"] == "mlp"
    assert float(row["max error"]) < 1e-5
    assert "simulator" in written["machine"]["GPU"]
    text = (tmp_path / "bench-gpu.txt").read_text()
    assert "Submitting 100 small commands" in text


def test_models_and_every_form_of_launch_run_on_the_cuda_device(cuda_device: CudaDevice) -> None:
    backend = Backend(cuda_device, gx.BackendType.GPU_COMPUTE, "tested")
    (models,) = measure_models(backend, iter([SMALL_MODELS["mlp"]()]), 1)
    assert [row[0] for row in models.rows] == ["mlp"]
    (launches,) = measure_launches(cuda_device, open_other, 1)
    assert [row[0] for row in launches.rows] == ["RawKernel", "packed launch", "graph"]


def test_a_model_that_fails_is_said(cuda_device: CudaDevice) -> None:
    bench = SMALL_MODELS["mlp"]()
    bench.inputs["x"] = bench.inputs["x"][:, :3]
    backend = Backend(cuda_device, gx.BackendType.GPU_COMPUTE, "tested")
    (figures,) = measure_models(backend, iter([bench]), 1)
    assert not figures.rows
    assert figures.notes[0].startswith("mlp failed: ")


def open_other(is_packed: bool) -> Any:
    assert not is_packed, "packed is what the device does by itself"
    return CudaDevice(packed_launch=is_packed)

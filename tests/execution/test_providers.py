"""Providers of Workers: options, what is missing, tune files, and `tune`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.execution import tuning
from gpuexec.execution.profiling.rows import CommandRow, LayerRow
from gpuexec.ir.provider import OURS, Offer
from gpuexec.planner.providers import Providers
from gpuexec.planner.tune_file import Tuning, read_tuning, write_tuning
from tests.devices.libraries.models import expect_product, product, ramp
from tests.model.small_models import make_tracer

X = ramp(5, 6)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The code for GPUs over a simulator, with stand-ins of libraries to be installed."""
    from gpuexec.devices.backend import Backend
    from gpuexec.devices.cuda.cuda import CudaDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.opening import make_simulator

    below = make_simulator()
    cuda: Any = Standin(below, architecture=(8, 0))
    install(monkeypatch, cuda)
    device = CudaDevice()
    yield SimpleNamespace(backend=Backend(device, gx.BackendType.GPU_COMPUTE, "for a test"), device=device, cuda=cuda)
    device.close()
    below.close()


@pytest.fixture
def libraries(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    from tests.devices.library_standins import install_libraries

    return install_libraries(monkeypatch, gpu.cuda)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": "cublaslt"}, r"providers takes names of libraries, as in \['cublaslt'\], got 'cublaslt'"),
        ({"providers": ["cublas"]}, r"no provider 'cublas'; expected some of 'cublaslt', 'cudnn'"),
        ({"tuning": "tune.json"}, r"tuning goes with providers: providers=\['cublaslt'\]"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        gx.Worker(product(), backend="cpu", **options)


@pytest.mark.parametrize(("name", "extra", "module"), [("cublaslt", "cublas", "nvmath"), ("cudnn", "cudnn", "cudnn")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str, extra: str, module: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(gx.DeviceNotFoundError, match=rf"provider '{name}' can't be used: .*gpuexec\[{extra}\]"):
        gx.Worker(product(), backend=gpu.backend, providers=[name])


def test_backends_without_libraries_take_none() -> None:
    with gx.Worker(product(), backend="cpu", providers=["cublaslt"]) as worker:
        np.testing.assert_array_equal(worker.run(X)[0], expect_product(X))
        assert worker.report().providers == ()
    with gx.Worker(product(), backend=make_tracer(), providers=["cublaslt", "cudnn"]) as worker:
        worker.prepare((5, 6))
        assert "call" not in str(worker.plans[0]) and worker.report().providers == ()


def test_a_tune_file_decides_and_the_report_says_so(
    gpu: SimpleNamespace, libraries: SimpleNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "tune.json"
    with gx.Worker(product(), backend=gpu.backend, providers=["cublaslt"]) as worker:
        worker._engine.planning.providers = Providers(("cublaslt",), forced="cublaslt")
        worker.prepare((5, 6))
        (problem,) = (offer.problem for _, offer in worker._engine.planning.offers)
    times = {problem: {OURS: 9.0, "cublaslt": 2.0}}
    write_tuning(path, Tuning(gpu.device.name, {}, times))
    with gx.Worker(product(), backend=gpu.backend, providers=["cublaslt"], tuning=path) as worker:
        np.testing.assert_array_equal(worker.run(X)[0], expect_product(X))
        ((_, provider, why),) = worker.report().providers
        assert provider == "cublaslt" and why == "gpuexec 9.0 us measured; cublaslt 2.0 us measured"
        assert "  providers cublaslt 1\n" in worker.summary()
    write_tuning(path, Tuning("another GPU", {}, times))
    with pytest.raises(gx.InputError, match=rf"measured on 'another GPU', and this is '{gpu.device.name}'"):
        gx.Worker(product(), backend=gpu.backend, providers=["cublaslt"], tuning=path)


def test_tune_measures_each_provider_and_names_what_was_measured(
    gpu: SimpleNamespace, libraries: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Our kernels have a given time here: they would have to be compiled."""
    measure, forced = tuning._measure, []

    def measure_library(model: gx.Model, inputs: Any, names: Any, provider: str, *rest: Any) -> dict[str, float]:
        forced.append(provider)
        return {"ours": 1.0} if provider == OURS else measure(model, inputs, names, provider, *rest)

    monkeypatch.setattr(tuning, "_measure", measure_library)
    found = tuning.tune(product(), X, providers=["cublaslt"], backend=gpu.backend, runs=3, warmup=1)
    assert forced == [OURS, "cublaslt"] and len(libraries.lt.products) == 4
    assert found.gpu == gpu.device.name and found.versions["cublaslt"] == str(libraries.lt.get_version())
    assert set(found.versions) == {"gpuexec", "driver", "cublaslt"}
    (problem,) = set(found.times_us) - {"ours"}
    assert problem.startswith("product 5x7x6, float32") and found.times_us[problem]["cublaslt"] > 0
    write_tuning(tmp_path / "t.json", found)
    assert set(read_tuning(tmp_path / "t.json").times_us) == set(found.times_us)


def test_tune_notes_the_problems_that_a_library_refuses(gpu: SimpleNamespace, libraries: SimpleNamespace) -> None:
    libraries.lt.algorithms = 0
    refused: dict[str, dict[str, str]] = {}
    with gx.Worker(product(), backend=gpu.backend, providers=["cublaslt"]) as worker:
        worker._engine.planning.providers = Providers(("cublaslt",), forced="cublaslt")
        with pytest.raises(gx.UnsupportedError):
            worker.run(X)
        assert tuning._note_refusals(worker, refused)
    assert list(refused.values()) == [{"cublaslt": "cublaslt has no algorithm"}]


def test_tune_refuses_backends_without_libraries() -> None:
    with pytest.raises(gx.InputError, match=r"has no libraries: tune on a GPU"):
        tuning.tune(product(), X, providers=["cublaslt"], backend="cpu")


def test_times_of_a_node_are_those_of_its_layers_once_for_each_trip() -> None:
    """The first node has two layers, one of which runs twice in a loop; the second was taken by another provider."""

    def row(node: str, kernel: str, run: int, ms: float | None) -> LayerRow:
        command = CommandRow("launch", kernel, (1, 1, 1), (1, 1, 1), 0, 0)
        return LayerRow(run, "m", 0, node, "MatMul", "d", (command,), 0, 0, 0, 0.0, 0.0, 0.0, ms, "s", "t")

    costs = ((OURS, 1.0, False), ("cublaslt", 1.0, False))
    offers = [
        ("a", Offer("p", OURS, costs, ())),
        ("b", Offer("q", "cublaslt", costs, ())),
        ("c", Offer("", OURS, (), ())),
    ]
    rows = [row("a", "k", 0, 1.0), row("a", "k", 0, 3.0), row("a", "l", 0, 5.0), row("a", "k", 1, None)]
    rows += [row("a", "k", 2, 8.0), row("a", "l", 2, 1.0), row("b", "k", 0, 1.0), row("c", "k", 0, 1.0)]
    assert tuning.find_times(rows, offers, OURS) == {"p": 8000.0}

"""Shared fixtures, a Worker and a backend; tests marked ``gpu``; and the devices named in the header of a run."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import subprocess
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.system import knobs
from tests.devices.backends import BACKENDS
from tests.devices.opening import open_device, why_no_gpu
from tests.model.small_models import affine, make_tracer
from tests.system import absent_packages

_WORTH_TELLING = 0.005  # seconds
_OPERATORS = f"{Path(__file__).parent / 'ops'}{os.sep}"
_PACKAGES = ("numpy", "onnx", "onnxruntime", "cupy-cuda13x", "cupy-cuda12x", "cupy", "cuda-bindings", "torch")


def pytest_configure(config: pytest.Config) -> None:
    if knobs.read_flag("GPUEXEC_REQUIRE_GPU") and why_no_gpu():
        raise pytest.UsageError(f"GPUEXEC_REQUIRE_GPU is set, but no GPU can be used: {why_no_gpu()}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores, for while one waits for a thread or a compiler."""
    return (os.cpu_count() or 1) + 1


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.option.markexpr != "gpu":
        return []
    return [f"{key}: {value}" for key, value in describe_machine().items()]


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_quick(item):
        item.add_marker(pytest.mark.quick)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if any(item.get_closest_marker("gpu") for item in items) and (reason := why_no_gpu()):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: all that is made then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what is imported and collected, which stays to the end, out of every later collection of garbage.

    Collections are rare besides: tests make cycles by the thousand, and none that matter until the next collection.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send another process one report of a test that passes: of its call, and of what else took time.

    Three reports and two notices take two milliseconds of a test, a third of which this saves.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration > _WORTH_TELLING:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return absent_packages.skip_collected((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return absent_packages.skip_run((yield), call.excinfo.value if call.excinfo is not None else None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that the test's parameter names: CPU and simulator, or those of its mark `on`."""
    return make_tracer() if request.param == "tracer" else open_backend(gx.BackendType(request.param))


@pytest.fixture
def worker(backend: Backend) -> Iterator[gx.Worker]:
    with gx.Worker(affine(), backend=backend) as worker:
        yield worker


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test is of the host, by its parameters: a case of an operator there, or no simulator."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    if str(item.path).startswith(_OPERATORS):
        return params.get("checks") == "host"
    return not any(str(value) in ("check", "pixel") or "simulator" in str(value).lower() for value in params.values())


def describe_machine() -> dict[str, str]:
    """Return what a result depends on: GPU, driver, versions of packages, commit."""
    rows = {"commit": _find_commit(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            rows[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if why_no_gpu():
        return {"GPU": why_no_gpu(), **rows}
    device = open_device("gpu")
    runtime = device.context.cupy.cuda.runtime  # type: ignore[attr-defined]
    versions = f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}"
    return {"GPU": f"{device.name} ({device.target.name})", "CUDA": versions, **rows}


def _find_commit() -> str:
    if shutil.which("git") is None:
        return "unknown, there is no git"
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown, this is no checkout"

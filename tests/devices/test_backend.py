"""Backend selection, and its reported reason."""

from __future__ import annotations

import os

import pytest

from gpuexec.devices import backend as backends
from gpuexec.devices.backend import BackendType, choose_backend, open_backend
from gpuexec.devices.cuda import cuda, driver
from gpuexec.devices.cuda.driver import Driver, DriverDevice
from gpuexec.errors import DeviceNotFoundError, InputError, StateError

NO_DRIVER = Driver(found=False, version=0, devices=(), reason="There is no NVIDIA driver here.")
WITH_GPU = Driver(found=True, version=13000, devices=(DriverDevice("NVIDIA H200", (9, 0)),), reason="")


@pytest.fixture(autouse=True)
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_open", {})


def test_auto_takes_the_cpu_and_says_why_when_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "probe", lambda: NO_DRIVER)
    chosen, reason = choose_backend(BackendType.AUTO)
    assert chosen.type is BackendType.CPU
    assert reason.startswith(NO_DRIVER.reason)


def test_auto_takes_the_cpu_and_names_what_to_install_when_a_driver_lacks_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_cupy(ordinal: int) -> object:
        raise DeviceNotFoundError("CuPy is not installed: pip install 'gpuexec[cuda13]'.")

    monkeypatch.setattr(driver, "probe", lambda: WITH_GPU)
    monkeypatch.setattr(cuda, "CudaDevice", lacks_cupy)
    chosen, reason = choose_backend(BackendType.AUTO)
    assert chosen.type is BackendType.CPU
    assert "pip install 'gpuexec[cuda13]'" in reason
    assert "\n" not in reason


@pytest.mark.feature("B13")
def test_auto_takes_the_gpu_when_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuexec.devices.recorder.tracer import TracerDevice

    monkeypatch.setattr(driver, "probe", lambda: WITH_GPU)
    monkeypatch.setattr(cuda, "CudaDevice", lambda ordinal: TracerDevice())
    chosen, reason = choose_backend(BackendType.AUTO)
    assert chosen.type is BackendType.GPU_COMPUTE
    assert "GPU" in reason


def test_a_gpu_asked_for_is_an_error_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "probe", lambda: NO_DRIVER)
    with pytest.raises(DeviceNotFoundError, match=r"no NVIDIA driver.*apt-get install nvidia-driver"):
        open_backend(BackendType.GPU_COMPUTE)


def test_what_was_asked_for_says_so_whatever_auto_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "probe", lambda: NO_DRIVER)
    assert choose_backend(BackendType.AUTO)[1].startswith(NO_DRIVER.reason)
    assert choose_backend(BackendType.CPU)[1] == "asked for"


def test_one_device_serves_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "probe", lambda: NO_DRIVER)
    assert open_backend(BackendType.AUTO).device is open_backend(BackendType.CPU).device
    assert open_backend(BackendType.CPU) is open_backend(BackendType.CPU)


def test_a_forked_process_is_refused_with_the_word_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = open_backend(BackendType.CPU)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StateError, match="spawn"):
        chosen.check_process()


def test_types_are_found_by_name_in_any_case() -> None:
    for each in BackendType:
        assert {BackendType(name) for name in (each, each.value, each.value.upper(), each.value.title())} == {each}
    for wrong in ("gpu", "", None, 3, b"cpu"):
        with pytest.raises(InputError, match=r"no backend .*'auto', 'gpu_compute'.*'simulator_pixel'\.$"):
            BackendType(wrong)

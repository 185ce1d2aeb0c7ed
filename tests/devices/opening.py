"""Devices that tests run on, by name, each opened once per process."""

from __future__ import annotations

import functools
from pathlib import Path

import gpuexec.ops  # noqa: F401 (fills the table of instantiations)
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.cuda.driver import probe
from gpuexec.devices.device import Device
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.ir.instances import kernel_table

SCALE_SOURCE = str(Path(__file__).with_name("scale.cu"))
TOGETHER_SOURCE = str(Path(__file__).with_name("together.cu"))
EXPRESSIONS = {
    SCALE_SOURCE: ("scale<float>", "scale<int>", "fault", "fault_reading"),
    TOGETHER_SOURCE: (
        "share<0>",
        "share<1>",
        "sum_by_last<0>",
        "sum_by_last<1>",
        *(f"share_by_turns<{bug}>" for bug in range(3)),
    ),
}


@functools.cache
def open_device(name: str) -> Device:
    """Return the process's ``cpu``, ``simulator``, ``check`` (a simulator in check mode), ``tracer`` or ``gpu``.

    ``simulator_90`` and ``check_90`` are such of sm_90, ``pixel`` and ``pixel_check`` simulators whose memory is
    textures, ``gpu_pixel`` is such a GPU.

    Raises:
        DeviceNotFoundError: There is no GPU that works.
    """
    match name:
        case "cpu":
            return CpuDevice()
        case "simulator":
            return make_simulator()
        case "check":
            return make_simulator(check_kernels=True)
        case "simulator_90":
            return make_simulator(target="sm_90")
        case "check_90":
            return make_simulator(target="sm_90", check_kernels=True)
        case "pixel":
            return make_simulator(target="pixel_80")
        case "pixel_check":
            return make_simulator(target="pixel_80", check_kernels=True)
        case "tracer":
            return TracerDevice("sm_80")
        case "gpu":
            from gpuexec.devices.cuda.cuda import CudaDevice

            return CudaDevice()
        case "gpu_pixel":
            from gpuexec.devices.cuda.cuda_pixel import CudaPixelDevice

            return CudaPixelDevice()
    raise ValueError(f"No device is called {name!r}.")


def open_living(name: str) -> Device:
    """Return the device of `open_device`, or a new one where that was lost, as a simulator that found something."""
    device = open_device(name)
    if isinstance(device, SimulatorDevice) and not device.context.is_alive():
        open_device.cache_clear()
        return open_device(name)
    return device


def list_kernels(source: str) -> tuple[str, ...]:
    """Return the instances of a kernel file: of the package, or of these tests."""
    return EXPRESSIONS[source] if source in EXPRESSIONS else kernel_table()[source]


def make_simulator(
    schedule: Schedule | None = None,
    delay_s: float = 0.0,
    *,
    check_order: bool = True,
    check_kernels: bool | None = None,
    target: str = "sm_80",
    multiprocessors: int | None = None,
) -> SimulatorDevice:
    """Return a simulator of its own, with the kernels of the package and of these tests."""
    return SimulatorDevice(
        list_kernels,
        target,
        schedule=schedule,
        delay_s=delay_s,
        check_order=check_order,
        check_kernels=check_kernels,
        multiprocessors=multiprocessors,
    )


@functools.cache
def why_no_gpu() -> str:
    """Return one sentence on why no GPU can be used, or nothing where one can."""
    found = probe()
    if found.reason:
        return found.reason
    return "" if found.found and found.devices else "The driver shows no GPU."

"""The devices tests run on, by name, each opened once per process."""

from __future__ import annotations

import functools
from pathlib import Path

import gpuexec.ops  # noqa: F401 (fills the table of instantiations)
from gpuexec.operator import kernel_table
from gpuexec.runtime.cpu import CpuDevice
from gpuexec.runtime.device import Device
from gpuexec.runtime.driver import probe
from gpuexec.runtime.simulator.device import SimulatorDevice
from gpuexec.runtime.simulator.library import Schedule
from gpuexec.runtime.tracer import TracerDevice

SCALE_SOURCE = str(Path(__file__).parent / "kernels" / "scale.cu")
EXPRESSIONS = ("scale<float>", "scale<int>", "fault")


@functools.cache
def open_device(name: str) -> Device:
    """Return the process's ``cpu``, ``simulator``, ``tracer`` or ``gpu``.

    Raises:
        DeviceNotFoundError: There is no GPU that works.
    """
    match name:
        case "cpu":
            return CpuDevice()
        case "simulator":
            return make_simulator()
        case "tracer":
            return TracerDevice("sm_80")
        case "gpu":
            from gpuexec.runtime.cuda import CudaDevice

            return CudaDevice()
    raise ValueError(f"No device is called {name!r}.")


def list_kernels(source: str) -> tuple[str, ...]:
    """Return the instances of a kernel file: of the package, or of these tests."""
    return EXPRESSIONS if source == SCALE_SOURCE else kernel_table()[source]


def make_simulator(schedule: Schedule | None = None, delay_s: float = 0.0) -> SimulatorDevice:
    """Return a simulator of its own, with the kernels of the package and of these tests."""
    return SimulatorDevice(list_kernels, "sm_80", schedule=schedule, delay_s=delay_s)


@functools.cache
def why_no_gpu() -> str:
    """Return one sentence on why no GPU can be used, or nothing where one can."""
    found = probe()
    if found.reason:
        return found.reason
    return "" if found.found and found.devices else "The driver shows no GPU."

"""Choosing a device, and what every user of one shares: its completion thread, staging and stream for copies.

One backend per device and process. AUTO may choose, and says which and why; whoever asks for a GPU by name gets it or
an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from enum import Enum

from gpuexec.errors import DeviceError, DeviceNotFoundError, GpuexecError, StateError
from gpuexec.runtime import driver
from gpuexec.runtime.completion import Completion
from gpuexec.runtime.device import Device
from gpuexec.runtime.keeper import Keeper
from gpuexec.runtime.staging import Staging
from gpuexec.runtime.transfers import Transfers


class BackendType(Enum):
    """Where a Worker runs. AUTO: the GPU when one works, else the CPU."""

    AUTO = "auto"
    GPU_COMPUTE = "gpu_compute"
    CPU = "cpu"
    SIMULATOR = "simulator"


class Backend:
    """A device with what its users share. ``reason`` says why it was opened."""

    def __init__(self, device: Device, type: BackendType, reason: str) -> None:
        self.device, self.type, self.reason = device, type, reason
        self.completion = Completion(device.name)
        self.staging = Staging(device)
        self.keeper = Keeper()
        self.transfers = Transfers(device)
        self._process = os.getpid()

    def check_process(self) -> None:
        """Check that this is still the process that opened the device.

        Raises:
            StateError: The process was forked.
        """
        if os.getpid() != self._process:
            raise StateError(
                "This object was made before a fork; device handles don't survive it. Start processes with spawn."
            )

    def __repr__(self) -> str:
        return f"Backend({self.type.name}: {self.device.name}; {self.reason})"


_open: dict[tuple[int, BackendType], Backend] = {}
_lock = threading.Lock()


def open_backend(type: BackendType) -> Backend:
    """Return the process's backend of a type, opening its device the first time.

    Raises:
        DeviceNotFoundError: The device can't run here; names what is missing and the command that installs it.
    """
    if type is BackendType.AUTO:
        return choose_backend(type)[0]
    key = (os.getpid(), type)
    with _lock:
        if key not in _open:
            _open[key] = _OPENERS[type]()
        return _open[key]


def choose_backend(type: BackendType) -> tuple[Backend, str]:
    """Return the backend of a type, and why it is that one: for AUTO the GPU when one works, else the CPU.

    Raises:
        DeviceNotFoundError: As `open_backend`.
    """
    if type is not BackendType.AUTO:
        backend = open_backend(type)
        return backend, backend.reason
    try:
        return open_backend(BackendType.GPU_COMPUTE), "a GPU works here"
    except DeviceError as error:
        reason = str(error)
    except GpuexecError as error:
        reason = f"the GPU can't be used: {error}"
    return open_backend(BackendType.CPU), reason


def _open_cpu() -> Backend:
    from gpuexec.runtime.cpu import CpuDevice

    return Backend(CpuDevice(), BackendType.CPU, "asked for")


def _open_simulator() -> Backend:
    import gpuexec.ops  # noqa: F401  (fills the table of instantiations)
    from gpuexec.operator import instantiations
    from gpuexec.runtime.simulator.device import SimulatorDevice

    return Backend(SimulatorDevice(instantiations), BackendType.SIMULATOR, "asked for")


def _open_gpu() -> Backend:
    found = driver.probe()
    if not found.found or not found.devices:
        # A driver that is there but shows no GPU, or is too old, says so itself.
        cure = "" if found.found else " With a GPU, install it: apt-get install nvidia-driver (on WSL: Windows' own)."
        raise DeviceNotFoundError(found.reason + cure)
    from gpuexec.runtime.cuda import CudaDevice

    return Backend(CudaDevice(0), BackendType.GPU_COMPUTE, "asked for")


_OPENERS: dict[BackendType, Callable[[], Backend]] = {
    BackendType.CPU: _open_cpu,
    BackendType.SIMULATOR: _open_simulator,
    BackendType.GPU_COMPUTE: _open_gpu,
}

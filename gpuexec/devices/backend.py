"""Backend selection, and what all users of a device share: completion thread, staging, stream for copies.

One backend per device and process. AUTO may choose, and reports its choice and the reason; a GPU asked for by name is
opened, or an error raised.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from enum import Enum

from gpuexec.devices.completion import Completion
from gpuexec.devices.cuda import driver
from gpuexec.devices.deferred_free import DeferredFree
from gpuexec.devices.device import Device
from gpuexec.devices.revision import Revision
from gpuexec.devices.staging import Staging
from gpuexec.devices.transfers import Transfers
from gpuexec.errors import DeviceError, DeviceNotFoundError, GpuexecError, InputError, StateError
from gpuexec.system import knobs
from gpuexec.system.pickling import not_picklable
from gpuexec.system.threads import check_threads


class BackendType(Enum):
    """Type of backend that a Worker runs on. AUTO: the GPU when one works, else the CPU.

    GPU_PIXEL: a GPU whose memory is textures; each layer is one blit, issued as scheduled. SIMULATOR and
    SIMULATOR_PIXEL run the kernels of GPU_COMPUTE and GPU_PIXEL on the CPU.

    Example:
        >>> with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        ...     worker.backend_type.name
        'CPU'
        >>> gx.BackendType("cpu") is gx.BackendType.CPU
        True
    """

    AUTO = "auto"
    GPU_COMPUTE = "gpu_compute"
    GPU_PIXEL = "gpu_pixel"
    CPU = "cpu"
    SIMULATOR = "simulator"
    SIMULATOR_PIXEL = "simulator_pixel"

    @property
    def _keeps_time(self) -> bool:
        """Whether what it takes is what it will take: simulators compute for minutes what takes a GPU no time."""
        return self not in (BackendType.SIMULATOR, BackendType.SIMULATOR_PIXEL)

    @classmethod
    def _missing_(cls, value: object) -> BackendType:
        found = cls._value2member_map_.get(value.lower()) if isinstance(value, str) else None
        if not isinstance(found, cls):
            names = ", ".join(repr(each.value) for each in cls)
            raise InputError(f"There is no backend {value!r}; expected a BackendType or its name: {names}.")
        return found


@not_picklable("Send its type, and open it there.")
class Backend:
    """A device with the resources its users share.

    Args:
        device: The device.
        type: Its type.
        reason: Why it was opened.
        threads: How many threads the host takes for a run; None: as GPUEXEC_CPU_THREADS says.
    """

    def __init__(self, device: Device, type: BackendType, reason: str, threads: int | None = None) -> None:
        self.device, self.type, self.reason, self.threads = device, type, reason, threads
        self.completion = Completion(device.name)
        self.memory_revision = Revision()
        self.staging = Staging(device, self.memory_revision)
        self.deferred_free = DeferredFree()
        self.transfers = Transfers(device)
        # The process that opened the device.
        self.process = os.getpid()

    def check_process(self) -> None:
        """Check that this is still the process that opened the device; device handles don't survive a fork.

        Raises:
            StateError: The process was forked.
        """
        if os.getpid() != self.process:
            raise StateError(
                "This object was made before a fork; device handles don't survive it. Start processes with spawn."
            )

    def __repr__(self) -> str:
        return f"Backend({self.type.name}: {self.device.name}; {self.reason})"


# A backend as callers give it: by type, by the type's name in any case, or open.
BackendLike = BackendType | Backend | str


_open: dict[tuple[int, BackendType, int, int | None], Backend] = {}
_lock = threading.Lock()


def open_backend(type: BackendType, ordinal: int = 0, threads: int | None = None) -> Backend:
    """Return the process's backend of a type and ordinal, opening its device the first time.

    Args:
        type: Which kind of device.
        ordinal: Number of the device among those of its type.
        threads: How many threads runs on the CPU take, which has a backend for each number; None: as
            GPUEXEC_CPU_THREADS says.

    Raises:
        DeviceNotFoundError: The device can't run here; names what is missing and the command that installs it, or
            which devices there are.
        InputError: The ordinal is none, ``threads`` no number of threads or for another backend, or an environment
            variable of the package has a value that it does not take.
    """
    if type is BackendType.AUTO:
        return choose_backend(type, ordinal, threads)[0]
    if threads is not None:
        _check_takes_threads(type, check_threads(threads))
    if not isinstance(ordinal, int) or isinstance(ordinal, bool) or ordinal < 0:
        raise InputError(f"device must be an ordinal, counted from 0, got {ordinal!r}.")
    key = (os.getpid(), type, ordinal, threads)
    with _lock:
        if key not in _open:
            knobs.check_environment()
            _open[key] = _OPENERS[type](ordinal) if threads is None else _open_cpu(ordinal, threads)
        return _open[key]


def choose_backend(type: BackendType, ordinal: int | None = None, threads: int | None = None) -> tuple[Backend, str]:
    """Return the backend of a type, and the reason for it: for AUTO the GPU when one works, else the CPU.

    Args:
        type: Which kind of device.
        ordinal: Number of the device among those of its type. With AUTO, any but 0 means a GPU.
        threads: As for `open_backend`; with AUTO, of the CPU where it is chosen.

    Raises:
        DeviceNotFoundError: As `open_backend`.
        InputError: As `open_backend`.
    """
    if threads is not None:
        check_threads(threads)
    if type is not BackendType.AUTO:
        backend = open_backend(type, 0 if ordinal is None else ordinal, threads)
        return backend, backend.reason
    if ordinal:
        return open_backend(BackendType.GPU_COMPUTE, ordinal), f"GPU {ordinal} was asked for"
    try:
        return open_backend(BackendType.GPU_COMPUTE), "a GPU works here"
    except DeviceError as error:
        reason = str(error)
    except GpuexecError as error:
        reason = f"the GPU can't be used: {error}"
    return open_backend(BackendType.CPU, threads=threads), reason


def check_backend(given: BackendLike) -> BackendType | Backend:
    """Return a backend unchanged, or a type converted from its name.

    Raises:
        InputError: There is no such type; lists those there are.
    """
    return given if isinstance(given, Backend) else BackendType(given)


def find_backend(given: BackendLike, ordinal: int | None, threads: int | None = None) -> tuple[Backend, str]:
    """Return the backend of a type, an ordinal and a number of threads, or a backend unchanged, and the reason for it.

    Raises:
        DeviceNotFoundError: As `open_backend`.
        InputError: As `open_backend`, or the backend given is none, or has another ordinal or number of threads.
    """
    given = check_backend(given)
    if isinstance(given, BackendType):
        return choose_backend(given, ordinal, threads)
    if threads is not None:
        _check_takes_threads(given.type, check_threads(threads))
        if threads != given.threads:
            have = "as GPUEXEC_CPU_THREADS says" if given.threads is None else given.threads
            raise InputError(f"threads={threads} is not that of {given!r}, which is {have}.")
    if ordinal not in (None, given.device.ordinal):
        raise InputError(f"device={ordinal!r} is not that of {given!r}, which is {given.device.ordinal}.")
    return given, given.reason


def _check_takes_threads(type: BackendType, threads: int) -> None:
    if type is not BackendType.CPU:
        raise InputError(f"threads={threads} is for BackendType.CPU (or AUTO, where it is chosen), got {type}.")


def _open_cpu(ordinal: int, threads: int | None = None) -> Backend:
    from gpuexec.devices.cpu.cpu import CpuDevice

    _check_ordinal("CPU", ordinal, ["this machine's processor"])
    return Backend(CpuDevice(threads=threads), BackendType.CPU, "asked for", threads)


def _open_simulator(ordinal: int) -> Backend:
    return _simulate(ordinal, "sm_90", BackendType.SIMULATOR)


def _open_simulator_pixel(ordinal: int) -> Backend:
    return _simulate(ordinal, "pixel_90", BackendType.SIMULATOR_PIXEL)


def _simulate(ordinal: int, target: str, type: BackendType) -> Backend:
    import gpuexec.ops  # noqa: F401  (fills the table of instantiations)
    from gpuexec.devices.simulator.device import SimulatorDevice
    from gpuexec.ir.instances import instantiations

    _check_ordinal("simulator", ordinal, ["simulated"] * knobs.simulated_devices())
    return Backend(SimulatorDevice(instantiations, target, ordinal=ordinal), type, "asked for")


def _open_gpu(ordinal: int) -> Backend:
    _check_gpu(ordinal)
    from gpuexec.devices.cuda.cuda import CudaDevice

    return Backend(CudaDevice(ordinal), BackendType.GPU_COMPUTE, "asked for")


def _open_pixel(ordinal: int) -> Backend:
    _check_gpu(ordinal)
    from gpuexec.devices.cuda.cuda_pixel import CudaPixelDevice

    return Backend(CudaPixelDevice(ordinal), BackendType.GPU_PIXEL, "asked for")


def _check_gpu(ordinal: int) -> None:
    found = driver.probe()
    if not found.found or not found.devices:
        # The driver's own message says that there is no GPU, or that it is too old.
        cure = "" if found.found else " With a GPU, install it: apt-get install nvidia-driver (on WSL: Windows' own)."
        raise DeviceNotFoundError(found.reason + cure)
    _check_ordinal("GPU", ordinal, [device.name for device in found.devices])


def _check_ordinal(kind: str, ordinal: int, names: Sequence[str]) -> None:
    if ordinal >= len(names):
        there = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
        raise DeviceNotFoundError(f"There is no {kind} {ordinal}; there is {there}.")


_OPENERS: dict[BackendType, Callable[[int], Backend]] = {
    BackendType.CPU: _open_cpu,
    BackendType.SIMULATOR: _open_simulator,
    BackendType.SIMULATOR_PIXEL: _open_simulator_pixel,
    BackendType.GPU_COMPUTE: _open_gpu,
    BackendType.GPU_PIXEL: _open_pixel,
}

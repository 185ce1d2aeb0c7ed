"""Devices by ONNX Runtime's names: their backends, memory and allocator descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from gpuexec.compat.onnxruntime.errors import BindingError, make_error, translating
from gpuexec.compat.onnxruntime.notices import warn_once
from gpuexec.devices.backend import Backend, BackendType, open_backend

# The simulator is a GPU by DLPack's numbers and by ONNX Runtime's, but has a name of its own.
_BACKENDS = {
    "cpu": BackendType.CPU,
    "cuda": BackendType.GPU_COMPUTE,
    "gpu": BackendType.GPU_COMPUTE,
    "simulator": BackendType.SIMULATOR,
}
_NAMES = {BackendType.CPU: "cpu", BackendType.SIMULATOR: "simulator"}
# The available ones of the device types that ONNX Runtime numbers.
_CPU, _GPU, _FPGA, _NPU, _DML = 0, 1, 2, 3, 4
_NAMES_BY_TYPE = {_CPU: "cpu", _GPU: "cuda"}


class OrtDeviceVendorId(IntEnum):
    """Vendors by their PCI numbers."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class _Kind(IntEnum):
    __str__ = Enum.__str__


class OrtAllocatorType(_Kind):
    """Ways to allocate."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Kind):
    """Uses of memory: of inputs and outputs on the CPU, or of the device itself."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(_Kind):
    """Kinds of memory that a device has."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class ArenaExtendStrategy(_Kind):
    """Ways in which an arena of ONNX Runtime grows."""

    kNextPowerOfTwo = 0  # noqa: N815
    kSameAsRequested = 1  # noqa: N815


class OrtMemoryInfoDeviceType(_Kind):
    """Types of devices that memory belongs to."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtSparseFormat(_Kind):
    """Layouts of sparse tensors, none of which is supported."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtDevice:
    """A device. Made by `make`, or from the numbers of its type, memory (0) and ordinal.

    Raises:
        BindingError: There is no device of that type, or no such memory.
    """

    def __init__(self, device_type: int, memory_type: int, device_id: int) -> None:
        if device_type not in _NAMES_BY_TYPE or memory_type != 0:
            raise make_error(
                BindingError,
                f"There is no device of type {device_type!r} with memory {memory_type!r}; expected type {_CPU} (CPU) or"
                f" {_GPU} (GPU), and memory 0.",
            )
        self._name, self._id = _NAMES_BY_TYPE[device_type], device_id

    @classmethod
    def make(cls, ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device of a name (``"cpu"``, ``"cuda"``, ``"simulator"``) and ordinal; the vendor follows."""
        name = check_device(ort_device_name)
        device = cls(_CPU if name == "cpu" else _GPU, 0, device_id)
        device._name = name
        return device

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def device_id(self) -> int:
        """Return its ordinal."""
        return self._id

    def device_type(self) -> int:
        """Return 0 for the CPU, 1 for a GPU."""
        return _CPU if self._name == "cpu" else _GPU

    def device_mem_type(self) -> int:
        """Return 0: ordinary memory of the device."""
        return self.default_memory()

    def device_vendor_id(self) -> int:
        """Return the vendor's PCI number: NVIDIA's for a GPU, 0 for the CPU."""
        return OrtDeviceVendorId.NVIDIA if self.device_type() == _GPU else OrtDeviceVendorId.NONE

    # Names of the compiled module.
    mem_type, vendor_id = device_mem_type, device_vendor_id

    @staticmethod
    def cpu() -> int:
        """Return the number of the CPU among types of devices."""
        return _CPU

    @staticmethod
    def cuda() -> int:
        """Return the number of GPUs among types of devices."""
        return _GPU

    gpu = webgpu = cuda

    @staticmethod
    def fpga() -> int:
        """Return the number of FPGAs among types of devices; there are none here."""
        return _FPGA

    @staticmethod
    def npu() -> int:
        """Return the number of NPUs among types of devices; there are none here."""
        return _NPU

    cann = npu

    @staticmethod
    def dml() -> int:
        """Return the number of DirectML's devices among types of devices; there are none here."""
        return _DML

    @staticmethod
    def default_memory() -> int:
        """Return the number of ordinary memory among kinds of memory."""
        return 0

    def _get_c_device(self) -> OrtDevice:
        return self

    def __repr__(self) -> str:
        return f"OrtDevice({self._name!r}, {self._id})"


@dataclass
class OrtMemoryInfo:
    """A description of memory, by the name of its allocator (``"Cpu"``, ``"Cuda"``)."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Return a description of memory of a device of any type; the alignment is the allocator's to choose."""
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


class OrtArenaCfg:
    """Arena configuration of ONNX Runtime, which has no effect here: plans have arenas.

    Args:
        sizes: ``max_mem``, ``arena_extend_strategy``, ``initial_chunk_size_bytes`` and ``max_dead_bytes_per_chunk``, or
            one dict of these and ``initial_growth_chunk_size_bytes`` and ``max_power_of_two_extend_bytes``.

    Raises:
        BindingError: There is no size of that name, or there are not four.
    """

    max_mem = 0
    arena_extend_strategy = initial_chunk_size_bytes = max_dead_bytes_per_chunk = -1
    initial_growth_chunk_size_bytes = max_power_of_two_extend_bytes = -1

    def __init__(self, *sizes: Any) -> None:
        if len(sizes) == 1 and isinstance(sizes[0], Mapping):
            named = dict(sizes[0])
        elif len(sizes) == len(_ARENA_SIZES):
            named = dict(zip(_ARENA_SIZES, sizes, strict=True))
        else:
            raise make_error(BindingError, f"Expected {', '.join(_ARENA_SIZES)}, or one dict, got {sizes!r}.")
        for name, size in named.items():
            if name not in (*_ARENA_SIZES, *_MORE_ARENA_SIZES):
                raise make_error(BindingError, f"An arena has no {name!r}.")
            setattr(self, name, int(size))


_ARENA_SIZES = ("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
_MORE_ARENA_SIZES = ("initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes")


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None) -> None:
    """Warn once that sessions share no allocators."""
    warn_once("create_and_register_allocator is ignored: plans have arenas, and devices one pool for all sessions.")


def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None
) -> None:
    """Warn once that sessions share no allocators."""
    create_and_register_allocator(mem_info, arena_cfg)


def describe_memory(backend: Backend) -> OrtMemoryInfo:
    """Describe the memory that a session reads inputs from and writes outputs to."""
    device = OrtDevice.make(name_device(backend), backend.device.ordinal)
    kind = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    return OrtMemoryInfo(
        device.name.capitalize(), kind, device.device_id(), OrtMemType.DEFAULT, device_vendor_id=device.vendor_id()
    )


def check_device(name: object) -> str:
    """Return the name of a device.

    Raises:
        BindingError: It is none.
    """
    lower = name.lower() if isinstance(name, str) else ""
    if lower not in _BACKENDS:
        raise make_error(BindingError, f"There is no device {name!r}; there are {', '.join(_BACKENDS)}.")
    return lower


def find_device(device: object, device_id: int) -> Backend | None:
    """Return the backend of a device, by name and ordinal or an OrtDevice; None for the CPU, whose values are arrays.

    Raises:
        BindingError: There is no such device.
        RuntimeException: It can't be used here.
    """
    if isinstance(device, OrtDevice):
        return find_device(device.name, device.device_id())
    type = _BACKENDS[check_device(device)]
    if type is BackendType.CPU:
        return None
    with translating(BindingError):
        return open_backend(type, device_id)


def name_device(backend: Backend) -> str:
    """Return the name of a backend's device."""
    return _NAMES.get(backend.type, "cuda")

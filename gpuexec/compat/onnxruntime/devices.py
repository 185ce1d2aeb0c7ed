"""Devices by ONNX Runtime's names, and which backend each is."""

from __future__ import annotations

from gpuexec.compat.onnxruntime.errors import BindingError, make_error, translating
from gpuexec.runtime.backend import Backend, BackendType, open_backend

# The simulator is a GPU by DLPack's numbers and by ONNX Runtime's, and has a name of its own.
_BACKENDS = {
    "cpu": BackendType.CPU,
    "cuda": BackendType.GPU_COMPUTE,
    "gpu": BackendType.GPU_COMPUTE,
    "simulator": BackendType.SIMULATOR,
}
_NAMES = {BackendType.CPU: "cpu", BackendType.SIMULATOR: "simulator"}
_CPU, _GPU = 0, 1
_NVIDIA = 0x10DE


class OrtDevice:
    """A device: where a value lies. `make` makes one."""

    def __init__(self, name: str, device_id: int) -> None:
        self._name, self._id = check_device(name), device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device of a name (``"cpu"``, ``"cuda"``, ``"simulator"``) and ordinal; the vendor follows."""
        return OrtDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Return its ordinal."""
        return self._id

    def device_type(self) -> int:
        """Return 0 for the CPU, 1 for a GPU."""
        return _CPU if self._name == "cpu" else _GPU

    def device_mem_type(self) -> int:
        """Return 0: ordinary memory of the device."""
        return 0

    def device_vendor_id(self) -> int:
        """Return the vendor's PCI number: NVIDIA's for a GPU, 0 for the CPU."""
        return _NVIDIA if self.device_type() == _GPU else 0

    @staticmethod
    def cpu() -> int:
        """Return the number of the CPU among types of devices."""
        return _CPU

    @staticmethod
    def cuda() -> int:
        """Return the number of GPUs among types of devices."""
        return _GPU

    def __repr__(self) -> str:
        return f"OrtDevice({self._name!r}, {self._id})"


def check_device(name: object) -> str:
    """Return the name of a device.

    Raises:
        BindingError: It is none.
    """
    lower = name.lower() if isinstance(name, str) else ""
    if lower not in _BACKENDS:
        raise make_error(BindingError, f"There is no device {name!r}; there are {', '.join(_BACKENDS)}.")
    return lower


def find_device(name: object, device_id: int) -> Backend | None:
    """Return the backend of a device, opened; None for the CPU, whose values are arrays.

    Raises:
        BindingError: There is no such device.
        RuntimeException: It can't be used here.
    """
    type = _BACKENDS[check_device(name)]
    if type is BackendType.CPU:
        return None
    with translating(BindingError):
        return open_backend(type, device_id)


def name_device(backend: Backend) -> str:
    """Return the name of a backend's device."""
    return _NAMES.get(backend.type, "cuda")

"""NVIDIA driver detection: whether there is one, and which CUDA it supports, by loading libcuda with ctypes.

Needs the standard library only, so the Makefile can run this file before anything is installed:

    python gpuexec/devices/cuda/driver.py            what was found, in words
    python gpuexec/devices/cuda/driver.py --extra    the extra to install: cuda13, cuda12, or nothing
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
from dataclasses import dataclass
from typing import Protocol

# cuDriverGetVersion of the first driver of each CUDA generation, newest first, and the extra that goes with it.
EXTRAS = ((13000, "cuda13"), (12000, "cuda12"))

_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True, slots=True)
class DriverDevice:
    """A GPU that the driver reports: its name and compute capability (``(9, 0)`` for sm_90)."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """Result of the driver detection.

    ``found`` says that a driver loaded and started, even one that shows no device. ``version`` is the newest CUDA it
    speaks, 1000 * major + 10 * minor, or 0. ``reason`` is one sentence, empty where a GPU can be used.
    """

    found: bool
    version: int
    devices: tuple[DriverDevice, ...]
    reason: str

    @property
    def extra(self) -> str:
        """The extra of this package that fits: ``"cuda13"``, ``"cuda12"``, or ``""`` where no GPU can be used."""
        if not self.devices:
            return ""
        return next((extra for version, extra in EXTRAS if self.version >= version), "")

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        names = ", ".join(f"{device.name} (sm_{device.capability[0]}{device.capability[1]})" for device in self.devices)
        return f"NVIDIA driver for CUDA {self.version // 1000}.{self.version % 1000 // 10}: {names}"


class Library(Protocol):
    """The libcuda calls used here, as ``ctypes.CDLL`` has them, or a test's stand-in."""

    def cuInit(self, flags: int, /) -> int: ...  # noqa: D102, N802
    def cuDriverGetVersion(self, version: object, /) -> int: ...  # noqa: D102, N802
    def cuDeviceGetCount(self, count: object, /) -> int: ...  # noqa: D102, N802
    def cuDeviceGet(self, device: object, ordinal: int, /) -> int: ...  # noqa: D102, N802
    def cuDeviceGetName(self, name: object, length: int, device: object, /) -> int: ...  # noqa: D102, N802
    def cuDeviceGetAttribute(self, value: object, attribute: int, device: object, /) -> int: ...  # noqa: D102, N802


def probe(library: Library | None = None) -> Driver:
    """Detect the driver and its GPUs; a missing driver is a result, never an exception.

    The machine's is looked for once: neither a driver nor what CUDA_VISIBLE_DEVICES shows changes within a process.

    Args:
        library: A replacement for the machine's libcuda.
    """
    return _probe_machine() if library is None else _try(library)


@functools.cache
def _probe_machine() -> Driver:
    library, reason = _load()
    return Driver(found=False, version=0, devices=(), reason=reason) if library is None else _try(library)


def _try(library: Library) -> Driver:
    try:
        return _ask(library)
    except (AttributeError, OSError) as error:  # a library of that name that is not a driver, or a broken one
        return Driver(found=False, version=0, devices=(), reason=f"The NVIDIA driver's library does not work: {error}.")


def main(arguments: list[str] | None = None) -> None:
    """Print the driver found, or with ``--extra`` the extra to install."""
    parser = argparse.ArgumentParser(description="Say which NVIDIA driver and GPUs this machine has.")
    parser.add_argument("--extra", action="store_true", help="print cuda13, cuda12, or nothing")
    options = parser.parse_args(arguments)
    driver = probe()
    if not options.extra:
        print(driver)
    elif driver.extra:
        print(driver.extra)


def _load() -> tuple[Library | None, str]:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name), ""
        except OSError:
            continue
    return None, f"There is no NVIDIA driver here ({_LIBRARIES[0]} can't be loaded)."


def _ask(library: Library) -> Driver:
    version = ctypes.c_int(0)
    status = library.cuInit(0)
    if status not in (0, _NO_DEVICE):
        return Driver(
            found=False, version=0, devices=(), reason=f"The NVIDIA driver does not start (cuInit returned {status})."
        )
    library.cuDriverGetVersion(ctypes.byref(version))
    count = ctypes.c_int(0)
    if status == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    devices = tuple(device for ordinal in range(count.value) if (device := _describe(library, ordinal)) is not None)
    reason = "" if devices else "There is an NVIDIA driver but it shows no GPU (CUDA_VISIBLE_DEVICES may hide them)."
    if devices and version.value < EXTRAS[-1][0]:
        reason = (
            f"The NVIDIA driver is too old: it speaks CUDA {version.value // 1000}, and 12 is the oldest that is used."
        )
    return Driver(found=True, version=version.value, devices=devices, reason=reason)


def _describe(library: Library, ordinal: int) -> DriverDevice | None:
    device, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    name = ctypes.create_string_buffer(256)
    if library.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return DriverDevice(name.value.decode(errors="replace"), (major.value, minor.value))


if __name__ == "__main__":
    main()

"""NVTX ranges, shown by NVIDIA's profilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuexec.errors import DeviceNotFoundError


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX calls: ``push`` begins a named range on the calling thread, ``pop`` ends the last one begun."""

    push: Callable[[str], object]
    pop: Callable[[], object]


def open_ranges() -> Ranges:
    """Load NVTX and return its calls.

    Raises:
        DeviceNotFoundError: CuPy is missing, or was built without NVTX.
    """
    try:
        from cupy.cuda import nvtx

        return Ranges(nvtx.RangePush, nvtx.RangePop)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise DeviceNotFoundError(
            f"NVTX ranges need CuPy with NVTX, which is not here ({error}): pip install 'gpuexec[cuda13]'."
        ) from error

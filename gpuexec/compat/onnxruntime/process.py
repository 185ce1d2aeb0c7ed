"""Process-wide functions: version, seed, threads, telemetry (there is none)."""

from __future__ import annotations

from gpuexec.compat.onnxruntime.errors import ArgumentTypeError, make_error
from gpuexec.compat.onnxruntime.notices import warn_once
from gpuexec.compat.onnxruntime.providers import BACKENDS, get_available_providers
from gpuexec.devices.cuda import driver
from gpuexec.execution.state import seeds
from gpuexec.system.version import VERSION

# The release of ONNX Runtime whose interface is implemented.
_INTERFACE = "1.31.1"
_WHOLE = 2**64 - 1


def get_version_string() -> str:
    """Return the release of ONNX Runtime whose interface is implemented."""
    return _INTERFACE


def get_build_info() -> str:
    """Return a text that names gpuexec and its release."""
    return f"Build Info: gpuexec {VERSION}, interface of ONNX Runtime {_INTERFACE}"


def print_debug_info() -> None:
    """Print the working providers and the driver's state."""
    available = get_available_providers()
    print(get_build_info())
    for name in BACKENDS:
        print(f"  {name}: {'works here' if name in available else 'does not work here'}")
    print(f"  {driver.probe()}")


def set_seed(seed: int) -> None:
    """Set the seed of random operators without their own, in sessions made from now on; see `gpuexec.set_seed`."""
    if not isinstance(seed, int):
        raise make_error(ArgumentTypeError, f"Expected a seed, got {seed!r}.")
    seeds.set_seed(seed & _WHOLE)


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Warn once, and say how threads are bounded."""
    warn_once("set_global_thread_pool_sizes is ignored: GPUEXEC_CPU_THREADS, or SessionOptions, bound the threads.")


def enable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing: libraries are loaded on demand."""


def has_collective_ops() -> bool:
    """Return False: there are no collective operators."""
    return False

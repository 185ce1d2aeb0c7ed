"""Every environment variable the package reads, with its type and default. Read when asked for, never at import."""

from __future__ import annotations

import os
from pathlib import Path


def read_flag(name: str, *, default: bool = False) -> bool:
    """Return whether an on/off variable says something other than 0, false, no or off; the default, where empty."""
    value = os.environ.get(name, "").strip().lower()
    return value not in ("0", "false", "no", "off") if value else default


def kernel_cache_dir() -> Path:
    """GPUEXEC_CACHE_DIR: where compiled kernels are kept (default: the user's cache folder)."""
    explicit = os.environ.get("GPUEXEC_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "gpuexec"


def models_dir() -> Path | None:
    """GPUEXEC_MODELS: a folder of models with inputs and reference outputs, for the tests over models."""
    value = os.environ.get("GPUEXEC_MODELS")
    return Path(value) if value else None


def sync_each() -> bool:
    """GPUEXEC_SYNC_EACH: wait after every command, so that a device fault names its command."""
    return read_flag("GPUEXEC_SYNC_EACH")


def check_order() -> bool:
    """GPUEXEC_CHECK_ORDER: whether simulators refuse what uses bytes of another operation unordered (default: yes)."""
    return read_flag("GPUEXEC_CHECK_ORDER", default=True)


def simulated_devices() -> int:
    """GPUEXEC_SIMULATORS: how many simulated GPUs there are, for what runs on several (default: 2)."""
    return int(os.environ.get("GPUEXEC_SIMULATORS") or 2)


def check_kernels() -> bool:
    """GPUEXEC_CHECK_KERNELS: whether simulators run kernels in check mode, which finds races and stray accesses."""
    return read_flag("GPUEXEC_CHECK_KERNELS")


def check_seed() -> int:
    """GPUEXEC_CHECK_SEED: in which order threads take turns in check mode (default: 0); another seed, another order."""
    return int(os.environ.get("GPUEXEC_CHECK_SEED") or 0)


def packed_launch() -> bool:
    """GPUEXEC_PACKED_LAUNCH: launch kernels by one call of the driver on a prepared block of arguments (default: yes).

    Off, each launch goes through CuPy's RawKernel, which computes the same and costs the host more.
    """
    return read_flag("GPUEXEC_PACKED_LAUNCH", default=True)


def spin_us() -> float:
    """GPUEXEC_SPIN_US: for how many microseconds waits poll before they block (default: 50; 0: they block at once)."""
    return float(os.environ.get("GPUEXEC_SPIN_US") or 50)


def graph_bytes() -> int:
    """GPUEXEC_GRAPH_BYTES: how many bytes the graphs of a Worker may take, by estimate (default: 512 MiB; 0: none)."""
    return int(os.environ.get("GPUEXEC_GRAPH_BYTES") or (512 << 20))


def pool_bytes() -> int:
    """GPUEXEC_POOL_BYTES: how many freed bytes a GPU keeps to use again, and as many pinned (default: 512 MiB)."""
    return int(os.environ.get("GPUEXEC_POOL_BYTES") or (512 << 20))


def cxx() -> str | None:
    """GPUEXEC_CXX: the C++17 compiler the simulator uses (default: g++, then clang++)."""
    return os.environ.get("GPUEXEC_CXX") or None


def build_jobs() -> int:
    """GPUEXEC_BUILD_JOBS: how many compilers run at once (default: one per core)."""
    return int(os.environ.get("GPUEXEC_BUILD_JOBS") or (os.cpu_count() or 1))


def compute_threads() -> int:
    """GPUEXEC_THREADS: size of the CPU device's thread pool (default: one per core)."""
    return int(os.environ.get("GPUEXEC_THREADS") or (os.cpu_count() or 1))

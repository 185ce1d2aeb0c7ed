"""Every environment variable the package reads, with its type and default. Read when asked for, never at import."""

from __future__ import annotations

import os
from pathlib import Path


def read_flag(name: str) -> bool:
    """Return whether an on/off variable is set to something other than empty, 0, false, no or off."""
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


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


def cxx() -> str | None:
    """GPUEXEC_CXX: the C++17 compiler the simulator uses (default: g++, then clang++)."""
    return os.environ.get("GPUEXEC_CXX") or None


def build_jobs() -> int:
    """GPUEXEC_BUILD_JOBS: how many compilers run at once (default: one per core)."""
    return int(os.environ.get("GPUEXEC_BUILD_JOBS") or (os.cpu_count() or 1))


def compute_threads() -> int:
    """GPUEXEC_THREADS: size of the CPU device's thread pool (default: one per core)."""
    return int(os.environ.get("GPUEXEC_THREADS") or (os.cpu_count() or 1))

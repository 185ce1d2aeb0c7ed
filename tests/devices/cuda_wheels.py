"""CUDA wheels (CuPy, cuda.bindings, NVRTC, nvdisasm), and skips of tests where they are not installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from gpuexec.devices.kernels.machine_code import find_nvdisasm
from gpuexec.errors import DeviceNotFoundError

_INSTALL = "pip install 'gpuexec[cuda13]'"


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # of the package around it; blocked, None in sys.modules
        return False


def _tell_missing() -> str:
    """Return why tests of GPU code can't run here, in a sentence; empty where they can."""
    names = {"CuPy": "cupy", "cuda.bindings": "cuda.bindings", "NVRTC": "nvidia"}
    missing = [title for title, name in names.items() if not _is_there(name)]
    return f"{' and '.join(missing)} not installed: {_INSTALL}." if missing else ""


MISSING = _tell_missing()
# For a test, or as a module's ``pytestmark``.
needs_cuda_wheels = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def _tell_missing_disassembler() -> str:
    """Return why machine code can't be read here, in a sentence; empty where it can."""
    try:
        find_nvdisasm()
    except DeviceNotFoundError as error:
        return str(error)
    return ""


MISSING_DISASSEMBLER = _tell_missing_disassembler()
needs_nvdisasm = pytest.mark.skipif(bool(MISSING_DISASSEMBLER), reason=MISSING_DISASSEMBLER)


def require() -> None:
    """Skip the module that is being imported, or the test that runs, unless the wheels are installed."""
    if MISSING:
        pytest.skip(MISSING, allow_module_level=True)


def load(name: str) -> Any:
    """Return a module of the wheels; skips as `require` does."""
    require()
    return import_module(name)

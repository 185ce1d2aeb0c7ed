"""The same names by another module that ONNX Runtime has them in."""

from __future__ import annotations

from typing import Any

from gpuexec.compat.onnxruntime.absent import find_absent
from gpuexec.compat.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return find_absent(name)

"""``onnxruntime.capi._pybind_state``: names of the compiled module under its private path."""

from __future__ import annotations

from typing import Any

from gpuexec.compat.onnxruntime.absent import find_absent
from gpuexec.compat.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return find_absent(name)

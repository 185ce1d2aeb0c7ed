"""The same names by another module that ONNX Runtime has them in."""

from gpuexec.compat.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403

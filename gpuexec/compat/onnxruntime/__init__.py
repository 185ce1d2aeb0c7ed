"""ONNX Runtime's Python interface over gpuexec, for code that is written for it.

    import gpuexec.compat.onnxruntime as ort

    session = ort.InferenceSession("model.onnx", providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})

Names, calls and ways are those of ONNX Runtime 1.31 (``__version__``). Code that says ``import onnxruntime`` itself,
and can't be changed, gets this package if it stands in for the other before that:

    import gpuexec.compat.onnxruntime
    gpuexec.compat.onnxruntime.stand_in()

``onnxruntime.quantization``, ``.tools`` and ``.transformers`` then come from the installed ONNX Runtime, and use this.

A session holds a Model and a few Workers over it, so that it may be run from many threads. Providers are backends:
CUDAExecutionProvider, CPUExecutionProvider and GpuexecSimulatorExecutionProvider; others are named in a warning, and
the next of the list is taken. Options without a meaning here are named in a warning once. Errors are gpuexec's, by ONNX
Runtime's names, and chained to their cause. Not supported, and refused by name where they are used: sparse tensors,
adapters, compiled models and providers, operators from compiled libraries; training.
"""

from __future__ import annotations

from typing import Any

from gpuexec.compat.onnxruntime import backend, capi
from gpuexec.compat.onnxruntime.absent import find_absent
from gpuexec.compat.onnxruntime.binding import IOBinding, SessionIOBinding
from gpuexec.compat.onnxruntime.capi import (  # noqa: F401  (``capi`` has them as attributes then)
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
)
from gpuexec.compat.onnxruntime.described import AssignedNode as OrtEpAssignedNode
from gpuexec.compat.onnxruntime.described import AssignedSubgraph as OrtEpAssignedSubgraph
from gpuexec.compat.onnxruntime.described import ModelMetadata, NodeArg
from gpuexec.compat.onnxruntime.devices import (
    OrtAllocatorType,
    OrtArenaCfg,
    OrtDevice,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtMemoryInfo,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
    create_and_register_allocator,
    create_and_register_allocator_v2,
)
from gpuexec.compat.onnxruntime.notices import (
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from gpuexec.compat.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from gpuexec.compat.onnxruntime.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    set_global_thread_pool_sizes,
    set_seed,
)
from gpuexec.compat.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from gpuexec.compat.onnxruntime.session import InferenceSession
from gpuexec.compat.onnxruntime.standing_in import find_package, stand_in
from gpuexec.compat.onnxruntime.values import OrtValue, copy_tensors

__version__ = get_version_string()
__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "backend",
    "capi",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "stand_in",
]


def __getattr__(name: str) -> Any:
    return find_package(name) or find_absent(name)

"""``onnxruntime.capi.onnxruntime_pybind11_state``: errors, options and values."""

from __future__ import annotations

from typing import Any

from gpuexec.compat.onnxruntime import absent
from gpuexec.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from gpuexec.compat.onnxruntime.block_quantization import make_quantizer
from gpuexec.compat.onnxruntime.block_quantization import quantize_qdq_matmul_4bits as quantize_qdq_matmul_4bits
from gpuexec.compat.onnxruntime.described import AssignedNode as OrtEpAssignedNode  # noqa: F401
from gpuexec.compat.onnxruntime.described import AssignedSubgraph as OrtEpAssignedSubgraph  # noqa: F401
from gpuexec.compat.onnxruntime.described import ModelMetadata as ModelMetadata
from gpuexec.compat.onnxruntime.described import NodeArg as NodeArg
from gpuexec.compat.onnxruntime.devices import ArenaExtendStrategy as ArenaExtendStrategy
from gpuexec.compat.onnxruntime.devices import OrtAllocatorType as OrtAllocatorType
from gpuexec.compat.onnxruntime.devices import OrtArenaCfg as OrtArenaCfg
from gpuexec.compat.onnxruntime.devices import OrtDevice as OrtDevice
from gpuexec.compat.onnxruntime.devices import OrtDeviceMemoryType as OrtDeviceMemoryType
from gpuexec.compat.onnxruntime.devices import OrtMemoryInfo as OrtMemoryInfo
from gpuexec.compat.onnxruntime.devices import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
from gpuexec.compat.onnxruntime.devices import OrtMemType as OrtMemType
from gpuexec.compat.onnxruntime.devices import OrtSparseFormat as OrtSparseFormat
from gpuexec.compat.onnxruntime.devices import create_and_register_allocator as create_and_register_allocator
from gpuexec.compat.onnxruntime.devices import create_and_register_allocator_v2 as create_and_register_allocator_v2
from gpuexec.compat.onnxruntime.errors import EngineError as EngineError
from gpuexec.compat.onnxruntime.errors import EPFail as EPFail
from gpuexec.compat.onnxruntime.errors import Fail as Fail
from gpuexec.compat.onnxruntime.errors import InvalidArgument as InvalidArgument
from gpuexec.compat.onnxruntime.errors import InvalidGraph as InvalidGraph
from gpuexec.compat.onnxruntime.errors import InvalidProtobuf as InvalidProtobuf
from gpuexec.compat.onnxruntime.errors import ModelLoadCanceled as ModelLoadCanceled
from gpuexec.compat.onnxruntime.errors import ModelLoaded as ModelLoaded
from gpuexec.compat.onnxruntime.errors import ModelRequiresCompilation as ModelRequiresCompilation
from gpuexec.compat.onnxruntime.errors import NoModel as NoModel
from gpuexec.compat.onnxruntime.errors import NoSuchFile as NoSuchFile
from gpuexec.compat.onnxruntime.errors import NotFound as NotFound
from gpuexec.compat.onnxruntime.errors import NotImplemented as NotImplemented
from gpuexec.compat.onnxruntime.errors import RuntimeException as RuntimeException
from gpuexec.compat.onnxruntime.notices import set_default_logger_callback as set_default_logger_callback
from gpuexec.compat.onnxruntime.notices import set_default_logger_severity as set_default_logger_severity
from gpuexec.compat.onnxruntime.notices import set_default_logger_verbosity as set_default_logger_verbosity
from gpuexec.compat.onnxruntime.options import ExecutionMode as ExecutionMode
from gpuexec.compat.onnxruntime.options import ExecutionOrder as ExecutionOrder
from gpuexec.compat.onnxruntime.options import GraphOptimizationLevel as GraphOptimizationLevel
from gpuexec.compat.onnxruntime.options import RunOptions as RunOptions
from gpuexec.compat.onnxruntime.options import SessionOptions as SessionOptions
from gpuexec.compat.onnxruntime.options import get_default_session_options as get_default_session_options
from gpuexec.compat.onnxruntime.process import disable_telemetry_events as disable_telemetry_events
from gpuexec.compat.onnxruntime.process import enable_telemetry_events as enable_telemetry_events
from gpuexec.compat.onnxruntime.process import get_build_info as get_build_info
from gpuexec.compat.onnxruntime.process import get_version_string as get_version_string
from gpuexec.compat.onnxruntime.process import has_collective_ops as has_collective_ops
from gpuexec.compat.onnxruntime.process import set_global_thread_pool_sizes as set_global_thread_pool_sizes
from gpuexec.compat.onnxruntime.process import set_seed as set_seed
from gpuexec.compat.onnxruntime.providers import get_all_providers as get_all_providers
from gpuexec.compat.onnxruntime.providers import get_available_providers as get_available_providers
from gpuexec.compat.onnxruntime.providers import get_device as get_device
from gpuexec.compat.onnxruntime.session import NativeSession as InferenceSession  # noqa: F401
from gpuexec.compat.onnxruntime.values import OrtValue as OrtValue
from gpuexec.compat.onnxruntime.values import OrtValueVector as OrtValueVector
from gpuexec.compat.onnxruntime.values import copy_tensors as copy_tensors
from gpuexec.compat.onnxruntime.values import is_dlpack_uint8_tensor as is_dlpack_uint8_tensor

quantize_matmul_2bits, quantize_matmul_4bits, quantize_matmul_8bits = (make_quantizer(bits) for bits in (2, 4, 8))
kNextPowerOfTwo, kSameAsRequested = ArenaExtendStrategy  # noqa: N816


def __getattr__(name: str) -> Any:
    return absent.find_absent(name)

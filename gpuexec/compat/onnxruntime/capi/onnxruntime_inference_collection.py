"""``onnxruntime.capi.onnxruntime_inference_collection``: sessions and values."""

from __future__ import annotations

from typing import Any

from gpuexec.compat.onnxruntime.absent import find_absent
from gpuexec.compat.onnxruntime.binding import IOBinding as IOBinding
from gpuexec.compat.onnxruntime.devices import OrtDevice as OrtDevice
from gpuexec.compat.onnxruntime.devices import OrtDeviceVendorId as OrtDeviceVendorId
from gpuexec.compat.onnxruntime.providers import check_and_normalize_provider_args as check_and_normalize_provider_args
from gpuexec.compat.onnxruntime.session import InferenceSession as InferenceSession
from gpuexec.compat.onnxruntime.session import InferenceSession as Session  # noqa: F401
from gpuexec.compat.onnxruntime.values import OrtValue as OrtValue
from gpuexec.compat.onnxruntime.values import copy_tensors as copy_tensors


def __getattr__(name: str) -> Any:
    return find_absent(name)

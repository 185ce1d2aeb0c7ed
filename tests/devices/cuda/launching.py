"""Kernels to launch through the CUDA device, and copies to and from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.cuda.cuda import CudaDevice

SOURCE = """#include <cuda_fp16.h>
struct Shift { int by[3]; };
template <typename T>
__global__ void __launch_bounds__(64) scale(const T* x, T* y, T factor, Shift shift, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = (T)((float)x[i] * (float)factor + (float)shift.by[2]);
}
extern "C" __global__ void fault(int* x) { x[0] = 1; }
"""
EXPRESSIONS = ("scale<float>", "scale<__half>", "scale<int>", "fault")
ORDINARY, ONES = (1, 1, 1), (64, 1, 1)
SHIFT = np.array([0, 0, 5], np.int32).tobytes()


def upload(device: CudaDevice, stream: Any, array: np.ndarray) -> Any:
    memory = device.allocate(array.nbytes)
    stream.copy_to_device(memory.address, array.view(np.uint8).reshape(-1))
    return memory


def download(device: CudaDevice, stream: Any, memory: Any, dtype: Any) -> np.ndarray:
    pinned = device.allocate_pinned(memory.nbytes)
    stream.copy_to_host(pinned.array, memory.address)
    stream.synchronize()
    result = pinned.array.view(dtype).copy()
    pinned.free()
    return result

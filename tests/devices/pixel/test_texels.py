"""Texels: their lanes, and partial writes by a thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.kernels.kernel_source import flatten
from gpuexec.devices.kernels.nvrtc import compile_cubin
from gpuexec.devices.simulator.module import load_file
from tests.devices.cuda_wheels import needs_cuda_wheels

SOURCE = Path(__file__).with_name("texels.cu")
TYPES: dict[str, Any] = {"u8": np.uint8, "u16": np.uint16, "half": np.float16, "float": np.float32, "u64": np.uint64}
WHOLE = ("u8", "u16", "u32", "u64")
EXPRESSIONS = (
    *(f"take_and_put<{name}>" for name in TYPES),
    *(f"{kernel}<{name}>" for kernel in ("count_up", "put_every_third") for name in WHOLE),
)


@pytest.fixture(scope="module")
def kernels() -> Any:
    return load_file(SOURCE, EXPRESSIONS, mode="check")


@pytest.mark.parametrize("name", TYPES)
def test_lanes_come_out_as_they_went_in(kernels: Any, name: str) -> None:
    dtype = TYPES[name]
    given = np.arange(16, dtype=np.uint8) + 3  # no NaN in any type
    count = 16 // np.dtype(dtype).itemsize
    for first in range(count):
        for end in range(first + 1, count + 1):
            lanes, put, masks = np.zeros(count, dtype), np.zeros(4, np.uint32), np.zeros(4, np.uint32)
            kernels[f"take_and_put<{name}>"].launch_arrays(
                1, 1, given.view(np.uint32), lanes, put, masks, np.int32(first), np.int32(end)
            )
            np.testing.assert_array_equal(lanes, given.view(dtype))
            kept, said = np.zeros(count, dtype), np.zeros(count, dtype)
            kept[first:end] = lanes[first:end]
            said.view(np.uint8).reshape(count, -1)[first:end] = 0xFF
            np.testing.assert_array_equal(put, kept.view(np.uint32))
            np.testing.assert_array_equal(masks, said.view(np.uint32))


@pytest.mark.parametrize("offset", [0, 8, 24])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 300])
@pytest.mark.parametrize("name", WHOLE)
def test_neighbours_in_the_same_texel_stay(kernels: Any, name: str, count: int, offset: int) -> None:
    dtype = np.dtype(f"u{int(name[1:]) // 8}")
    memory = np.full(4096, 0xA5, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    window = memory[start : start + count * dtype.itemsize]
    kernels[f"count_up<{name}>"].launch_arrays(4, 256, window, np.int64(count), dtype.type(5))
    np.testing.assert_array_equal(window.view(dtype), np.arange(5, 5 + count).astype(dtype))
    assert (memory[:start] == 0xA5).all() and (memory[start + window.nbytes :] == 0xA5).all()


@pytest.mark.parametrize("name", WHOLE)
def test_elements_that_a_blit_leaves_out_stay(kernels: Any, name: str) -> None:
    dtype = np.dtype(f"u{int(name[1:]) // 8}")
    memory = np.full(50, 1, dtype)
    kernels[f"put_every_third<{name}>"].launch_arrays(4, 256, memory, np.int64(50), dtype.type(9))
    np.testing.assert_array_equal(memory, np.where(np.arange(50) % 3 == 0, 9, 1))


@needs_cuda_wheels
def test_a_gpu_reads_by_textures_and_writes_by_surfaces() -> None:
    (kernel,) = compile_cubin(flatten(SOURCE), ["count_up<u32>"], "compute_75", source="texels.cu").kernels
    assert kernel.max_threads == 256
    image = compile_cubin(flatten(SOURCE), ["count_up<u32>"], "compute_75", source="texels.cu").image.decode()
    assert "sust.b.2d.v4" in image and "st.global" not in image and ".shared" not in image

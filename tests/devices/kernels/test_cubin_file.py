"""Resources of kernels, read from cubins."""

from __future__ import annotations

import re

import pytest

from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.cubin_file import read_usage
from gpuexec.errors import KernelError
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.devices.kernels.test_nvrtc import SOURCE, SPILLING

DYNAMIC = r"""
extern "C" __global__ void dynamic(float* x) {
    extern __shared__ float staged[];
    staged[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}
"""
# What the compiler's log says of an entry: name, bytes of stack, registers, and static shared memory if there is any.
_ENTRY = re.compile(
    r"entry function '([^']+)'.*?(\d+) bytes stack frame.*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?", re.DOTALL
)


@needs_cuda_wheels
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_120"])
@pytest.mark.parametrize(
    ("text", "expressions"),
    [(SOURCE, ["scale<float>", "scale<__half>", "plain"]), (SPILLING, ["spills"]), (DYNAMIC, ["dynamic"])],
    ids=["shared", "spilling", "dynamic"],
)
def test_usage_is_what_the_log_says(text: str, expressions: list[str], architecture: str) -> None:
    cubin = nvrtc.compile_cubin(text, expressions, architecture)
    said = {
        name: (int(registers), int(frame), int(shared or 0))
        for name, frame, registers, shared in _ENTRY.findall(cubin.log)
    }
    usage = read_usage(cubin.image)
    assert {name: (u.registers, u.frame_bytes, u.shared_bytes) for name, u in usage.items()} == said
    assert len(said) == len(expressions)


@pytest.mark.parametrize("image", [b"", b"no cubin", b"\x7fELF", b"\x7fELF" + bytes(100)])
def test_what_is_no_cubin_is_refused(image: bytes) -> None:
    with pytest.raises(KernelError, match=f"A cubin of {len(image)} bytes can't be read"):
        read_usage(image)

"""NVRTC compilation without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_source import find_source, read_text
from gpuexec.errors import DeviceNotFoundError, KernelError
from gpuexec.ir.instances import kernel_table
from tests.devices.cuda_wheels import needs_cuda_wheels

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
template <typename T>
__global__ void __launch_bounds__(256) scale(const T* __restrict__ x, T* __restrict__ y, int n) {
    __shared__ float staged[300];
    const int i = blockIdx.x * 256 + threadIdx.x;
    staged[threadIdx.x] = i < n ? (float)x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = (T)(staged[255 - threadIdx.x] * 2.0f + 1.0f);
}
extern "C" __global__ void plain(float* x) { x[0] = 1.0f; }
"""
SPILLING = r"""
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x, int n) {
    float r[80];
    for (int i = 0; i < 80; i++) r[i] = x[i * n];
    __syncthreads();
    for (int j = 0; j < n; j++) for (int i = 0; i < 80; i++) r[i] = r[i] * r[(i + 7) % 80] + x[j];
    for (int i = 0; i < 80; i++) x[i * n] = r[i];
}
"""


@needs_cuda_wheels
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90a", "sm_100", "sm_120"])
def test_compile_cubin_gives_an_elf_image_for_each_architecture(architecture: str) -> None:
    cubin = nvrtc.compile_cubin(SOURCE, ["scale<float>"], architecture)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.kernels[0].lowered_name.encode() in cubin.image


@needs_cuda_wheels
def test_compile_cubin_reports_what_each_kernel_takes() -> None:
    cubin = nvrtc.compile_cubin(SOURCE, ["plain", "scale<__half>", "scale<float>"], "sm_90")
    assert [kernel.expression for kernel in cubin.kernels] == ["plain", "scale<__half>", "scale<float>"]
    assert cubin.kernels[0].lowered_name == "plain"
    assert [kernel.shared_bytes for kernel in cubin.kernels] == [0, 1200, 1200]
    assert [kernel.max_threads for kernel in cubin.kernels] == [0, 256, 256]
    assert all(0 < kernel.registers <= 255 and kernel.spill_bytes == 0 for kernel in cubin.kernels)


@needs_cuda_wheels
def test_compile_cubin_reports_spills_when_registers_do_not_suffice() -> None:
    assert nvrtc.compile_cubin(SPILLING, ["spills"], "sm_80").kernels[0].spill_bytes > 0


@needs_cuda_wheels
def test_compile_cubin_contracts_nothing_unless_asked() -> None:
    text = 'extern "C" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    strict = nvrtc.compile_cubin(text, ["f"], "sm_90")
    contracted = nvrtc.compile_cubin(text, ["f"], "sm_90", [o for o in nvrtc.OPTIONS if o != "--fmad=false"])
    assert strict.image != contracted.image


@needs_cuda_wheels
def test_compile_cubin_names_file_line_and_instance_when_source_is_wrong() -> None:
    with pytest.raises(KernelError, match=r"(?s)norm\.cu:f does not compile for sm_90.*norm\.cu\(7\): error"):
        nvrtc.compile_cubin(
            '#line 7 "norm.cu"\nextern "C" __global__ void f() { oops; }', ["f"], "sm_90", source="norm.cu"
        )


@needs_cuda_wheels
def test_compile_cubin_names_the_instance_when_it_does_not_exist() -> None:
    with pytest.raises(KernelError, match=r"kernel\.cu:scale<Nothing> does not compile"):
        nvrtc.compile_cubin(SOURCE, ["scale<Nothing>"], "sm_90")


@needs_cuda_wheels
def test_compile_cubin_says_so_when_architecture_is_unknown() -> None:
    with pytest.raises(KernelError, match=r"can't compile for sm_999; it knows sm_75, .*sm_120"):
        nvrtc.compile_cubin(SOURCE, ["plain"], "sm_999")


@needs_cuda_wheels
@pytest.mark.parametrize(("name", "since"), [("sm_100", "12.8"), ("sm_120", "12.8"), ("sm_110", "13.0")])
def test_check_architecture_names_the_version_when_nvrtc_is_too_old(
    monkeypatch: pytest.MonkeyPatch, name: str, since: str
) -> None:
    from cuda.bindings import nvrtc as bindings

    nvrtc.check_architecture.cache_clear()
    monkeypatch.setattr(bindings, "nvrtcGetSupportedArchs", lambda: (bindings.nvrtcResult.NVRTC_SUCCESS, [75, 80, 90]))
    nvrtc.check_architecture("sm_90a")
    with pytest.raises(KernelError, match=rf"{name}; it knows sm_75, sm_80, sm_90\. It takes NVRTC {since} or newer"):
        nvrtc.check_architecture(name)
    nvrtc.check_architecture.cache_clear()


def test_parse_bounds_multiplies_extents_and_leaves_out_entries_without() -> None:
    ptx = """.visible .entry a(
\t.param .u64 .ptr .align 1 a_param_0,
\t.param .align 8 .b8 a_param_1[72]
)
.maxntid 16, 8, 2
.minnctapersm 2
{ }
.visible .entry b()
{ }
.weak .entry _Z1cIfE(
\t.param .u32 c_param_0
)
.maxntid 256
{ }"""
    assert nvrtc.parse_bounds(ptx) == {"a": 256, "_Z1cIfE": 256}


def test_parse_spills_adds_stores_and_loads_of_each_entry() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas         .     1120 bytes stack frame, 1972 bytes spill stores, 2372 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1120 bytes cumulative stack size
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 1 barriers, 1200 bytes smem"""
    assert nvrtc.parse_spills(log) == {"a": 4344, "b": 0}


@needs_cuda_wheels
def test_resources_are_known_when_the_log_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    read = nvrtc._read

    def read_no_log(bindings: ModuleType, program: Any, what: str) -> bytes:
        return b"" if what == "ProgramLog" else read(bindings, program, what)

    monkeypatch.setattr(nvrtc, "_read", read_no_log)
    (spills,) = nvrtc.compile_cubin(SPILLING, ["spills"], "sm_90").kernels
    (plain,) = nvrtc.compile_cubin(SOURCE, ["plain"], "sm_90").kernels
    assert spills.registers == 32
    assert spills.spill_bytes > 0
    assert (plain.spill_bytes, plain.shared_bytes) == (0, 0)


def test_load_nvrtc_names_the_command_when_bindings_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.load_nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceNotFoundError, match=r"pip install 'gpuexec\[kernels\]'"):
        nvrtc.load_nvrtc()


@needs_cuda_wheels
def test_load_nvrtc_names_the_command_when_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc as bindings
    from cuda.pathfinder import DynamicLibNotFoundError

    def fail() -> None:
        raise DynamicLibNotFoundError("libnvrtc.so")

    nvrtc.load_nvrtc.cache_clear()
    monkeypatch.setattr(bindings, "nvrtcVersion", fail)
    with pytest.raises(DeviceNotFoundError, match=r"NVRTC library.*pip install 'gpuexec\[kernels\]'"):
        nvrtc.load_nvrtc()


@needs_cuda_wheels
def test_compile_cubin_names_the_command_when_headers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_include_options", lambda: ())
    with pytest.raises(KernelError, match=r"(?s)cuda_fp16\.h.*pip install 'gpuexec\[kernels\]'"):
        nvrtc.compile_cubin(SOURCE, ["plain"], "sm_90")


@needs_cuda_wheels
def test_kernels_of_other_packages_have_the_functions_of_cuda_for_half(tmp_path: Path) -> None:
    path = tmp_path / "add.cu"
    path.write_text(
        '#include "types.cuh"\n#include <cuda_fp16.h>\n'
        'extern "C" __global__ void add(half* x, bf16* y) { x[0] = __hadd(x[0], cast<half>(y[0])); }\n'
    )
    made = nvrtc.compile_cubin(read_text(path), ("add",), "compute_80")
    assert [kernel.expression for kernel in made.kernels] == ["add"]


@needs_cuda_wheels
@pytest.mark.parametrize("source", kernel_table())
def test_a_kernel_of_each_name_in_a_file_compiles(source: str) -> None:
    """The simulator's compiler passes over members of templates that nobody reads; NVRTC does not."""
    firsts: dict[str, str] = {}
    for expression in kernel_table()[source]:
        firsts.setdefault(expression.partition("<")[0], expression)
    text = read_text(find_source(source))
    made = nvrtc.compile_cubin(text, tuple(firsts.values()), "compute_90", source=source)
    assert [kernel.expression for kernel in made.kernels] == list(firsts.values())

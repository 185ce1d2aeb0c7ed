"""Toolchain errors: missing compilers and failed builds, in one line."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from gpuexec.devices.kernels.kernel_source import find_source, kernels_dir
from gpuexec.devices.simulator.compilation import WITHOUT_TILES
from gpuexec.devices.simulator.elf import list_undefined
from gpuexec.devices.simulator.library import load_runtime
from gpuexec.devices.simulator.module import find_missing, load_file
from gpuexec.devices.simulator.object_cache import ObjectCache
from gpuexec.devices.simulator.toolchain import PLAIN_FLAGS, Compiler, Mode, find_compiler
from gpuexec.errors import KernelError
from tests.devices.simulator.conftest import build_file


def test_missing_compiler_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUEXEC_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match=r"neither g\+\+ nor clang\+\+ is there: apt-get install g\+\+$"):
        find_compiler()


def test_compiler_asked_for_and_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CXX", "no-such-compiler")
    with pytest.raises(KernelError, match="GPUEXEC_CXX names 'no-such-compiler'"):
        find_compiler()


def test_flags_that_clang_does_not_know_are_not_given_to_it() -> None:
    gnu, clang = (Compiler("c++", version, ()) for version in ("g++ (Debian 12.2.0) 12.2.0", "Debian clang version 16"))
    modes: tuple[Mode, ...] = ("plain", "check", "count")
    assert {mode: set(gnu.mode_flags(mode)) - set(clang.mode_flags(mode)) for mode in modes} == {
        "plain": {"-fpeel-loops"},
        "check": {"-fno-var-tracking", "-fsanitize=bounds-strict", "-fsanitize-recover=bounds-strict"},
        "count": {"-fno-var-tracking", "-fno-tree-sra"},
    }


@pytest.mark.parametrize(
    ("source", "has_vectors"),
    [("elementwise_pow.cu", False), ("pixel/softmax.cu", False), ("softmax.cu", True), ("matmul.cu", True)],
)
def test_files_without_tiles_are_compiled_without_vectors(
    source: str, has_vectors: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, tuple[str, ...]] = {}

    def build(_: Compiler, name: str, sources: object, output: Path, flags: tuple[str, ...], **__: object) -> None:
        seen[name] = flags
        output.write_bytes(b"no object")

    monkeypatch.setattr(Compiler, "build", build)
    path = find_source(source)
    with pytest.raises(KernelError, match=f"{path.name} can't be linked for the simulator: expected an object file"):
        build_file(path, ["none"], ObjectCache(tmp_path))
    assert set(PLAIN_FLAGS) & set(seen[path.name]) == (set(PLAIN_FLAGS) if has_vectors else set())


def test_families_without_tiles_are_folders_of_kernels() -> None:
    assert all((kernels_dir() / family).is_dir() for family in WITHOUT_TILES)


def test_compile_error_has_file_line_and_reason(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void k(int* y) {\n  y[0] = missing;\n}\n')
    with pytest.raises(KernelError, match=r"(?s)wrong.cu does not compile .*wrong.cu:2:.*missing"):
        load_file(tmp_path / "wrong.cu", ["k"])


@pytest.mark.parametrize("expression", ["absent<int>", "binary<Nothing>"])
def test_wrong_name_expression_is_named(tmp_path: Path, expression: str) -> None:
    (tmp_path / "names.cu").write_text("template <class T> __global__ void binary(T* y) {}\n")
    with pytest.raises(KernelError, match=f"name expression {expression}:1"):
        load_file(tmp_path / "names.cu", ["binary<int>", expression])


def test_function_without_a_body_is_found_when_loading(tmp_path: Path) -> None:
    source = '__device__ int absent(int);\nextern "C" __global__ void k(int* y) { y[0] = absent(y[0]); }\n'
    (tmp_path / "open.cu").write_text(source)
    with pytest.raises(KernelError, match=r"open.cu can't be loaded for the simulator: .*absent"):
        load_file(tmp_path / "open.cu", ["k"])


def test_object_that_would_not_load_never_reaches_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '__device__ int absent(int);\nextern "C" __global__ void k(int* y) { y[0] = absent(y[0]); }\n'
    (tmp_path / "open.cu").write_text(source)
    loaded: list[str] = []
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *rest, **named: (loaded.append(str(name)), real(name))[1])
    with pytest.raises(KernelError):
        load_file(tmp_path / "open.cu", ["k"])
    assert [name for name in loaded if name.endswith(".so")] == []


def test_what_an_object_takes_from_the_runtime_is_there(tmp_path: Path) -> None:
    (tmp_path / "whole.cu").write_text('extern "C" __global__ void k(int* y) { __syncthreads(); y[0] = 1; }\n')
    built = build_file(tmp_path / "whole.cu", ["k"], ObjectCache(tmp_path / "cache"))
    wanted = list_undefined(built.path.read_bytes())
    assert wanted
    load_runtime()
    assert find_missing(built.path) == []


def test_file_that_is_no_object_wants_nothing() -> None:
    assert list_undefined(b"\xcf\xfa\xed\xfe" + bytes(100)) == []


@pytest.mark.parametrize("name", ["INFINITY", "NAN", "HUGE_VAL"])
def test_macros_of_host_headers_are_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "host.cu").write_text(f'extern "C" __global__ void k(float* y) {{ y[0] = {name}; }}\n')
    with pytest.raises(KernelError, match=f"{name}.*was not declared|undeclared identifier '{name}'"):
        load_file(tmp_path / "host.cu", ["k"])

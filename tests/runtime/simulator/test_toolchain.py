"""What is missing or wrong at build time is said in a line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuexec.errors import KernelError
from gpuexec.runtime.simulator.module import load_file
from gpuexec.runtime.simulator.toolchain import find_compiler

ROOT = Path(__file__).resolve().parents[3]


def test_missing_compiler_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUEXEC_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError, match=r"neither g\+\+ nor clang\+\+ is there: apt-get install g\+\+$"):
        find_compiler()


def test_compiler_asked_for_and_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CXX", "no-such-compiler")
    with pytest.raises(KernelError, match="GPUEXEC_CXX names 'no-such-compiler'"):
        find_compiler()


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
    # In a process of its own: the loader of the system undoes half a load here, and once took a long process with it.
    text = f"from gpuexec.runtime.simulator.module import load_file; load_file({str(tmp_path / 'open.cu')!r}, ['k'])"
    result = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.search(r"KernelError: .*open.cu can't be loaded for the simulator: .*absent", result.stderr)


@pytest.mark.parametrize("name", ["INFINITY", "NAN", "HUGE_VAL"])
def test_macros_of_host_headers_are_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "host.cu").write_text(f'extern "C" __global__ void k(float* y) {{ y[0] = {name}; }}\n')
    with pytest.raises(KernelError, match=f"{name}.*was not declared|undeclared identifier '{name}'"):
        load_file(tmp_path / "host.cu", ["k"])

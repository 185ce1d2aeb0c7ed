"""Kernels of several files in one shared object, each compiled by itself and with names of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.simulator import device as simulator_device
from gpuexec.devices.simulator.compilation import BuiltObject, ObjectSource, build_files, is_compiled
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.elf import rename_defined
from gpuexec.devices.simulator.module import FindingsError, KernelModule, load_generated
from gpuexec.devices.simulator.object_cache import ObjectCache
from gpuexec.devices.simulator.toolchain import Compiler, Mode
from gpuexec.errors import KernelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiations
from gpuexec.system.progress import Progress

TWO_FILES = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[5, 40] x) => (float[5, 40] y) <float s = {2}, float t = {3}> {
  a = Mul (x, s) b = Sigmoid (a) c = Trilu (b) d = Softmax (c) e = Mul (d, t) y = Trilu (e) }"""
# Names with external and with weak linkage, and one that groups sections alone: that of both constructors of `Held`.
NAMES = """
__device__ int held = {value};
inline int count() {{ static int counted = {value}; return counted++; }}
struct Held {{
  int kept;
  __attribute__((noinline)) Held(int more) : kept({value} + more) {{}}
}};
template <class T>
__attribute__((noinline)) __device__ T scale(T x) {{ return x * {value} + Held(1).kept; }}
extern "C" __global__ void k(int* y) {{
  __shared__ int kept[4];
  kept[0] = scale(1);
  y[0] = kept[0];
  y[1] = held++;
  y[2] = count();
}}
"""


def write_files(folder: Path, values: Sequence[int] = (2, 30)) -> list[Kernel]:
    """Write files that give the same names to other things; return the kernel of each."""
    kernels = []
    for number, value in enumerate(values):
        path = folder / f"file_{number}.cu"
        path.write_text(NAMES.format(value=value))
        kernels.append(Kernel(str(path), "k", "// text\n"))
    return kernels


def list_sources(kernels: Sequence[Kernel]) -> list[ObjectSource]:
    return [ObjectSource(kernel.source, (kernel.expression,)) for kernel in kernels]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler was called for, without the headers and hooks that all files share."""
    seen: list[str] = []
    build = Compiler.build

    def note(self: Compiler, name: str, *rest: Any, **named: Any) -> None:
        if not name.startswith(("cuda.h", "hooks", "operations")):
            seen.append(name)
        build(self, name, *rest, **named)

    monkeypatch.setattr(Compiler, "build", note)
    return seen


def test_what_a_plan_generates_in_two_files_is_one_shared_object(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[list[str]] = []

    class Noting(KernelModule):
        def __init__(self, built: BuiltObject) -> None:
            loaded.append([table.source for table in built.tables])
            super().__init__(built)

    monkeypatch.setattr(simulator_device, "KernelModule", Noting)
    x = np.linspace(-2, 2, 200, dtype=np.float32).reshape(5, 40)
    model = gx.load(parser.parse_model(TWO_FILES))
    backend = Backend(SimulatorDevice(instantiations), gx.BackendType.SIMULATOR, "for a test")
    with gx.Worker(model, backend="cpu") as host, gx.Worker(model, backend=backend) as worker:
        np.testing.assert_allclose(worker.run(x)[0], host.run(x)[0], rtol=1e-6)
    assert [sources for sources in loaded if {"flat.cu", "rows.cu"} & set(sources)] == [["flat.cu", "rows.cu"]]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_files_of_one_object_give_the_same_names_to_other_things(tmp_path: Path, mode: Mode) -> None:
    kernels = write_files(tmp_path)
    functions = load_generated(kernels, mode)
    assert list(functions) == kernels
    results = []
    for _ in range(2):
        for kernel in kernels:
            y = np.zeros(3, np.int32)
            functions[kernel].launch_arrays(1, 1, y)
            results.append(y.tolist())
    assert results == [[5, 2, 2], [61, 30, 30], [5, 3, 3], [61, 31, 31]]


def test_a_mistake_is_found_at_its_line_of_its_file(tmp_path: Path) -> None:
    kernels = write_files(tmp_path)
    functions = load_generated(kernels, "check")
    for kernel in kernels:
        with pytest.raises(FindingsError) as raised:
            functions[kernel].launch_arrays(1, 1, np.zeros(2, np.int32))
        (finding,) = raised.value.findings
        line = NAMES.splitlines().index("  y[2] = count();") + 1
        assert (finding.kind, finding.file, finding.line) == ("out of bounds", Path(kernel.source).name, line)


def test_files_are_compiled_once_whatever_they_are_linked_with(tmp_path: Path, calls: list[str]) -> None:
    cache = ObjectCache(tmp_path / "cache")
    sources = list_sources(write_files(tmp_path, (2, 30, 4)))
    (first,) = build_files([sources[:2]], cache)
    assert sorted(calls) == ["The shared object of file_0.cu, file_1.cu", "file_0.cu", "file_1.cu"]
    assert [is_compiled(source, cache=cache) for source in sources] == [True, True, False]
    calls.clear()
    assert build_files([sources[:2]], ObjectCache(cache.folder)) == [first] and calls == []
    build_files([sources], cache)
    assert calls == ["file_2.cu", "The shared object of file_0.cu, file_1.cu, file_2.cu"]


def test_kernels_whose_files_are_compiled_take_the_linker_alone(tmp_path: Path, calls: list[str]) -> None:
    kernels = write_files(tmp_path, (2, 30, 7))
    for kernel in kernels[:2]:
        load_generated([kernel])
    calls.clear()
    device = SimulatorDevice(instantiations)
    assert device.list_uncompiled(kernels) == kernels[2:] and calls == []
    told: list[Progress] = []
    device.compile(kernels[:2], report=told.append)
    assert [(each.done_count, each.total_count) for each in told] == [(0, 2), (1, 2), (2, 2)]
    assert {each.name for each in told[1:]} == {"file_0.cu", "file_1.cu"}
    assert not {"file_0.cu", "file_1.cu"} & set(calls)
    device.close()


def test_several_objects_at_once_have_each_their_files(tmp_path: Path) -> None:
    kernels = write_files(tmp_path, (2, 30, 4))
    first, second, third = list_sources(kernels)
    built = build_files([[third], [second, first]])
    assert [set(KernelModule(each).functions) for each in built] == [{kernels[2]}, {kernels[1], kernels[0]}]


def test_files_of_equal_text_are_one_object_file(tmp_path: Path) -> None:
    kernels = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        kernels += write_files(folder, (2,))
    y = np.zeros(3, np.int32)
    for kernel, function in load_generated(kernels).items():
        function.launch_arrays(1, 1, y)
        assert (kernel in kernels, y[0]) == (True, 5)


def test_error_of_one_of_several_files_names_it_with_the_compiler_s_lines(tmp_path: Path) -> None:
    kernels = write_files(tmp_path)
    Path(kernels[1].source).write_text('extern "C" __global__ void k(int* y) {\n  y[0] = missing;\n}\n')
    with pytest.raises(KernelError, match=r"(?s)^file_1.cu does not compile .*file_1.cu:2:.*missing"):
        load_generated(kernels)


def test_object_of_several_files_that_would_not_load_names_them(tmp_path: Path) -> None:
    kernels = write_files(tmp_path)
    lacking = '__device__ int absent(int);\nextern "C" __global__ void k(int* y) { y[0] = absent(y[0]); }\n'
    Path(kernels[1].source).write_text(lacking)
    with pytest.raises(KernelError, match=r"^file_0.cu, file_1.cu can't be loaded .*nothing defines .*absent"):
        load_generated(kernels)


def test_file_that_is_no_object_has_no_names_to_change() -> None:
    with pytest.raises(ValueError, match="expected an object file in 64-bit little-endian ELF"):
        rename_defined(b"\xcf\xfa\xed\xfe" + bytes(100), ".suffix")

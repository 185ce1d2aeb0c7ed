"""Kernel sources: found by name in whichever folder, each in the folder of its family, and their includes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gpuexec.ops
from gpuexec.devices.kernels.kernel_source import (
    find_source,
    find_waiting_kernels,
    flatten,
    index_sources,
    kernels_dir,
    list_files,
    strip_comments,
    waits_for_predecessors,
)
from gpuexec.errors import KernelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import kernel_table

OPS = Path(gpuexec.ops.__file__).parent
KERNELS = kernels_dir()
FAMILIES = sorted(folder.name for folder in KERNELS.iterdir() if folder.name not in ("include", "pixel", "simulator"))
SOURCES = [path for family in FAMILIES for path in sorted((KERNELS / family).glob("*.cu"))]
HEADERS = sorted(path for path in KERNELS.rglob("*.cuh") if path.parent.name != "pixel")


def test_every_file_has_a_name_of_its_own() -> None:
    files = [path for path in KERNELS.rglob("*") if path.suffix in (".cu", ".cuh")]
    counts = Counter(path.name for path in files if path.parent.name != "pixel")
    assert [name for name, count in counts.items() if count > 1] == []
    assert len(index_sources(KERNELS)) == len(files)


def test_every_source_lies_in_the_folder_of_a_family() -> None:
    assert FAMILIES and all((OPS / family).is_dir() for family in FAMILIES)
    assert {path.parent.parent for path in SOURCES} == {KERNELS}
    listed = [path for path in KERNELS.rglob("*.cu") if path.parent.name != "pixel"]
    assert sorted(listed) == sorted(SOURCES)


def test_kernel_lies_with_the_operators_that_launch_it() -> None:
    texts = {family: "".join(path.read_text() for path in (OPS / family).glob("*.py")) for family in FAMILIES}
    away = [str(path.relative_to(KERNELS)) for path in SOURCES if f'"{path.name}"' not in texts[path.parent.name]]
    assert away == []


def test_header_of_one_family_lies_with_it_and_that_of_several_in_include() -> None:
    users: dict[Path, set[str]] = {}
    for source in SOURCES:
        for header in list_files(source):
            users.setdefault(header, set()).add(source.parent.name)
    wanted = {each.name: "".join(users[each]) if len(users[each]) == 1 else "include" for each in HEADERS}
    assert {each.name: each.parent.name for each in HEADERS} == wanted


def test_every_blit_has_the_name_of_a_source() -> None:
    names = index_sources(KERNELS)
    assert [path.name for path in (KERNELS / "pixel").glob("*.cu") if path.name not in names] == []


def test_every_listed_instance_is_of_a_source_with_a_name() -> None:
    assert {source for source in kernel_table() if ":" not in source} <= index_sources(KERNELS).keys()


def test_source_is_found_by_name_in_whichever_folder() -> None:
    assert find_source("softmax.cu") == KERNELS / "nn" / "softmax.cu"
    assert find_source("pixel/softmax.cu") == KERNELS / "pixel" / "softmax.cu"
    assert find_source("types.cuh") == KERNELS / "include" / "types.cuh"


def test_include_is_found_beside_the_file_then_by_name(tmp_path: Path) -> None:
    (tmp_path / "index.cuh").write_text("// of one's own\n")
    (tmp_path / "a.cu").write_text('#include "index.cuh"\n#include "philox.cuh"\n#include "pixel/texture.cuh"\n')
    assert {path for path in list_files(tmp_path / "a.cu") if path.name != "types.cuh"} == {
        tmp_path / "a.cu",
        tmp_path / "index.cuh",
        find_source("philox.cuh"),
        find_source("pixel/texture.cuh"),
    }


@pytest.mark.parametrize("missing", ["missing.cuh", "include/missing.cuh", "../index.cuh"])
def test_missing_header_is_named(tmp_path: Path, missing: str) -> None:
    (tmp_path / "a.cu").write_text(f'#include "{missing}"\n')
    with pytest.raises(KernelError, match=rf"Kernel source {Path(missing).name} can't be read: No such file"):
        flatten(tmp_path / "a.cu")


def test_missing_source_is_named() -> None:
    with pytest.raises(KernelError, match=r"Kernel source missing\.cu can't be read: No such file"):
        flatten(find_source("missing.cu"))


def test_header_of_a_source_is_part_of_its_text(tmp_path: Path) -> None:
    texts = []
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "part.cuh").write_text(f"constexpr int kValue = {value};\n")
        (folder / "a.cu").write_text('#include "part.cuh"\n')
        texts.append(flatten(folder / "a.cu"))
    assert texts[0] != texts[1]


WAITING = """#include "dependent_launch.cuh"
__device__ inline void wait() { wait_for_predecessors(); }
template <class T>
__global__ void __launch_bounds__(256) first(const T* x, T* y) {
  const char brace = '}';
  if (x[0] == T(0)) { y[0] = T(1); }
  wait_for_predecessors();
}
template <class T>
__global__ void __launch_bounds__(256, sizeof(T) > 4 ? 1 : 2) fifth(T* x) { wait_for_predecessors(); }
__global__ void second(int* x) { /* wait_for_predecessors(); */ x[0] = '{'; }  // wait_for_predecessors()
extern "C" __global__ void third(int* x) { wait(); }
extern "C" __global__ void fourth(int* x) {
  if (x) { wait_for_predecessors(); }
}
"""


def test_kernels_that_wait_say_so_in_their_own_bodies(tmp_path: Path) -> None:
    path = tmp_path / "waiting.cu"
    path.write_text(WAITING)
    assert find_waiting_kernels(path) == {"first", "fourth", "fifth"}
    assert waits_for_predecessors(Kernel(str(path), "first<float>"))
    assert not waits_for_predecessors(Kernel(str(path), "second"))


def test_kernels_that_wait_let_others_begin() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert text.count("wait_for_predecessors();") == text.count("launch_dependents();"), path.name


def test_every_wait_is_in_the_body_of_a_kernel_that_is_found() -> None:
    """Each kernel waits in one place: in a lambda, where its helpers do so."""
    for path in SOURCES:
        text = strip_comments(flatten(path))
        assert text.count("wait_for_predecessors();") == len(find_waiting_kernels(path)), path.name

"""Cache of shared objects: found by content, whole or not at all, built once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from gpuexec.devices.simulator import compilation, object_cache
from gpuexec.devices.simulator.compilation import build_runtime
from gpuexec.devices.simulator.object_cache import ObjectCache, is_whole
from gpuexec.devices.simulator.toolchain import Mode, find_compiler
from tests.devices.simulator.conftest import build_file

KERNEL = '#include "part.cuh"\nextern "C" __global__ void k(int* y) { y[0] = kValue; }\n'


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """A cache of several tests, which has the precompiled headers after the first."""
    return ObjectCache(tmp_path_factory.mktemp("cache"))


def write_kernel(folder: Path, value: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "part.cuh").write_text(f"constexpr int kValue = {value};\n")
    (folder / "tiny.cu").write_text(KERNEL)
    return folder / "tiny.cu"


def write(content: bytes) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        path.write_bytes(content)

    return build


def fail(path: Path) -> None:
    raise AssertionError(f"{path} is built again")


def test_object_is_built_once(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new")
    path = cache.get("key", write(b"content"))
    assert path.read_bytes().startswith(b"content")
    assert ObjectCache(tmp_path / "new").get("key", fail) == path


@pytest.mark.parametrize("harm", [lambda data: data[:-5], lambda data: b"", lambda data: b"X" + data[1:]])
def test_object_that_is_not_whole_is_built_again(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    cache = ObjectCache(tmp_path)
    path = cache.get("key", write(b"content" * 100))
    good = path.read_bytes()
    path.write_bytes(harm(good))
    assert not is_whole(path)
    assert cache.get("key", write(b"content" * 100)).read_bytes() == good


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        ObjectCache(tmp_path).get("key", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]


def test_second_thread_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_has_looked, built = threading.Event(), []

    def look(path: Path) -> bool:
        if threading.current_thread().name == "second":
            second_has_looked.set()
        return is_whole(path)

    def build(path: Path) -> None:
        built.append(threading.current_thread().name)
        if len(built) == 1:
            second.start()
            assert second_has_looked.wait(60)
        path.write_bytes(b"content")

    monkeypatch.setattr(object_cache, "is_whole", look)
    cache = ObjectCache(tmp_path)
    second = threading.Thread(target=lambda: cache.get("key", build), name="second")
    cache.get("key", build)
    second.join()
    assert built == [threading.current_thread().name]


def test_folder_that_can_t_be_written_is_replaced_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="can't be written .*Point GPUEXEC_CACHE_DIR to a writable folder"):
        path = cache.get("key", write(b"content"))
    assert is_whole(path)
    assert cache.get("key", fail) == path


def test_same_content_elsewhere_is_the_same_object(tmp_path: Path, cache: ObjectCache) -> None:
    first = build_file(write_kernel(tmp_path / "a"), ["k"], cache).path
    assert build_file(write_kernel(tmp_path / "b"), ["k"], cache).path == first


def test_each_mode_has_an_object_of_its_own(tmp_path: Path, cache: ObjectCache) -> None:
    source = write_kernel(tmp_path / "a")
    assert len({build_file(source, ["k"], cache, mode).path for mode in get_args(Mode)}) == 3


@pytest.mark.parametrize("change", ["include", "flags", "compiler", "simulator", "expressions"])
def test_whatever_decides_the_object_is_in_its_key(
    tmp_path: Path, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = build_file(write_kernel(tmp_path / "a"), ["k"], cache).path
    path, expressions, compiler = write_kernel(tmp_path / "b"), ["k"], find_compiler()
    if change == "include":
        write_kernel(tmp_path / "b", value=2)
    elif change == "expressions":
        expressions = ["&k == nullptr ? k : k"]
        monkeypatch.setattr(compilation, "write_rows", lambda names: "\n// other rows\n")
    elif change == "simulator":
        monkeypatch.setattr(compilation, "_hash_headers", lambda check: "another version")
    else:
        other = replace(compiler, machine_flags=("-DX",)) if change == "flags" else replace(compiler, version="g++ 99")
        monkeypatch.setattr(compilation, "find_compiler", lambda: other)
    assert build_file(path, expressions, cache).path != first


def test_two_processes_at_once_compile_once(tmp_path: Path) -> None:
    real = find_compiler().path
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)
    compiler = tmp_path / "cxx"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in --version | *c++-header*) exec {real} "$@";; esac\n'
        f'case "$*" in *" -c "*) echo compile >> {log}; read line < {gate};; *) echo link >> {log};; esac\n'
        f'exec {real} "$@"\n'
    )
    compiler.chmod(0o755)
    path = write_kernel(tmp_path / "kernels")
    script = (
        "import sys; from gpuexec.devices.simulator.compilation import ObjectSource, build_files\n"
        "print('ready', flush=True); print(build_files([[ObjectSource(sys.argv[1], ('k',))]])[0].path)"
    )
    environment = {**os.environ, "GPUEXEC_CXX": str(compiler), "GPUEXEC_CACHE_DIR": str(tmp_path / "cache")}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    first = start()
    with open(gate, "w") as opened:  # blocks until the first process's compiler runs, and holds it
        second = start()
        assert second.stdout is not None
        assert second.stdout.readline() == "ready\n"
        opened.write("go\n")
    answers = [process.communicate(timeout=60)[0].split()[-1] for process in (first, second)]
    assert answers[0] == answers[1]
    assert is_whole(Path(answers[0]))
    assert log.read_text().split() == ["compile", "link"]


def test_kernel_files_of_a_mode_share_a_precompiled_header(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    for value in (1, 2):
        build_file(write_kernel(tmp_path / str(value), value), ["k"], cache)
    (header,) = cache.folder.glob("*.gch")
    header.write_bytes(b"cut")
    build_file(write_kernel(tmp_path / "3", 3), ["k"], cache)
    assert is_whole(header)
    build_file(write_kernel(tmp_path / "3", 3), ["k"], cache, "check")
    assert len(list(cache.folder.glob("*.gch"))) == 2


def test_precompiled_header_stands_for_the_header(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    build_file(write_kernel(tmp_path / "1"), ["k"], cache)
    (header,) = cache.folder.glob("*.gch")
    header.with_suffix("").unlink()
    build_file(write_kernel(tmp_path / "2", 2), ["k"], cache)


def test_cut_library_in_the_cache_is_compiled_again(tmp_path: Path, cache: ObjectCache) -> None:
    source = write_kernel(tmp_path / "a")
    path = build_file(source, ["k"], cache).path
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert build_file(source, ["k"], cache).path == path
    assert is_whole(path)


def test_runtime_is_built_from_the_installed_sources() -> None:
    built = {build_runtime(), build_runtime(defines=["GPUEXEC_UCONTEXT"])}
    assert len(built) == 2 and all(is_whole(path) for path in built)


def test_runtime_has_static_thread_local_storage_of_its_own_alone() -> None:
    """Kernels read the position of their thread there; that of a library loaded before can't become static."""
    shown = subprocess.run(["readelf", "-dr", "-W", build_runtime()], capture_output=True, text=True, check=True).stdout
    assert "STATIC_TLS" in shown
    assert not [line for line in shown.splitlines() if "TPOFF" in line.replace("DTPOFF", "") and "GLIBCXX" in line]

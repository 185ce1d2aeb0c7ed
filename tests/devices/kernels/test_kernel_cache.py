"""Kernel cache: one compile per kernel, damage found, no folder needed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuexec.devices.kernels.kernel_cache import KernelCache, make_key
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.nvrtc import CompiledKernel, Cubin
from gpuexec.errors import KernelError
from gpuexec.ir.command import Kernel
from tests.devices.cuda_wheels import needs_cuda_wheels

CUBIN = Cubin("f.cu", b"\x7fELF" + bytes(range(256)), (CompiledKernel("f<int>", "_Z1f", 8, 0, 16, 256),), "log")
EXPRESSIONS = ("add<float>", "add<double>", "add<int>")
SOURCE = "template <typename T> __global__ void add(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += (T)1; }\n"

# A process that compiles all kernels at the word "go", and writes a line for each compile that really happens.
PROCESS = """
import sys
from pathlib import Path
from gpuexec.ir.command import Kernel
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary

folder, source, log, *expressions = sys.argv[1:]
compile_cubin = nvrtc.compile_cubin

def compile_and_count(text, expressions, architecture, options, *, source):
    with open(log, "a") as file:
        file.write(expressions[0] + "\\n")
    return compile_cubin(text, expressions, architecture, options, source=source)

nvrtc.compile_cubin = compile_and_count
nvrtc.compiler_version()
print("ready", flush=True)
sys.stdin.readline()
library = KernelLibrary("sm_90", KernelCache(Path(folder)))
entries = library.compile([Kernel(source, expression) for expression in expressions])
assert all(entry.cubin.image.startswith(b"\\x7fELF") and entry.path.is_file() for entry in entries.values())
print(library.compile_count, flush=True)
"""


def count_compiles(tmp_path: Path, processes: int) -> list[str]:
    """Run processes over one cache folder, all at once; return the expressions compiled, sorted."""
    source, log = tmp_path / "add.cu", tmp_path / "compiles.txt"
    source.write_text(SOURCE)
    log.write_text("")
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(source), str(log), *EXPRESSIONS]
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
        )
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    compiled = sorted(log.read_text().splitlines())
    assert sum(int(output) for output in outputs) == len(compiled)
    return compiled


@needs_cuda_wheels
def test_cache_compiles_each_kernel_once_when_eight_processes_start_empty(tmp_path: Path) -> None:
    assert count_compiles(tmp_path, 8) == sorted(EXPRESSIONS)
    assert count_compiles(tmp_path, 1) == []


def test_cache_recompiles_an_entry_that_describes_kernels_by_other_fields(tmp_path: Path) -> None:
    KernelCache(tmp_path).get("key", lambda: CUBIN)
    path = tmp_path / "key.json"
    described = json.loads(path.read_text().split("\n", 1)[1])
    del described["kernels"][0]["max_threads"]
    body = json.dumps(described)
    path.write_text(f"{hashlib.sha256(CUBIN.image + body.encode()).hexdigest()}\n{body}")
    assert KernelCache(tmp_path).get("key", lambda: CUBIN).was_compiled
    assert not KernelCache(tmp_path).get("key", lambda: CUBIN).was_compiled


@needs_cuda_wheels
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_cache_recompiles_only_the_damaged_kernel_when_eight_processes_find_it(tmp_path: Path, suffix: str) -> None:
    count_compiles(tmp_path, 1)
    damaged = min((tmp_path / "cache").glob(f"*{suffix}"))
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    assert len(count_compiles(tmp_path, 8)) == 1
    assert count_compiles(tmp_path, 1) == []


def test_get_finds_every_flipped_byte(tmp_path: Path) -> None:
    KernelCache(tmp_path).get("k", lambda: CUBIN)
    for path in (tmp_path / "k.cubin", tmp_path / "k.json"):
        whole = path.read_bytes()
        for position in range(0, len(whole), 7):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            entry = KernelCache(tmp_path).get("k", lambda: CUBIN)
            assert entry.was_compiled, f"{path.suffix} byte {position}"


def test_get_returns_what_was_stored_when_disk_has_it(tmp_path: Path) -> None:
    KernelCache(tmp_path).get("k", lambda: CUBIN)
    entry = KernelCache(tmp_path).get("k", lambda: pytest.fail("compiled again"))
    assert entry.cubin == CUBIN and not entry.was_compiled
    assert entry.path == tmp_path / "k.cubin" and entry.path.read_bytes() == CUBIN.image
    assert {path.suffix for path in tmp_path.iterdir()} == {".cubin", ".json", ".lock"}


@pytest.mark.filterwarnings("ignore:The kernel cache")
@pytest.mark.parametrize("folder", ["cache", "file/cache"])
def test_get_compiles_once_when_threads_share_a_cache(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache, together = KernelCache(tmp_path / folder), threading.Barrier(8)
    calls: list[int] = []
    second = threading.Event()

    def compile_slowly() -> Cubin:
        calls.append(1)
        second.set() if len(calls) > 1 else second.wait(0.2)  # leave the door open for another thread to come in
        return CUBIN

    def ask() -> bytes:
        together.wait()
        return cache.get("k", compile_slowly).cubin.image

    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda _: ask(), range(8)))
    assert images == [CUBIN.image] * 8 and len(calls) == 1


def test_get_keeps_nothing_when_compiling_fails(tmp_path: Path) -> None:
    def fail() -> Cubin:
        raise KernelError("no")

    cache = KernelCache(tmp_path)
    with pytest.raises(KernelError):
        cache.get("k", fail)
    assert cache.get("k", lambda: CUBIN).was_compiled


def test_cache_says_so_once_and_works_from_memory_when_folder_is_not_writable(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    cache = KernelCache(blocker / "cache")
    with pytest.warns(RuntimeWarning, match=r"can't be written .*GPUEXEC_CACHE_DIR") as caught:
        first, _ = (cache.get(key, lambda: CUBIN) for key in "ab")
    assert len(caught) == 1 and cache.fallback is not None
    assert cache.get("a", lambda: pytest.fail("compiled again")) is first and first.path is None
    path = cache.file_of(first)
    assert path.read_bytes() == CUBIN.image
    cache.close()


def test_cache_falls_back_when_writing_fails_after_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuexec.system.atomic_file.os.replace", refuse)

    def compile_and_count() -> Cubin:
        calls.append(1)
        return CUBIN

    calls: list[int] = []
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        entry = KernelCache(tmp_path).get("k", compile_and_count)
    assert entry.path is None and calls == [1]
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_cache_reads_without_a_word_when_folder_has_the_entry_and_is_read_only(tmp_path: Path) -> None:
    KernelCache(tmp_path).get("k", lambda: CUBIN)
    (tmp_path / "k.lock").unlink()
    (tmp_path / "k.lock").mkdir()  # opening the lock file would fail, for root too
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not KernelCache(tmp_path).get("k", lambda: pytest.fail("compiled again")).was_compiled


def test_make_key_differs_in_each_of_its_parts() -> None:
    keys = [
        make_key("text", ["f"], "sm_90", ["-O"], "nvrtc-13.5"),
        make_key("t", ["f"], "sm_90", ["-O"], "nvrtc-13.5"),
        make_key("text", ["g"], "sm_90", ["-O"], "nvrtc-13.5"),
        make_key("text", ["f"], "sm_80", ["-O"], "nvrtc-13.5"),
        make_key("text", ["f"], "sm_90", [], "nvrtc-13.5"),
        make_key("text", ["f"], "sm_90", ["-O"], "nvrtc-13.6"),
    ]
    assert len(set(keys)) == len(keys)


@needs_cuda_wheels
def test_library_counts_compiles_and_keeps_instances_apart(tmp_path: Path) -> None:
    source = tmp_path / "add.cu"
    source.write_text(SOURCE)
    kernels = [Kernel(str(source), expression) for expression in EXPRESSIONS]
    library = KernelLibrary("sm_90", KernelCache(tmp_path / "cache"))
    entries = library.compile([*kernels, kernels[0]])
    assert library.compile_count == 3 and library.compile_seconds > 0
    assert len({entry.cubin.image for entry in entries.values()}) == 3
    library.compile(kernels)
    assert library.compile_count == 3


def test_library_names_the_source_when_it_is_missing(tmp_path: Path) -> None:
    library = KernelLibrary("sm_90", KernelCache(tmp_path))
    with pytest.raises(KernelError, match=r"nowhere\.cu"):
        library.compile([Kernel("nowhere.cu", "f")])

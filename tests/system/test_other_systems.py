"""Portability to Windows and macOS: the CPU backend without POSIX or Linux calls.

A stand-in, since the tests run on Linux: modules are blocked, names of `os` deleted and ``sys.platform`` changed before
`gpuexec` is imported, in a process of its own. Libraries are imported before, as they are on this system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuexec.system.system_files import lock_file, read_at

ROOT = Path(__file__).resolve().parents[2]
POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix_ipc")
WINDOWS_LACKS = (
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getegid", "getpgid", "killpg", "sysconf"),
    *("fchmod", "fchown", "chown", "preadv", "pread", "pwritev", "pwrite", "posix_fadvise", "sched_getaffinity"),
    *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_SYNC", "mkfifo", "getloadavg", "uname"),
)
MACOS_LACKS = ("posix_fadvise", "sched_getaffinity", "memfd_create", "O_TMPFILE")
SIGNALS = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "setitimer")
MAPPING = ("MAP_SHARED", "MAP_PRIVATE", "MAP_POPULATE", "PROT_READ", "PROT_WRITE", "MADV_DONTNEED", "MADV_SEQUENTIAL")

BLOCK = """
import asyncio, ctypes, importlib.metadata, logging, mmap, os, pathlib, platform, shutil, signal, subprocess, sys
import tempfile, types, typing, uuid
import numpy, numpy.testing, onnx, onnx.inliner, onnx.reference, ml_dtypes, safetensors.numpy
import rich.console, rich.table, rich.progress

platform_name, modules, lacks, signals, mapping = {taken!r}
for name in modules:
    sys.modules[name] = None
for holder, names in ((os, lacks), (signal, signals), (mmap, mapping)):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
if platform_name == "win32":
    locks = []
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_LOCK=1, locking=lambda *args: locks.append(args))
sys.platform = platform_name
"""
USE = """
import numpy as np
import gpuexec as gx
from gpuexec.cli import main

folder, digits = sys.argv[1:]
x = np.ones((2, 1, 8, 8), np.float32)
model = gx.load(digits)
with gx.Worker(model, backend=gx.BackendType.AUTO) as worker:
    assert worker.backend_type is gx.BackendType.CPU, worker.backend_type
    y = worker.run(x)[0]
model.save(folder + "/saved.onnx", external_data=True)
with gx.Worker(gx.load(folder + "/saved.onnx"), backend=gx.BackendType.CPU) as worker:
    np.testing.assert_allclose(worker.run(x)[0], y, rtol=1e-5)

program = folder + "/digits.gxp"
gx.Program.build({"forward": model}, shapes={"forward": {"image": [(1, 4), 1, 8, 8]}}).save(program)
for loader in (program, gx.FileDataLoader(program)):
    with gx.Module(loader, backend=gx.BackendType.CPU) as module:
        np.testing.assert_allclose(module.forward(x)[0], y, rtol=1e-5)

graph = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
    ' g (float[3] x, float[3] past) => (float[3] y, float[3] next) { y = Add (x, past) next = Identity (y) }')
counting = gx.load(graph).bind_state({"next": "past"})
with gx.Worker(counting, backend=gx.BackendType.CPU) as worker:
    worker.run(np.ones(3, np.float32))
    worker.state.save(folder + "/state.safetensors")
with gx.Worker(counting, backend=gx.BackendType.CPU) as worker:
    state = worker.create_state()
    state.load(folder + "/state.safetensors")
    worker.state = state
    assert worker.run(np.ones(3, np.float32))[0].tolist() == [2, 2, 2]

assert main(["doctor"]) == 0
assert main(["run", digits, "--backend", "cpu"]) == 0
assert main(["run", program, "--backend", "cpu"]) == 0
from gpuexec.devices.kernels.kernel_cache import KernelCache
assert KernelCache(pathlib.Path(folder) / "kernels")._hold("key").__enter__() is None
assert platform_name != "win32" or locks, "no lock was taken"
print("all done")
"""


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_cpu_backend_works_without_what_the_system_lacks(tmp_path: Path, system: str) -> None:
    is_windows = system == "win32"
    modules, lacks = (POSIX_MODULES, WINDOWS_LACKS) if is_windows else ((), MACOS_LACKS)
    taken = (system, modules, lacks, SIGNALS if is_windows else (), MAPPING if is_windows else ())
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(taken=taken) + USE, tmp_path, ROOT / "examples/models/digits.onnx"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUEXEC_CACHE_DIR": str(tmp_path / "cache")},
        check=False,
    )
    assert done.returncode == 0 and "all done" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


def test_lock_waits_for_another_holder(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []

    def wait() -> None:
        with path.open("ab") as file:
            lock_file(file.fileno())
            order.append("second")

    with path.open("ab") as file:
        lock_file(file.fileno())
        thread = threading.Thread(target=wait)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("has_preadv", [True, False], ids=["preadv", "seek and read"])
def test_reads_at_an_offset_end_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_preadv: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(10)))
    if not has_preadv:
        monkeypatch.delattr(os, "preadv")
    with path.open("rb") as file:
        buffer = bytearray(4)
        assert read_at(file.fileno(), memoryview(buffer), 3) == 4 and bytes(buffer) == bytes([3, 4, 5, 6])
        assert read_at(file.fileno(), memoryview(buffer), 8) == 2 and bytes(buffer[:2]) == bytes([8, 9])
        assert read_at(file.fileno(), memoryview(buffer), 10) == 0

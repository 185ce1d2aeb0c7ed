"""Portability: installed compilers, and fibers of x86-64 and other CPUs, give the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

_SCRIPT = """
import hashlib, sys
import numpy as np
from gpuexec.devices.simulator.library import GridError, Schedule, load_runtime
load_runtime(sys.argv[1:])
from gpuexec.devices.simulator.module import load_files
from tests.devices.simulator.conftest import FOLDER, TABLE
files = ("basic.cu", "mistakes.cu", "tensor.cu")
loaded = load_files({FOLDER / name: TABLE[name] for name in files})
kernels = {name: function for functions in loaded.values() for name, function in functions.items()}
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for order in ("forward", "reverse", "random"):
    for workers in (1, 2):
        schedule = Schedule(order, 3, workers)
        a, b = rng.random((70, 50), np.float32), rng.random((50, 45), np.float32)
        c = np.zeros((70, 45), np.float32)
        sizes = np.int32(70), np.int32(45), np.int32(50)
        kernels["gemm"].launch_arrays((2, 3), (16, 16), a, b, c, *sizes, schedule=schedule)
        h, k = rng.random((2, 48, 64)).astype(np.float16)
        t = np.zeros((48, 48), np.float32)
        sizes = np.int32(48), np.int32(64)
        kernels["tensor_gemm<__half, 1>"].launch_arrays((6, 3), 32, h, k, t, *sizes, schedule=schedule)
        counts, x = np.zeros(256, np.uint32), rng.integers(0, 256, 50000, dtype=np.uint8)
        kernels["histogram"].launch_arrays(40, 256, x, np.int32(x.size), counts, shared_bytes=1024, schedule=schedule)
        s, sums = rng.integers(0, 9, 3000).astype(np.float32), np.zeros(1, np.float32)
        kernels["block_sum"].launch_arrays(40, 256, s, sums, np.int32(3000), schedule=schedule)
        race = np.zeros(128, np.float32)
        kernels["missing_barrier"].launch_arrays(1, 128, np.arange(128, dtype=np.float32), race, schedule=schedule)
        for array in (c, t, counts, sums, race):
            digest.update(array.tobytes())
        for name in ("deadlock", "exited_lane", "divergent_barrier", "overflow_stack"):
            arguments = (np.zeros(64, np.float32), *([np.int32(100)] if name == "overflow_stack" else []))
            try:
                kernels[name].launch_arrays(1, 64, *arguments, schedule=schedule)
            except GridError as error:
                digest.update(str(error).encode())
            else:
                sys.exit(f"{name} passed")
print(digest.hexdigest())
"""
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)] or ["g++"]


def run(compiler: str, *defines: str) -> str:
    environment = {**os.environ, "GPUEXEC_CXX": compiler}
    command = [sys.executable, "-c", _SCRIPT, *defines]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def reference() -> str:
    return run(COMPILERS[0])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_fibers_by_ucontext_equal_those_by_hand(reference: str, compiler: str) -> None:
    assert run(compiler, "GPUEXEC_UCONTEXT") == reference


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compilers_agree(reference: str, compiler: str) -> None:
    assert run(compiler) == reference

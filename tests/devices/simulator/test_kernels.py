"""Kernels of each kind on the simulator: right numbers in any order of threads."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction

Kernels = Mapping[str, SimulatorFunction]
RNG = np.random.default_rng(0)
I32, F32 = np.int32, np.float32


def test_elementwise(kernels: Kernels, schedule: Schedule) -> None:
    a, b = RNG.random((2, 50_000), F32)
    c = np.zeros_like(a)
    kernels["add"].launch_arrays(196, 256, a, b, c, I32(a.size), schedule=schedule)
    np.testing.assert_array_equal(c, a + b)


def test_template_instances(kernels: Kernels, schedule: Schedule) -> None:
    a, b = RNG.integers(0, 99, (2, 300), dtype=I32)
    c = np.zeros_like(a)
    kernels["binary<int, 1>"].launch_arrays(3, 128, a, b, c, I32(300), schedule=schedule)
    np.testing.assert_array_equal(c, a * b)


def test_block_reduction(kernels: Kernels, schedule: Schedule) -> None:
    x, out = RNG.random(3000, F32), np.zeros(1, F32)
    kernels["block_sum"].launch_arrays(4, 256, x, out, I32(3000), schedule=schedule)
    np.testing.assert_allclose(out[0], x.sum(), rtol=1e-5)


def test_warp_softmax(kernels: Kernels, schedule: Schedule) -> None:
    x = RNG.standard_normal((5, 100)).astype(F32)
    y = np.zeros_like(x)
    kernels["softmax_row"].launch_arrays(5, 32, x, y, I32(100), schedule=schedule)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_half_pairs(kernels: Kernels, schedule: Schedule) -> None:
    x, y = RNG.random((2, 1000)).astype(np.float16)
    expected = (np.float64(0.3) * 0 + np.float64(np.float16(0.3)) * x + y).astype(np.float16)
    kernels["half_axpy"].launch_arrays(2, 256, x, y, F32(0.3), I32(500), schedule=schedule)
    np.testing.assert_array_equal(y, expected)


def test_dynamic_shared_memory_and_atomics(kernels: Kernels, schedule: Schedule) -> None:
    x = RNG.integers(0, 256, 5000, dtype=np.uint8)
    counts = np.zeros(256, np.uint32)
    kernels["histogram"].launch_arrays(3, 128, x, I32(5000), counts, shared_bytes=1024, schedule=schedule)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=256))


def test_tiled_gemm(kernels: Kernels, schedule: Schedule) -> None:
    a, b = RNG.random((70, 50), F32), RNG.random((50, 45), F32)
    c = np.zeros((70, 45), F32)
    launch = kernels["gemm"].launch_arrays((2, 3), (16, 16), a, b, c, I32(70), I32(45), I32(50), schedule=schedule)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    assert launch.shared_bytes == 2 * (2 * 32 * 33 * 4)


@pytest.mark.parametrize(("name", "dtype"), [("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)])
def test_tensor_core_gemm_through_wrappers(kernels: Kernels, schedule: Schedule, name: str, dtype: type) -> None:
    a, b = RNG.random((48, 64)).astype(dtype), RNG.random((40, 64)).astype(dtype)
    c = np.zeros((48, 40), F32)
    kernels[f"tensor_gemm<{name}, 1>"].launch_arrays((5, 3), 32, a, b, c, I32(40), I32(64), schedule=schedule)
    np.testing.assert_allclose(c, a.astype(F32) @ b.astype(F32).T, rtol=1e-5)


def test_missing_wait_for_an_asynchronous_copy_reads_poison(kernels: Kernels) -> None:
    a, b = np.ones((16, 32), np.float16), np.ones((8, 32), np.float16)
    c = np.zeros((16, 8), F32)
    kernels["tensor_gemm<__half, 2>"].launch_arrays(1, 32, a, b, c, I32(8), I32(32))
    assert np.isnan(c).all()


def test_grid_of_three_dimensions_runs_every_thread_once(kernels: Kernels, schedule: Schedule) -> None:
    grid, block = (3, 5, 2), (7, 2, 3)
    seen = np.zeros((2 * 5 * 3, 3, 2 * 7), np.uint32)
    kernels["blocks_seen"].launch_arrays(grid, block, seen, schedule=schedule)
    z_block = np.arange(30)[:, None, None] // 15
    np.testing.assert_array_equal(seen, np.broadcast_to(1 + 100 * z_block + np.arange(3)[None, :, None], seen.shape))


def test_two_os_threads_run_each_block_once(kernels: Kernels, schedule: Schedule) -> None:
    for _ in range(50):
        seen = np.zeros((300, 64), np.uint32)
        kernels["blocks_seen"].launch_arrays(300, 64, seen, schedule=schedule)
        assert (seen == 1).all()


def test_missing_barrier_shows_in_some_order(kernels: Kernels) -> None:
    x = np.arange(128, dtype=F32)
    results = []
    for each in (Schedule("forward"), Schedule("reverse"), Schedule("random", 1)):
        y = np.zeros_like(x)
        kernels["missing_barrier"].launch_arrays(1, 128, x, y, schedule=each)
        results.append(np.array_equal(y, np.roll(x, -1)))
    assert not any(results)


def test_same_seed_gives_the_same_order(kernels: Kernels) -> None:
    def run(seed: int) -> bytes:
        y = np.zeros(128, F32)
        order = Schedule("random", seed)
        kernels["missing_barrier"].launch_arrays(1, 128, np.arange(128, dtype=F32), y, schedule=order)
        return y.tobytes()

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_shared_memory_is_poisoned_for_every_block(kernels: Kernels) -> None:
    y = np.zeros(32, F32)
    kernels["read_unwritten_shared"].launch_arrays(1, 32, y)
    assert np.isnan(y).all()


def test_pairs_of_lanes_use_sixteen_masks_one_after_the_other(kernels: Kernels) -> None:
    y = np.zeros(32, I32)
    kernels["many_masks"].launch_arrays(1, 32, y)
    np.testing.assert_array_equal(y, np.arange(32) ^ 1)

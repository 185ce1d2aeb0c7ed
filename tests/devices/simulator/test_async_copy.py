"""Asynchronous copies: bytes come at the wait for their group, in any order, and mistakes with them are found."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import FindingsError, SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode

Array = np.ndarray[Any, Any]
SOURCE = Path(__file__).parent / "kernels" / "ring.cu"
# In the order of the kernel's enum Bug; what check mode may call each. Without a barrier a thread may read what another
# has not waited for, or not even begun to copy.
BUGS = {
    "missing wait": {"missing wait"},
    "wait for too few": {"missing wait"},
    "missing barrier": {"missing wait", "race", "uninitialised read"},
    "slab still read": {"missing wait", "race"},
}
THREADS, SLABS = 64, 9
SEEDS = range(4)
F32, I32 = np.float32, np.int32
COPIES = ("copy_sixteen_bytes", "copy_twice")


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    return load_file(SOURCE, [*(f"sum_ring<{bug}>" for bug in range(len(BUGS) + 1)), *COPIES], mode=mode)


def run_ring(mode: Mode, bug: int, seed: int, slabs: int = SLABS) -> tuple[Array, Array]:
    x = np.random.default_rng(0).integers(-9, 10, (slabs, THREADS)).astype(F32)
    y = np.zeros(THREADS, F32)
    load(mode)[f"sum_ring<{bug}>"].launch_arrays(1, THREADS, x, y, I32(slabs), schedule=Schedule("random", seed))
    return y, x.sum(axis=0)[::-1]


@pytest.mark.parametrize("slabs", [1, 2, 3, SLABS])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
def test_ring_of_copies_is_right(mode: Mode, seed: int, slabs: int) -> None:
    got, expected = run_ring(mode, 0, seed, slabs)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bug", BUGS)
def test_mistake_gives_wrong_numbers(bug: str, seed: int) -> None:
    got, expected = run_ring("plain", 1 + list(BUGS).index(bug), seed)
    assert (got != expected).any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bug", BUGS)
def test_mistake_is_found_in_check_mode(bug: str, seed: int) -> None:
    with pytest.raises(FindingsError) as caught:
        run_ring("check", 1 + list(BUGS).index(bug), seed)
    assert {finding.kind for finding in caught.value.findings} & BUGS[bug]


@pytest.mark.parametrize("mode", ["plain", "check"])
def test_copy_beyond_the_source_writes_zeros_and_reads_nothing(mode: Mode) -> None:
    x, y = np.arange(1, 5, dtype=F32), np.full(8, -1, F32)
    load(mode)["copy_sixteen_bytes"].launch_arrays(1, 32, x, y)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 0, 0, 0, 0])


def test_copies_waited_for_together_come_in_any_order() -> None:
    x, y = np.array([1, 2], F32), np.zeros(64, F32)
    load("plain")["copy_twice"].launch_arrays(64, 1, x, y)
    assert set(y) == {1.0, 2.0}


def test_count_mode_sees_both_ends_of_a_copy() -> None:
    counts: list[LaunchCounts] = []
    x, y = np.zeros((2, THREADS), F32), np.zeros(THREADS, F32)
    load("count")["sum_ring<0>"].launch_arrays(1, THREADS, x, y, I32(2), counts=counts)
    for end in (("global", "read"), ("shared", "write")):
        assert sum(each.counts.nbytes for each in counts[0].lines if (each.space, each.access) == end) == x.nbytes

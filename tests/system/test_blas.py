"""The limit of NumPy's BLAS: one thread while anybody holds it, then the number of before."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.system import blas
from gpuexec.system.blas import BlasLimit, find_limit
from gpuexec.system.threads import computing, end_computing
from tests.bench.models import SMALL_MODELS
from tests.devices.cpu.recorded import Bench, call
from tests.ops.operators import CALLED, Array
from tests.system.interrupts.points import Interrupter


class Library:
    """A library that takes a number of threads, and may be interrupted where it is asked."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.written: list[int] = []
        self.interrupt: str = ""

    def read(self) -> int:
        self._interrupt("read")
        return self.threads

    def write(self, threads: int) -> None:
        self.threads = threads
        self.written.append(threads)
        self._interrupt("write")

    def _interrupt(self, where: str) -> None:
        if self.interrupt == where:
            self.interrupt = ""
            raise KeyboardInterrupt


def test_the_last_of_several_holders_restores_the_number() -> None:
    library = Library(4)
    limit = BlasLimit(library.read, library.write)
    for holder, expected in ((1, 1), (2, 1)):
        limit.hold(holder)
        assert library.threads == expected
    limit.release(1)
    assert library.threads == 1
    limit.release(2)
    limit.release(2)
    assert library.written == [1, 4]


def test_a_number_that_others_set_meanwhile_stays() -> None:
    library = Library(4)
    limit = BlasLimit(library.read, library.write)
    limit.hold(1)
    library.threads = 3
    limit.hold(2)
    limit.release(1)
    limit.release(2)
    assert library.threads == 3
    limit.hold(1)
    limit.release(1)
    assert library.threads == 3


def test_a_library_on_one_thread_is_left_alone() -> None:
    library = Library(1)
    limit = BlasLimit(library.read, library.write)
    limit.hold(1)
    limit.release(1)
    assert library.written == []


@pytest.mark.parametrize("where", ["read", "write"])
@pytest.mark.parametrize("call", ["hold", "release"])
def test_what_an_interrupt_left_is_released_by_the_next(call: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(4)
    monkeypatch.setattr(blas, "_limit", BlasLimit(library.read, library.write))
    monkeypatch.setattr(blas, "_is_known", True)
    if call == "hold":
        library.interrupt = where
    with pytest.raises(KeyboardInterrupt):
        _compute(library, where)
    end_computing()
    assert library.threads == 4
    _compute(library, "")
    assert library.threads == 4 and not library.interrupt


def _compute(library: Library, where: str) -> None:
    with computing(None):
        assert library.threads == 1
        library.interrupt = where


def test_an_interrupt_at_any_point_of_a_run_leaves_the_users_number() -> None:
    limit = find_limit()
    if limit is None:
        return  # as the test of products says
    bench, before = SMALL_MODELS["mlp"](), limit._read()
    limit._write(2)
    try:
        points, kept = 0, []
        for point in range(10_000):
            worker = gx.Worker(bench.data, backend="cpu")
            for _ in range(4):
                worker.run(bench.inputs)
            interrupter = Interrupter(7 * point)
            kept.append(worker)  # none is finalized within the call that is interrupted
            was_interrupted = interrupter.call(lambda worker=worker: worker.run(bench.inputs))  # type: ignore[misc]
            assert limit._read() == 2, interrupter.place
            points += 1
            if not was_interrupted:
                break
        assert points > 5
    finally:
        limit._write(before)


def test_a_forked_child_has_the_number_of_before() -> None:
    library = Library(4)
    limit = BlasLimit(library.read, library.write)
    limit.hold(1)
    limit._lock.acquire()  # by a thread that the child does not have
    limit.restart()
    assert library.threads == 4
    limit.hold(2)
    limit.release(2)
    assert library.written == [1, 4, 1, 4]


def test_products_of_a_run_are_on_one_thread_and_the_users_number_is_back_behind_it() -> None:
    limit = find_limit()
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]  # type: ignore[index,call-overload]
    assert (limit is not None) == ("openblas" in name), name
    if limit is None:
        return
    before, seen = limit._read(), []

    def look(x: Array) -> Array:
        seen.append(limit._read())
        return x + 1

    CALLED["look"] = look
    device = CpuDevice()
    limit._write(2)
    try:
        bench = Bench(device, 2)
        recording = bench.record(call("look", 0, 1))
        for _ in range(3):
            bench.run(recording)
        assert limit._read() == 2
        small = SMALL_MODELS["mlp"]()
        with gx.Worker(small.data, backend="cpu") as worker:
            for _ in range(4):
                worker.run(small.inputs)
                worker.schedule(small.inputs).wait()
                assert limit._read() == 2
    finally:
        limit._write(before)
        device.close()
        CALLED.clear()
    assert seen == [1, 1, 1]

"""Products in parts that threads share: the bits of one thread on many, and small ones in one call."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ops.lib import shared_products
from gpuexec.ops.lib.shared_products import matmul, prepare_matmul
from gpuexec.system import threads
from gpuexec.system.threads import computing, share_work
from tests.bench.models import BenchModel, make_encoder, make_resnet18

SHAPES = {
    "columns": ((60, 200), (200, 1000)),
    "rows": ((1000, 200), (200, 60)),
    "one row": ((1, 2000), (2000, 5000)),
    "one row of few columns": ((1, 3000), (3000, 700)),
    "few rows, columns and terms": ((8, 6000), (6000, 100)),
    "neither": ((100, 700), (700, 100)),
    "matrices": ((8, 130, 70), (8, 70, 130)),
    "broadcast": ((5, 1, 90, 90), (3, 90, 170)),
    "columns of two": ((1, 2, 40, 300), (2, 300, 300)),
}


@pytest.fixture(autouse=True)
def own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_pool", None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_large_product_has_the_same_bits_on_any_number_of_threads(shapes: Any, dtype: Any) -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-9, 9, shape).astype(dtype) for shape in shapes)
    if dtype != np.int32:
        a, b = a + random.random(a.shape).astype(dtype), b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    made = []
    for most in (1, 2, 3):
        with computing(most):
            y = np.full(expected.shape, 7, dtype)
            prepare_matmul(a, b, y)()
            made += [y, matmul(a, b)]
    np.testing.assert_allclose(made[0], expected, rtol=1e-4, atol=1e-2)
    assert len({y.tobytes() for y in made}) == 1


def test_small_products_are_one_call_and_parts_of_large_ones_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((170, 170), np.float32)
    small = prepare_matmul(x, x, x.copy())
    assert isinstance(small, partial) and small.func is np.matmul
    monkeypatch.setattr(shared_products, "share_work", None)
    matmul(x, x)
    large = np.ones((1000, 1000), np.float32)
    parts = shared_products._divide(large, large, large)
    assert len(parts) == 4 and all(2 * y.size * 1000 >= shared_products._PART for _, _, y in parts)


@pytest.mark.parametrize("make", [partial(make_resnet18, extent=64), partial(make_encoder, blocks=1)], ids=["c", "e"])
def test_a_run_has_the_same_bits_on_any_number_of_threads(make: Any) -> None:
    bench: BenchModel = make()
    found = set()
    for most in (1, 2, 3):
        with gx.Worker(bench.data, backend="cpu", threads=most) as worker:
            for _ in range(4):
                (y,) = worker.run(bench.inputs)
                found.add(y.tobytes())
    assert len(found) == 1


def test_a_run_of_two_threads_takes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen, started = make_encoder(blocks=1), set[int](), threading.Barrier(2)

    def share(count: int, work: Any) -> None:
        def note(number: int) -> None:
            if not seen:
                started.wait(60)  # until another thread is here
            seen.add(threading.get_ident())
            work(number)

        share_work(count, note)

    monkeypatch.setattr(shared_products, "share_work", share)
    with gx.Worker(bench.data, backend="cpu", threads=2) as worker:
        for _ in range(3):
            worker.run(bench.inputs)
    assert len(seen) == 2


def test_a_run_of_one_thread_takes_the_time_of_no_other() -> None:
    bench = make_encoder(blocks=1)
    with gx.Worker(bench.data, backend="cpu", threads=1) as worker:
        worker.run(bench.inputs)
        shares = []
        for _ in range(3):  # threads of what ran before may still spin for some milliseconds
            own, whole = time.thread_time(), time.process_time()
            for _ in range(5):
                worker.run(bench.inputs)
            shares.append((time.process_time() - whole) / (time.thread_time() - own))
    assert min(shares) < 1.1

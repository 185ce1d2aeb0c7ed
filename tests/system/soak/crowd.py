"""Soak test of many Workers over one Model in threads: exact results, no hangs, no leaks."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.system.soak.companion import Companion, Sums, load_sums
from tests.system.soak.growth import count_device, open_device, read_rss
from tests.system.soak.models import exact_layers

Array = np.ndarray[Any, Any]
Expect = Callable[[Array], tuple[Array, Array]]
STUCK_S = 120
_MAX_DELAY_S = 0.002
_MAX_ROWS = 40


class Member:
    """One of the crowd: a thread with a Worker, which does things at random and checks all that comes back.

    Args:
        seed: Of what it does.
        sums: What its companion does the rest with.
    """

    def __init__(self, model: gx.Model, backend: Backend, expect: Expect, seed: int, sums: Sums) -> None:
        self._model, self._backend, self._expect = model, backend, expect
        self._random, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self._worker = self._open()
        self._companion = Companion(sums, backend, seed)
        self._kept: list[tuple[gx.ReadbackRequest, Array]] = []
        self.counts: Counter[str] = Counter()
        self.last_s = time.monotonic()
        self.error: BaseException | None = None

    def live(self, end_s: float) -> None:
        """Do things until the time is over; an error ends it at once."""
        actions = self.list_actions()
        try:
            while time.monotonic() < end_s and self.error is None:
                action = self._random.choice(actions)
                action()
                self.counts[action.__name__] += 1
                self.last_s = time.monotonic()
                if self._random.random() < 0.1:
                    time.sleep(self._random.random() * _MAX_DELAY_S)
            self._check_kept(0)
            self._worker.close()
        except BaseException as error:
            self.error = error

    def list_actions(self) -> list[Callable[[], None]]:
        """Return what it may do, as often as it should come up."""
        often = [self.run] * 4 + [self.keep_request] * 3
        seldom = [self.step_through, self.step_and_leave, self.cancel, self.order_with_stream, self.copy]
        rarely = [self.wait_in_loop, self.flush, self.trim, self.chain, self.reopen]
        return often * 6 + seldom * 8 + rarely * 3 + self._companion.list_actions() * 6

    def run(self) -> None:
        x = self._draw()
        self._check(self._worker.run(x), x)

    def keep_request(self) -> None:
        x = self._draw()
        self._worker.schedule(x, copy=self._random.random() < 0.8)
        self._kept.append((self._worker.peek_output("y").readback_request(), x))
        self._check_kept(5)

    def step_through(self) -> None:
        x = self._draw()
        for step in self._worker.schedule_iterable(x, budget_ms=self._random.choice([None, 0.5])):
            if step.waiting:
                time.sleep(_MAX_DELAY_S)
        self._check([self._worker.read_output(name) for name in ("y", "found")], x)

    def step_and_leave(self) -> None:
        steps = self._worker.schedule_iterable(self._draw())
        for _ in range(self._random.randint(0, 3)):
            next(steps, None)
        if self._random.random() < 0.5:
            self._worker.cancel()

    def cancel(self) -> None:
        x = self._draw()
        run = self._worker.schedule(x)
        y = self._worker.peek_output("y").readback_request()
        if run.cancel():
            try:
                run.wait()
            except gx.CancelledError:
                return
            raise AssertionError("a run that was cancelled went on")
        np.testing.assert_array_equal(y.result(), self._expect(x)[0])

    def order_with_stream(self) -> None:
        x, stream = self._draw(), self._backend.device.create_stream()
        self._worker.schedule(x, stream=stream)
        request = self._worker.peek_output("y").readback_request(stream=stream)
        stream.synchronize()
        assert request.is_done()
        np.testing.assert_array_equal(request.result(), self._expect(x)[0])
        close = getattr(stream, "close", None)
        if close is not None:
            close()

    def copy(self) -> None:
        x = self._draw()
        self._worker.schedule(x)
        with self._worker.copy_output("y") as kept:
            self._worker.schedule(self._draw())
            np.testing.assert_array_equal(kept.readback_and_clone(), self._expect(x)[0])

    def chain(self) -> None:
        x = np.concatenate([self._draw(), self._draw()], axis=0)
        self._worker.schedule(x)
        y = self._worker.copy_output("y")
        with gx.Worker(self._model, backend=self._backend, frames=1) as other:
            other.schedule(self._draw())
            np.testing.assert_array_equal(y.readback_and_clone(), self._expect(x)[0])
        y.close()

    def wait_in_loop(self) -> None:
        x = self._draw()

        async def ask() -> list[Array]:
            run = self._worker.schedule(x)
            await run
            return [await tensor.readback_and_clone_async() for tensor in run.outputs.values()]

        self._check(asyncio.run(ask()), x)

    def flush(self) -> None:
        self._worker.wait_for_completion()

    def trim(self) -> None:
        self._worker.trim()

    def reopen(self) -> None:
        """Close with readbacks under way, which stay readable, and go on with another Worker."""
        self._worker.close()
        self._worker = self._open()
        self._check_kept(2)

    def _check_kept(self, limit: int) -> None:
        while len(self._kept) > limit:
            request, x = self._kept.pop(0)
            np.testing.assert_array_equal(request.result(), self._expect(x)[0])

    def _check(self, got: Any, x: Array) -> None:
        for array, wanted in zip(got, self._expect(x), strict=True):
            np.testing.assert_array_equal(array, wanted)

    def _draw(self) -> Array:
        return self._numbers.integers(-2, 3, (self._random.randint(1, _MAX_ROWS), 6)).astype(np.float32)

    def _open(self) -> gx.Worker:
        return gx.Worker(self._model, backend=self._backend, frames=self._random.randint(1, 3))


def run_crowd(kind: str, workers: int, seconds: float, seed: int) -> list[str]:
    """Let the crowd live; print figures, and return what went wrong or was kept."""
    backend = open_device(kind, _MAX_DELAY_S)
    proto, expect = exact_layers()
    model = gx.load(proto)
    with gx.Worker(model, backend=backend) as first:
        first.run(np.ones((1, 6), np.float32))
    gc.collect()
    threads_before, start, rss_before = threading.active_count(), time.monotonic(), read_rss()
    sums = load_sums(backend)
    members = [Member(model, backend, expect, seed * 1000 + number, sums) for number in range(workers)]
    end = start + seconds
    threads = [
        threading.Thread(target=member.live, args=(end,), name=f"member-{n}") for n, member in enumerate(members)
    ]
    for thread in threads:
        thread.start()
    _watch(members, threads, end)
    counts = sum((member.counts for member in members), Counter[str]())
    print(f"crowd on {kind}: {workers} Workers for {time.monotonic() - start:.0f} s, {counts.total():,} actions")
    print(f"  {', '.join(f'{name} {count:,}' for name, count in counts.most_common())}")
    problems = [f"{thread.name}: {member.error!r}" for thread, member in zip(threads, members) if member.error]
    members.clear()
    threads.clear()
    del sums
    gc.collect()
    backend.deferred_free.prune()
    backend.staging.trim()
    left, left_threads = count_device(backend), threading.active_count() - threads_before
    print(
        f"  closed: device {left:,} B, pinned {backend.staging.nbytes:,} B, {len(backend.deferred_free)} kept objects,"
        f" {left_threads} more threads; RSS {rss_before:,} B before, {read_rss():,} B after"
    )
    if not problems and (left or backend.staging.nbytes or len(backend.deferred_free)):
        problems.append(
            f"{left} device bytes, {backend.staging.nbytes} pinned bytes, {len(backend.deferred_free)} objects left"
        )
    backend.completion.close()
    backend.device.close()
    return [f"crowd on {kind}: {problem}" for problem in problems]


def _watch(members: list[Member], threads: list[threading.Thread], end_s: float) -> None:
    """Wait for all threads; end the process with every stack where one does nothing for long, or one has failed."""
    said = 0.0
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(0.2)
        now = time.monotonic()
        failed = next((member for member in members if member.error is not None), None)
        if failed is not None:
            if not isinstance(failed.error, StopIteration):
                traceback.print_exception(failed.error, file=sys.stdout)
            for member in members:  # the others end too
                member.error = member.error or StopIteration("another failed first")
        stuck = [t.name for t, m in zip(threads, members) if t.is_alive() and now - m.last_s > STUCK_S]
        if stuck:
            print(f"PROBLEM {', '.join(stuck)} did nothing for {STUCK_S} s:", flush=True)
            faulthandler.dump_traceback(sys.stdout, all_threads=True)
            sys.stdout.flush()
            os._exit(2)
        if now - said > 30:
            said = now
            print(f"  {sum(m.counts.total() for m in members):,} actions, RSS {read_rss():,} B", flush=True)

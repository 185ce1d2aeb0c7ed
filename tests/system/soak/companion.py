"""Extra work of a soak thread beside its Worker: graphs, replays, stateful sequences, methods of a program."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.system.soak.models import exact_sum

Array = np.ndarray[Any, Any]
_MAX_ROWS = 8
# More than it takes for a plan to be launched as a graph.
_OFTEN = 6


@dataclass(frozen=True)
class Sums:
    """A model that adds to what it holds, with NumPy's way to do so; unbound, bound, and as a method of a program."""

    free: gx.Model
    bound: gx.Model
    program: gx.Program
    expect: Callable[[Array, Array], tuple[Array, Array]]


def load_sums(backend: Backend) -> Sums:
    """Load the model; everybody shares it."""
    proto, expect = exact_sum()
    free = gx.load(proto)
    bound = free.bind_state({"total": "held"})
    shapes = {"forward": {"x": ((1, _MAX_ROWS), 6), "held": ((1, _MAX_ROWS), 4)}}
    return Sums(free, bound, gx.Program.build({"forward": free}, shapes=shapes, backend=backend), expect)


class Companion:
    """Does things over the shared sums, and checks all that comes back. One thread's own."""

    def __init__(self, sums: Sums, backend: Backend, seed: int) -> None:
        self._sums, self._backend = sums, backend
        self._random, self._numbers = random.Random(seed), np.random.default_rng(seed)

    def list_actions(self) -> list[Callable[[], None]]:
        """Return what it may do."""
        return [self.repeat, self.replay, self.sequence, self.fork, self.execute]

    def repeat(self) -> None:
        """Run one size often, so that it becomes a graph; then trim, or leave it to the end."""
        rows, asked = self._draw_rows(), []
        with gx.Worker(self._sums.free, backend=self._backend, frames=self._random.randint(1, 3)) as worker:
            for _ in range(_OFTEN + self._random.randint(0, 4)):
                x, held = self._draw(rows)
                worker.schedule([x, held])
                asked.append((worker.peek_output("y").readback_request(), x, held))
            if self._backend.device.target.has_kernels:
                assert worker.memory_stats()["graphs"], "no graph was made"
            if self._random.random() < 0.3:
                worker.trim()
                worker.schedule([x, held])
        for request, x, held in asked:
            np.testing.assert_array_equal(request.result(), self._sums.expect(x, held)[0])

    def replay(self) -> None:
        """Record, submit on streams at random, and let go in the middle, by its end or by that of its Worker."""
        x, held = self._draw(self._draw_rows())
        streams = [self._backend.device.create_stream() for _ in range(2)]
        asked = []
        with gx.Worker(self._sums.free, backend=self._backend) as worker:
            replay = worker.record([x, held])
            for _ in range(self._random.randint(1, 5)):
                name = self._random.choice(["x", "held", None])
                if name is not None:
                    fresh = dict(zip(("x", "held"), self._draw(x.shape[0]), strict=True))
                    x, held = fresh["x"] if name == "x" else x, fresh["held"] if name == "held" else held
                given = {} if name is None else {name: x if name == "x" else held}
                made = replay.submit(given, stream=self._random.choice([None, *streams]))
                asked.append((made["total"].readback_request(), x, held))
            if self._random.random() < 0.5:
                replay.close()
        for request, x, held in asked:
            np.testing.assert_array_equal(request.result(), self._sums.expect(x, held)[1])
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]

    def sequence(self) -> None:
        """Go on from run to run, with cancels, resets and steps back in between."""
        rows = self._draw_rows()
        total = np.zeros((rows, 4), np.float32)
        with gx.Worker(self._sums.bound, backend=self._backend, frames=self._random.randint(1, 3)) as worker:
            for _ in range(_OFTEN):
                x, _ = self._draw(rows)
                kept, before = (worker.state.snapshot(), total) if self._random.random() < 0.3 else (None, total)
                run = worker.schedule(x)
                if self._random.random() < 0.2 and run.cancel():
                    continue
                y, total = self._sums.expect(x, total)
                np.testing.assert_array_equal(run.peek_output("y").readback_and_clone(), y)
                if kept is not None:
                    worker.state.restore(kept)
                    total = before
                elif self._random.random() < 0.1:
                    worker.state.reset()
                    total = np.zeros_like(total)
            np.testing.assert_array_equal(worker.state.get("held"), total)

    def fork(self) -> None:
        """Two sequences part, and each goes on by itself."""
        x, held = self._draw(self._draw_rows())
        with gx.Worker(self._sums.bound, backend=self._backend) as worker:
            worker.schedule({"x": x, "held": held})
            first, totals = worker.state, [self._sums.expect(x, held)[1]] * 2
            states = [first, first.fork()]
            for _ in range(_OFTEN):
                which = self._random.randint(0, 1)
                worker.state = states[which]
                x, _ = self._draw(held.shape[0])
                worker.schedule(x)
                totals[which] = self._sums.expect(x, totals[which])[1]
            for state, total in zip(states, totals, strict=True):
                np.testing.assert_array_equal(state.get("held"), total)

    def execute(self) -> None:
        """Load a method, run it at sizes within its bounds, whole or in steps."""
        with self._sums.program.load_method("forward") as method:
            for _ in range(3):
                x, held = self._draw(self._draw_rows())
                method.set_inputs([x, held])
                if self._random.random() < 0.3:
                    method.reset()
                    while method.step() is not None:
                        pass
                else:
                    method.execute(wait=self._random.random() < 0.5)
                for index, wanted in enumerate(self._sums.expect(x, held)):
                    np.testing.assert_array_equal(method.get_output(index).readback_and_clone(), wanted)

    def _draw_rows(self) -> int:
        return self._random.randint(1, _MAX_ROWS)

    def _draw(self, rows: int) -> tuple[Array, Array]:
        x, held = (self._numbers.integers(-2, 3, (rows, width)).astype(np.float32) for width in (6, 4))
        return x, held

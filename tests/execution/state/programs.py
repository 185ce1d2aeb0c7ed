"""Random programs over a state of several memories, against rows kept by hand: steps, crops, forks, snapshots, resets,
reorders and joins in any order, memories set or given one by one. Tests run a few; all bits are compared.

    python -m tests.execution.state.programs --count 10000 --device cpu simulator --graphs
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.execution.state.by_hand import CAPACITY, make_rows
from tests.model.state_models import WIDTH, caches

KINDS = (
    *("step", "step", "step", "step", "crop", "snapshot", "restore", "reset", "reorder", "set", "set one", "give one"),
    *("fork", "join", "slide"),
)
DEVICES = {"cpu": gx.BackendType.CPU, "simulator": gx.BackendType.SIMULATOR}
LAYERS = 3


def bind(capacity: int | None) -> gx.Model:
    """Return the model that programs run, its memories bound."""
    return caches(LAYERS).bind_state({f"present.{i}": f"past.{i}" for i in range(LAYERS)}, capacity=capacity)


class ByHand:
    """What a state of `bind` holds, by hand: rows of each layer, and those in front that are none of a sequence's."""

    def __init__(self) -> None:
        self.rows, self.starts = [make_rows(1, 0)] * LAYERS, [0, 0]

    def copy(self) -> ByHand:
        other = ByHand()
        other.rows, other.starts = list(self.rows), list(self.starts)
        return other

    @property
    def length(self) -> int:
        return int(self.rows[0].shape[1])

    def put(self, layer: int, rows: Any) -> None:
        """Set one memory anew, of which all rows count."""
        self.rows = [*self.rows[:layer], rows, *self.rows[layer + 1 :]]
        self.starts = [0] * len(rows)

    def crop(self, length: int) -> None:
        self.rows = [rows[:, :length] for rows in self.rows]
        self.starts = [min(start, length) for start in self.starts]

    def take(self, parts: Sequence[tuple[ByHand, Sequence[int]]], most: int = CAPACITY) -> None:
        """Take the last rows of sequences, their ends aligned."""
        picked = [(held, index) for held, indices in parts for index in indices]
        lengths = [min(held.length - max(0, held.starts[index]), most) for held, index in picked]
        passed = [held.length - held.starts[index] for held, index in picked]
        rows = []
        for layer in range(LAYERS):
            whole = np.zeros((len(picked), max(lengths), WIDTH), np.float32)
            for number, ((held, index), count) in enumerate(zip(picked, lengths, strict=True)):
                whole[number, max(lengths) - count :] = held.rows[layer][index, held.length - count :]
            rows.append(whole)
        self.rows, self.starts = rows, [max(lengths) - count for count in passed]


def run_program(worker: gx.Worker, rng: random.Random, calls: int) -> None:
    """Run calls drawn at random on a Worker of `bind`, from an empty state; compare what it holds now and then.

    Raises:
        AssertionError: It holds other rows.
    """
    worker.state.reset()
    held, kept = ByHand(), ByHand()
    snapshot: Any = None
    for call in range(calls):
        kind, length, batch = rng.choice(KINDS), held.length, len(held.starts)
        if kind in ("step", "give one") and length + 2 <= CAPACITY:
            x = np.resize(make_rows(1, rng.randint(1, 2), call), (batch, rng.randint(1, 2), WIDTH))
            given = {"x": x}
            if kind == "give one":
                layer = rng.randrange(LAYERS)
                held.put(layer, np.resize(make_rows(1, max(length, 1), call + 1), (batch, length, WIDTH)))
                given[f"past.{layer}"] = held.rows[layer]
            held.rows = [np.concatenate([rows, (i + 2) * x], 1) for i, rows in enumerate(held.rows)]
            for got, rows in zip(worker.run(given), held.rows, strict=True):
                np.testing.assert_array_equal(got, rows.sum(1))
        elif kind == "crop":
            length = rng.randint(0, length)
            worker.state.crop(length)
            held.crop(length)
        elif kind == "slide" and length:
            most = rng.randint(1, length + 1)
            worker.state.slide(most)
            if most < length:
                held.take([(held, range(batch))], most)
        elif kind == "snapshot":
            snapshot, kept = worker.state.snapshot(), held.copy()
        elif kind == "restore" and snapshot is not None:
            worker.state.restore(snapshot)
            held = kept.copy()
        elif kind == "reset":
            worker.state.reset()
            held = ByHand()
        elif kind == "reorder" and length:
            index = [rng.randrange(batch) for _ in range(rng.randint(1, 3))]
            worker.state.reorder(index)
            held.take([(held, index)])
        elif kind == "join" and length and snapshot is not None and kept.length and batch + len(kept.starts) <= 6:
            other = worker.state.fork()
            other.restore(snapshot)
            worker.state.join(other)
            held.take([(held, range(batch)), (kept, range(len(kept.starts)))])
        elif kind == "set":
            count, batch = rng.randint(1, 5), rng.randint(1, 3)
            for layer in range(LAYERS):
                held.put(layer, np.resize(make_rows(1, count, call + layer), (batch, count, WIDTH)))
            worker.state.set({f"past.{i}": rows for i, rows in enumerate(held.rows)})
        elif kind == "set one" and length:
            layer = rng.randrange(LAYERS)
            held.put(layer, np.resize(make_rows(1, length, call), (batch, length, WIDTH)))
            worker.state.set({f"past.{layer}": held.rows[layer]})
        elif kind == "fork":
            worker.state = worker.state.fork()
        if (rng.random() < 0.4 or call == calls - 1) and held.length:
            for layer, rows in enumerate(held.rows):
                np.testing.assert_array_equal(worker.state.get(f"past.{layer}"), rows)
            assert worker.state.length == held.length and list(worker.state.starts) == held.starts


def force_graphs(backend: Backend) -> None:
    """Let a device run plans as graphs from a few runs on, whatever updates of their nodes cost."""
    device: Any = backend.device
    device.launch_costs = replace(device.launch_costs, launch_us=1e6)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs, in both forms of memories by turns, and say how many; return 1 at the first that is wrong."""
    parser = argparse.ArgumentParser(description="Run random programs over a state.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=20, help="of a program")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--device", nargs="+", choices=DEVICES, default=["cpu"])
    parser.add_argument("--graphs", action="store_true", help="run plans as graphs on a device that has them")
    options = parser.parse_args(arguments)
    for name in options.device:
        backend, started = open_backend(DEVICES[name]), time.monotonic()
        if options.graphs and name != "cpu":
            force_graphs(backend)
        models = [bind(capacity) for capacity in (CAPACITY, None)]
        with gx.Worker(models[0], backend=backend) as append, gx.Worker(models[1], backend=backend) as swap:
            for seed in range(options.seed, options.seed + options.count):
                try:
                    run_program((append, swap)[seed % 2], random.Random(seed), options.calls)
                except (AssertionError, gx.GpuexecError) as error:
                    print(f"{name}: the program of seed {seed} went wrong: {error}")
                    return 1
            graphs = append.report().graphs + swap.report().graphs
        took = time.monotonic() - started
        print(f"{name}: {options.count} programs of {options.calls} calls, exact, {graphs} graphs, {took:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

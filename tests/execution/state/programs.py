"""Random programs over a state of several memories, against rows kept by hand: steps, crops, forks, snapshots, resets
and reorders in any order, memories set or given one by one. Tests run a few; all bits are compared.

    python -m tests.execution.state.programs --count 10000 --device cpu simulator
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.execution.state.by_hand import CAPACITY, make_rows
from tests.model.state_models import caches

KINDS = (
    *("step", "step", "step", "step", "crop", "snapshot", "restore", "reset", "reorder", "set", "set one", "give one"),
    "fork",
)
DEVICES = {"cpu": gx.BackendType.CPU, "simulator": gx.BackendType.SIMULATOR}
LAYERS = 3


def bind(capacity: int | None) -> gx.Model:
    """Return the model that programs run, its memories bound."""
    return caches(LAYERS).bind_state({f"present.{i}": f"past.{i}" for i in range(LAYERS)}, capacity=capacity)


def run_program(worker: gx.Worker, rng: random.Random, calls: int) -> None:
    """Run calls drawn at random on a Worker of `bind`, from an empty state; compare what it holds now and then.

    Raises:
        AssertionError: It holds other rows.
    """
    worker.state.reset()
    empty = [make_rows(1, 0)] * LAYERS
    held, kept = empty, empty
    snapshot: Any = None
    for call in range(calls):
        kind, length = rng.choice(KINDS), held[0].shape[1]
        if kind in ("step", "give one") and length + 2 <= CAPACITY:
            x = make_rows(1, rng.randint(1, 2), call)[: len(held[0])]
            given = {"x": x}
            if kind == "give one":
                layer = rng.randrange(LAYERS)
                held = [*held[:layer], make_rows(1, length, call + 1)[: len(x)], *held[layer + 1 :]]
                given[f"past.{layer}"] = held[layer]
            held = [np.concatenate([rows, (i + 2) * x], 1) for i, rows in enumerate(held)]
            for got, rows in zip(worker.run(given), held, strict=True):
                np.testing.assert_array_equal(got, rows.sum(1))
        elif kind == "crop":
            length = rng.randint(0, length)
            worker.state.crop(length)
            held = [rows[:, :length] for rows in held]
        elif kind == "snapshot":
            snapshot, kept = worker.state.snapshot(), held
        elif kind == "restore" and snapshot is not None:
            worker.state.restore(snapshot)
            held = kept
        elif kind == "reset":
            worker.state.reset()
            held = empty
        elif kind == "reorder" and length:
            index = [rng.randrange(len(held[0])) for _ in range(2)]
            worker.state.reorder(index)
            held = [rows[index] for rows in held]
        elif kind == "set":
            count = rng.randint(1, 5)
            held = [make_rows(1, count, call + i) for i in range(LAYERS)]
            worker.state.set({f"past.{i}": rows for i, rows in enumerate(held)})
        elif kind == "set one" and length:
            layer = rng.randrange(LAYERS)
            held = [*held[:layer], make_rows(1, length, call), *held[layer + 1 :]]
            worker.state.set({f"past.{layer}": held[layer]})
        elif kind == "fork":
            worker.state = worker.state.fork()
        if (rng.random() < 0.4 or call == calls - 1) and held[0].shape[1]:
            for layer, rows in enumerate(held):
                np.testing.assert_array_equal(worker.state.get(f"past.{layer}"), rows)
            assert worker.state.length == held[0].shape[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs, in both forms of memories by turns, and say how many; return 1 at the first that is wrong."""
    parser = argparse.ArgumentParser(description="Run random programs over a state.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=20, help="of a program")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--device", nargs="+", choices=DEVICES, default=["cpu"])
    options = parser.parse_args(arguments)
    for name in options.device:
        backend, started = open_backend(DEVICES[name]), time.monotonic()
        models = [bind(capacity) for capacity in (CAPACITY, None)]
        with gx.Worker(models[0], backend=backend) as append, gx.Worker(models[1], backend=backend) as swap:
            for seed in range(options.seed, options.seed + options.count):
                try:
                    run_program((append, swap)[seed % 2], random.Random(seed), options.calls)
                except (AssertionError, gx.GpuexecError) as error:
                    print(f"{name}: the program of seed {seed} went wrong: {error}")
                    return 1
        print(f"{name}: {options.count} programs of {options.calls} calls, exact, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

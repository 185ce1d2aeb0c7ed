"""Random programs over a state: steps, crops, forks, snapshots, resets and reorders in any order, against rows kept by
hand. Tests run a few; all bits are compared.

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
from tests.execution.state.by_hand import CAPACITY, PAIR, make_rows, run_bound
from tests.model.state_models import cache

KINDS = ("step", "step", "step", "crop", "snapshot", "restore", "reset", "reorder", "set", "fork")
DEVICES = {"cpu": gx.BackendType.CPU, "simulator": gx.BackendType.SIMULATOR}


def run_program(worker: gx.Worker, rng: random.Random, calls: int) -> None:
    """Run calls drawn at random on a Worker of `cache(1)`, from an empty state; compare what it holds now and then.

    Raises:
        AssertionError: It holds other rows.
    """
    worker.state.reset()
    held, kept = make_rows(1, 0), None
    snapshot: Any = None
    for call in range(calls):
        kind = rng.choice(KINDS)
        if kind == "step" and held.shape[1] + 2 <= CAPACITY:
            x = make_rows(1, rng.randint(1, 2), call)[: held.shape[0]]
            run_bound(worker, x)
            held = np.concatenate([held, 2 * x], 1)
        elif kind == "crop":
            length = rng.randint(0, held.shape[1])
            worker.state.crop(length)
            held = held[:, :length]
        elif kind == "snapshot":
            snapshot, kept = worker.state.snapshot(), held
        elif kind == "restore" and snapshot is not None:
            worker.state.restore(snapshot)
            assert kept is not None
            held = kept
        elif kind == "reset":
            worker.state.reset()
            held = make_rows(1, 0)
        elif kind == "reorder" and held.shape[1]:
            index = [rng.randrange(2) for _ in range(2)]
            worker.state.reorder(index)
            held = held[index]
        elif kind == "set":
            held = make_rows(1, rng.randint(1, 5), call)
            worker.state.set({"past": held})
        elif kind == "fork":
            worker.state = worker.state.fork()
        if (rng.random() < 0.4 or call == calls - 1) and held.shape[1]:
            np.testing.assert_array_equal(worker.state.get(), held)
            assert worker.state.length == held.shape[1]


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
        models = [cache(1).bind_state(PAIR, capacity=capacity) for capacity in (CAPACITY, None)]
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

"""A streaming detector with state: blocks of sound in, its memory kept on the device."""

from __future__ import annotations

import numpy as np
from digits import Array
from networks import build_detector

import gpuexec as gx

BLOCKS, LOUD = 200, range(120, 130)
THRESHOLD = 4.0


def record_sound() -> Array:
    """Return noise as [blocks, 64], with a bang in it."""
    sound = np.random.default_rng(3).normal(size=(BLOCKS, 64)).astype(np.float32)
    sound[LOUD.start : LOUD.stop] *= 3
    return sound


def detect(worker: gx.Worker, sound: Array) -> list[int]:
    """Return the blocks with an alarm. An answer is looked at while the next blocks are under way."""
    requests = []
    for block in sound:
        worker.schedule(block[None])
        requests.append(worker.peek_output("alarm").readback_request())
    return [number for number, request in enumerate(requests) if request.result() > THRESHOLD]


def main() -> None:
    """Listen twice: once from the start, once from a level that was kept."""
    model = gx.load(build_detector().SerializeToString()).bind_state({"level_out": "level"})
    sound = record_sound()
    with gx.Worker(model) as worker:
        worker.state.set({"level": np.full((1, 1), 8, np.float32)})
        print(f"loud blocks found: {detect(worker, sound) == list(LOUD)}")
        level = worker.state.get("level")
        print(f"  level afterwards {float(level[0, 0]):.2f}, host reads {len(worker.report().host_reads)}")


if __name__ == "__main__":
    main()

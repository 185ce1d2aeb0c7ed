"""An LSTM policy in a loop of frames: its state stays on the device, is reset at the end of an episode, and swapped."""

from __future__ import annotations

import numpy as np
from digits import Array
from networks import OBSERVATIONS, build_policy

import gpuexec as gx

STEPS = 20


def act(worker: gx.Worker, observations: Array) -> list[int]:
    """Return the actions for observations [steps, 8], given one by one."""
    actions = []
    for observation in observations:
        worker.schedule(observation[None, None])
        actions.append(int(worker.read_output().argmax()))
    return actions


def main() -> None:
    """Play two episodes one after the other, by turns, and one of them again from the middle."""
    first, second = np.random.default_rng(1).normal(size=(2, STEPS, OBSERVATIONS)).astype(np.float32)
    model = gx.load(build_policy().SerializeToString(), memories="implicit")
    for memory in model.memories:
        print(f"  memory {memory}")
    with gx.Worker(model) as worker:
        # A loop of frames. The model does not know where an episode ends: what it remembers is forgotten there.
        alone = act(worker, first)
        worker.state.reset()
        after = act(worker, second)
        worker.state.reset()
        print(f"the same again after a reset: {act(worker, first) == alone}")

        # Two sequences, one Worker: a state each, swapped between runs.
        one, two = worker.create_state(), worker.create_state()
        turns: dict[gx.State, list[int]] = {one: [], two: []}
        for x, y in zip(first, second, strict=True):
            for state, observation in ((one, x), (two, y)):
                worker.state = state
                turns[state] += act(worker, observation[None])
        print(f"by turns as alone: {turns == {one: alone, two: after}}")

        # A snapshot is taken at once and copies nothing; from it, the episode can be played again.
        worker.state.reset()
        half = STEPS // 2
        begun = act(worker, first[:half])
        middle = worker.state.snapshot()
        act(worker, second)
        worker.state.restore(middle)
        print(f"from the middle as alone: {begun + act(worker, first[half:]) == alone}")


if __name__ == "__main__":
    main()

"""Greedy decoding with a KV cache that grows in place: every step appends a row, and nothing is copied."""

from __future__ import annotations

import numpy as np
from networks import HEAD, HEADS, build_decoder

import gpuexec as gx

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
STEPS, CAPACITY = 24, 64


def choose(worker: gx.Worker, name: str = "logits") -> int:
    """Return the likeliest next token."""
    return int(worker.read_output(name)[0, -1].argmax())


def decode_with_state(model: gx.Model) -> list[int]:
    """Decode with the cache as the Worker's state."""
    bound = model.bind_state({"present_k": "past_k", "present_v": "past_v"}, capacity=CAPACITY)
    tokens: list[int] = []
    with gx.Worker(bound) as worker:
        for token in PROMPT:
            worker.schedule(np.array([[token]]))
        while len(tokens) < STEPS:
            tokens.append(choose(worker))
            worker.schedule(np.array([[tokens[-1]]]))
        report = worker.report()
        print(f"  {report.runs} runs, {report.plans} plan; {bound.memories[0]}")
    return tokens


def decode_by_hand(model: gx.Model) -> list[int]:
    """Decode with the cache as inputs and outputs: it goes to the host and back at every step."""
    cache = {name: np.zeros((1, HEADS, 0, HEAD), np.float32) for name in ("past_k", "past_v")}
    tokens: list[int] = []
    given = list(PROMPT)
    with gx.Worker(model) as worker:
        while len(tokens) < STEPS:
            token = given.pop(0) if given else tokens[-1]
            worker.schedule({"token": np.array([[token]]), **cache})
            cache = {f"past_{part}": worker.read_output(f"present_{part}") for part in "kv"}
            if not given:
                tokens.append(choose(worker))
    return tokens


def main() -> None:
    """Decode both ways."""
    model = gx.load(build_decoder().SerializeToString())
    tokens = decode_with_state(model)
    print(f"  {tokens}")
    print(f"as by hand: {tokens == decode_by_hand(model)}")


if __name__ == "__main__":
    main()

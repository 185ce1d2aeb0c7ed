"""Streaming and decoding with state: equal to states fed by hand, without copies of caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType, open_backend
from gpuexec.ir.plan import Plan, Role
from tests.devices.opening import open_device
from tests.system.models.folder import needs_models, path_of

pytestmark = [pytest.mark.models, needs_models]

Array = np.ndarray[Any, Any]
STREAMED, DECODED, CAPACITY = 300, 64, 96


def make_backend(device: str) -> Backend:
    """Return a backend by name."""
    return {
        "cpu": lambda: open_backend(BackendType.CPU),
        "simulator": lambda: open_backend(BackendType.SIMULATOR),
        "tracer": lambda: Backend(open_device("tracer"), BackendType.SIMULATOR, "of a test"),
        "gpu": lambda: open_backend(BackendType.GPU_COMPUTE),
    }[device]()


@dataclass(frozen=True, slots=True)
class Stream:
    """Streaming model: its states, input by output, and its next audio input."""

    model: str
    pairs: dict[str, str]
    listen: Callable[[np.random.Generator], dict[str, Array]]
    free: tuple[int, ...] = ()


def noise(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


STREAMS = (
    Stream(
        "silero_vad_v6",
        {"stateN": "state"},
        lambda rng: {"input": noise(rng, 1, 576), "sr": np.array(16000, np.int64)},
        free=(1,),
    ),
    Stream("dtln_1", {"tf_op_layer_stack_2": "input_3"}, lambda rng: {"input_2": np.abs(noise(rng, 1, 1, 257))}),
    Stream("dtln_2", {"tf_op_layer_stack_5": "input_5"}, lambda rng: {"input_4": noise(rng, 1, 1, 512)}),
    Stream(
        "gtcrn_simple",
        {f"{name}_cache_out": f"{name}_cache" for name in ("conv", "tra", "inter")},
        lambda rng: {"mix": noise(rng, 1, 257, 1, 2)},
    ),
)


@pytest.mark.parametrize("stream", STREAMS, ids=lambda each: each.model)
@pytest.mark.parametrize(
    ("device", "steps"),
    [("cpu", 100), ("simulator", 4), pytest.param("gpu", STREAMED, marks=pytest.mark.gpu)],
    ids=["cpu", "simulator", "gpu"],
)
def test_streaming_equals_states_fed_by_hand(device: str, steps: int, stream: Stream) -> None:
    plain = gx.load(path_of(stream.model))
    bound = plain.bind_state(stream.pairs)
    backend, rng = make_backend(device), np.random.default_rng(0)
    with gx.Worker(plain, backend=backend) as by_hand, gx.Worker(bound, backend=backend) as worker:
        states: dict[str, Any] = {memory.input: memory.zeros(*stream.free) for memory in bound.memories}
        if stream.free:
            worker.state.set(states)
        for step in range(steps):
            heard = stream.listen(rng)
            expected = by_hand.schedule(heard | states).outputs
            got = worker.schedule(heard).outputs
            assert set(got) == set(expected) - set(stream.pairs)
            for name, tensor in got.items():
                np.testing.assert_array_equal(
                    tensor.readback_and_clone(), expected[name].readback_and_clone(), f"{name} of step {step}"
                )
            states = {held: expected[output].readback_and_clone() for output, held in stream.pairs.items()}
        for name, state in states.items():
            np.testing.assert_array_equal(worker.state.get(name), state)
        assert worker.report().plans == by_hand.report().plans
        assert worker.report().host_calls == () or device != "cpu"


@dataclass(frozen=True, slots=True)
class Decoder:
    """A language model with a cache: heads, and elements of each; whether its graph multiplies all keys anew."""

    model: str
    heads: int
    width: int
    scales_keys: bool = False


DECODERS = (Decoder("gpt2_kv__d21", 4, 16, scales_keys=True), Decoder("llama_gqa_kv__d23", 2, 8))
LAYERS = [f"{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
PAIRS = {f"present.{layer}": f"past_key_values.{layer}" for layer in LAYERS}


def make_step(tokens: Array, length: int) -> dict[str, Array]:
    """Return the inputs for tokens that come behind ``length`` others."""
    count = tokens.shape[1]
    return {
        "input_ids": tokens,
        "attention_mask": np.ones((1, length + count), np.int64),
        "position_ids": np.arange(length, length + count)[None],
    }


def list_cache_writes(plan: Plan) -> list[tuple[int, ...]]:
    """Return the shape of each write to a cache."""
    caches = {buffer.id for buffer in plan.buffers if buffer.role is Role.STATE}
    slots = [slot for command in plan.segment.commands for slot in command.writes_to()]
    return [slot.shape for slot in slots if slot.buffer in caches]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.model)
@pytest.mark.parametrize(
    ("device", "steps"),
    [("cpu", DECODED), ("simulator", 32), pytest.param("gpu", DECODED, marks=pytest.mark.gpu)],
    ids=["cpu", "simulator", "gpu"],
)
def test_greedy_decoding_equals_the_cache_passed_by_hand(device: str, steps: int, decoder: Decoder) -> None:
    plain = gx.load(path_of(decoder.model))
    bound = plain.bind_state(PAIRS, capacity=CAPACITY)
    assert [memory.form for memory in bound.memories] == ["append"] * len(PAIRS)
    backend = make_backend(device)
    tokens = next_tokens = np.random.default_rng(0).integers(0, 1200, (1, 7))
    length = 0
    with gx.Worker(plain, backend=backend) as by_hand, gx.Worker(bound, backend=backend) as worker:
        past: dict[str, Any] = {
            held: np.zeros((1, decoder.heads, 0, decoder.width), np.float32) for held in PAIRS.values()
        }
        for step in range(steps):
            outputs = by_hand.schedule(make_step(tokens, length) | past).outputs
            past = {held: outputs[output] for output, held in PAIRS.items()}
            run = worker.schedule(make_step(next_tokens, length))
            assert list(run.outputs) == ["logits"]
            expected = outputs["logits"].readback_and_clone()[:, -1:].argmax(-1)
            next_tokens = run.peek_output().readback_and_clone()[:, -1:].argmax(-1)
            np.testing.assert_array_equal(next_tokens, expected, f"step {step}")
            length, tokens = length + tokens.shape[1], expected
        report = worker.report()
        # One for the prompt, one for all lengths that follow; of GPT-2 on the CPU, which has no kernels to choose, one.
        is_shared = device == "cpu" and decoder.model.startswith("gpt2")
        assert report.plans == (1 if is_shared else 2)
        assert (report.host_calls, report.host_reads, report.host_syncs) == ((), (), ())
        rows = 7 if is_shared else 1  # of the prompt, or of a step
        assert list_cache_writes(worker.plans[0]) == [(1, decoder.heads, rows, decoder.width)] * len(PAIRS)
        if not decoder.scales_keys:
            # Attention reads the caches where they are: nothing writes as much as one holds.
            commands = worker.plans[0].segment.commands
            rows_of_scratch = [getattr(command, "scratch", ()) for command in commands]
            written = [
                slot
                for command, scratch in zip(commands, rows_of_scratch, strict=True)
                for slot in command.writes_to()
                if slot not in scratch
            ]
            assert max(slot.spec.size for slot in written) < decoder.heads * CAPACITY * decoder.width
        for output, held in PAIRS.items():
            state = worker.state.get(held)
            assert state.shape == (1, decoder.heads, length, decoder.width)
            np.testing.assert_allclose(state, past[held].readback_and_clone(), rtol=1e-4, atol=1e-5, err_msg=output)


def test_decoding_moves_nothing_of_the_cache_between_host_and_device() -> None:
    decoder = DECODERS[0]
    backend = make_backend("tracer")
    device: Any = backend.device
    bound = gx.load(path_of(decoder.model)).bind_state(PAIRS, capacity=CAPACITY)
    with gx.Worker(bound, backend=backend) as worker:
        worker.schedule(make_step(np.zeros((1, 7), np.int64), 0))
        worker.schedule(make_step(np.zeros((1, 1), np.int64), 7))
        worker.schedule(make_step(np.zeros((1, 1), np.int64), 8))
        count, plans = len(device.log), worker.report().plans
        for length in range(9, CAPACITY):
            worker.schedule(make_step(np.zeros((1, 1), np.int64), length))
        assert worker.report().plans == plans == 2
        moved = {row[0] for row in device.log[count:]}
        assert not moved & {"copy", "copy_to_host"}

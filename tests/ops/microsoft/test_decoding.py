"""Decoding steps by GroupQueryAttention: shared plans, and the values that plans depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from tests.ops.microsoft.composed import DOMAIN, Array
from tests.ops.microsoft.samples import sample

BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR)
HEADS, SIZE = 2, 8


def make_decoder(layers: int = 1) -> bytes:
    """Return layers of attention side by side, each with a past of its own; what they share is the total."""
    kinds: list[Any] = [
        ("q", "b", "rows", 2 * HEADS * SIZE),
        ("k", "b", "rows", HEADS * SIZE),
        ("v", "b", "rows", HEADS * SIZE),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, *dims in kinds]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.INT32, dims) for name, dims in (("last", ["b"]), ("total", []))
    ]
    outputs, nodes = [], []
    for layer in range(layers):
        held, made = ([f"{name}{layer}" for name in names] for names in (("pk", "pv"), ("y", "nk", "nv")))
        inputs += [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", HEADS, f"past{layer}", SIZE]) for n in held
        ]
        dims: list[Any] = [["b", "rows", 2 * HEADS * SIZE], *[["b", HEADS, f"present{layer}", SIZE]] * 2]
        outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in zip(made, dims, strict=True)]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                ["q", "k", "v", *held, "last", "total"],
                made,
                domain=DOMAIN,
                num_heads=2 * HEADS,
                kv_num_heads=HEADS,
            )
        )
    graph = helper.make_graph(nodes, "decoder", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def step(rows: int, total: int, *pasts: Array) -> dict[str, Array]:
    """Return inputs of a step that ends with ``total`` rows; keys and values of a layer are one array."""
    sizes = {"q": 2 * HEADS * SIZE, "k": HEADS * SIZE, "v": HEADS * SIZE}
    new = {name: sample(1, rows, size, seed=total + at) for at, (name, size) in enumerate(sizes.items())}
    held = {f"{name}{layer}": past for layer, past in enumerate(pasts) for name in ("pk", "pv")}
    return {**new, "last": np.array([total - 1], np.int32), "total": np.array(total, np.int32), **held}


def check(got: list[Array], expected: list[Array], total: int) -> None:
    """Compare attention, and keys and values where there are any."""
    for each, wanted in zip(got, expected, strict=True):
        assert each.shape == wanted.shape
        rows = slice(None) if each.ndim == 3 else slice(total)
        np.testing.assert_allclose(each[..., rows, :], wanted[..., rows, :], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def oracle() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(make_decoder(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_steps_into_a_buffer_with_room_share_a_plan(
    oracle: onnxruntime.InferenceSession, backend: gx.BackendType
) -> None:
    with gx.Worker(gx.load(make_decoder()), backend=backend) as worker:
        past = np.zeros((1, HEADS, 40, SIZE), np.float32)
        for rows, total in ((5, 5), *((1, total) for total in range(6, 16))):
            given = step(rows, total, past)
            check(worker.run(given), oracle.run(None, given), total)
        report = worker.report()
        assert (report.plans, report.variants) == (1, 2)  # the prompt's, and that of all steps


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_memories_of_a_fixed_size_are_decoded_with_one_plan(
    oracle: onnxruntime.InferenceSession, backend: gx.BackendType
) -> None:
    model = gx.load(make_decoder(), dims={"past0": 24}).bind_state({"nk0": "pk0", "nv0": "pv0"})
    held = [np.zeros((1, HEADS, 24, SIZE), np.float32)] * 2
    with gx.Worker(model, backend=backend) as worker:
        for rows, total in ((5, 5), *((1, total) for total in range(6, 12))):
            given = step(rows, total)
            expected, *held = oracle.run(None, {**given, "pk0": held[0], "pv0": held[1]})
            np.testing.assert_allclose(worker.run(given)[0], expected, rtol=1e-5, atol=1e-5)
        assert worker.report().plans == 1


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_totals_beyond_the_buffer_make_more_rows(oracle: onnxruntime.InferenceSession, backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(make_decoder()), backend=backend) as worker:
        for held, total in ((5, 6), (5, 4), (6, 7), (6, 3), (5, 6), (7, 8), (8, 9), (8, 8)):
            given = step(1, total, sample(1, HEADS, held, SIZE))
            check(worker.run(given), oracle.run(None, given), total)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_a_past_that_grows_by_a_row_makes_a_plan_for_each_bucket(
    oracle: onnxruntime.InferenceSession, backend: gx.BackendType
) -> None:
    held = [np.zeros((1, HEADS, 0, SIZE), np.float32)] * 2
    with gx.Worker(gx.load(make_decoder()), backend=backend) as worker:
        for total in range(1, 36):
            given = {**step(1, total), "pk0": held[0], "pv0": held[1]}
            got = worker.run(given)
            check(got, oracle.run(None, given), total)
            held = list(got[1:])
        assert worker.report().plans == 8  # pasts of 0, 1, 2, up to 4, 8, 16, 32, 64


def test_prompts_of_all_lengths_make_a_plan_for_each_bucket() -> None:
    with gx.Worker(gx.load(make_decoder())) as worker:
        for rows in range(5, 17):
            worker.run(step(rows, rows, np.zeros((1, HEADS, 0, SIZE), np.float32)))
        assert worker.report().plans == 2


def test_each_layer_has_its_own_least_total() -> None:
    with gx.Worker(gx.load(make_decoder(2))) as worker:
        for total, rows in ((3, (4, 6)), (5, (5, 6)), (6, (6, 6)), (4, (4, 6)), (7, (7, 7)), (5, (5, 6))):
            pasts = [sample(1, HEADS, held, SIZE) for held in (4, 6)]
            got = worker.run(step(1, total, *pasts))
            assert [got[at].shape[2] for at in (1, 4)] == list(rows)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_replay_takes_any_total_that_there_is_room_for(
    oracle: onnxruntime.InferenceSession, backend: gx.BackendType
) -> None:
    past = sample(1, HEADS, 16, SIZE)
    with gx.Worker(gx.load(make_decoder()), backend=backend) as worker:
        replay = worker.record(step(1, 6, past))
        for total in (6, 9, 16):
            given = step(1, total, past)
            made = replay.submit(given)
            got = [made[name].readback_and_clone() for name in ("y0", "nk0", "nv0")]
            check(got, oracle.run(None, given), total)
        with pytest.raises(gx.InputError, match="'total' was recorded as"):
            replay.submit(step(1, 17, past))


def test_model_is_what_the_oracle_checks() -> None:
    onnx.checker.check_model(make_decoder(2))

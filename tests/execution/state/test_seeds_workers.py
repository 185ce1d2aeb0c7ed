"""Random numbers by the seed of a node, a Worker or the process."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend

MODEL = """<ir_version: 10, opset_import: ["": 21]> agraph
(float[2, 4] logits) => (float[6] a, float[6] b, int32[2, 3] c) {
    a = RandomNormal <shape = [6]> ()
    b = RandomUniform <shape = [6], seed = 4.0> ()
    c = Multinomial <sample_size = 3> (logits)
}"""
LOGITS = np.zeros((2, 4), np.float32)


@pytest.mark.feature("S76")
def test_seed_repeats_what_runs_draw_on_every_device(backend: Backend) -> None:
    model = gx.load(parser.parse_model(MODEL))
    with gx.Worker(model, backend=gx.BackendType.CPU, seed=11) as worker:
        expected = [worker.run(LOGITS) for _ in range(5)]
    with gx.Worker(model, backend=backend, seed=11) as worker:
        made = [worker.run(LOGITS) for _ in range(5)]
    for ours, theirs in zip(made, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    # Each run draws anew, nodes with a seed of their own too.
    for index in range(3):
        assert len({run[index].tobytes() for run in made}) == 5


@pytest.mark.feature("S76")
def test_node_with_a_seed_needs_none_of_the_worker(backend: Backend) -> None:
    model = gx.load(parser.parse_model(MODEL))
    firsts = []
    for _ in range(2):
        with gx.Worker(model, backend=backend) as worker:
            firsts.append(worker.run(LOGITS))
    np.testing.assert_array_equal(firsts[0][1], firsts[1][1])
    assert not np.any(firsts[0][0] == firsts[1][0])


@pytest.mark.feature("S76")
def test_seed_of_the_process_is_drawn_from_in_order(backend: Backend) -> None:
    model = gx.load(parser.parse_model(MODEL))
    rounds = []
    for _ in range(2):
        gx.set_seed(21)
        for _ in range(2):
            with gx.Worker(model, backend=backend) as worker:
                rounds.append(worker.run(LOGITS)[0])
    np.testing.assert_array_equal(rounds[:2], rounds[2:])
    assert not np.any(rounds[0] == rounds[1])

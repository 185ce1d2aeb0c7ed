"""Tests of the published architectures: small ones against onnxruntime, plans of full ones without their weights."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.target import Target
from tests.bench.architectures import ARCHITECTURES, SMALL_ARCHITECTURES
from tests.bench.cpu_models import open_onnxruntime
from tests.bench.torch_architectures import make_network
from tests.bench.torch_standin import make_torch

# Millions of weights that are published, without those of normalizations that are folded.
MILLIONS = {
    "bert_base": 109.5,
    "vit_b16": 86.6,
    "resnet50_b1": 25.5,
    "resnet50_b32": 25.5,
    "mobilenet_v2": 3.5,
    "gpt2_decode": 124.4,
    "llama_1b_decode": 1236.0 + 262.7,  # those of the logits, which it shares, counted twice
    "yolox_nano": 0.91,
    "whisper_tiny_step": 29.55 - 1.18,  # the encoder and the keys and values of the sound are not in it
}
# All layers are alike, and loading copies those of more to merge them.
FEWER = {"llama_1b_decode": {"layers": 1}}


@pytest.mark.parametrize("name", SMALL_ARCHITECTURES)
def test_small_architectures_give_what_onnxruntime_gives(name: str) -> None:
    bench = SMALL_ARCHITECTURES[name]()
    with gx.Worker(bench.load(), backend=gx.BackendType.CPU) as worker:
        if bench.state:
            worker.state.set(bench.memories)
        found = worker.run(bench.feeds)[0]
        after = {output: worker.state.get(held) for output, held in bench.state.items()}
    expected = open_onnxruntime(bench.data, 1, bench.weights)(bench.inputs)
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-5)
    assert len(after) == len(expected) - 1
    for array, other in zip(after.values(), expected[1:], strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_full_architectures_are_planned_whole_without_weights(name: str) -> None:
    plan = ARCHITECTURES[name](has_weights=False, **FEWER.get(name, {})).plan(Target.named("sm_90"))
    assert len(plan.segment.commands) > 10


@pytest.mark.parametrize("name", MILLIONS)
def test_full_architectures_have_as_many_weights_as_published(name: str) -> None:
    bench = ARCHITECTURES[name](has_weights=False)
    assert sum(array.size for array in bench.weights.values()) / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)


@pytest.mark.parametrize("name", ["resnet50_b1", "mobilenet_v2"])
def test_plans_are_the_same_with_and_without_weights(name: str) -> None:
    target = Target.named("sm_90")
    plans = [ARCHITECTURES[name](has_weights=held).plan(target) for held in (False, True)]
    assert str(plans[0]) == str(plans[1])


@pytest.mark.parametrize("name", SMALL_ARCHITECTURES)
def test_the_same_in_pytorch_gives_the_same(name: str) -> None:
    bench = SMALL_ARCHITECTURES[name]()
    network, inputs = make_network(make_torch(), bench, "cuda")
    expected = open_onnxruntime(bench.data, 1, bench.weights)(bench.inputs)[0]
    np.testing.assert_allclose(network(*inputs), expected, rtol=1e-4, atol=1e-5)

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
    bench = ARCHITECTURES[name](has_weights=False)
    plan = bench.plan(Target.named("sm_90"))
    assert len(plan.segment.commands) > 10
    assert sum(array.nbytes for array in bench.weights.values()) < 600e6


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

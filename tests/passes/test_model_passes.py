"""Passes over whole models: effects, unchanged names and values of outputs, and switches."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.passes import AT_LOAD, AT_PLAN
from tests.model.small_models import ramp

HEAD = '<ir_version: 10, opset_import: ["": 18]> agraph'
# Something for every pass at load: a constant sum, a dead node, two equal ones, a no-op, a batch norm behind a conv.
ALL = f"""{HEAD} (float[n, 2, 4, 4] x) => (float[n, 2, 4, 4] y, float[n, 2, 4, 4] z, float[n, 2, 4, 4] same)
<float[2, 2, 1, 1] w = {{1, 2, 3, 4}}, float[2] s = {{2, 3}}, float[2] b = {{1, 0}}, float[2] m = {{0, 1}},
 float[2] v = {{1, 4}}, float one = {{1}}> {{
  two = Add (one, one)
  c = Conv <kernel_shape = [1, 1]> (x, w)
  y = BatchNormalization (c, s, b, m, v)
  dead = Exp (x)
  p = Mul (x, two)
  q = Mul (x, two)
  sum = Add (p, q)
  same = Identity (sum)
  z = Neg (same)
}}"""
NAMES = [each.name for each in AT_LOAD]
# What Barracuda fuses, as far as ONNX has it; a bound, a slope and a sum stand for operators of two inputs.
ACTIVATIONS = (
    *(
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "HardSigmoid",
        "Tanh",
        "Elu",
        "Selu",
        "Celu",
        "Softplus",
        "Softsign",
        "HardSwish",
    ),
    *(
        "Abs",
        "Neg",
        "Sqrt",
        "Exp",
        "Log",
        "Ceil",
        "Floor",
        "Round",
        "Reciprocal",
        "Erf",
        "Mish",
        "Clip",
        "PRelu",
        "Add",
    ),
)
SECOND_INPUTS = {"Clip": ", one", "PRelu": ", half", "Add": ", x"}
LAYERS = {
    "dense": "MatMul (x, dense)",
    "conv": "Conv (x, w)",
    "conv_transpose": "ConvTranspose (x, w)",
    "depthwise": "Conv <group = 2> (x, depths)",
    "normalization": "InstanceNormalization (x, ones, zeros)",
    "batch_normalization": "BatchNormalization (x, ones, zeros, zeros, twos)",
}


def load(*disabled: str) -> gx.Model:
    return gx.load(parser.parse_model(ALL), disabled_passes=disabled)


@pytest.mark.feature("B55", "S74")
def test_the_passes_shorten_the_graph() -> None:
    plain, best = load(*NAMES), load()
    assert [node.operator.name for node in plain.graph.nodes] == [
        *("Add", "Conv", "BatchNormalization", "Exp", "Mul", "Mul", "Add", "Identity", "Neg"),
    ]
    assert sorted(node.operator.name for node in best.graph.nodes) == ["Add", "Conv", "Mul", "Neg"]


@pytest.mark.feature("B55")
def test_named_outputs_keep_names_order_and_values(backend: Backend) -> None:
    x = ramp(3, 2, 4, 4)
    with gx.Worker(load(*NAMES), backend=backend) as plain, gx.Worker(load(), backend=backend) as best:
        expected, got = plain.schedule(x), best.schedule(x)
        assert list(expected.outputs) == list(got.outputs) == ["y", "z", "same"]
        for name, tensor in expected.outputs.items():
            np.testing.assert_allclose(
                got.peek_output(name).readback_and_clone(), tensor.readback_and_clone(), rtol=1e-5, atol=1e-5
            )


@pytest.mark.feature("S74")
@pytest.mark.parametrize("name", [*NAMES, *(each.name for each in AT_PLAN)])
def test_each_pass_has_a_switch_that_changes_no_result(name: str, backend: Backend) -> None:
    x = ramp(3, 2, 4, 4)
    with gx.Worker(load(), backend=backend) as best, gx.Worker(load(name), backend=backend) as without:
        for expected, got in zip(best.run(x), without.run(x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.feature("S74")
@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("fold_constants", "Add"),
        ("remove_dead", "Exp"),
        ("merge_common", "Mul"),
        ("fuse_conv_batchnorm", "BatchNormalization"),
    ],
)
def test_without_its_pass_an_operator_stays(name: str, operator: str) -> None:
    def count(model: gx.Model) -> int:
        return sum(node.operator.name == operator for node in model.graph.nodes)

    assert count(load(name)) == count(load()) + 1


@pytest.mark.feature("B56")
@pytest.mark.parametrize("layer", LAYERS)
def test_activations_are_fused_into_the_layers_before_them(layer: str, backend: Backend) -> None:
    """All behind a convolution, and a third behind each other layer, so that each stands behind one of these too."""
    activations = ACTIVATIONS if layer == "conv" else ACTIVATIONS[[*LAYERS].index(layer) % 3 :: 3]
    parts = [
        f"c{i} = {LAYERS[layer]} y{i} = {name} (c{i}{SECOND_INPUTS.get(name, '')})"
        for i, name in enumerate(activations)
    ]
    outputs = ", ".join(f"float[n, 2, 4, 4] y{i}" for i in range(len(activations)))
    text = f"""{HEAD} (float[n, 2, 4, 4] x) => ({outputs}) <float[2, 2, 1, 1] w = {{1, -2, 3, 4}}, float one = {{1}},
        float[2, 1, 1, 1] depths = {{3, 4}}, float[2] ones = {{1, 1}}, float[2] zeros = {{0, 0}}, float half = {{0.5}},
        float[2] twos = {{2, 2}}, float[4, 4] dense = {{1, 0, 0, 2, 0, -1, 0, 3, 0, 0, 1, 0, 0, 0, 0, 1}}>
        {{ {" ".join(parts)} }}"""
    x = ramp(3, 2, 4, 4) - 40
    # Equal layers stay as many, and norms of one value are no region.
    kept = ["merge_common", "fuse_rows"]
    fused, apart = (
        gx.load(parser.parse_model(text), disabled_passes=[*kept, *more]) for more in ((), ["fuse_epilogues"])
    )
    with gx.Worker(fused, backend=backend) as worker, gx.Worker(apart, backend=backend) as other:
        for got, expected in zip(worker.run(x), other.run(x), strict=True):
            np.testing.assert_array_equal(got, expected)
        counts = [len(plan.segment.commands) for each in (worker, other) for plan in each.plans]
    assert counts == [len(activations), 2 * len(activations)]


@pytest.mark.feature("S74")
def test_a_pass_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(gx.InputError, match=r"no pass remove_nops; there are .*remove_noops"):
        load("remove_nops")

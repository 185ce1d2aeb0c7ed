"""The pass fuse_conv_batchnorm: BatchNormalization folded into Conv weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from gpuexec.importer import load_graph
from gpuexec.ir.graphs import Graph
from gpuexec.passes.fuse_conv_batchnorm import fuse_conv_batchnorm
from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_same, operators


def make_graph(
    rank: int = 2,
    group: int = 1,
    bias: bool = True,
    dtype: type = np.float32,
    extra: tuple[Any, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    scale: float = 1.0,
    weights_as_inputs: tuple[str, ...] = (),
    opset: int = 18,
    **attributes: Any,
) -> Graph:
    """Return x -> Conv -> c -> BatchNormalization -> y, with 4 channels in and 6 out."""
    rng = np.random.default_rng(7)
    arrays: dict[str, np.ndarray] = {
        "w": rng.standard_normal((6, 4 // group, *[3] * rank)).astype(dtype),
        "b": rng.standard_normal(6).astype(dtype),
        "scale": (rng.uniform(0.5, 2, 6) * scale).astype(dtype),
        "beta": rng.standard_normal(6).astype(dtype),
        "mean": rng.standard_normal(6).astype(dtype),
        "var": rng.uniform(0.1, 3, 6).astype(dtype),
    }
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    conv_inputs = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [
        helper.make_node("Conv", conv_inputs, ["c"], name="conv", group=group, pads=[1] * 2 * rank),
        helper.make_node("BatchNormalization", ["c", "scale", "beta", "mean", "var"], ["y"], name="bn", **attributes),
        *extra,
    ]
    graph = helper.make_graph(
        nodes,
        "agraph",
        [helper.make_tensor_value_info("x", code, [2, 4, *[5] * rank])]
        + [helper.make_tensor_value_info(name, code, arrays[name].shape) for name in weights_as_inputs],
        [helper.make_tensor_value_info(name, code, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in arrays.items() if name not in weights_as_inputs],
    )
    return load_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)).graph


def data(rank: int = 2, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, 4, *[5] * rank)).astype(dtype)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2])
def test_pair_becomes_one_conv(rank: int, bias: bool, group: int) -> None:
    graph = make_graph(rank=rank, bias=bias, group=group, epsilon=1e-3)
    fused = fuse_conv_batchnorm(graph)
    assert operators(fused) == ["Conv"]
    check_same(graph, fused, rtol=2e-6, x=data(rank))


def test_old_form_is_fused_too() -> None:
    graph = make_graph(opset=8)
    fused = fuse_conv_batchnorm(graph)
    assert operators(fused) == ["Conv"]
    check_same(graph, fused, rtol=2e-6, x=data())


def test_weights_keep_their_type_and_old_ones_are_dead() -> None:
    fused = remove_dead(fuse_conv_batchnorm(make_graph(dtype=np.float16)))
    assert {(array.dtype, array.shape) for array in fused.constants.values()} == {
        (np.dtype(np.float16), (6, 4, 3, 3)),
        (np.dtype(np.float16), (6,)),
    }
    assert all(not array.flags.writeable for array in fused.constants.values())


def test_weights_are_rounded_once() -> None:
    graph = make_graph(bias=False)
    arrays = {value.name: array.astype(np.float64) for value, array in graph.constants.items()}
    factor = arrays["scale"] / np.sqrt(arrays["var"] + float(np.float32(1e-5)))
    conv = fuse_conv_batchnorm(graph).nodes[0]
    weight, bias = (fuse_conv_batchnorm(graph).constants, conv.inputs)
    by_name = {value.name: array for value, array in weight.items()}
    np.testing.assert_array_equal(by_name["bn.weight"], (arrays["w"] * factor.reshape(6, 1, 1, 1)).astype(np.float32))
    np.testing.assert_array_equal(by_name["bn.bias"], (arrays["beta"] - arrays["mean"] * factor).astype(np.float32))
    assert [value.name for value in bias if value is not None] == ["x", "bn.weight", "bn.bias"]


RELU = (helper.make_node("Relu", ["c"], ["r"]),)


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": ("y", "c")},
        {"extra": RELU, "outputs": ("y", "r")},
        {"weights_as_inputs": ("w",)},
        {"weights_as_inputs": ("b",)},
        {"weights_as_inputs": ("scale",)},
        {"weights_as_inputs": ("var",)},
        {"dtype": np.float16, "scale": 3e4},
    ],
    ids=["conv_is_output", "conv_is_read", "free_weight", "free_bias", "free_scale", "free_variance", "overflow"],
)
def test_pair_stays(options: dict[str, Any]) -> None:
    graph = make_graph(**options)
    assert operators(fuse_conv_batchnorm(graph)) == operators(graph)


def test_training_stays() -> None:
    graph = make_graph()
    conv, norm = graph.nodes
    training = type(norm.operator)(training_mode=1)
    trained = Graph(
        graph.inputs, graph.outputs, (conv, type(norm)(training, norm.inputs, norm.outputs, "bn")), graph.constants
    )
    assert operators(fuse_conv_batchnorm(trained)) == ["Conv", "BatchNormalization"]


def test_names_of_new_weights_are_free() -> None:
    graph = make_graph()
    renamed = dict(graph.constants)
    taken = type(graph.inputs[0])("bn.weight")
    renamed[taken] = np.ones(1, np.float32)
    fused = fuse_conv_batchnorm(Graph(graph.inputs, graph.outputs, graph.nodes, renamed))
    names = [value.name for value in fused.constants]
    assert len(set(names)) == len(names)
    assert operators(fused) == ["Conv"]


def test_weights_shared_by_two_convs_are_fused_apart() -> None:
    extra = (
        helper.make_node("Conv", ["x", "w", "b"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c2", "scale", "mean", "beta", "var"], ["z"], name="bn2"),
    )
    graph = make_graph(extra=extra, outputs=("y", "z"))
    fused = fuse_conv_batchnorm(graph)
    assert operators(fused) == ["Conv", "Conv"]
    check_same(graph, fused, rtol=2e-6, x=data())

"""Static operation and byte counts, against hand counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.epilogue import fused_name
from tests.model.control_models import ControlModel
from tests.model.small_models import make_model, two_layers
from tests.ops.chains import chain

Shape = tuple[int, ...]


def one(op: str, inputs: list[Shape], weights: dict[int, Shape] | None = None, **attributes: Any) -> Any:
    """Return the row of a model of one node; inputs of ``weights`` are constants."""
    names = [f"i{index}" for index in range(len(inputs))]
    constants = {names[index]: np.ones(shape, np.float32) for index, shape in (weights or {}).items()}
    given = {name: shape for name, shape in zip(names, inputs, strict=True) if name not in constants}
    rank = len(inputs[0]) if op not in ("LSTM", "GRU", "RNN") else 4
    node = helper.make_node(op, names, ["y"], name="it", **attributes)
    model = make_model([node], given, {"y": [f"d{axis}" for axis in range(rank)]}, **constants)
    (row,) = [row for row in gx.count_work(model) if row.node == "it"]
    return row


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "attributes", "flops"),
    [
        ("MatMul", [(2, 3, 4), (4, 5)], {}, {}, 2 * 2 * 3 * 5 * 4),
        ("Gemm", [(4, 3), (4, 5)], {}, {"transA": 1}, 2 * 3 * 5 * 4),
        ("Gemm", [(3, 4), (4, 5), (5,)], {2: (5,)}, {}, 15 * (2 * 4 + 1)),
        ("Conv", [(1, 4, 8, 8), (6, 2, 3, 3)], {1: (6, 2, 3, 3)}, {"group": 2}, 2 * 6 * 36 * 2 * 9),
        ("Conv", [(1, 4, 8, 8), (6, 4, 1, 1), (6,)], {}, {}, 6 * 64 * (2 * 4 + 1)),
        ("ConvTranspose", [(1, 4, 8, 8), (4, 6, 2, 2)], {}, {"strides": [2, 2]}, 2 * 4 * 64 * 6 * 4),
        ("MaxPool", [(1, 4, 8, 8)], {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, 4 * 16 * 4),
        ("GlobalAveragePool", [(1, 4, 8, 8)], {}, {}, 256),
        ("ReduceSum", [(3, 4)], {}, {}, 12),
        ("Relu", [(3, 4)], {}, {}, 12),
        ("Add", [(3, 4), (4,)], {}, {}, 12),
        ("Max", [(3, 4), (3, 4), (4,)], {}, {}, 24),
        ("Softmax", [(3, 4)], {}, {}, 60),
        ("Transpose", [(3, 4)], {}, {}, 0),
        ("LSTM", [(7, 2, 3), (1, 20, 3), (1, 20, 5)], {}, {"hidden_size": 5}, 2 * 14 * (60 + 100)),
        ("TopK", [(3, 4)], {}, {}, None),
    ],
)
def test_operations_follow_from_shapes(
    op: str, inputs: list[Shape], weights: dict[int, Shape], attributes: dict[str, Any], flops: int | None
) -> None:
    if op == "TopK":
        nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"], name="it")]
        model = make_model(nodes, {"x": (3, 4)}, {"y": (3, 2)}, k=np.array([2], np.int64))
        (row,) = gx.count_work(model)
        assert row.flops is None
        return
    assert one(op, inputs, weights, **attributes).flops == flops


def test_fused_operators_count_what_is_in_them() -> None:
    x, w, b = (TensorSpec(shape, np.dtype(np.float32)) for shape in ((3, 4), (4, 5), (5,)))
    steps = (("Add", (), (-1, 2)), ("Relu", (), (-1,)))
    fused = build(fused_name("MatMul"), chain(steps))
    assert fused.count_flops([x, w, b], fused.infer(x, w, b)) == 15 * (2 * 4 + 1 + 1)


def test_narrow_weights_count_as_wide_ones_do() -> None:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="it")],
        {"x": (3, 64)},
        {"y": (3, 64)},
        w=np.ones((64, 64), np.float32),
    )
    rows = [gx.count_work(each)[0] for each in (model, model.compress_weights("int8"))]
    assert [row.flops for row in rows] == [2 * 3 * 64 * 64] * 2
    assert rows[0].operator != rows[1].operator


def test_attention_counts_scores_softmax_and_the_sum_of_values() -> None:
    q, kv = (2, 4, 6, 8), (2, 4, 10, 8)
    row = one("Attention", [q, kv, kv])
    assert row.flops == 2 * (2 * 4 * 6 * 10 * 8) * 2 + 5 * 2 * 4 * 6 * 10
    flat = one("Attention", [(2, 6, 32), (2, 10, 32), (2, 10, 32)], q_num_heads=4, kv_num_heads=4)
    assert flat.flops == row.flops


def test_bytes_are_those_of_inputs_outputs_and_weights() -> None:
    first, relu, second = gx.count_work(two_layers(), {"x": (4, 3)})
    assert (first.bytes_read, first.bytes_written, first.weight_bytes) == (4 * (12 + 15), 80, 60)
    assert (relu.bytes_read, relu.bytes_written, relu.weight_bytes) == (80, 80, 0)
    assert (second.node, second.operator, second.flops) == ("second", "MatMul", 2 * 4 * 2 * 5)


def test_what_depends_on_data_is_not_known() -> None:
    text = "(float[n, k] x) => (int64[2, m] y) { a = Relu (x) y = NonZero (a) }"
    model = gx.load(ControlModel(text, (), 21).parse())
    rows = {row.operator: row for row in gx.count_work(model, {"x": (200, 300)})}
    assert rows["Relu"].flops == 60000
    last = list(rows.values())[-1]
    assert last.flops is None and last.bytes_written is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'x' .* has free dimensions; give a shape or an array"),
        ({"z": (4, 3)}, "no input 'z'; it has x"),
        ({"x": (4, 2)}, r"'x' expects .*, got the shape \(4, 2\)"),
        ({"x": (4,)}, r"'x' expects .*, got the shape \(4,\)"),
        ({"x": (-1, 3)}, r"'x' expects .*, got the shape \(-1, 3\)"),
        ({"x": np.ones((4, 3), np.int32)}, "'x' expects float32.*, got int32"),
    ],
)
def test_inputs_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        gx.count_work(two_layers(), given)

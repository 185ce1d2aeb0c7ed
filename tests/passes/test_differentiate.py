"""Reverse-mode differentiation: names, order, kept values, refusals; a network worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.passes.derivatives import tape
from tests.passes.gradients import Array, branch, differences, gradient, make, node, run, sample

A, B, ROW = sample(3, 4), sample(3, 4, seed=1), sample(4)
BACKENDS = [gx.BackendType.CPU, gx.BackendType.SIMULATOR]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_network_of_two_layers(backend: gx.BackendType) -> None:
    """Half the mean of squares behind tanh(x w + c) v, with all derivatives worked by hand."""
    nodes = [
        node("Gemm", "x w c", "h"),
        node("Tanh", "h", "t"),
        node("MatMul", "t v", "p"),
        node("Sub", "p target", "e"),
        node("Mul", "e e", "s"),
        node("ReduceMean", "s", "loss", keepdims=0),
        gradient("w c v x target", "by_w by_c by_v", xs=["w", "c", "v"], zs=["x", "target"], y="loss"),
    ]
    x, w, c, v, target = sample(5, 3), sample(3, 4) - 1, sample(4), sample(4, 2), sample(5, 2)
    inputs = {"w": w, "c": c, "v": v, "x": x, "target": target}
    loss, by_w, by_c, by_v = run(make(nodes, inputs, ["loss", "by_w", "by_c", "by_v"]), inputs, backend)
    t = np.tanh(x @ w + c)
    error = t @ v - target
    by_p = 2 * error / error.size
    by_h = (by_p @ v.T) * (1 - t * t)
    np.testing.assert_allclose(loss, np.mean(error**2))
    np.testing.assert_allclose(by_v, t.T @ by_p)
    np.testing.assert_allclose(by_c, by_h.sum(axis=0))
    np.testing.assert_allclose(by_w, x.T @ by_h)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_classifier_of_images(backend: gx.BackendType) -> None:
    """Convolution, normalization, pool, and the loss of labels; held against differences."""
    nodes = [
        node("Conv", "x w c", "h", pads=[1, 1, 1, 1]),
        node("InstanceNormalization", "h s o", "n"),
        node("Gelu", "n", "u"),
        node("MaxPool", "u", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "m", "f"),
        node("MatMul", "f v", "z"),
        node("SoftmaxCrossEntropyLoss", "z labels", "loss"),
    ]
    inputs = {"w": sample(2, 1, 3, 3) - 1, "c": sample(2), "s": sample(2), "o": sample(2, seed=1), "v": sample(8, 3)}
    held = {"x": sample(2, 1, 4, 4), "labels": np.array([0, 2])}
    slopes = [f"by_{key}" for key in inputs]
    given = {**inputs, **held}
    whole = gradient(" ".join(given), " ".join(slopes), xs=list(inputs), zs=list(held), y="loss")
    found = run(make([*nodes, whole], given, slopes), given, backend)
    wanted = differences(make(nodes, given, ["loss"]), given, inputs)
    for key, got, expected in zip(inputs, found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7, err_msg=key)


def test_slopes_pass_a_cast_between_floats() -> None:
    a = np.round(A * 4)  # the same in float
    nodes = [node("Cast", "a", "s", to=1), node("Cast", "s", "t", to=11), node("Mul", "t a", "y")]
    (slope,) = run(make([*nodes, gradient("a", "g", xs=["a"], y="y")], {"a": a}, ["g"]), {"a": a})
    np.testing.assert_array_equal(slope, 2 * a)


def test_slopes_at_other_values() -> None:
    """y = a * b + a, asked at p and q: q + 1 and p; y itself stays what it is."""
    nodes = [node("Mul", "a b", "m"), node("Add", "m a", "y")]
    nodes.append(gradient("p q", "by_a by_b", xs=["a", "b"], y="y"))
    inputs = {"a": A, "b": B, "p": A + 2, "q": B + 3}
    y, by_a, by_b = run(make(nodes, inputs, ["y", "by_a", "by_b"]), inputs)
    np.testing.assert_allclose(y, A * B + A)
    np.testing.assert_allclose(by_a, inputs["q"] + 1)
    np.testing.assert_allclose(by_b, inputs["p"])


def test_slopes_at_values_of_other_shapes() -> None:
    inputs = {"a": A, "p": sample(2, 5)}
    nodes = [node("Exp", "a", "y"), gradient("p", "g", xs=["a"], y="y")]
    (slope,) = run(make(nodes, inputs, ["g"]), inputs)
    np.testing.assert_allclose(slope, np.exp(inputs["p"]))


def test_one_value_may_stand_for_several_and_lie_between() -> None:
    """y = a * b * exp(w), asked at a and a, and at exp(w) and b."""
    nodes = [node("Exp", "w", "e"), node("Mul", "a b", "m"), node("Mul", "m e", "y")]
    nodes.append(gradient("a a", "p q", "same", xs=["a", "b"], y="y"))
    nodes.append(gradient("e b", "r s", "between", xs=["a", "b"], y="y"))
    inputs = {"a": A, "b": B}
    found = run(make(nodes, inputs, ["p", "q", "r", "s"], {"w": A - 1}), inputs)
    e = np.exp(A - 1)
    for got, expected in zip(found, (A * e, A * e, B * e, e * e), strict=True):
        np.testing.assert_allclose(got, expected)


def test_what_is_held_at_another_value_counts() -> None:
    nodes = [node("Exp", "b", "e"), node("Mul", "a e", "y"), gradient("a q", "g", xs=["a"], zs=["b"], y="y")]
    inputs = {"a": A, "b": B, "q": ROW}
    (slope,) = run(make(nodes, inputs, ["g"]), inputs)
    np.testing.assert_allclose(slope, np.broadcast_to(np.exp(ROW), A.shape))


def test_what_is_held_has_no_slope_and_a_value_between_may_be_asked_for() -> None:
    nodes = [node("Exp", "a", "h"), node("Mul", "h b", "y"), gradient("h b", "by_h", xs=["h"], zs=["b"], y="y")]
    (by_h,) = run(make(nodes, {"a": A, "b": B}, ["by_h"]), {"a": A, "b": B})
    np.testing.assert_allclose(by_h, B)


def test_second_derivatives() -> None:
    """The sum of a^3 + a * row: 3 a^2 + row, then 6 a and, by the row, ones summed over rows."""
    nodes = [
        node("Mul", "a a", "s"),
        node("Mul", "s a", "c"),
        node("Mul", "a r", "d"),
        node("Add", "c d", "y"),
        gradient("a r", "by_a", xs=["a"], zs=["r"], y="y"),
        gradient("a r", "by_aa by_ar", "twice", xs=["a", "r"], y="by_a"),
    ]
    inputs = {"a": A, "r": ROW}
    by_a, by_aa, by_ar = run(make(nodes, inputs, ["by_a", "by_aa", "by_ar"]), inputs)
    np.testing.assert_allclose(by_a, 3 * A**2 + ROW)
    np.testing.assert_allclose(by_aa, 6 * A)
    np.testing.assert_allclose(by_ar, np.full(4, 3.0))


def test_what_does_not_matter_has_slope_0() -> None:
    nodes = [node("Exp", "a", "y"), gradient("a b", "by_a by_b", xs=["a", "b"], y="y")]
    by_a, by_b = run(make(nodes, {"a": A, "b": ROW}, ["by_a", "by_b"]), {"a": A, "b": ROW})
    np.testing.assert_allclose(by_a, np.exp(A))
    np.testing.assert_array_equal(by_b, np.zeros(4))


def test_a_value_by_itself_has_slope_1() -> None:
    (slope,) = run(make([gradient("b", "g", xs=["a"], y="a")], {"a": A, "b": ROW}, ["g"]), {"a": A, "b": ROW})
    np.testing.assert_array_equal(slope, np.ones(4))


def test_outputs_without_a_name_are_not_made() -> None:
    nodes = [node("Shrink", "a", "e"), node("Mul", "a b", "y")]
    whole = helper.make_node("Gradient", ["a", "b"], ["", "g"], domain="ai.onnx.preview.training", xs=["a", "b"], y="y")
    (slope,) = run(make([*nodes, whole], {"a": A, "b": B}, ["g"]), {"a": A, "b": B})
    np.testing.assert_array_equal(slope, A)


def test_operators_off_the_way_need_no_rule() -> None:
    nodes = [node("Shrink", "b", "e"), node("Mul", "a e", "y"), gradient("a b", "g", xs=["a"], zs=["b"], y="y")]
    e, g = run(make(nodes, {"a": A, "b": B}, ["e", "g"]), {"a": A, "b": B})
    np.testing.assert_allclose(g, e)


def test_weights_of_the_file_need_no_name() -> None:
    nodes = [node("Mul", "a w", "y"), gradient("a", "g", xs=["a"], y="y")]
    (slope,) = run(make(nodes, {"a": A}, ["g"], {"w": ROW}), {"a": A})
    np.testing.assert_allclose(slope, np.broadcast_to(ROW, A.shape))


def test_nodes_stand_in_any_order() -> None:
    nodes = [gradient("a", "g", xs=["a"], y="y"), node("Exp", "h", "y"), node("Neg", "a", "h")]
    (slope,) = run(make(nodes, {"a": A}, ["g"]), {"a": A})
    np.testing.assert_allclose(slope, -np.exp(-A))


def test_free_extents() -> None:
    nodes = [node("Mul", "a r", "m"), node("ReduceMean", "m", "y", keepdims=0)]
    model = make([*nodes, gradient("a r", "by_a by_r", xs=["a", "r"], y="y")], {"a": A, "r": ROW}, ["by_a", "by_r"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with gx.Worker(gx.load(model), backend=gx.BackendType.SIMULATOR) as worker:
        for rows in (3, 5, 2):
            a = sample(rows, 4)
            by_a, by_r = worker.run({"a": a, "r": ROW})
            np.testing.assert_allclose(by_a, np.broadcast_to(ROW / a.size, a.shape))
            np.testing.assert_allclose(by_r, a.sum(axis=0) / a.size)


def asked(op: str = "Exp", inputs: str = "a", at: str = "a", to: str = "g", **names: Any) -> list[onnx.NodeProto]:
    return [node(op, inputs, "y"), gradient(at, to, **{"xs": ["a"], "y": "y", **names})]


WHOLE = np.arange(4)
REFUSALS: list[tuple[str, list[onnx.NodeProto], dict[str, Array], type[Exception], str]] = [
    ("no_y", asked(y="z"), {"a": A}, gx.ModelError, "input %z is made by no node"),
    ("no_x", asked(xs=["b"]), {"a": A}, gx.ModelError, "input %b is made by no node"),
    ("inputs", asked(at="a a"), {"a": A}, gx.ModelError, "expects an input for each of a, got 2"),
    ("outputs", asked(to="g h"), {"a": A}, gx.ModelError, "at most an output for each of a, got 2"),
    ("twice", asked(at="a a", xs=["a", "a"]), {"a": A}, gx.ModelError, "names %a twice"),
    ("absent", [node("Exp", "a", "y"), gradient("a", "g", xs=["a"])], {"a": A}, gx.ModelError, "attribute 'y'"),
    ("unnamed", asked("Mul", "a b"), {"a": A, "b": B}, gx.ModelError, "%y depends on %b too; name it in xs, or in zs"),
    ("dependent", [node("Exp", "a", "h"), node("Neg", "h", "k"), node("Mul", "k a", "y"),
                   gradient("a k", "g", xs=["a", "k"], y="y")], {"a": A}, gx.ModelError,
     "names %k, which follows from %a, named too"),
    ("integers", asked("Abs"), {"a": WHOLE}, gx.UnsupportedError, "by %a, of int64; put a Cast"),
    ("control", [node("If", "c", "y", then_branch=branch([node("Exp", "a", "p")], "p"),
                      else_branch=branch([node("Neg", "a", "q")], "q")),
                 gradient("a c", "g", xs=["a"], zs=["c"], y="y")],
     {"a": A, "c": np.array(True)}, gx.UnsupportedError, "If 'y' has no derivative here"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "inputs", "error", "message"), [row[1:] for row in REFUSALS],
                         ids=[row[0] for row in REFUSALS])  # fmt: skip
def test_load_refuses(
    nodes: list[onnx.NodeProto], inputs: dict[str, Array], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"Gradient 'slopes'.*{message}"):
        gx.load(make(nodes, inputs, ["g"]))


def test_gradients_of_gradients_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "MAX_VALUES", 500)
    nodes = [node("Exp", "a", "g0")]
    nodes += [gradient("a", f"g{i + 1}", f"slopes{i}", xs=["a"], y=f"g{i}") for i in range(4)]
    (slope,) = run(make(nodes, {"a": A}, ["g4"]), {"a": A})
    np.testing.assert_allclose(slope, np.exp(A))
    more = [gradient("a", f"g{i + 1}", f"slopes{i}", xs=["a"], y=f"g{i}") for i in range(4, 40)]
    with pytest.raises(gx.ModelError, match=r"Gradient 'slopes.*': with its computation the model has more than 500"):
        gx.load(make([*nodes, *more], {"a": A}, ["g40"]))


def test_integers_that_no_file_declares_are_refused_when_planned() -> None:
    nodes = [node("Cast", "a", "i", to=7), node("Abs", "i", "j"), gradient("i", "g", xs=["i"], y="j")]
    message = r"SumTo 'slopes/g'.*expects input of type .*float64.*, got int64"
    model = gx.load(make(nodes, {"a": A}, ["g"]))
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker, pytest.raises(gx.InputError, match=message):
        worker.run({"a": A})

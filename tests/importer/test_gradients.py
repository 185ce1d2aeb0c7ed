"""Import of Gradient: values bound by name, in bodies and functions, through edits, and exported again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from tests.passes.gradients import OPSETS, branch, gradient, make, node, run, sample

A, B = sample(3, 4), sample(3, 4, seed=1)
PRODUCT = [node("Mul", "a b", "y"), gradient("a b", "by_a by_b", xs=["a", "b"], y="y")]


def choose(nodes: list[onnx.NodeProto], **more: Any) -> onnx.NodeProto:
    other = [node("Neg", "a", "other")]
    return node("If", "is_on", "g", then_branch=branch(nodes, "by_a"), else_branch=branch(other, "other"), **more)


def test_gradient_in_a_body_sees_values_around_it() -> None:
    model = make([choose(PRODUCT)], {"a": A, "b": B, "is_on": np.array(True)}, ["g"])
    (slope,) = run(model, {"a": A, "b": B, "is_on": np.array(True)})
    np.testing.assert_array_equal(slope, B)


def test_gradient_in_a_body_of_what_is_made_around_it_is_refused() -> None:
    inner = [node("Mul", "a h", "y"), gradient("a", "by_a", xs=["a"], y="y")]
    model = make([node("Exp", "a", "h"), choose(inner)], {"a": A, "is_on": np.array(True)}, ["g"])
    with pytest.raises(gx.ModelError, match="Gradient 'slopes': %y depends on %h too; name it in xs, or in zs"):
        gx.load(model)


def test_gradient_in_a_function_means_the_names_there() -> None:
    """Names of the function, a and y, are values of another meaning around it."""
    function = helper.make_function("mine", "Slope", ["a", "b"], ["by_a"], PRODUCT, OPSETS)
    nodes = [node("Exp", "a", "y"), node("Slope", "y a", "g", domain="mine")]
    model = make(nodes, {"a": A}, ["g"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    (slope,) = run(model, {"a": A})
    np.testing.assert_array_equal(slope, A)


def test_a_function_called_with_one_value_for_two_has_two_slopes() -> None:
    """Another argument, which no Gradient names, may be absent."""
    function = helper.make_function("mine", "Slope", ["a", "b", "c"], ["by_a", "by_b"], PRODUCT, OPSETS)
    model = make([node("Slope", "a a", "g h", domain="mine")], {"a": A}, ["g", "h"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    for slope in run(model, {"a": A}):
        np.testing.assert_array_equal(slope, A)


def test_one_value_joined_to_two_that_a_gradient_names_is_refused() -> None:
    model = gx.load(make(PRODUCT, {"a": A, "b": B}, ["by_a"]))
    front = gx.load(make([node("Exp", "q", "e")], {"q": A}, ["e"]))
    with pytest.raises(gx.ModelError, match="Gradient 'slopes': %e is several of xs and zs"):
        front.append(model, {"e": ["a", "b"]})


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_narrow_weights_keep_what_a_gradient_names(kind: str) -> None:
    """The weight that is stored narrow is made of the one that is differentiated by."""
    x, w = sample(3, 64).astype(np.float32), sample(64, 64).astype(np.float32)
    nodes = [node("Add", "w w", "s"), node("MatMul", "x s", "y"), gradient("w x", "g", xs=["w"], zs=["x"], y="y")]
    model = gx.load(make(nodes, {"x": x}, ["y", "g"], {"w": w})).compress_weights(kind)
    _, slope = run(model, {"x": x})
    np.testing.assert_allclose(slope, np.broadcast_to(2 * x.sum(axis=0)[:, None], w.shape), rtol=1e-5)


def test_edits_keep_what_a_gradient_is_about() -> None:
    model = gx.load(make(PRODUCT, {"a": A, "b": B}, ["y", "by_a", "by_b"]))
    kept = model.keep_outputs(["by_a"]).rename({"a": "left", "by_a": "slope"})
    (slope,) = run(kept, {"left": A, "b": B})
    np.testing.assert_array_equal(slope, B)
    joined = gx.load(make([node("Exp", "a", "y")], {"a": A}, ["y"])).append(kept, {"y": "b"})
    (slope,) = run(joined, {"a": A, "left": A})
    np.testing.assert_allclose(slope, np.exp(A))


def test_chosen_outputs_keep_what_a_gradient_is_about() -> None:
    model = gx.load(make(PRODUCT, {"a": A, "b": B}, ["y", "by_a", "by_b"]), outputs=["by_b"])
    (slope,) = run(model, {"a": A, "b": B})
    np.testing.assert_array_equal(slope, A)


def test_saved_models_have_the_form_of_the_standard(tmp_path: Path) -> None:
    model = gx.load(make(PRODUCT, {"a": A, "b": B}, ["y", "by_a", "by_b"])).rename({"a": "left", "y": "product"})
    model.save(tmp_path / "saved.onnx")
    written = onnx.load(tmp_path / "saved.onnx")
    (found,) = [each for each in written.graph.node if each.op_type == "Gradient"]
    attributes = {each.name: helper.get_attribute_value(each) for each in found.attribute}
    assert attributes == {"xs": [b"left", b"b"], "y": b"product"}
    assert list(found.input) == ["left", "b"]
    _, by_a, by_b = run(gx.load(tmp_path / "saved.onnx"), {"left": A, "b": B})
    np.testing.assert_array_equal(by_a, B)
    np.testing.assert_array_equal(by_b, A)


def test_switched_off_the_node_is_refused() -> None:
    model = gx.load(make(PRODUCT, {"a": A, "b": B}, ["y", "by_a"]), disabled_passes=["differentiate"])
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker, pytest.raises(gx.UnsupportedError, match="disable"):
        worker.run({"a": A, "b": B})

"""Selection of outputs and inputs: inner values shown, outputs removed, subgraphs extracted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.spec import DeclaredSpec
from tests.model.small_models import affine, expect_affine, make_model, ramp, two_inputs
from tests.model.state_models import cache, running_sum

X = ramp(2, 3)
F32 = np.dtype(np.float32)
# A Conv that a pass joins with what follows: the inner value is there all the same.
FUSED = """<ir_version: 10, opset_import: ["": 18]>
agraph (float[n, 1, 3, 3] x) => (float[n, 1, 2, 2] y)
<float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1] s = {2}, float[1] b = {1}, float[1] m = {3}, float[1] v = {4}> {
  [conv] c = Conv (x, w) [norm] y = BatchNormalization (c, s, b, m, v)
}"""
CHOOSES = """<ir_version: 10, opset_import: ["": 18]> agraph (float[n] x, bool c) => (float[n] y) {
  y = If (c) <then_branch = t () => (float[n] p) { hidden = Neg (x) p = Relu (hidden) },
              else_branch = e () => (float[n] q) { q = Abs (x) }>
}"""


def run(model: gx.Model, inputs: object, backend: Backend) -> dict[str, np.ndarray]:
    with gx.Worker(model, backend=backend) as worker:
        return {name: each.readback_and_clone() for name, each in worker.schedule(inputs).outputs.items()}


def test_inner_values_and_nodes_become_outputs_behind_those_there_are(backend: Backend) -> None:
    model = affine()
    shown = model.expose("b", "double", "y")
    assert [str(port) for port in shown.outputs] == ["y: float32[n,3]", "b: float32[n,3]", "a: float32[n,3]"]
    got = run(shown, X, backend)
    np.testing.assert_array_equal(got["y"], expect_affine(X))
    np.testing.assert_array_equal(got["a"], 2 * X)
    np.testing.assert_array_equal(got["b"], np.maximum(2 * X, 0))
    assert [port.name for port in model.outputs] == ["y"]


def test_a_value_that_a_pass_takes_away_can_be_shown(backend: Backend) -> None:
    model = gx.load(parser.parse_model(FUSED))
    assert [node.operator.name for node in model.graph.nodes] == ["Conv"]
    x = ramp(1, 1, 3, 3)
    got = run(model.expose("conv"), x, backend)
    expected = np.array([[[[x[0, 0, i : i + 2, j : j + 2].ravel() @ [1, 2, 3, 4] for j in (0, 1)] for i in (0, 1)]]])
    np.testing.assert_array_equal(got["c"], expected.astype(np.float32))
    np.testing.assert_allclose(got["y"], run(model, x, backend)["y"], rtol=1e-5)


def test_outputs_that_stay_keep_only_what_they_need(backend: Backend) -> None:
    first = two_inputs().append(affine(), {"sum": "x"})
    kept = first.keep_outputs(["b"])
    assert [node.name for node in kept.graph.nodes] == ["add", "double", "relu"]
    assert [value.name for value in kept.graph.constants] == ["two"]
    np.testing.assert_array_equal(run(kept, [X, X], backend)["b"], np.maximum(4 * X, 0))


def test_inputs_that_only_outputs_left_out_need_go() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["w"])]
    model = make_model(nodes, {"x": (2,), "idle": (2,), "z": (2,)}, {"y": (2,), "w": (2,)})
    assert [port.name for port in model.keep_outputs(["y"]).inputs] == ["x", "idle"]


def test_a_part_is_cut_out_between_values(backend: Backend) -> None:
    part = affine().extract(["a"], ["y"])
    assert [str(port) for port in (*part.inputs, *part.outputs)] == ["a: float32[n,3]", "y: float32[n,3]"]
    np.testing.assert_array_equal(run(part, X, backend)["y"], np.maximum(X, 0) + 1)


def test_a_weight_may_be_an_input_of_a_part(backend: Backend) -> None:
    part = affine().extract(["x", "two"], ["a"])
    got = run(part, {"x": X, "two": np.float32(3)}, backend)
    np.testing.assert_array_equal(got["a"], 3 * X)


def test_memories_that_outputs_depend_on_stay(backend: Backend) -> None:
    model = running_sum().keep_outputs(["y"])
    assert [memory.input for memory in model.memories] == ["held"]
    with gx.Worker(model, backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(X)[0], 2 * X)
        np.testing.assert_array_equal(worker.run(X)[0], 4 * X)
    beside = running_sum().append(affine(), {"y": "x"}).keep_outputs(["b"])
    assert [memory.output for memory in beside.memories] == ["total"]


def test_memories_that_nothing_depends_on_go() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Add", ["x", "held"], ["total"]),
        helper.make_node("Mul", ["total", "total"], ["z"]),
    ]
    shape = (2,)
    model = make_model(nodes, {"x": shape, "held": shape}, {"y": shape, "z": shape, "total": shape})
    bound = model.bind_state({"total": "held"})
    kept = bound.keep_outputs(["y"])
    assert (kept.memories, [port.name for port in kept.ports]) == ((), ["x"])
    assert [memory.input for memory in bound.keep_outputs(["z"]).memories] == ["held"]


def test_a_cache_keeps_its_room(backend: Backend) -> None:
    model = cache().bind_state({"present": "past"}, capacity=6)
    (memory,) = model.expose("rows").memories
    assert (memory.form, memory.capacity) == ("append", 6)
    x = np.ones((2, 1, 3), np.float32)
    with gx.Worker(model.expose("rows"), backend=backend) as worker:
        for count in (1, 2, 3):
            outputs = worker.schedule(x).outputs
            np.testing.assert_array_equal(outputs["y"].readback_and_clone(), np.full((2, 3), 2 * count))
            np.testing.assert_array_equal(outputs["rows"].readback_and_clone(), 2 * x)


def test_types_come_from_operators_of_ones_own_where_onnx_knows_none() -> None:
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain="gpuexec.test", number=0),
        helper.make_node("Transpose", ["a"], ["b"], name="turn", perm=[1, 0]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": (3, "n")})
    assert model.expose("b").outputs[1].spec == DeclaredSpec(F32, (3, None))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda model: model.expose("bee"), r"no value or node 'bee'; its outputs are y; its last nodes make y, b, a"),
        (lambda model: model.expose(), "at least one"),
        (lambda model: model.expose(["relu"]), r"takes names, got a list \['relu'\]"),
        (lambda model: model.keep_outputs("y"), "takes a list of names"),
        (lambda model: model.keep_outputs(["b", "relu"]), "'b' is listed twice"),
        (lambda model: model.extract(["b"], ["a"]), "can't be made from b alone; .* needs x too"),
        (lambda model: model.extract(["x", "a"], ["y"]), "y don't need x"),
        (lambda model: model.extract(["x"], ["no"]), "no value or node 'no'"),
    ],
)
def test_what_can_not_be_chosen_is_refused(edit: Callable[[gx.Model], gx.Model], message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        edit(affine())


def test_a_value_inside_a_branch_is_refused_by_name() -> None:
    with pytest.raises(gx.InputError, match="'hidden' is a value in the body 't'"):
        gx.load(parser.parse_model(CHOOSES)).expose("hidden")


@pytest.mark.parametrize("name", ["held", "total"])
def test_what_a_memory_holds_is_no_output(name: str) -> None:
    with pytest.raises(gx.InputError, match=f"'{name}' belongs to memory held <- total"):
        running_sum().expose(name)

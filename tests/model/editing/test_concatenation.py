"""Model concatenation: connections, names, dimensions and memories of both models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.editing.test_choosing import run
from tests.model.objects import parse
from tests.model.small_models import affine, expect_affine, make_model, ramp, two_inputs
from tests.model.state_models import WIDTH, running_sum

X = ramp(2, 3)


def one(
    op: str, made: str = "y", taken: str = "x", shape: Any = ("n", 3), out: Any = None, **attributes: Any
) -> gx.Model:
    """Return a model of one node."""
    node = helper.make_node(op, [taken], [made], name=op.lower(), **attributes)
    return make_model([node], {taken: shape}, {made: shape if out is None else out})


def test_what_is_appended_takes_what_there_is(backend: Backend) -> None:
    joined = affine().append(one("Neg", "answer", "raw"))
    assert [str(port) for port in (*joined.inputs, *joined.outputs)] == ["x: float32[n,3]", "answer: float32[n,3]"]
    np.testing.assert_array_equal(run(joined, X, backend)["answer"], -expect_affine(X))


def test_what_is_prepended_runs_first(backend: Backend) -> None:
    joined = affine().prepend(one("Neg", "made", "image"))
    assert [port.name for port in (*joined.inputs, *joined.outputs)] == ["image", "y"]
    np.testing.assert_array_equal(run(joined, X, backend)["y"], expect_affine(-X))


def test_a_model_is_joined_to_itself(backend: Backend) -> None:
    model = affine()
    twice = model.append(model)
    assert [port.name for port in twice.inputs] == ["x"]
    assert len({node.name for node in twice.graph.nodes}) == len(twice.graph.nodes) == 6
    ((_, got),) = run(twice, X, backend).items()
    np.testing.assert_array_equal(got, expect_affine(expect_affine(X)))


def test_outputs_that_nothing_takes_stay_behind_the_new_ones(backend: Backend) -> None:
    joined = two_inputs().append(one("Neg"), {"difference": "x"})
    assert [port.name for port in joined.outputs] == ["y", "sum"]
    got = run(joined, [3 * X, X], backend)
    np.testing.assert_array_equal(got["y"], -2 * X)
    np.testing.assert_array_equal(got["sum"], 4 * X)


def test_inputs_that_nothing_is_connected_to_stay(backend: Backend) -> None:
    joined = two_inputs().prepend(one("Neg", "made", "image"), {"made": "right"})
    assert [port.name for port in joined.inputs] == ["image", "left"]
    np.testing.assert_array_equal(run(joined, {"image": X, "left": 3 * X}, backend)["sum"], 2 * X)


def test_one_output_may_go_to_several_inputs(backend: Backend) -> None:
    joined = two_inputs().prepend(one("Neg", "made", "image"), {"made": ["left", "right"]})
    np.testing.assert_array_equal(run(joined, X, backend)["sum"], -2 * X)


def test_names_of_the_model_that_is_edited_stay(backend: Backend) -> None:
    other = make_model(
        [helper.make_node("Neg", ["x"], ["a"], name="relu"), helper.make_node("Mul", ["a", "two"], ["y"], name="add")],
        {"x": ("n", 3)},
        {"y": ("n", 3)},
        two=np.array(5, np.float32),
    )
    joined = affine().expose("a").append(other, {"y": "x"})
    assert [port.name for port in joined.outputs] == ["y", "a"]
    got = run(joined, X, backend)
    np.testing.assert_array_equal(got["y"], -5 * expect_affine(X))
    np.testing.assert_array_equal(got["a"], 2 * X)
    both = affine().append(other, {"y": "x"}).expose("b").append(other, {"b": "x"})
    assert [port.name for port in both.outputs] == ["y.2", "y"]
    got = run(both, X, backend)
    np.testing.assert_array_equal(got["y.2"], -5 * np.maximum(2 * X, 0))
    before = affine().prepend(other)
    assert [port.name for port in (*before.inputs, *before.outputs)] == ["x", "y"]
    np.testing.assert_array_equal(run(before, X, backend)["y"], expect_affine(-5 * X))


def test_names_outside_stay_on_the_side_that_is_edited() -> None:
    before = two_inputs().prepend(one("Neg", "made", "left"), {"made": "right"})
    assert [port.name for port in before.inputs] == ["left.2", "left"]
    after = one("Neg", "right", "left").append(two_inputs(), {"right": "right"})
    assert [port.name for port in after.inputs] == ["left", "left.2"]


def test_an_input_that_is_an_output_keeps_its_name(backend: Backend) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "passes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", 3)) for name in ("x", "y")],
    )
    other = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    joined = one("Abs", "made", "image").append(other)
    got = run(joined, X, backend)
    np.testing.assert_array_equal(got["x"], np.abs(X))
    np.testing.assert_array_equal(got["y"], -np.abs(X))


def test_memories_of_both_stay(backend: Backend) -> None:
    joined = running_sum().append(running_sum(), {"y": "x"})
    assert [(memory.input, memory.output) for memory in joined.memories] == [("held", "total"), ("held.2", "total.2")]
    with gx.Worker(joined, backend=backend) as worker:
        total = later = np.zeros((2, WIDTH), np.float32)
        for _ in range(3):
            total = total + X
            later = later + 2 * total
            np.testing.assert_array_equal(worker.run(X)[0], 2 * later)


def test_a_dimension_that_is_connected_is_one() -> None:
    joined = one("Neg", shape=("batch", 3)).append(one("Abs", "z", "x", ("rows", 3)))
    assert [str(port) for port in joined.outputs] == ["z: float32[batch,3]"]


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_model_that_passes_its_input_on_is_joined(is_behind: bool, backend: Backend) -> None:
    passing, x = one("Neg").keep_outputs(["x"]), ramp(2, 3)
    joined = one("Neg").append(passing) if is_behind else one("Neg").prepend(passing)
    ((_, got),) = run(joined, x, backend).items()
    np.testing.assert_array_equal(got, -x)
    ((_, got),) = run(passing.append(passing), x, backend).items()
    np.testing.assert_array_equal(got, x)


def test_dimensions_that_only_share_a_name_are_distinguished() -> None:
    node = helper.make_node("Add", ["x", "bias"], ["y"], name="add")
    other = make_model([node], {"x": ("rows", 3), "bias": ("n",)}, {"y": ("rows", "n")})
    joined = one("Neg").append(other, {"y": "x"})
    assert [str(port) for port in joined.inputs] == ["x: float32[n,3]", "bias: float32[n.2]"]


def test_declared_dimensions_of_both_hold() -> None:
    first, second = one("Neg", shape=("batch", 3)).bind({"batch": (1, 8)}), one("Abs", shape=("rows", 3))
    assert first.append(second).dims == {"batch": (1, 8)}
    assert first.bind({"batch": 4}).append(second.bind({"rows": (1, 9)})).dims == {"batch": 4}
    assert first.append(second.bind({"rows": (2, 9)})).dims == {"batch": (2, 8)}
    with pytest.raises(gx.InputError, match=r"'batch' is \(1, 8\) in 'small' and 9 in 'small'"):
        first.append(one("Abs", shape=("batch", 3)).bind({"batch": 9}))


@pytest.mark.parametrize(
    ("other", "connections", "message"),
    [
        (one("Neg", shape=("n", 4)), None, r"'y' \(float32\[n,3\]\) can't be 'x' \(float32\[n,4\]\): axis 1 is 3 .* 4"),
        (one("Neg", shape=(3,)), None, r"'y' \(float32\[n,3\]\) can't be 'x' \(float32\[3\]\): they have 2 and 1 axes"),
        (
            one("Neg"),
            {"z": "x"},
            "no 'z' to connect 'z' to 'x': small makes y; small takes x".replace("small", "'small'"),
        ),
        (one("Neg"), {"y": "z"}, "no 'z' to connect 'y' to 'z'"),
        (one("Neg"), {"y": ["x", "x"]}, "Input 'x' is connected twice"),
        (two_inputs(), None, "'small' makes y; 'small' takes left, right. Say which goes where"),
        (one("Neg"), {}, "Connections are inputs by output"),
        (one("Neg"), {"y": 3}, "'y' goes to an input or a list of them, got 3"),
        ("a.onnx", None, "Expected a model to join 'small' with, got a str"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_ends(
    other: Any, connections: dict[str, str] | None, message: str
) -> None:
    with pytest.raises(gx.InputError, match=message):
        affine().append(other, connections)


def test_another_dtype_is_refused_with_both_specs() -> None:
    halves = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (3,)}, {"y": (3,)}, TensorProto.FLOAT16)
    with pytest.raises(gx.InputError, match=r"'y' \(float32\[n,3\]\) can't be 'x' \(float16\[3\]\): the dtypes differ"):
        affine().append(halves)


def test_containers_are_joined_by_what_they_hold() -> None:
    first = gx.load(parse("(seq(float[]) s) => (seq(float[]) t) { t = Identity (s) }"))
    for kind in ("int64", "string"):
        second = gx.load(parse(f"(seq({kind}[]) s) => (seq({kind}[]) t) {{ t = SequenceErase (s) }}"))
        with pytest.raises(gx.InputError, match=rf"'s' \(sequence\({kind}\[...\]\)\): the dtypes differ\.$"):
            first.append(second)
    second = gx.load(parse("(seq(float[]) s) => (int64 n) { n = SequenceLength (s) }"))
    with gx.Worker(first.append(second), backend=gx.BackendType.CPU) as worker:
        assert int(worker.run([[np.ones(2, np.float32)] * 3])[0]) == 3

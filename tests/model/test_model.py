"""Model loading: every kind of source, all problems together, dimensions fixed or bounded."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.errors import ErrorCode
from gpuexec.importer.load import NEWEST_OPSET, OLDEST_OPSET
from tests.model.small_models import CPU, affine, expect_affine, make_model, ramp

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"


@pytest.mark.feature("B1", "S1")
@pytest.mark.parametrize(
    "open_source",
    [
        str,
        Path,
        lambda path: path.read_bytes(),
        lambda path: bytearray(path.read_bytes()),
        lambda path: path.open("rb"),
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: onnx.load(path),
    ],
    ids=["path as text", "path", "bytes", "bytearray", "open file", "file object", "ModelProto"],
)
def test_model_comes_from_any_source(open_source: object) -> None:
    model = gx.load(open_source(DIGITS))  # type: ignore[operator]
    assert model is not gx.load(open_source(DIGITS))  # type: ignore[operator]
    assert [str(port) for port in model.inputs] == ["image: float32[batch,1,8,8]"]
    assert [port.name for port in model.outputs] == ["logits", "probabilities"]


@pytest.mark.feature("B4", "S14", "E41")
def test_all_unsupported_operators_are_reported_together() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first", domain="org.none"),
        helper.make_node("Defenestrate", ["a"], ["b"], name="second", domain="org.none"),
        helper.make_node("Frobnicate", ["b"], ["y"], name="third", domain="org.none"),
    ]
    with pytest.raises(gx.UnsupportedError) as caught:
        make_model(nodes, {"x": (2,)}, {"y": (2,)})
    text = str(caught.value)
    assert caught.value.code == ErrorCode.OPERATOR_MISSING
    assert "Frobnicate (org.none 1): 2 (first, third)" in text and "Defenestrate (org.none 1): 1 (second)" in text


@pytest.mark.feature("S1")
@pytest.mark.parametrize(
    ("open_source", "kind"),
    [
        (lambda folder: folder / "none.onnx", gx.ModelError),
        (lambda folder: folder, gx.ModelError),
        (lambda folder: b"\x07garbage", gx.ModelError),
        (lambda folder: io.BytesIO(DIGITS.read_bytes()[:-20]), gx.ModelError),
        (lambda folder: 7, gx.InputError),
    ],
    ids=["missing", "folder", "garbage", "cut", "number"],
)
def test_load_raises_and_never_returns_nothing(
    open_source: Callable[[Path], Any], kind: type[gx.GpuexecError], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        gx.load(open_source(tmp_path))


@pytest.mark.feature("S15")
@pytest.mark.parametrize("opset", [0, OLDEST_OPSET - 1, NEWEST_OPSET + 1, 99])
def test_opset_outside_the_stated_range_is_refused(opset: int) -> None:
    source = onnx.load(DIGITS)
    source.opset_import[0].version = opset
    with pytest.raises(gx.ModelError, match=f"opset {opset}; expected {OLDEST_OPSET} to {NEWEST_OPSET}"):
        gx.load(source)


@pytest.mark.feature("S8")
def test_fixed_dimension_is_checked(backend: Backend) -> None:
    model = gx.load(DIGITS, dims={"batch": 2})
    with gx.Worker(model, backend=backend) as worker:
        assert worker.prepare().inputs[0].spec.shape == (2, 1, 8, 8)
        with pytest.raises(gx.InputError, match=r"'image'.*axis 0 must be 2"):
            worker.run(np.zeros((3, 1, 8, 8), np.float32))


def test_bounded_dimension_has_one_plan() -> None:
    model = gx.load(DIGITS, dims={"batch": (1, 64)})
    with gx.Worker(model, backend=CPU) as worker:
        for count in (1, 64, 7, 2, 33):
            assert worker.run(np.zeros((count, 1, 8, 8), np.float32))[0].shape == (count, 10)
        assert worker.report().plans == 1 and worker.report().variants == 5
        with pytest.raises(gx.InputError, match="axis 0 must be 1 to 64"):
            worker.run(np.zeros((65, 1, 8, 8), np.float32))


@pytest.mark.feature("S8")
def test_dimension_that_does_not_exist_is_refused() -> None:
    with pytest.raises(gx.InputError, match=r"no dimension 'bach'.*batch"):
        gx.load(DIGITS, dims={"bach": 1})


def test_passes_are_switched_off_by_name() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="same"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    assert len(gx.load(source).graph.nodes) == 1
    assert len(gx.load(source, disabled_passes=["remove_noops"]).graph.nodes) == 2
    with pytest.raises(gx.InputError, match="remove_nops"):
        gx.load(source, disabled_passes=["remove_nops"])


def test_model_says_what_it_is() -> None:
    text = repr(affine())
    assert "small" in text and "x: float32[n,3] -> y: float32[n,3]" in text


@pytest.mark.feature("S24")
def test_output_that_is_an_input_or_a_constant_is_a_copy(backend: Backend) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Identity", ["c"], ["fixed"])]
    model = make_model(nodes, {"x": (2, 3)}, {"same": (2, 3), "fixed": (2,)}, c=np.float32([1, 2]))
    x = ramp(2, 3)
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            run = worker.schedule(x, copy=False)
            run.wait()
            same, fixed = run.outputs.values()
            same.upload(np.zeros((2, 3), np.float32))
            fixed.upload(np.zeros(2, np.float32))
            same.wait()
            fixed.wait()
            np.testing.assert_array_equal(x, ramp(2, 3))
            same_answer, fixed_answer = worker.run(x)
            np.testing.assert_array_equal(same_answer, x)
            np.testing.assert_array_equal(fixed_answer, [1, 2])


@pytest.mark.feature("B1")
def test_answer_does_not_depend_on_the_worker() -> None:
    model, x = affine(), ramp(3, 3)
    for _ in range(2):
        with gx.Worker(model, backend=CPU) as worker:
            np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))


@pytest.mark.parametrize(("disabled", "commands"), [((), 1), (("fold_shapes",), 2)])
def test_shapes_are_folded_when_planning_a_model_of_fixed_extents(disabled: tuple[str, ...], commands: int) -> None:
    """With every extent known, a value made of the shape is a weight; else each run stores it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "floats"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "shapes", ports[:1], ports[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gx.Worker(gx.load(proto, disabled_passes=disabled), backend=CPU) as worker:
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        np.testing.assert_array_equal(worker.run(x)[0], x + np.array([3, 2], np.float32))
        assert len(list(worker.plans[0].segment.commands)) == commands

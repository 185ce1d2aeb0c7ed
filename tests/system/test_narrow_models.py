"""Models with values of narrow types: control flow, files, other interfaces, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import dtype_row
from tests.system.models.folder import measure, needs_models, path_of, read_case, read_manifest

OPSET, IR_VERSION = 25, 13
# One of each width; to NumPy float8e5m2 is of another kind than the others.
TYPES = ("float8e4m3fn", "float8e5m2", "float8e8m0", "int4", "uint2", "float6e2m3")
BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR)


def elements(name: str) -> Array:
    row = dtype_row(name)
    return np.random.default_rng(2).integers(0, 1 << row.width, (4, 6), np.uint8).view(row.numpy)


def bits(array: Any) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def info(name: str, code: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def make_model(name: str) -> bytes:
    """Return a model: a weight of If, values carried and stacked by Loop and Scan, a join, and a cast."""
    code, node = dtype_row(name).code, helper.make_node
    then = helper.make_graph([node("Identity", ["x"], ["t"])], "then", [], [info("t", code, 4, 6)])
    otherwise = helper.make_graph([node("Identity", ["w"], ["e"])], "else", [], [info("e", code, 4, 6)])
    body = helper.make_graph(
        [node("Identity", [a], [b]) for a, b in (("go", "go_on"), ("v", "v_out"), ("v", "scanned"))],
        "body",
        [info("i", 7), info("go", 9), info("v", code, 4, 6)],
        [info("go_on", 9), info("v_out", code, 4, 6), info("scanned", code, 4, 6)],
    )
    step = helper.make_graph(
        [node("Identity", ["row"], ["row_out"])], "step", [info("row", code, 6)], [info("row_out", code, 6)]
    )
    graph = helper.make_graph(
        [
            node("If", ["chosen"], ["y"], then_branch=then, else_branch=otherwise),
            node("Loop", ["n", "yes", "x"], ["", "looped"], body=body),
            node("Scan", ["x"], ["scanned"], body=step, num_scan_inputs=1),
            node("Concat", ["w", "x"], ["joined"], axis=0),
            node("Cast", ["y"], ["wide"], to=1),
        ],
        "g",
        [info("x", code, 4, 6), info("chosen", 9), info("n", 7)],
        [
            *(info("y", code, 4, 6), info("looped", code, "trips", 4, 6), info("scanned", code, 4, 6)),
            *(info("joined", code, 8, 6), info("wide", 1, 4, 6)),
        ],
        [numpy_helper.from_array(elements(name), "w"), numpy_helper.from_array(np.array(True), "yes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


def make_join(name: str) -> bytes:
    code = dtype_row(name).code
    graph = helper.make_graph(
        [helper.make_node("Concat", ["w", "x"], ["y"], axis=0)],
        "g",
        [info("x", code, 4, 6)],
        [info("y", code, 8, 6)],
        [numpy_helper.from_array(elements(name), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", TYPES)
def test_bits_go_through_control_flow(name: str, backend: gx.BackendType) -> None:
    w, x = elements(name), elements(name)[::-1]
    with gx.Worker(gx.load(make_model(name)), backend=backend) as worker:
        for chosen in (True, False):
            answers = worker.run({"x": x, "chosen": np.array(chosen), "n": np.array(3)})
            expected = (x if chosen else w, np.stack([x] * 3), x, np.concatenate([w, x]))
            for got, wanted in zip(answers[:4], expected, strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(bits(got), bits(wanted))
            np.testing.assert_array_equal(answers[4], expected[0].astype(np.float32))
        assert not worker.report().host_calls


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", TYPES)
def test_values_can_be_looked_at(name: str, backend: gx.BackendType) -> None:
    """Comparing runs every node again with NumPy; watching counts what is no number."""
    with gx.Worker(gx.load(make_join(name)), backend=backend, compare_with=gx.BackendType.CPU) as worker:
        worker.run(elements(name))
    with gx.Worker(gx.load(make_join(name)), backend=backend, watch="report") as worker:
        y = worker.run(elements(name))[0]
        np.testing.assert_array_equal(bits(y), bits(np.concatenate([elements(name)] * 2)))


@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_offered_without_a_name_of_their_type(name: str) -> None:
    """NumPy has no name for these types that other packages could read."""
    with gx.Worker(gx.load(make_join(name)), backend=gx.BackendType.SIMULATOR) as worker:
        worker.schedule(elements(name))
        interface = worker.peek_output().__cuda_array_interface__
        assert np.dtype(interface["typestr"]) == np.dtype("V1") and interface["shape"] == (8, 6)


@pytest.mark.parametrize("name", TYPES)
def test_programs_hold_narrow_weights(tmp_path: Path, name: str) -> None:
    gx.Program.build({"forward": gx.load(make_join(name))}).save(tmp_path / "m.gxp")
    method = gx.Program.load(gx.FileDataLoader(tmp_path / "m.gxp")).load_method("forward")
    method.set_input(0, elements(name)[::-1])
    method.execute()
    expected = np.concatenate([elements(name), elements(name)[::-1]])
    np.testing.assert_array_equal(bits(method.get_output(0).readback_and_clone()), bits(expected))


@pytest.mark.parametrize("name", TYPES)
def test_the_look_of_onnx_runtime_has_narrow_types(name: str) -> None:
    session = ort.InferenceSession(make_join(name))
    assert session.get_inputs()[0].type == f"tensor({name})"
    (y,) = session.run(None, {"x": elements(name)})
    np.testing.assert_array_equal(bits(y), bits(np.concatenate([elements(name)] * 2)))
    value = ort.OrtValue.ortvalue_from_numpy(elements(name))
    assert value.element_type() == dtype_row(name).code
    np.testing.assert_array_equal(bits(value.numpy()), bits(elements(name)))


@needs_models
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
def test_model_with_weights_of_4_bits_is_right(backend: gx.BackendType) -> None:
    name = "llama_int4_qdq"
    with gx.Worker(gx.load(path_of(name)), backend=backend) as worker:
        for each in read_manifest()[name]["cases"]:
            case = read_case(each)
            answers = worker.run(case.inputs)
            for port, got in zip(worker.model.outputs, answers, strict=True):
                assert measure(f"{name} {port.name}", got, case.outputs[port.name]) <= 1
        assert not worker.report().host_calls

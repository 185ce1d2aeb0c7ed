"""Undeclared types of outputs and inputs, inferred from the rest of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import gpuexec as gx
from gpuexec.compat import onnxruntime as compat
from gpuexec.ir.spec import UNKNOWN
from tests.model.small_models import CPU

ROOT = Path(__file__).resolve().parents[2]
HEADER = '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>\n'
ADDED = "g (float[n, 3] x) => (float[n, 3] y) <float[2] w = {1, 2}> { d = Neg (x) y = Add (x, d) }"
X = np.float32([[-1, 2, 0]])


def named(text: str, *names: str) -> onnx.ModelProto:
    """Return a model whose outputs are these, by name only."""
    model = parser.parse_model(HEADER + text)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


def describe(model: onnx.ModelProto) -> list[str]:
    """Return the outputs of a model as it is loaded."""
    return [str(port) for port in gx.load(model.SerializeToString()).outputs]


def test_types_of_inner_values_weights_and_inputs_are_reported_when_they_are_outputs_by_name() -> None:
    model = named(ADDED, "y", "d", "w", "x")
    assert describe(model) == ["y: float32[n,3]", "d: float32[n,3]", "w: float32[2]", "x: float32[n,3]"]
    with gx.Worker(gx.load(model.SerializeToString()), backend=CPU) as worker:
        worker.schedule(X)
        np.testing.assert_array_equal(worker.read_output("d"), -X)
        np.testing.assert_array_equal(worker.read_output("w"), np.float32([1, 2]))


def test_an_empty_declaration_does_not_hide_value_info() -> None:
    # ONNX knows no such operator, so value_info alone tells; x and d are named without a type.
    model = named("g (float[n, 3] x) => (y) { d = com.microsoft.Gelu (x) y = Neg (d) }", "d", "y")
    model.graph.value_info.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, ["m", 3]))
    assert describe(model) == ["d: float32[m,3]", "y: float32[m,3]"]


@pytest.mark.parametrize("empty", [TensorProto.UNDEFINED, TensorProto.FLOAT], ids=["no element type", "no shape"])
def test_a_tensor_type_without_element_type_or_shape_is_completed(empty: int) -> None:
    model = named(ADDED)
    model.graph.output.append(helper.make_tensor_value_info("d", empty, None))
    model.graph.value_info.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, ["m", 3]))
    assert describe(model) == ["d: float32[m,3]"]
    del model.graph.value_info[:]
    assert describe(model) == ["d: float32[n,3]"]


def test_an_input_without_a_type_has_that_of_value_info() -> None:
    model = named(ADDED, "y")
    model.graph.input[0].ClearField("type")
    with pytest.raises(gx.ModelError, match="Input %x declares no element type"):
        gx.load(model.SerializeToString())
    model.graph.value_info.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]))
    assert [str(port) for port in gx.load(model.SerializeToString()).inputs] == ["x: float32[n,3]"]


def test_rows_of_a_loop_without_trips_have_the_type_that_value_info_gives_an_untyped_output() -> None:
    text = """g (int64 trips, float[2] x) => (float[t, k] rows) {
        rows = Loop (trips, , ) <body = b (int64 i, bool c) => (bool again, float[2] row) {
            again = Identity (c) row = OptionalGetElement (held) held = Optional (x) }> }"""
    model = parser.parse_model(HEADER + text)
    body = model.graph.node[0].attribute[0].g
    body.value_info.append(helper.make_tensor_value_info("row", TensorProto.FLOAT, [2]))
    body.output[1].ClearField("type")
    loaded = gx.load(model.SerializeToString())
    declared = [value.declared for node in loaded.info.graph.nodes for value in node.operator.body.outputs]  # type: ignore[attr-defined]
    assert [str(each) for each in declared] == ["bool[]", "float32[2]"]


def test_types_behind_operators_that_onnx_does_not_know_are_inferred_by_ours() -> None:
    chain = "{ d = NonZero (x) e = Cast <to = 1> (d) f = com.microsoft.Gelu (e) y = Neg (f) }"
    assert describe(named("g (float[n, 3] x) => (y) " + chain, "d", "y")) == ["d: int64[2,?]", "y: float32[2,?]"]
    tied = "g (float[a, 3] x, float[b, 3] p, float[t, 3] m) => (y)"
    tied += " { c = Concat <axis = 0> (x, p) d = Add (c, m) y = com.microsoft.Gelu (d) }"
    assert describe(named(tied, "y")) == ["y: float32[?,3]"]
    reshaped = "g (float[n, 3] x, int64[r] s) => (y) { d = Reshape (x, s) y = com.microsoft.Gelu (d) }"
    assert describe(named(reshaped, "y")) == ["y: float32[...]"]


UNTOLD = "g (float[n, 3] x, int64 axis) => (y) { y = com.microsoft.ExpandDims (x, axis) }"


@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_an_output_that_nothing_declares_is_reported_by_the_first_run(backend: gx.BackendType) -> None:
    data = named(UNTOLD, "y").SerializeToString()
    model = gx.load(data)
    assert str(model.outputs[0]) == "y: unknown[...]"
    assert model.outputs[0].spec.dtype == UNKNOWN
    with gx.Worker(model, backend=backend) as worker:
        worker.schedule({"x": X, "axis": np.int64(1)})
        np.testing.assert_array_equal(worker.read_output("y"), X[:, None])
    session = compat.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [(each.name, each.type) for each in session.get_outputs()] == [("y", "tensor(unknown)")]


def test_a_program_holds_cases_of_an_output_that_nothing_declares(tmp_path: Path) -> None:
    model = gx.load(named(UNTOLD, "y").SerializeToString())
    case = gx.Case({"x": X, "axis": np.int64(1)}, {"y": X[:, None]})
    gx.Program.build({"forward": model}, cases={"forward": [case]}).save(tmp_path / "untyped.gxp")
    with gx.Program.load(tmp_path / "untyped.gxp").load_method("forward", backend=CPU) as method:
        assert method.method_meta.num_outputs == 1


def test_a_memory_needs_an_output_whose_type_is_declared() -> None:
    with pytest.raises(gx.InputError, match="the output's type can't be inferred"):
        gx.load(named(UNTOLD, "y").SerializeToString()).bind_state({"y": "x"})


def test_an_extracted_model_and_one_saved_again_keep_their_outputs(tmp_path: Path) -> None:
    onnx.save(named(ADDED, "y"), tmp_path / "whole.onnx")
    onnx.utils.extract_model(str(tmp_path / "whole.onnx"), str(tmp_path / "part.onnx"), ["x"], ["d"], check_model=False)
    model = gx.load(tmp_path / "part.onnx")
    model.save(tmp_path / "again.onnx")
    assert [str(port) for port in model.outputs] == ["d: float32[n,3]"]
    assert [str(port) for port in gx.load(tmp_path / "again.onnx").outputs] == ["d: float32[n,3]"]


NEGATIVE = {
    "declared": "(float[-3] x) => (y) <int64[1] s = {0}, int64[1] e = {9}> { y = Slice(x, s, e) }",
    "made": """(float[3] x) => (y) <int64[2] p = {-50, -3}, int64[1] s = {0}, int64[1] e = {9}>
        { z = Pad(x, p) y = Slice(z, s, e) }""",
}


@pytest.mark.parametrize("text", NEGATIVE.values(), ids=NEGATIVE)
def test_an_extent_below_nothing_does_not_end_the_process(text: str, tmp_path: Path) -> None:
    """ONNX's own inference ends it where a Slice reads such a value, so another process tries."""
    path = tmp_path / "negative.onnx"
    path.write_bytes(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g {text}').SerializeToString())
    code = f"import gpuexec as gx\ntry: gx.load({str(path)!r})\nexcept gx.GpuexecError: pass"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

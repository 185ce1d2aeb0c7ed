"""Model loading: external weights, descriptions, folded shapes, outputs, and refusals."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper, parser

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.devices.backend import Backend
from gpuexec.importer.load import NEWEST_OPSET
from tests.devices.backends import is_tracer, on
from tests.model.small_models import affine, expect_affine, make_model, ramp, trace

HEAD = '<ir_version: 10, opset_import: ["": 18, "org.none": 1]> agraph'
AFFINE = f"""{HEAD} (float[batch, 3] x) => (float[batch, 3] y) <float two = {{2}}, float one = {{1}}> {{
  [double] a = Mul (x, two) [relu] b = Relu (a) [add] y = Add (b, one)
}}"""


def proto(text: str = AFFINE) -> onnx.ModelProto:
    return parser.parse_model(text)


@pytest.mark.feature("S10")
def test_any_object_that_reads_is_a_source() -> None:
    class Decrypting:
        """A file whose bytes are not those on the disk."""

        def __init__(self, secret: bytes) -> None:
            self._inner = io.BytesIO(secret)

        def read(self, size: int = -1) -> bytes:
            return bytes(byte ^ 0x5A for byte in self._inner.read(size))

    secret = bytes(byte ^ 0x5A for byte in proto().SerializeToString())
    assert gx.load(Decrypting(secret)).inputs[0].name == "x"  # type: ignore[arg-type]


@pytest.mark.feature("S11")
def test_weights_lie_in_files_beside_the_model(tmp_path: Path, backend: Backend) -> None:
    model = proto(f"{HEAD} (float[n, 64] x) => (float[n, 64] y) {{ y = Add (x, w) }}")
    weight = np.arange(64, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "model.onnx")
    with gx.Worker(gx.load(tmp_path / "model.onnx"), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(np.ones((2, 64), np.float32))[0], np.ones((2, 64)) + weight)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(gx.ModelError, match=r"%w.*weights\.bin"):
        gx.load(tmp_path / "model.onnx")


@pytest.mark.feature("B5", "S5", "S7", "S12")
def test_a_model_reports_what_it_is() -> None:
    source = proto()
    source.producer_name, source.producer_version, source.doc_string = "maker", "2.1", "doubles and adds"
    source.metadata_props.add(key="author", value="someone")
    model = gx.load(source)
    assert [(p.name, p.spec.dtype.name, p.spec.dims) for p in model.inputs] == [("x", "float32", ("batch", 3))]
    assert [(p.name, str(p.spec)) for p in model.outputs] == [("y", "float32[batch,3]")]
    info = model.info
    assert (info.producer, info.opset, info.ir_version) == ("maker 2.1", 18, 10)
    assert (info.metadata, info.description) == ({"author": "someone"}, "doubles and adds")
    assert info.operators == {"Mul": 1, "Relu": 1, "Add": 1} and info.node_count == 3


@pytest.mark.feature("B5", "E8")
def test_a_model_is_the_same_after_its_workers(backend: Backend) -> None:
    model = affine()
    nodes, constants = model.graph.nodes, dict(model.graph.constants)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(ramp(2, 3))
    assert model.graph.nodes is nodes and dict(model.graph.constants) == constants
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.graph.nodes = ()  # type: ignore[misc]
    for array in constants.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.feature("B35")
def test_constants_are_looked_at_by_name() -> None:
    constants = {value.name: array.item() for value, array in affine().graph.constants.items()}
    assert constants == {"two": 2.0, "one": 1.0}


@pytest.mark.feature("B7")
def test_a_graph_reports_who_makes_and_reads_a_value() -> None:
    graph = affine().graph
    values = {value.name: value for value in graph.values()}
    assert graph.producers()[values["b"]].name == "relu"
    assert [node.name for node in graph.consumers()[values["b"]]] == ["add"]


@pytest.mark.feature("S79")
def test_a_model_is_described_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    source = proto()
    source.producer_name = "maker"
    path.write_bytes(source.SerializeToString())
    assert main(["info", str(path)]) == 0
    reported = capsys.readouterr().out
    for part in ("maker", "float32[batch,3]", "3 nodes", "weights 8 bytes", "Mul", "Relu", "Add"):
        assert part in reported, part


@pytest.mark.feature("S9")
def test_shape_arithmetic_is_folded_and_read_by_nobody() -> None:
    text = f"""{HEAD} (float[n, 2, 3] x) => (float[n, m] y) <int64 zero = {{0}}, int64[1] rest = {{-1}}> {{
      s = Shape (x) n = Gather (s, zero) axes = Constant <value_ints = [0]> () one = Unsqueeze (n, axes)
      shape = Concat <axis = 0> (one, rest) r = Reshape (x, shape) y = Neg (r)
    }}"""
    backends = [gx.BackendType.CPU, gx.BackendType.SIMULATOR]
    for backend in backends:
        with gx.Worker(gx.load(proto(text)), backend=backend, strict=True) as worker:
            for rows in (4, 2):
                x = ramp(rows, 2, 3)
                np.testing.assert_array_equal(worker.run(x)[0], -x.reshape(rows, 6))
            assert [plan.segment.origins for plan in worker.plans] == [worker.plans[0].segment.origins]
            assert len(worker.plans[0].segment.commands) == 1
            assert worker.report().host_reads == ()


@pytest.mark.feature("B20", "S5")
@on("cpu", "simulator", "tracer")
def test_inner_values_are_promoted_to_outputs(backend: Backend) -> None:
    x = ramp(2, 3)
    with gx.Worker(gx.load(proto(), outputs=["b", "y", "a"]), backend=backend) as worker:
        run = worker.schedule(x)
        assert list(run.outputs) == ["b", "y", "a"]
        if not is_tracer(backend):
            for got, expected in zip(worker.run(x), (np.maximum(2 * x, 0), expect_affine(x), 2 * x), strict=True):
                np.testing.assert_array_equal(got, expected)
        else:
            assert trace(backend).count("launch") == 1  # one region makes all three
    with pytest.raises(gx.InputError, match=r"no value 'c'; its outputs are y; its last nodes make y, b, a"):
        gx.load(proto(), outputs=["c"])


@pytest.mark.feature("B21")
def test_outputs_left_out_take_their_layers_along() -> None:
    model = gx.load(proto(), outputs=["a"])
    assert [node.name for node in model.graph.nodes] == ["double"]
    assert {value.name for value in model.graph.constants} == {"two"}
    odd = AFFINE.replace("[add] y = Add (b, one)", "[add] y = org.none.Odd (b)")
    with pytest.raises(gx.UnsupportedError, match="Odd"):
        gx.load(proto(odd))
    assert [node.name for node in gx.load(proto(odd), outputs=["b"]).graph.nodes] == ["double", "relu"]


@pytest.mark.feature("S14")
@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("MaxPool <kernel_shape = [2], auto_pad = 'SOME'> (x)", "auto_pad .* got 'SOME'"),
        ("Resize <mode = 'septic'> (x, nothing, scales)", "mode .* got 'septic'"),
        ("LSTM <hidden_size = 1, direction = 'sideways'> (x, w, w)", "direction .* got 'sideways'"),
        ("Softmax <axis = 9> (x)", "axis .* got 9"),
    ],
    ids=lambda text: text.split()[0],
)
def test_an_attribute_is_never_replaced_by_a_default(node: str, message: str, backend: Backend) -> None:
    text = f"""{HEAD} (float[1, 1, 4] x, float[1, 4, 4] w) => (float[a, b, c] y)
      <float[0] nothing = {{}}, float[3] scales = {{1, 1, 2}}> {{ [subject] y = {node.replace("'", '"')} }}"""
    with gx.Worker(gx.load(proto(text)), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=rf"'subject'.*{message}"):
            worker.schedule([ramp(1, 1, 4), ramp(1, 4, 4)])
        assert worker.report().runs == 0


@pytest.mark.feature("B22", "S75")
def test_contradictions_are_errors_and_all_of_them_are_reported() -> None:
    text = f"{HEAD} (float[2] x) => (float[2] y, float[2] z) {{ [one] a = Relu (gone) [two] y = Add (a) }}"
    with pytest.raises(gx.ModelError) as caught:
        gx.load(proto(text))
    assert "'one': input %gone is made by no node" in str(caught.value)
    twice = f"{HEAD} (float[2] x) => (float[2] y) {{ y = Relu (x) [again] y = Neg (x) }}"
    with pytest.raises(gx.ModelError, match="'again': output %y is made by Relu 'y' already"):
        gx.load(proto(twice))
    unmade = f"{HEAD} (float[2] x) => (float[2] y, float[2] z) {{ y = Relu (x) }}"
    with pytest.raises(gx.ModelError, match="z"):
        gx.load(proto(unmade))
    short = f"{HEAD} (float[2] x) => (float[2] y) {{ a = Relu (x, x) y = Add (a) }}"
    with pytest.raises(gx.ModelError, match=r"(?s)Relu 'a' takes at most 1.*Add 'y' lacks its input 1"):
        gx.load(proto(short))


@pytest.mark.feature("S15")
@pytest.mark.parametrize("opset", [7, 13, NEWEST_OPSET])
def test_opsets_within_the_range_give_one_result(opset: int, backend: Backend) -> None:
    source = proto()
    source.opset_import[0].version = opset
    with gx.Worker(gx.load(source), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("S16")
@pytest.mark.parametrize(
    "code",
    [
        TensorProto.INT64,
        TensorProto.INT8,
        TensorProto.BOOL,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.BFLOAT16,
    ],
)
def test_element_types_stay_what_they_are(code: int, backend: Backend) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(code)
    node = helper.make_node("Where", ["x", "x", "x"] if code == TensorProto.BOOL else ["c", "x", "x"], ["y"])
    constants = {} if code == TensorProto.BOOL else {"c": np.array([True, False, True])}
    big = 2**53 + 1 if code == TensorProto.INT64 else 1
    x = np.array([0, big, 1], dtype)
    with gx.Worker(make_model([node], {"x": (3,)}, {"y": (3,)}, code, **constants), backend=backend) as worker:
        y = worker.run(x)[0]
    assert isinstance(y, np.ndarray) and y.dtype == dtype
    np.testing.assert_array_equal(y, x)

"""Where each node ran, as metadata of a model: `Report.annotate`, and ``explain --onnx``."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import main
from tests.model.small_models import affine
from tests.model.staged_models import MODELS, inputs

DIGITS = Path(__file__).resolve().parents[2] / "examples/models/digits.onnx"


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the metadata of a file's nodes by name, without the package's prefix."""
    model = onnx.load(path)
    onnx.checker.check_model(model)
    return {
        node.name: {entry.key.removeprefix("gpuexec."): entry.value for entry in node.metadata_props}
        for node in model.graph.node
    }


@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_report_says_of_each_node_where_it_ran(backend: str, tmp_path: Path) -> None:
    model, x = gx.load(DIGITS), np.zeros((2, 1, 8, 8), np.float32)
    with gx.Worker(model, backend=backend) as worker, gx.Profiler() as profiler:
        worker.run(x)
        report = worker.report()
        report.annotate(model).save(tmp_path / "untimed.onnx")
        report.annotate(model, profiler).save(tmp_path / "timed.onnx")
    untimed, timed = read(tmp_path / "untimed.onnx"), read(tmp_path / "timed.onnx")
    assert timed.keys() == {node.name for node in onnx.load(DIGITS).graph.node}
    conv, relu, norm = (timed[f"layer1/{name}"] for name in ("conv", "relu", "norm"))
    assert conv == relu == norm and conv["region"] == "layer1/conv+layer1/relu" and conv["device"] == report.backend
    assert (conv["kernel"] == "NumPy") == (backend == "cpu") and int(conv["bytes"]) > 0
    assert float(conv["us"]) > 0 and conv["us_is"] == "measured" and "us" not in untimed["layer1/conv"]
    assert timed["flatten"]["device"] == "none" and "nothing is left of it" in timed["flatten"]["reason"]
    assert "region" not in timed["head"]
    with gx.Worker(tmp_path / "timed.onnx", backend="cpu") as again, gx.Worker(model, backend="cpu") as first:
        np.testing.assert_array_equal(again.run(x)[0], first.run(x)[0])


SHAPES = """<ir_version: 10, opset_import: ["": 21]> rows (float[n, 6] x, float[6] w) => (float[m, 3] y) {
    [shape] size = Shape (x) [all] total = ReduceProd <keepdims = 0> (size)
    [three] three = Constant <value_int = 3> () [minus] minus = Constant <value_ints = [-1, 3]> ()
    [add] a = Add (x, w) [double] b = Mul (a, a) [view] y = Reshape (b, minus) }"""
BRANCHES = """<ir_version: 10, opset_import: ["": 21]> branches (float[n] x) => (float[n] y) {
    [yes] yes = Constant <value = bool {1}> ()
    [choice] y = If (yes) <then_branch = then () => (z) { [taken] z = Exp (x) },
                           else_branch = other () => (z) { [left] z = Abs (x) }> }"""


def test_shape_arithmetic_and_views_say_that_nothing_runs(tmp_path: Path) -> None:
    model = gx.load(onnx.parser.parse_model(SHAPES))
    with gx.Worker(model, backend="cpu") as worker:
        worker.run([np.ones((2, 6), np.float32), np.ones(6, np.float32)])
        worker.report().annotate(model).save(tmp_path / "shapes.onnx")
    rows = read(tmp_path / "shapes.onnx")
    assert rows["add"]["region"] == rows["double"]["region"] and rows["add"]["device"] == "cpu"
    assert rows["shape"]["device"] == "none" and "follows from shapes" in rows["shape"]["reason"]
    assert rows["view"]["device"] == "none" and "nothing is left of it" in rows["view"]["reason"]


def test_the_branch_that_was_taken_has_the_layer(tmp_path: Path) -> None:
    model = gx.load(onnx.parser.parse_model(BRANCHES))
    with gx.Worker(model, backend="cpu") as worker:
        worker.run(np.ones(3, np.float32))
        worker.report().annotate(model).save(tmp_path / "branches.onnx")
    (choice,) = [node for node in onnx.load(tmp_path / "branches.onnx").graph.node if node.op_type == "If"]
    inner = {each.name: {e.key: e.value for e in each.g.node[0].metadata_props} for each in choice.attribute}
    assert [inner[name]["gpuexec.device"] for name in ("then_branch", "else_branch")] == ["cpu", "none"]


def test_host_calls_have_their_reason_and_time(tmp_path: Path) -> None:
    model = MODELS["host call"].load()
    with gx.Worker(model, backend="simulator") as worker:
        worker.run(inputs(0))
        report = worker.report()
    (call,) = report.host_calls
    (row,) = [row for row in report.layers if row.device == "host"]
    assert (row.layer, row.reason, row.timing) == (call.node, call.why, "measured")
    assert row.us == pytest.approx(call.computed_ms * 1e3 / call.times)
    report.annotate(model).save(tmp_path / "host.onnx", allow_custom=True)
    found = {
        node.name: {entry.key: entry.value for entry in node.metadata_props}
        for node in onnx.load(tmp_path / "host.onnx").graph.node
    }
    assert found[call.node]["gpuexec.host_reason"] == call.why and found[call.node]["gpuexec.device"] == "host"


def test_annotations_are_replaced_and_other_metadata_stays(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    proto.graph.node[0].metadata_props.add(key="namespace", value="net")
    proto.graph.node[0].metadata_props.add(key="gpuexec.device", value="an old one")
    model = gx.load(proto)
    with gx.Worker(model, backend="cpu") as worker:
        worker.run(np.zeros((1, 1, 8, 8), np.float32))
        worker.report().annotate(model).save(tmp_path / "new.onnx")
    first = next(iter(read(tmp_path / "new.onnx").values()))
    assert (first["namespace"], first["device"]) == ("net", "cpu")
    assert model.info.graph.nodes[0].metadata["gpuexec.device"] == "an old one"


def test_another_model_is_refused_and_reports_travel() -> None:
    with gx.Worker(DIGITS, backend="cpu") as worker:
        worker.run(np.zeros((1, 1, 8, 8), np.float32))
        report = pickle.loads(pickle.dumps(worker.report()))
    assert "layers" in report.to_dict() and report.to_dict()["layers"][0]["device"] == "cpu"
    with pytest.raises(gx.InputError, match="No layer is of a node of 'small': the layers are 'scale'"):
        report.annotate(affine())


@pytest.mark.parametrize(
    ("options", "device", "timing"),
    [(["--backend", "cpu"], "cpu", "measured"), (["--target", "sm_90"], "sm_90", "predicted")],
)
def test_explain_writes_the_model_with_annotations(
    options: list[str], device: str, timing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    assert main(["explain", str(DIGITS), *options, "--dims", "batch=2", "--onnx", str(out)]) == 0
    assert f"written to {out}: 7 layers" in capsys.readouterr().out
    rows = read(out)
    assert (rows["head"]["device"], rows["head"]["us_is"]) == (device, timing) and float(rows["head"]["us"]) > 0


def test_explain_does_not_write_over_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(DIGITS.read_bytes())
    path = str(tmp_path / "model.onnx")
    assert main(["explain", path, "--target", "cpu", "--dims", "batch=2", "--onnx", path]) == 1
    assert "would overwrite a model" in capsys.readouterr().err
    assert (tmp_path / "model.onnx").read_bytes() == DIGITS.read_bytes()

"""The command line end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpuexec.cli import main
from tests.model.control_models import MODELS

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")
DATA = str(ROOT / "examples/data/digits.npz")
INPUT = f"image={DATA}:images"


@pytest.fixture
def free_model(tmp_path: Path) -> str:
    """A model with free dimensions, an integer input and a shape computed from a shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["sum"]),
        helper.make_node("Gather", ["sum", "i"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "free",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"]),
            helper.make_tensor_value_info("i", TensorProto.INT64, ["picked"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "picked"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "free.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_run_classifies_the_digits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "out.npz"
    options = ["--labels", f"{DATA}:labels", "--rows=-360:", "--show", "3", "--check", "--output", str(written)]
    assert main(["run", DIGITS, "--backend", "cpu", "--input", INPUT, "--repeat", "2", *options]) == 0
    text = capsys.readouterr().out
    accuracy = re.search(r"accuracy ([\d.]+) % \((\d+) of 360\)", text)
    assert accuracy is not None and float(accuracy[1]) >= 97
    assert "backend  CPU: asked for" in text
    assert re.search(r"load [\d.]+ ms, plan [\d.]+ ms, compile [\d.]+ ms, first run [\d.]+ ms", text)
    assert re.search(r"latency p50 [\d.]+ ms, p99 [\d.]+ ms over 2 runs; throughput [\d,]+ rows/s", text)
    assert "image: float32[batch,1,8,8]" in text
    assert "█" in text
    outputs = np.load(written)
    labels = np.load(DATA)["labels"][-360:]
    assert int(np.sum(outputs["logits"].argmax(axis=1) == labels)) == int(accuracy[2])


def test_run_says_why_auto_chose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", DIGITS, "--dims", "batch=2", "--repeat", "0"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"backend  (CPU|GPU_COMPUTE): \S+", text)
    assert "asked for" not in text


def test_run_fails_the_check_when_the_answers_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuexec.importer import oracle

    def wrong(path: str, feeds: dict[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
        engine, outputs = run_oracle(path, feeds)
        return engine, {name: array + 1 for name, array in outputs.items()}

    run_oracle = oracle.run_oracle
    monkeypatch.setattr(oracle, "run_oracle", wrong)
    assert main(["run", DIGITS, "--backend", "cpu", "--dims", "batch=2", "--check"]) == 1
    assert "maximum error" in capsys.readouterr().out


def test_random_inputs_take_their_extents_from_dims(capsys: pytest.CaptureFixture[str], free_model: str) -> None:
    dims = ["--dims", "rows=3", "columns=4", "picked=2"]
    assert main(["run", free_model, "--backend", "cpu", "--check", *dims]) == 0
    text = capsys.readouterr().out
    assert "x: random float32[3,4]" in text
    assert "i: random int64[2]" in text
    assert "y: float32[3,2]" in text


def test_info_counts_what_stands_in_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(MODELS["loop_in_if_in_scan"].parse(), tmp_path / "model.onnx")
    assert main(["info", str(tmp_path / "model.onnx")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "11 nodes, 11 after the load passes, 9 of them in 4 bodies of If, Loop and Scan" in printed
    assert "Loop 1" in printed


def test_info_lists_ports_and_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", DIGITS]) == 0
    text = capsys.readouterr().out
    assert "float32[batch,1,8,8]" in text
    assert re.search(r"Conv\s+2", text)
    assert "opset 21" in text


def test_explain_prints_plan_arena_and_host_values(capsys: pytest.CaptureFixture[str], free_model: str) -> None:
    dims = ["--dims", "rows=3", "columns=4", "picked=2"]
    assert main(["explain", free_model, "--target", "sm_80", *dims]) == 0
    text = capsys.readouterr().out
    assert "plan for sm_80" in text
    assert re.search(r"arena [\d,]+ bytes, lower bound [\d,]+ bytes", text)
    assert re.search(r"shape\s+\S+\s+follows from shapes\s+16|zeros\s+\S+\s+follows from shapes\s+\d+", text)


def test_explain_counts_memory_requests_of_each_launch(capsys: pytest.CaptureFixture[str], free_model: str) -> None:
    dims = ["--dims", "rows=3", "columns=4", "picked=2"]
    assert main(["explain", free_model, "--target", "sm_80", "--count", *dims]) == 0
    launches = capsys.readouterr().out.partition("\n launch ")[2].partition("\n arithmetic ")[0].splitlines()
    assert launches[0].split()[:4] == ["node", "requests", "lanes", "off"]
    rows = {line.split()[0]: line.split() for line in launches[1:-1]}
    assert any(re.fullmatch(r"\w+\.cu:\w+.*", name) for name in rows)
    requests, lanes_off, sectors, ratio = rows["total"][1:5]
    assert int(requests) > 0 and lanes_off.endswith("%") and int(sectors) > 0 and float(ratio) >= 1
    assert launches[-1] == "L2 of 40 MiB, empty before each launch"


def test_explain_counts_multiply_adds_beside_those_needed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", DIGITS, "--target", "sm_90", "--dims", "batch=4", "--count"]
    assert main(command) == 0
    rows = {
        words[0]: words for words in map(str.split, capsys.readouterr().out.partition("\n arithmetic ")[2].splitlines())
    }
    # Four rows of ten columns, of a block's 32; each needs 320 terms.
    assert rows["gemv.cu:gemv_along_columns<4>"][-5:] == ["40,960", "12,800", "3.20", "0%", "0"]
    assert rows["softmax.cu:softmax_short<float>"][-5:] == ["0", "0", "-", "0%", "96"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (head,) = [each for each in found["counts"] if each["origin"] == "head"]
    assert (head["issued_multiply_adds"], head["needed_multiply_adds"], head["issue_ratio"]) == (40960, 12800, 3.2)
    assert head["ffma"] == {"calls": 1280, "issued": 40960, "taken": 40960}
    (predicted,) = found["predictions"]
    assert len(found["counts"]) == sum(row["kernel"] != "fill" for row in predicted["commands"])


def test_explain_predicts_times_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DIGITS, "--target", "sm_90", "--dims", "batch=4"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"predicted for sm_90 \(H100 SXM\): [\d.]+ us, at least [\d.]+ us; \d+ launches", text)
    assert re.search(r"softmax.cu:softmax_short<float>\s+softmax\s+launch\s+[\d.]+", text)


def test_explain_counts_kernels_of_generated_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "region.onnx"
    text = "agraph (float[8, 6] x) => (float[8, 6] y) { a = Exp (x) b = Abs (a) y = Neg (b) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), path)
    assert main(["explain", str(path), "--target", "sm_90"]) == 0
    assert "kernels 1, 1 of generated text" in capsys.readouterr().out


def test_explain_prints_generated_text_with_the_names_of_nodes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "gated.onnx"
    text = "agraph (float[8, 6] x, float[6] w) => (float[8, 6] y) { a = Mul (x, w) s = Sigmoid (a) y = Mul (x, s) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for node, name in zip(model.graph.node, ("scale", "gate", "product"), strict=True):
        node.name = name
    onnx.save(model, path)
    assert main(["explain", str(path), "--target", "sm_90", "--source", "gate"]) == 0
    printed = capsys.readouterr().out
    assert "flat.cu: flat<Flat_" in printed and "Sigmoid::apply(v0, 0, 0));  // Sigmoid gate\n" in printed
    assert main(["explain", str(path), "--target", "sm_90", "--source", "scale+gate+product"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["explain", str(path), "--target", "sm_90", "--source", "gates"]) == 1
    assert "node 'gates'; there are such of 3 nodes, like 'gate'" in capsys.readouterr().err


def test_explain_names_the_steps_of_rows_that_stand_in_phases(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.onnx"
    text = """agraph (float[200, 9000] x, float[9000] w) => (float[200, 9000] y) {
        a = Mul (x, w) s = Softmax <axis = -1> (a) b = Neg (w) y = Add (s, a) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for node, name in zip(model.graph.node, ("scale", "weigh", "apart", "residual"), strict=True):
        node.name = name
    onnx.save(model, path)
    assert main(["explain", str(path), "--target", "sm_90", "--source", "weigh"]) == 0
    printed = capsys.readouterr().out
    assert "// rows.cu: rows<Rows_" in printed
    named = [line.partition("  // ")[2] for line in printed.splitlines() if "= round_to<" in line]
    assert named == ["Mul scale", "Mul scale", "Softmax weigh", "Add residual"]


@pytest.mark.parametrize("target", ["sm_90", "pixel_90"])
def test_explain_names_the_steps_of_windows_and_views(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "windows.onnx"
    text = """agraph (float[4, 6] x, float[4, 6] k, float[12, 4] w) => (float[12, 4] y) {
        a = Neg (x) b = Exp (k) c = Concat <axis = 1> (a, b) t = Transpose (c) y = Mul (t, w) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for node, name in zip(model.graph.node, ("first", "second", "beside", "turn", "weigh"), strict=True):
        node.name = name
    onnx.save(model, path)
    assert main(["explain", str(path), "--target", target, "--source", "turn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.partition("  // ")[2] for line in lines if re.match(r" *const \S+ v\d", line)]
    assert named == ["Neg first", "Exp second", "Concat beside", "Mul weigh"]


def test_explain_says_what_has_no_blits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "narrow.onnx"
    text = """agraph (int8[4, 6] x, int64[3] i, float[2, 5000] r) => (int8[7, 6] y, float[2, 5000] z) {
        a = Gather (x, i) y = Concat <axis = 0> (a, x) p = Neg (r) q = Softmax <axis = -1> (p) z = Abs (q) }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), path)
    assert main(["explain", str(path), "--target", "sm_90"]) == 0
    assert "are no region here" not in capsys.readouterr().out
    assert main(["explain", str(path), "--target", "pixel_90"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "its blits would read or write int8" in printed
    assert "rows so long are folded otherwise by the blit of Softmax" in printed


def test_explain_says_why_a_softmax_between_products_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 20]> g (float[4, 5] q, float[5, 6] k, float[6, 7] v) => (float[4, 7] y) '
        "{ s = MatMul (q, k) p = Softmax <axis = %d> (s) y = MatMul (p, v) }"
    )
    for axis, reason in ((0, "it is over axis 0 of 2, not the last one"), (1, None)):
        path = tmp_path / f"{axis}.onnx"
        onnx.save(onnx.parser.parse_model(text % axis), path)
        assert main(["explain", str(path), "--target", "sm_90"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert ("is no attention" in printed) == (reason is not None) and (reason or "") in printed


def test_explain_prints_predictions_as_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DIGITS, "--target", "sm_80", "--json", "--dims", "batch=4"]) == 0
    said = json.loads(capsys.readouterr().out)
    (found,) = said["predictions"]
    assert (said["target"], found["gpu"]["name"], said["is_whole"]) == ("sm_80", "A100 SXM", True)
    assert found["launches"] == len(found["commands"]) == len(said["plans"][0]["commands"]) >= 7
    assert (found["transposes"], found["transposed_nbytes"]) == (0, 0)
    assert found["moved_nbytes"] >= found["minimum_nbytes"] > 0
    assert found["moved_nbytes"] == sum(row["nbytes"] for row in found["commands"])
    assert found["flops"] == sum(row["flops"] for row in found["commands"])
    assert found["floor_us"] < found["predicted_us"] <= sum(row["predicted_us"] for row in found["commands"])
    assert {"kernel", "origin", "blocks", "waves", "nbytes", "flops", "bound_by", "predicted_us"} <= set(
        found["commands"][0]
    )


@pytest.mark.parametrize(
    ("target", "knob", "is_early"), [("sm_90", "1", True), ("sm_90", "0", False), ("sm_80", "1", False)]
)
def test_explain_predicts_what_early_launches_save(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str, knob: str, is_early: bool
) -> None:
    monkeypatch.setenv("GPUEXEC_DEPENDENT_LAUNCH", knob)
    assert main(["explain", DIGITS, "--target", target, "--json", "--dims", "batch=4"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    early = [row["is_early"] for row in found["commands"]]
    launches = [row["kernel"] not in ("copy", "fill") for row in found["commands"]]
    launches[launches.index(True)] = False
    assert early == (launches if is_early else [False] * len(early)) and found["early"] == sum(early)


def test_explain_predicts_the_sizes_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    flops = []
    for batch in (5, 8):  # of one size class
        assert main(["explain", DIGITS, "--target", "sm_90", "--json", "--dims", f"batch={batch}"]) == 0
        flops.append(json.loads(capsys.readouterr().out)["predictions"][0]["flops"])
    assert flops[0] < 0.7 * flops[1]


def test_doctor_names_each_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"CPU\s+yes", text)
    assert re.search(r"AUTO takes (CPU|GPU_COMPUTE): \S+", text)
    assert "driver" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "no-such.onnx"], "no-such.onnx"),
        (["run", DIGITS, "--input", f"picture={DATA}:images"], "no input 'picture'; it has image"),
        (["run", DIGITS, "--input", f"image={DATA}:labels"], "Input 'image' expects float32[batch,1,8,8]"),
        (["run", DIGITS, "--input", DATA], "none of them an input (image)"),
        (["run", DIGITS, "--dims", "batch"], "is not NAME=N"),
        (["run", DIGITS, "--rows", "first"], "is not A:B"),
        (["run", DIGITS, "--input", INPUT, "--labels", DATA], "holds images, labels"),
        (["explain", DIGITS, "--target", "sm_52"], "older than sm_75"),
        (["explain", DIGITS, "--target", "cpu", "--count"], "--count counts what CUDA kernels do, got --target 'cpu'"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main([*options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gpuexec: ")
    assert len(error.strip().splitlines()) == 1

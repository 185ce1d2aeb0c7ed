"""Smoke tests of the benchmarks: they run, measure and write; no figure is judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from tests.bench import (
    arenas,
    batching,
    compiling,
    cpu_models,
    cpu_suite,
    decoding,
    host_time,
    measure,
    memory_requests,
    overlap,
    predictions,
    regions,
    run,
    weights,
)
from tests.bench.cpu_models import open_onnxruntime, open_reference
from tests.bench.decoders import make_gpt2
from tests.bench.measure import Bystanders, interleave, percentile
from tests.bench.models import SMALL_MODELS, ModelBuilder
from tests.ops.counted_launch import CountedCase


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_models_give_what_other_engines_give(name: str) -> None:
    bench = SMALL_MODELS[name]()
    with gx.Worker(gx.load(bench.data), backend=gx.BackendType.CPU) as worker:
        found = worker.run(bench.inputs)[0]
    for engine in (open_onnxruntime(bench.data, 1), open_reference(bench.data)):
        np.testing.assert_allclose(found, engine(bench.inputs)[0], rtol=1e-3, atol=1e-5)


def test_percentiles_are_samples() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(samples, share) for share in (0.0, 0.2, 0.5, 0.99, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]


def test_contenders_take_turns_and_get_the_calls_asked_for() -> None:
    calls: list[str] = []
    samples = interleave({name: lambda name=name: calls.append(name) for name in "ab"}, 5, 60.0, burst=2)  # type: ignore[misc]
    assert "".join(calls) == "aabbaabbab"
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 5, "b": 5}


def test_bystanders_are_what_the_machine_did_beyond_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(0.0, 10.0, 4.0), (2.0, 14.0, 5.0)])
    monkeypatch.setattr(measure, "_read_times", lambda: next(readings))
    with Bystanders() as busy:
        pass
    readings = iter([(0.0, 10.0, 4.0), (2.0, 11.0, 4.9)])
    with Bystanders() as quiet:
        pass
    assert busy.cores == pytest.approx(1.5)
    assert not busy.is_quiet
    assert quiet.cores == pytest.approx(0.05)
    assert quiet.is_quiet


@pytest.mark.parametrize("mode", memory_requests.MODES)
def test_requests_of_a_node_are_counted_in_count_mode_alone(mode: str) -> None:
    found = memory_requests.run_case(CountedCase("Softmax", "softmax_short", {"x": (4, 64)}), mode)
    assert found["seconds"] > 0 and found["peak_nbytes"] > 1 << 20
    if mode == "count":
        assert (found["node"], found["sectors"]) == ("Softmax 4x64", 1.0)
        assert found["kernel"] == "softmax.cu:softmax_short<float>"
    else:
        assert "sectors" not in found


def test_the_plan_of_100_commands_has_100() -> None:
    with gx.Worker(host_time.load_commands(100), backend=host_time.open_tracer()) as worker:
        plan = worker.prepare(np.ones((16, 64), np.float32))
    assert len(plan.segment.commands) == 100


def test_overlapping_commands_are_two_that_nothing_orders() -> None:
    with gx.Worker(gx.load(overlap.make_model("sleep", 2)), backend=gx.BackendType.CPU) as worker:
        plan = worker.prepare()
    segment = plan.segment
    assert len(segment.commands) == 2
    assert not segment.edges


def test_tables_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_models, "MODELS", SMALL_MODELS)
    monkeypatch.setattr(cpu_suite, "MODELS", SMALL_MODELS)
    monkeypatch.setattr(overlap, "COMMAND_MS", 1.0)
    monkeypatch.setattr(batching, "QUESTIONS", {"digits": 1})
    monkeypatch.setattr(arenas, "SEEDS", range(1, 2))
    monkeypatch.setattr(weights, "SIDE", 64)
    monkeypatch.setattr(memory_requests, "NUMBERS", (12,))
    monkeypatch.setattr(compiling, "MODELS", {"mlp": SMALL_MODELS["mlp"]})
    monkeypatch.setattr(predictions, "MODELS", {"mlp": (SMALL_MODELS["mlp"], predictions.PRECISIONS)})
    monkeypatch.setattr(decoding, "MAKE", lambda: make_gpt2(1, 4, 64, 24, 2, 1, 50))
    monkeypatch.setattr(regions, "MAKERS", {"chain": SMALL_MODELS["chain"]})
    monkeypatch.delenv("GPUEXEC_MODELS", raising=False)
    file = tmp_path / "figures.json"
    assert run.main(["--model", "chain", "lstm", "--repeat", "2", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert {row["model"] for row in written["figures"][0]["rows"]} == {"chain", "lstm"}
    benches = [each["bench"] for each in written["figures"]]
    expected = ["models", "overlap", "schedule", "schedule", "budget", "batching", "decode", "decode"]
    expected += ["arenas", "arenas"]
    expected += ["weights", "compiling", "requests", "predictions", "regions", "regions"]
    assert benches == [*expected, "cpu", "cpu", "cpu", "cpu"]
    (served,) = next(each for each in written["figures"] if each["bench"] == "batching")["rows"]
    assert served["model"] == "digits" and min(served["batched"], served["ort batched"], served["ort alone"]) > 0
    assert [row["model"] for row in written["figures"][-2]["rows"]] == ["digits"]
    assert [row["model"] for row in written["figures"][-1]["rows"]] == ["chain", "lstm", "geometric mean"]
    fused, apart = written["figures"][-5]["rows"]
    assert 1 == fused["launches"] < apart["launches"]
    assert fused["MB at least"] <= fused["MB moved"] < apart["MB moved"]
    rows = written["figures"][-7]["rows"]
    assert [(row["target"], row["precision"]) for row in rows] == [
        (target, precision) for target in predictions.TARGETS for precision in predictions.PRECISIONS
    ]
    assert all(row["predicted us"] > row["floor us"] > 0 for row in rows)
    assert "Not measured: GPUEXEC_MODELS" in printed
    assert "load average" in printed


def test_regions_and_operators_on_elements_that_are_in_none_are_counted(tmp_path: Path) -> None:
    build = ModelBuilder(1)
    halves = build.node("Relu", "x"), build.node("Mul", "x", build.constant(2.0))
    masked = build.node("Trilu", build.node("Sigmoid", build.node("Add", *halves)))
    bench = build.finish("counted", (4, 8), build.node("Tanh", masked), (4, 8))
    (tmp_path / "counted.onnx").write_bytes(bench.data)
    np.savez(tmp_path / "case.npz", in_0=bench.inputs["x"], input_names=np.array(["x"]))
    (tmp_path / "manifest.json").write_text(json.dumps({"counted": {"file": "counted.onnx", "cases": ["case.npz"]}}))
    figures, failed = regions._count_folder(tmp_path)
    (row, _) = figures.to_json()["rows"]
    assert (row["flat"], row["epilogue"], row["steps"], row["alone"]) == (1, 0, 4, 1)
    assert row["why alone"] == "none beside it 1"
    assert not failed.rows


def test_models_are_counted_by_onnxruntimes_time_and_those_that_fail_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SMALL_MODELS["mlp"]()
    (tmp_path / "good.onnx").write_bytes(bench.data)
    (tmp_path / "broken.onnx").write_bytes(bench.data[:-40])
    np.savez(tmp_path / "case.npz", in_0=bench.inputs["x"], input_names=np.array(["x"]))
    rows = {name: {"file": f"{name}.onnx", "cases": ["case.npz"]} for name in ("good", "broken")}
    (tmp_path / "manifest.json").write_text(json.dumps(rows))
    monkeypatch.setattr(cpu_suite, "interleave", lambda contenders, *_: {"own": [4.0], "other": [1.0]})
    bands, slowest, named, made, failed = cpu_suite.measure_suite(tmp_path, [], 1)
    counted = [(row[0], row[1], row[2]) for row in bands.rows if row[1]]
    assert counted == [("0.5 to 2 ms", 1, 0.25), ("all", 1, 0.25)]
    assert slowest.rows == [("good", 4.0, 1.0, 0.25)] and not made.rows
    assert [row[0] for row in named.rows] == ["digits"]
    assert [row[0] for row in failed.rows] == ["broken"] and "FAILED: broken; see below." in bands.notes


def test_a_bench_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["speed"])
    assert "there is no bench 'speed'" in capsys.readouterr().err

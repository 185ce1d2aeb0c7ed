"""gpuexec bench, end to end; what it advises, of times that are given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuexec.cli import main
from gpuexec.cli.benchmark import Spread, Steady, Throughput, advise
from gpuexec.ir.target import Target

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")
BENCH = ["bench", DIGITS, "--backend", "cpu", "--shapes", "image:3x1x8x8", "--duration", "0.02", "--warmup", "0"]
GPU, CPU = Target.named("sm_90"), Target.named("cpu")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert not said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_bench_measures_every_part(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *BENCH, "--backend", backend, "--in-flight", "3", "--check")
    assert (found["backend"], found["inputs"]) == (backend, {"image": "float32[3,1,8,8]"})
    assert set(found["beginning"]) == {"load_ms", "plan_ms", "compile_ms", "upload_ms", "first_run_ms"}
    assert all(ms >= 0 for ms in found["beginning"].values()) and found["beginning"]["plan_ms"] > 0
    steady = found["steady"]
    assert (steady["h2d"] is None) == (backend == "cpu")  # the CPU reads inputs where they lie
    for name in ("latency", "enqueue", "compute", "d2h"):
        spread = steady[name]
        order = [spread[each] for each in ("min_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms")]
        assert spread["runs"] >= 10 and order[0] > 0 and order == sorted(order), name
    assert [each["in_flight"] for each in steady["throughput"]] == [1, 3]
    assert all(each["rows_per_s"] == pytest.approx(3 * each["runs_per_s"]) for each in steady["throughput"])
    assert [(each["output"], each["is_close"]) for each in found["checks"]] == [
        ("logits", True), ("probabilities", True)
    ]  # fmt: skip
    assert found["advice"]


def test_bench_prints_a_table_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BENCH, "--in-flight", "1"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert text.splitlines()[3].split() == ["min", "mean", "p50", "p90", "p99", "max"]
    assert all(len(rows[name]) == 7 for name in ("latency", "enqueue", "compute", "D2H"))
    assert "1 in flight: " in text and "2 in flight" not in text and "Bound by " in text


def test_bench_compares_with_another_and_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run_json(capsys, *BENCH)
    before["steady"]["latency"]["p50_ms"] = 1e6
    before["device"] = "another one"
    (tmp_path / "before.json").write_text(json.dumps(before))
    assert main([*BENCH, "--compare", str(tmp_path / "before.json")]) == 0
    text = capsys.readouterr().out
    assert "another device: another one before, cpu now" in text and "another model" not in text
    (row,) = (line.split() for line in text.splitlines() if line.startswith(" latency p50 ms"))
    assert row[3] == "1,000,000.0000" and float(row[5]) < 1e-3
    found = run_json(capsys, *BENCH, "--compare", str(tmp_path / "before.json"))["compared"]["latency p50 ms"]
    assert found["before"] == 1e6 and found["ratio"] == pytest.approx(found["now"] / 1e6)


def test_bench_lets_state_that_grows_begin_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cache with room for one row would be full in the second run."""
    import gpuexec as gx
    from examples.networks import build_decoder

    path = tmp_path / "decoder.gxp"
    decoder = gx.load(build_decoder()).bind_state("auto", capacity=1)
    gx.Program.build({"forward": decoder}, backend="cpu").save(path)
    found = run_json(capsys, "bench", str(path), "--backend", "cpu", "--duration", "0.02", "--warmup", "0")
    assert found["steady"]["latency"]["runs"] >= 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--duration", "0"], "--duration must be above 0"),
        (["--duration", "nan"], "--duration must be above 0"),
        (["--in-flight", "0"], "--in-flight must be at least 1, got 0"),
        (["--compare", "no-such.json"], "--compare no-such.json: No such file"),
        (["--compare", str(ROOT / "pyproject.toml")], "is nothing that `gpuexec bench --json` prints"),
        (["--shapes", "image"], "is not INPUT:AxBxC"),
        (["--shapes", "image:3x2x8x8"], "input image: float32[batch,1,8,8] does not take that shape"),
        (["--shapes", "picture:3"], "no input 'picture'; it has image"),
        (
            ["--shapes", "image:3x1x8x8", "--dims", "batch=2"],
            "dimension 'batch' of input 'image' is 3, and 2 elsewhere",
        ),
        (
            ["--input", f"image={ROOT / 'examples/data/digits.npz'}:images", "--shapes", "image:3x1x8x8"],
            "'image' is read from a file",
        ),
    ],
)
def test_bench_refuses_what_it_can_not_measure(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BENCH, *options]) == 1
    assert message in capsys.readouterr().err


def spread(ms: float, p90: float | None = None) -> Spread:
    return Spread(10, ms, ms, ms, ms if p90 is None else p90, ms * 2, ms * 2)


STEADY = Steady(spread(10.0), spread(0.1), spread(1.0), spread(5.0), spread(1.0), (Throughput(1, 10, 100.0, 100.0),))


@pytest.mark.parametrize(
    ("steady", "target", "begins"),
    [
        (STEADY, GPU, ["Bound by compute"]),
        (replace(STEADY, enqueue=spread(5.0)), GPU, ["Bound by the host"]),
        (replace(STEADY, enqueue=spread(5.0)), CPU, ["Bound by compute"]),
        (replace(STEADY, latency=spread(11.0)), CPU, ["Bound by the host"]),
        (replace(STEADY, h2d=spread(4.5)), GPU, ["Bound by copies"]),
        (replace(STEADY, h2d=None, d2h=None), GPU, ["Bound by compute"]),
        (replace(STEADY, compute=spread(5.0, 7.0)), GPU, ["Bound by compute", "Unstable"]),
        (replace(STEADY, compute=spread(5.0, 7.0)), CPU, ["Bound by compute"]),
        (replace(STEADY, latency=spread(10.0, 14.0)), CPU, ["Bound by compute", "Unstable"]),
    ],
)
def test_advice_names_what_takes_longest(steady: Steady, target: Target, begins: list[str]) -> None:
    sentences = advise(steady, target)
    assert len(sentences) == len(begins)
    assert all(sentence.startswith(each) for sentence, each in zip(sentences, begins, strict=True))

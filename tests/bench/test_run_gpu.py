"""Rehearsal of the GPU benchmarks: on the simulator, over the stand-ins for CuPy, the driver and PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.ir.plan import Segment
from gpuexec.ir.precision import STRICT
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.bench import gpu_contenders, gpu_prediction, run_gpu, torch_standin
from tests.bench.architectures import ARCHITECTURES, SMALL_ARCHITECTURES
from tests.bench.gpu_ceilings import read_ceilings
from tests.bench.gpu_commands import group_alike, measure_commands
from tests.bench.gpu_contenders import COMPILED, EAGER, GRAPH, MAX_ERRORS, OURS, Budget, Contender, Turns
from tests.bench.gpu_kernels import list_small_cases, measure_kernels, repeat_segment
from tests.bench.gpu_launches import measure_launches
from tests.bench.gpu_models import measure_model
from tests.bench.models import SMALL_MODELS
from tests.bench.run_gpu import PARTS, Bench, Processes
from tests.bench.tables import Figures
from tests.devices.cupy_standin import Standin, install
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import make_simulator
from tests.execution.weights.packed_models import recalling, weight

SMALL = ["--device", "simulator", "--small"]
ONCE, LONG = Turns(1, 1, 1), 600.0
# What no stand-in is for.
ABSENT = ("cupy: ", "triton: ", "jax: ")


@pytest.fixture
def cuda_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    below = make_simulator()
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path))
    device = CudaDevice()
    yield device
    device.close()
    below.close()


@pytest.fixture
def simulated() -> Backend:
    return Backend(run_gpu.open_device("simulator"), gx.BackendType.GPU_COMPUTE, "tested")


def rehearse(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run the bench in this process; return what it wrote as JSON and as text."""
    options = run_gpu._parse([*SMALL, *arguments, "--out", str(tmp_path)])

    def run(name: str, limit_s: float, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return run_gpu.run_part(options, name, limit_s, found)

    def warm(names: Any, last: str, limit_s: float) -> list[dict[str, Any]]:
        return [table for name in (last, *names) for table in run(name, limit_s, [])]

    assert Bench(options, run, warm).run() == 0
    (path,) = tmp_path.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".txt").read_text()


@pytest.mark.long
def test_every_part_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_standin.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(run_gpu, "SMALL_MODELS", {name: SMALL_MODELS[name] for name in ("mlp", "chain")})
    written, text = rehearse(tmp_path)
    assert "simulator" in written["machine"]["GPU"]
    assert list(written["seconds"]) == list(PARTS)
    tables = {table["title"]: table for table in written["figures"]}
    assert not [title for title in tables if "no figures" in title or "dropped" in title]
    notes = [note for table in written["figures"] for note in table["notes"] if not note.startswith(ABSENT)]
    assert [note for note in notes if any(word in note for word in ("not measured", "DIFFERS", "failed"))] == [
        "RawKernel and packed launch: not measured, this device launches in one way."
    ]
    for name in ARCHITECTURES:
        (table,) = (t for title, t in tables.items() if title.startswith(f"{name} on") and "contender" in title)
        assert [row["by"] for row in table["rows"]] == [OURS, EAGER, GRAPH, COMPILED]
        assert all(float(row["max error"]) < MAX_ERRORS[STRICT] and row["in a row p50"] > 0 for row in table["rows"])
        assert name in text
        (commands,) = (t for title, t in tables.items() if title.startswith(f"{name} on") and "commands" in title)
        assert all(row["us p50"] > 0 for row in commands["rows"])
    summary = written["figures"][-1]["rows"]
    models = [name.removeprefix("model ") for name in PARTS if name.startswith("model ")]
    assert [row["model"] for row in summary] == [*models, "mlp", "chain"]
    assert all(row["fastest other / ours"] > 0 for row in summary[: len(ARCHITECTURES)])
    (kernels,) = (table for title, table in tables.items() if title.startswith("Kernels"))
    assert all(row["torch p50 (us)"] > 0 and row["of ceiling"] for row in kernels["rows"])
    assert {row["model"] for row in tables["Compiled by torch.compile beforehand, side by side"]["rows"]} == {
        *ARCHITECTURES
    }


def test_architectures_are_measured_in_a_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_standin.install(monkeypatch)
    written, text = rehearse(tmp_path, "--precision", "fp16", "--without", COMPILED, "gpt2_decode")
    assert [path.name for path in tmp_path.glob("*.txt")] == ["bench-gpu-fp16.txt"]
    assert "Architectures in fp16." in text
    (table,) = (table for table in written["figures"] if "contender" in table["title"])
    errors = {row["by"]: float(row["max error"]) for row in table["rows"]}
    assert list(errors) == [OURS, EAGER, GRAPH] and 0 < errors[OURS] < MAX_ERRORS["fp16"]
    assert table["notes"][0].startswith("fp16: ")


def test_models_commands_kernels_and_every_form_of_launch_run_on_the_cuda_device(cuda_device: CudaDevice) -> None:
    backend = Backend(cuda_device, gx.BackendType.GPU_COMPUTE, "tested")
    _, runs = measure_model(backend, SMALL_MODELS["mlp"], ONCE, Budget(LONG))
    assert [row[1] for row in runs.rows] == [OURS]
    assert float(runs.rows[0][-1]) < 1e-5
    commands, *_ = measure_commands(cuda_device, {"mlp": SMALL_MODELS["mlp"]}, ONCE, Budget(LONG))
    assert sum(row[3] for row in commands.rows) == 4
    (kernels,) = measure_kernels(cuda_device, list_small_cases()[:1], ONCE, Budget(LONG), {})
    assert [row[0] for row in kernels.rows] == ["product"]
    (launches,) = measure_launches(cuda_device, open_other, 1)
    assert [row[0] for row in launches.rows] == ["RawKernel", "packed launch", "graph"]


def test_a_model_that_fails_is_said(cuda_device: CudaDevice) -> None:
    bench = SMALL_MODELS["mlp"]()
    bench.inputs["x"] = bench.inputs["x"][:, :3]
    backend = Backend(cuda_device, gx.BackendType.GPU_COMPUTE, "tested")
    _, figures = measure_model(backend, lambda: bench, ONCE, Budget(LONG))
    assert not figures.rows
    assert figures.notes[0].startswith("mlp failed: ")


def test_one_that_computes_something_else_is_said_and_not_timed(
    simulated: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_standin.install(monkeypatch)
    open_worker = gpu_contenders.open_worker

    def open_wrong(worker: gx.Worker, bench: Any) -> Contender:
        right = open_worker(worker, bench)
        return Contender(right.name, right.submit, right.wait, lambda: right.read() * 1.01, right.reset)

    monkeypatch.setattr("tests.bench.gpu_models.open_worker", open_wrong)
    _, runs = measure_model(simulated, SMALL_ARCHITECTURES["mobilenet_v2"], ONCE, Budget(LONG))
    rows = {row[1]: row for row in runs.rows}
    assert rows[OURS][2:9] == (None,) * 7
    assert rows[EAGER][2] is not None
    assert any(note.startswith("gpuexec: DIFFERS from torch eager by 1.0e-02") for note in runs.notes)


def test_what_is_absent_or_fails_is_a_line(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    _, runs = measure_model(simulated, SMALL_ARCHITECTURES["mobilenet_v2"], ONCE, Budget(LONG))
    assert [row[1] for row in runs.rows] == [OURS]
    assert any(note.startswith("torch: not measured, ") for note in runs.notes)
    torch = torch_standin.install(monkeypatch)
    torch.compile = lambda function, mode: 1 // 0  # type: ignore[attr-defined]
    _, runs = measure_model(simulated, SMALL_ARCHITECTURES["mobilenet_v2"], ONCE, Budget(LONG))
    assert [row[1] for row in runs.rows] == [OURS, EAGER, GRAPH]
    assert any(note.startswith("torch.compile: not measured, ZeroDivisionError: ") for note in runs.notes)


def test_parts_are_dropped_by_name_when_no_time_is_left(tmp_path: Path) -> None:
    written, text = rehearse(tmp_path, "--seconds", str(run_gpu._RESERVE_S + 12), "wrappers", "kernels", "others")
    assert list(written["seconds"]) == ["wrappers"]
    assert "DROPPED kernels: " in text
    assert [table["title"] for table in written["figures"]][1:-1] == [
        "kernels: dropped, no time was left",
        "others: dropped, no time was left",
    ]


def test_parts_are_processes_and_one_that_is_killed_takes_no_other_with_it(tmp_path: Path) -> None:
    options = run_gpu._parse([*SMALL, "--out", str(tmp_path)])
    processes = Processes(options, tmp_path)
    (killed,) = processes.run("launches", 0.1, [])
    assert killed["title"] == "launches: no figures"
    assert "was killed when its time was over" in killed["notes"][0]
    wrappers, machine = processes.warm(["machine"], "wrappers", LONG)
    assert wrappers["title"].startswith("Wrappers of PTX")
    assert machine["rows"][0]["value"].startswith("simulator")


def test_what_a_killed_part_has_written_stands(tmp_path: Path) -> None:
    processes = Processes(run_gpu._parse([*SMALL, "--out", str(tmp_path)]), tmp_path)
    (tmp_path / "commands.json").write_text(json.dumps([Figures("bert", ("us",), [(3.0,)]).to_json()]))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    bert, end = processes._finish("commands", process, Budget(0.1))
    assert bert["rows"] == [{"us": 3.0}]
    assert (end["title"], end["notes"]) == (
        "commands: not to its end",
        ["Its process was killed when its time was over."],
    )


def test_bench_ends_where_there_is_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = run_gpu._parse(["--out", str(tmp_path)])
    assert Bench(options, lambda *_: [Figures("machine: no figures", (), [], ["no GPU"]).to_json()]).run() == 1
    assert "no GPU" in capsys.readouterr().out


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_gpu.main(["speed"])
    assert "there is no part 'speed'" in capsys.readouterr().err


def test_turns_alternate_and_end_with_the_budget() -> None:
    calls: list[str] = []
    contenders = [
        Contender(name, lambda name=name: calls.append(name), lambda: None, lambda: np.zeros(1))  # type: ignore[misc]
        for name in "ab"
    ]
    samples = gpu_contenders.take_turns(contenders, Turns(2, 1, 2), Budget(LONG))
    assert "".join(calls) == "aaaaaabbbbbb" * 2
    assert (len(samples["a"].latency), len(samples["a"].in_a_row)) == (2, 2)
    assert len(gpu_contenders.take_turns(contenders, Turns(9, 1, 1), Budget(-1.0))["b"].in_a_row) == 1


def test_what_takes_too_long_is_interrupted() -> None:
    notes: list[str] = []
    with gpu_contenders.noting("slow", notes), gpu_contenders.limit_time(0.05):
        while True:
            pass
    assert notes == ["slow: not measured, TimeoutError: it took more than the 0 s there were"]
    with pytest.raises(TimeoutError, match="no time is left"), gpu_contenders.limit_time(-1.0):
        pass


def test_a_segment_is_repeated_in_order() -> None:
    segment = Segment(("a", "b", "c"), ((0, 2), (1, 2)), ("A", "B", "C"))  # type: ignore[arg-type]
    repeated = repeat_segment(segment, 2)
    assert "".join(map(str, repeated.commands)) == "abcabc"
    assert repeated.edges == ((0, 2), (1, 2), (3, 5), (4, 5), (2, 3), (2, 4))


def test_weights_lie_in_the_form_that_kernels_read(simulated: Backend) -> None:
    graph, arrays = recalling(weight()).graph, {"x": np.zeros(3, np.float32)}
    template = plan_graph(graph, specs_of(arrays), simulated.device.target)
    assert any(buffer.form is not None for buffer in template.plan.buffers)
    (found,) = run_template(template, graph, arrays, simulated.device)
    np.testing.assert_array_equal(found, weight())


def test_commands_that_differ_in_places_alone_are_alike() -> None:
    plan = SMALL_ARCHITECTURES["bert_base"]().plan(Target.named("sm_90"))
    groups = list(group_alike(plan.segment.commands).values())
    assert sorted(position for group in groups for position in group) == list(range(len(plan.segment.commands)))
    alike = [group for group in groups if len(group) > 1]
    assert alike
    for first, *others in alike:
        kernels = {plan.segment.commands[i].kernel for i in (first, *others)}  # type: ignore[union-attr]
        assert len(kernels) == 1


def test_without_a_time_model_nothing_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_prediction, "_find", lambda module: None)
    assert gpu_prediction.predict(SMALL_ARCHITECTURES["mobilenet_v2"]().plan(Target.named("sm_90"))) is None
    assert gpu_prediction.fit([(None, 1.0)]) == []


def test_constants_are_fitted_to_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_prediction, "_find", lambda module: SimpleModel)
    (figures,) = gpu_prediction.fit([(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)])
    assert figures.rows == [("node_us", 1.0, 1.0), ("factor", 1.0, 2.0)]
    assert figures.notes == [
        "today: half of 3 commands are predicted within 50%, nine tenths within 50%.",
        "fitted: half of 3 commands are predicted within 0%, nine tenths within 0%.",
    ]


@dataclass(frozen=True)
class Sample:
    bounds: float
    measured_us: float


@dataclass(frozen=True)
class TimeModel:
    node_us: float = 1.0
    factor: float = 1.0

    def predict_us(self, bounds: float) -> float:
        return self.factor * bounds


class SimpleModel:
    """A time model of one constant."""

    Sample = Sample
    TIME_MODEL = TimeModel()

    @staticmethod
    def fit_time_model(samples: list[Sample]) -> TimeModel:
        return TimeModel(factor=samples[0].measured_us / samples[0].bounds)


def test_ceilings_are_the_best_of_each_kind() -> None:
    rows = [{"what": "copy", "reached": 2.0}, {"what": "copy", "reached": 3.0}, {"what": "product", "reached": 1.0}]
    assert read_ceilings([{"title": "Ceilings", "rows": rows}, {"title": "Other", "rows": [{}]}]) == {
        "copy": 3.0,
        "product": 1.0,
    }


def open_other(is_packed: bool) -> Any:
    assert not is_packed, "packed is what the device does by itself"
    return CudaDevice(packed_launch=is_packed)

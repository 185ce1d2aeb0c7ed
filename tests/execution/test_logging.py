"""What is logged under ``gpuexec``: backends, plans, kernels and fallbacks at INFO, each run at DEBUG."""

from __future__ import annotations

import logging
import re

import pytest

import gpuexec as gx
from tests.model.small_models import CPU, affine, ramp
from tests.model.staged_models import MODELS, inputs


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    assert {record.name for record in caplog.records} <= {"gpuexec"}
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_plans_and_kernels_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuexec")
    with gx.Worker(affine(), backend=gx.BackendType.SIMULATOR) as worker:
        name = worker.model.graph.name
        for _ in range(3):
            worker.run(ramp(4, 3))
    told = messages(caplog, logging.INFO)
    patterns = [
        rf"{name} runs on simulator .*: asked for",
        rf"loaded \d+ kernels of {name} in [\d.]+ ms",
        rf"planned {name} for sm_90: \d+ commands, arena \d+ bytes",
    ]
    assert len(told) == len(patterns)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(patterns, told, strict=True)), told


@pytest.mark.parametrize("name", ["host call", next(name for name, model in MODELS.items() if model.reads)])
def test_what_the_host_does_is_logged_with_its_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuexec")
    with gx.Worker(MODELS[name].load(), backend=gx.BackendType.SIMULATOR) as worker:
        for _ in range(3):
            worker.run(inputs(0))
        report = worker.report()
    reads = [f"host reads {row.value} for {row.node}: {row.why}" for row in report.host_reads]
    calls = [f"host computes {row.operator} {row.node!r}: {row.why}" for row in report.host_calls]
    assert reads or calls
    told = [line for line in messages(caplog, logging.INFO) if line.startswith("host ")]
    assert sorted(told) == sorted([*reads, *calls])


def test_each_run_is_logged_at_debug_alone(brief_runs: None, caplog: pytest.LogCaptureFixture) -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        worker.run(ramp(4, 3))
        caplog.set_level(logging.INFO, "gpuexec")
        worker.run(ramp(4, 3))
        assert not caplog.records
        caplog.set_level(logging.DEBUG, "gpuexec")
        name = worker.model.graph.name
        worker.run(ramp(4, 3))
        worker.schedule(ramp(4, 3))
        list(worker.schedule_iterable(ramp(4, 3)))
        caplog.set_level(logging.INFO, "gpuexec")
        replay = worker.record(ramp(4, 3))
        caplog.set_level(logging.DEBUG, "gpuexec")
        replay.submit()
    assert messages(caplog, logging.DEBUG) == [
        f"run 2 of {name} was computed in the call",
        f"run 3 of {name} is on the stream",
        f"run 4 of {name} begins step by step",
        f"a replay of {name} is on the stream",
    ]

"""Benchmark of launch paths, in host time: RawKernel, packed launch, and a graph of the whole segment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

import gpuexec as gx
from gpuexec.devices import recording
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Device
from gpuexec.ir.plan import Plan
from tests.bench.host_time import COMMANDS, Recorder, load_commands, measure_submit
from tests.bench.measure import percentile, repeat_ms
from tests.bench.tables import Figures

COLUMNS = ("form", "submit p50", "p99", "patched p50", "per command (us)", "schedule p50", "to NumPy p50")


def measure_launches(device: Device, open_other: Callable[[bool], Device], repeats: int) -> list[Figures]:
    """Measure a plan of 100 small commands in each form the device has."""
    figures = Figures(f"Submitting {COMMANDS} small commands on {device.name} (ms)", COLUMNS)
    if hasattr(device, "packed_launch"):
        is_packed = bool(device.packed_launch)
        other = open_other(not is_packed)
        for form, each in (
            ("RawKernel", other if is_packed else device),
            ("packed launch", device if is_packed else other),
        ):
            _measure_form(figures, form, each, repeats)
        other.close()
    else:
        _measure_form(figures, "stream", device, repeats)
        figures.notes.append("RawKernel and packed launch: not measured, this device launches in one way.")
    record_graph = getattr(recording, "record_graph", None)
    if record_graph is None:
        figures.notes.append("graph: not measured, recordings have no graph form here.")
    else:
        plan, _, _ = _run_worker(device, 1)
        _add(figures, "graph", plan, device, repeats, (None, None), partial(record_graph, device))
    figures.notes.append(
        f"{repeats} submits each, the device idle before each. Patched: input and output bound elsewhere every time."
    )
    return [figures]


def _measure_form(figures: Figures, form: str, device: Device, repeats: int) -> None:
    plan, whole, read = _run_worker(device, repeats)
    _add(figures, form, plan, device, repeats, (percentile(whole, 0.5), percentile(read, 0.5)), None)


def _run_worker(device: Device, repeats: int) -> tuple[Plan, list[float], list[float]]:
    """Return the plan, loaded, and times of `schedule` and of `run`."""
    x = np.ones((16, 64), np.float32)
    backend = Backend(device, gx.BackendType.GPU_COMPUTE, "measured")
    with gx.Worker(load_commands(COMMANDS), backend=backend) as worker:
        plan = worker.prepare(x)
        worker.run(x)
        whole = []
        for _ in range(repeats):
            whole += repeat_ms(lambda: worker.schedule(x), 1)
            worker.wait_for_completion()
        return plan, whole, repeat_ms(lambda: worker.run(x), repeats)


def _add(
    figures: Figures,
    form: str,
    plan: Plan,
    device: Device,
    repeats: int,
    worker: tuple[float | None, float | None],
    record: Recorder | None,
) -> None:
    same, changed = measure_submit(plan, device, repeats, record)
    p50 = percentile(same, 0.5)
    figures.add(form, p50, percentile(same, 0.99), percentile(changed, 0.5), p50 * 1e3 / COMMANDS, *worker)

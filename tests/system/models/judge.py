"""Verdict on one model on one device: gaps of every case, time, and nodes on the host."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import gpuexec as gx
from tests.system.models.folder import SAMPLED, allowance_of, measure, path_of, read_case, read_manifest

BACKENDS = {
    "cpu": gx.BackendType.CPU,
    "simulator": gx.BackendType.SIMULATOR,
    "cuda": gx.BackendType.GPU_COMPUTE,
}
# What an arena may take over its lower bound.
MAX_ARENA = 1.02


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a model on a device.

    Attributes:
        problem: Why it counts as failed; ``""``: every case is near its reference, and arenas near their bounds.
        cases: How many were run.
        distance: Largest error over what is allowed.
        seconds: Of all runs, loading and planning too.
        plans: How many were made, over all cases.
        arena: Largest arena over its lower bound.
        calls: Operators without a kernel there that NumPy computed, with how often.
    """

    problem: str = ""
    cases: int = 0
    distance: float = 0.0
    seconds: float = 0.0
    plans: int = 0
    arena: float = 1.0
    calls: tuple[tuple[str, int], ...] = ()


def judge_model(model: str, device: str) -> Result:
    """Run the cases of the manifest, each on a Worker of its own.

    Raises:
        GpuexecError: The model can't be loaded or run.
    """
    started = time.perf_counter()
    allowance, cases = allowance_of(model), read_manifest()[model]["cases"]
    problems: list[str] = []
    distance, arena, plans, calls = 0.0, 1.0, 0, Counter[str]()
    loaded = gx.load(path_of(model))
    for case in cases:
        given = read_case(case)
        with gx.Worker(loaded, backend=BACKENDS[device]) as worker:
            outputs = worker.schedule(given.inputs).outputs
            for name, expected in given.outputs.items():
                if name in SAMPLED.get(model, ()):
                    continue
                try:
                    distance = max(distance, measure(case, outputs[name].readback_and_clone(), expected, allowance))
                except AssertionError as error:
                    problems.append(f"{case}: {name}: {' '.join(str(error).split()) or 'not as expected'}")
            report = worker.report()
            plans += report.plans
            calls.update(row.operator for row in report.host_calls)
            bounds = [(plan.layout.nbytes, plan.layout.lower_bound) for plan in worker.plans]
            arena = max([arena, *(nbytes / bound for nbytes, bound in bounds if bound)])
    if not distance <= 1:
        problems.append(f"{distance:.3g} times further off than allowed")
    if arena > MAX_ARENA:
        problems.append(f"an arena of {arena:.3f} of its lower bound")
    seconds = time.perf_counter() - started
    return Result("; ".join(problems), len(cases), distance, seconds, plans, arena, tuple(calls.most_common()))

"""Verdict on one model on one device: gaps of every case, time, nodes and reads on the host, bits without regions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np

import gpuexec as gx
from gpuexec.execution.report import Report
from gpuexec.ir.command import HostCall, Launch
from gpuexec.ops.elementwise.region import Region, RowRegion
from tests.ops.tolerance import to_bits
from tests.system.models.folder import SAMPLED, Array, allowance_of, measure, path_of, read_case, read_manifest

BACKENDS = {
    "cpu": gx.BackendType.CPU,
    "simulator": gx.BackendType.SIMULATOR,
    "cuda": gx.BackendType.GPU_COMPUTE,
}
# What an arena may take over its lower bound.
MAX_ARENA = 1.02
# Passes that make regions. All run when planning, so a model is loaded once for runs with them and without.
REGION_PASSES = frozenset({"fuse_rows", "fuse_regions"})
# Files whose kernels are the text of regions.
REGION_SOURCES = ("flat.cu", "rows.cu", "pixel/flat.cu", "pixel/rows.cu")


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a model on a device.

    Attributes:
        problem: Why it counts as failed; ``""``: every case is near its reference, arenas near their bounds, and the
            bits without regions the same where they were asked for.
        cases: How many were run.
        distance: Largest error over what is allowed.
        seconds: Of all runs, loading and planning too.
        plans: How many were made for each case.
        arena: Largest arena over its lower bound.
        calls: Operators without a kernel there that NumPy computed, with how often.
        reads: Values of each case that the host read back to go on.
        syncs: Implicit waits of the caller, over all cases.
        regions: Commands of the first case that are regions.
    """

    problem: str = ""
    cases: int = 0
    distance: float = 0.0
    seconds: float = 0.0
    plans: tuple[int, ...] = ()
    arena: float = 1.0
    calls: tuple[tuple[str, int], ...] = ()
    reads: tuple[frozenset[str], ...] = ()
    syncs: int = 0
    regions: int = 0


def judge_model(model: str, device: str, *, times: int = 1, has_bits: bool = False, most: int | None = None) -> Result:
    """Run the cases of the manifest, each on a Worker of its own.

    Args:
        model: Its name.
        device: A name of `BACKENDS`.
        times: Runs of each case. Those after the first find plan and memory as the one before left them, on the CPU
            prepared calls and then the lane; they give the same bits.
        has_bits: Whether to run the first case without regions too, which must give the same bits.
        most: How many cases, the first ones; None: all.

    Raises:
        GpuexecError: The model can't be loaded or run.
    """
    started = time.perf_counter()
    allowance, cases = allowance_of(model), read_manifest()[model]["cases"][:most]
    problems: list[str] = []
    distance, arena, calls, regions = 0.0, 1.0, Counter[str](), 0
    reports: list[Report] = []
    loaded = gx.load(path_of(model))
    for case in cases:
        given = read_case(case)
        with gx.Worker(loaded, backend=BACKENDS[device], seed=1) as worker:
            runs = [read_outputs(worker, given.inputs) for _ in range(times)]
            if not loaded.memories:  # nor random operators, whose keys are memories
                problems += [
                    f"run {number} gives other bits of {name!r} than run 1"
                    for number, later in enumerate(runs[1:], 2)
                    for name, first in runs[0].items()
                    if first.tobytes() != later[name].tobytes()
                ]
            for outputs in runs:
                for name, expected in given.outputs.items():
                    if name in SAMPLED.get(model, ()):
                        continue
                    try:
                        distance = max(distance, measure(f"{case} {device}", outputs[name], expected, allowance))
                    except AssertionError as error:
                        problems.append(f"{case}: {name}: {' '.join(str(error).split()) or 'not as expected'}")
            report = worker.report()
            calls.update(row.operator for row in report.host_calls)
            bounds = [(plan.layout.nbytes, plan.layout.lower_bound) for plan in worker.plans]
            arena = max([arena, *(nbytes / bound for nbytes, bound in bounds if bound)])
            if not reports:
                regions = count_regions(worker)
                problems += compare_bits(loaded, device, given.inputs, runs[0]) if has_bits else ()
            reports.append(report)
    if not distance <= 1:
        problems.append(f"{distance:.3g} times further off than allowed")
    if arena > MAX_ARENA:
        problems.append(f"an arena of {arena:.3f} of its lower bound")
    return Result(
        "; ".join(problems),
        len(cases),
        distance,
        time.perf_counter() - started,
        tuple(report.plans for report in reports),
        arena,
        tuple(calls.most_common()),
        tuple(frozenset(row.value for row in report.host_reads) for report in reports),
        sum(len(report.host_syncs) for report in reports),
        regions,
    )


def read_outputs(worker: gx.Worker, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a Worker once and return its outputs by name."""
    outputs = worker.schedule(inputs).outputs
    return {name: tensor.readback_and_clone() for name, tensor in outputs.items()}


def count_regions(worker: gx.Worker) -> int:
    """Return how many commands of a Worker's plans are regions."""
    commands = [command for plan in worker.plans for command in plan.segment.commands]
    calls = [each for each in commands if isinstance(each, HostCall) and each.operator in (Region.name, RowRegion.name)]
    launches = [each for each in commands if isinstance(each, Launch) and each.kernel.source in REGION_SOURCES]
    return len(calls) + len(launches)


def compare_bits(loaded: gx.Model, device: str, inputs: Mapping[str, Array], made: Mapping[str, Array]) -> list[str]:
    """Return what differs in a run operator by operator from what one with regions made."""
    apart = copy(loaded)  # shares graph and weights
    apart.disabled_passes = REGION_PASSES
    with gx.Worker(apart, backend=BACKENDS[device], seed=1) as worker:
        expected = read_outputs(worker, inputs)
        problems = ["there are regions although their passes are disabled"] if count_regions(worker) else []
    if list(made) != list(expected):
        problems.append(f"outputs {list(made)} with regions, {list(expected)} without")
    for name in expected.keys() & made.keys():
        if made[name].dtype != expected[name].dtype or not np.array_equal(to_bits(made[name]), to_bits(expected[name])):
            problems.append(f"{name} has other bits with regions than without")
    return problems

"""Time model of a launch: the longest of five bounds and what blocks wait, and constants, which measurements correct.

A launch takes as long as the slowest of these needs for it, and what filling and draining the device adds. What blocks
wait hides in part behind that, and the other way round: where both are alike, a launch takes two fifths longer.

- *issue*: the instructions of its warps, each of whose schedulers issues one a clock, or fewer where warps are few;
  multiply-adds, those of integers and doubles take longer where a multiprocessor has few lanes for them;
- *tensor*: multiply-adds of tensor cores;
- *shared*: wavefronts of shared memory, one a clock;
- *l2*: bytes between multiprocessors and L2, by the bandwidth of L2 and of each multiprocessor;
- *dram*: bytes between L2 and device memory;
- *latency*: the times in a row that a block waits for memory, each as long as L2 takes to answer;
- *chain*: what device memory takes longer to answer, and the cycles that warps wait for each other and for results of
  their own; with latency it is what blocks wait.

Blocks run in waves, of as many as fit on all multiprocessors; the blocks of a wave are alike, and what those of a later
one wait for is under way while others work. The constants are about those that fit 106 kinds of launches of six models
on an H100 best (tests/bench/results): half of them are met within a twelfth, three quarters within a fifth. Of eight
whole models four are met within a tenth and two within a sixth; a U-net and YOLOX-nano took two fifths longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.gpus import Gpu
from gpuexec.ir.work import WARP, Work
from gpuexec.planner.launch_work import CommandGrid

BOUNDS = ("issue", "tensor", "shared", "l2", "dram", "latency")
_WORKS, _LATENCY = BOUNDS[:-1], BOUNDS[-1]
_SCHEDULERS = 4  # of a multiprocessor
_SCHEDULER_LANES = 128  # of a multiprocessor that issues a warp's multiply-adds at full rate
_BARRIER_CYCLES = 40
_L2_BYTES_PER_CLOCK = 64  # of a multiprocessor (CUDA's architecture whitepapers since Volta)
# What warps that wait for each other's registers add to the time of issue, by the warps of a multiprocessor up to which
# it holds: for multiply-adds, which don't depend on each other, and for all other instructions.
_SLACK = ((4, 1.30), (8, 1.15), (64, 1.08))
_SLACK_OF_OTHERS = ((4, 2.50), (8, 1.80), (64, 1.60))
# The same of warps that multiply in groups: what they issue is under way beside their products.
_SLACK_OF_GROUPS = ((4, 1.60), (8, 1.80), (64, 1.60))
_HIDING = 2  # the power by which waits and the longest bound are added
_FIT_ROUNDS, _FIT_STEP = 100, 1e-6
_MIN_SAMPLES = 3  # that a bound decides, for its constant to be fitted


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """What bounds a launch, in microseconds before the model's factors, and how it fills a GPU.

    ``at_once`` blocks fit on a multiprocessor; ``waves`` are how often all of them are filled. ``l2`` and ``dram`` are
    shares of what the whole device gives. Where blocks wait for all those before them, ``phases`` are the bounds of
    both, one after the other, and the others their sums.
    """

    issue: float = 0.0
    tensor: float = 0.0
    shared: float = 0.0
    l2: float = 0.0
    dram: float = 0.0
    latency: float = 0.0
    chain: float = 0.0
    at_once: int = 1
    waves: float = 0.0
    phases: tuple[LaunchBounds, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Constants of the model.

    Attributes:
        node_us: From the end of the last command that another one waits for to its begin.
        early_us: The same of a launch that begins early: its blocks are there, and wait for that end themselves.
        fill_us: Of a launch, for its blocks to begin and to drain.
        issue: Factor of the bound of that name, as are those that follow.
        tensor: See `issue`.
        shared: See `issue`.
        l2: See `issue`.
        dram: See `issue`; 1.25 is four fifths of the bandwidth of a data sheet.
        latency: See `issue`; the bound named chain has none.
    """

    node_us: float = 1.2
    early_us: float = 0.8
    fill_us: float = 1.0
    issue: float = 1.0
    tensor: float = 1.0
    shared: float = 1.0
    l2: float = 1.0
    dram: float = 1.25
    latency: float = 3.5

    def find_bound(self, bounds: LaunchBounds) -> tuple[str, float]:
        """Return what decides, a bound or latency, and its microseconds."""
        times = {name: getattr(self, name) * getattr(bounds, name) for name in _WORKS} | {_LATENCY: self._wait(bounds)}
        name = max(times, key=lambda each: times[each])
        return name, times[name]

    def predict_us(self, bounds: LaunchBounds) -> float:
        """Return how long a launch takes that has the device for itself, without what comes before its begin."""
        if bounds.phases:
            return self.fill_us + sum(self.predict_us(each) - self.fill_us for each in bounds.phases)
        name = _find_longest(self, bounds)
        longest = float(getattr(self, name) * getattr(bounds, name))
        both = longest**_HIDING + self._wait(bounds) ** _HIDING
        return self.fill_us + float(both ** (1 / _HIDING))

    def _wait(self, bounds: LaunchBounds) -> float:
        """Return how long the blocks of a wave wait."""
        return (self.latency * bounds.latency + bounds.chain) / max(1, ceil(bounds.waves))


TIME_MODEL = TimeModel()


@dataclass(frozen=True, slots=True)
class Sample:
    """A launch that was measured alone: its bounds and its microseconds."""

    bounds: LaunchBounds
    measured_us: float


def bound_launch(work: Work, grid: CommandGrid, dram_nbytes: float, missed: float, gpu: Gpu) -> LaunchBounds:
    """Return what bounds a launch on a GPU.

    Args:
        work: What it does.
        grid: Its blocks.
        dram_nbytes: Bytes between L2 and device memory.
        missed: Share of what it reads that L2 lacks, from 0 to 1.
        gpu: The GPU.
    """
    if not grid.blocks:
        return LaunchBounds()
    if work.behind is not None:
        return _bound_phases(work, work.behind, grid, dram_nbytes, missed, gpu)
    at_once = max(1, gpu.count_blocks(grid.threads, work.registers, work.shared_nbytes + grid.shared_nbytes))
    full, rest = divmod(grid.blocks, at_once * gpu.multiprocessors)
    last = ceil_div(rest, gpu.multiprocessors)  # blocks of the busiest multiprocessor in the last wave
    waves, most = full + bool(rest), full * at_once + last
    lanes = max(
        work.multiply_adds * _SCHEDULER_LANES / gpu.fp32_lanes,
        work.doubles * _SCHEDULER_LANES / gpu.fp64_lanes,
        work.integer_multiply_adds * _SCHEDULER_LANES / gpu.integer_lanes,
    )
    others = max(0.0, work.instructions - work.multiply_adds)
    warps = ceil_div(grid.threads, WARP)
    barriers = waves * work.barriers * _BARRIER_CYCLES
    longer = missed * (gpu.dram_latency_cycles - gpu.l2_latency_cycles)
    clocks_us = 1e6 / gpu.clock_hertz

    def issue(instructions: float, slack: Sequence[tuple[int, float]]) -> float:
        """Return the cycles of blocks in a row, each as long as it takes beside others."""
        in_a_row = full * at_once * _find_slack(at_once * warps, slack) + last * _find_slack(last * warps, slack)
        return instructions / (grid.blocks * _SCHEDULERS) * in_a_row

    issued = issue(work.multiply_adds, _SLACK) + issue(
        others, _SLACK_OF_GROUPS if work.is_by_groups else _SLACK_OF_OTHERS
    )
    matrix_rate = gpu.group_products if work.is_by_groups else gpu.matrix_products
    tensor = issue(work.matrix_products * _SCHEDULERS / matrix_rate, _SLACK)
    own_l2 = most * work.l2_nbytes / grid.blocks / _L2_BYTES_PER_CLOCK
    return LaunchBounds(
        issue=(max(issued, issue(lanes, _SLACK)) + barriers) * clocks_us,
        tensor=(tensor + barriers) * clocks_us if tensor else 0.0,
        shared=(most * work.wavefronts / grid.blocks + barriers) * clocks_us,
        l2=max(work.l2_nbytes / gpu.l2_bytes_per_second * 1e6, (own_l2 + barriers) * clocks_us),
        dram=dram_nbytes / gpu.dram_bytes_per_second * 1e6,
        latency=(waves * work.rounds * gpu.l2_latency_cycles + barriers) * clocks_us,
        chain=waves * ((work.rounds + work.fetches) * longer + work.cycles) * clocks_us,
        at_once=at_once,
        waves=grid.blocks / (at_once * gpu.multiprocessors),
    )


def _bound_phases(
    work: Work, behind: Work, grid: CommandGrid, dram_nbytes: float, missed: float, gpu: Gpu
) -> LaunchBounds:
    """Return the bounds of what blocks do, and of what others do behind them, which have what L2 keeps of it.

    They share bytes of device memory as they share those of L2.
    """
    lacking = max(0, behind.again_nbytes - gpu.l2_nbytes)
    share = behind.l2_nbytes / max(1.0, work.l2_nbytes + behind.l2_nbytes)
    phases = tuple([
        bound_launch(each, replace(grid, blocks=blocks), nbytes, lack, gpu)
        for each, blocks, nbytes, lack in (
            (replace(work, behind=None), grid.blocks - behind.blocks, dram_nbytes * (1 - share), missed),
            (behind, behind.blocks, dram_nbytes * share + lacking, lacking / max(1, behind.again_nbytes)),
        )
    ])  # fmt: skip
    sums = {name: sum(getattr(each, name) for each in phases) for name in (*BOUNDS, "waves")}
    return LaunchBounds(**sums, at_once=phases[0].at_once, phases=phases)


def fit_time_model(samples: Sequence[Sample], model: TimeModel = TIME_MODEL) -> TimeModel:
    """Return the model with the constants that fit measured launches best, by least squares of relative errors.

    Which bound decides depends on the constants, and these on which decides: so steps are taken by what the errors of
    the present constants say, until nothing changes. A factor whose bound decides for fewer than three samples stays as
    it is, that of latency where fewer than three have any, and ``node_us`` and ``early_us`` do: a launch alone does not
    show them.

    Args:
        samples: Launches, each timed alone on one GPU, without what lies between two launches.
        model: Where to begin.
    """
    best, least = model, _error(samples, model)
    for _ in range(_FIT_ROUNDS):
        decides = [_find_longest(model, sample.bounds) for sample in samples]
        names = [name for name in _WORKS if decides.count(name) >= _MIN_SAMPLES]
        if not names:
            break
        names += ["fill_us", *([_LATENCY] if sum(each.bounds.latency > 0 for each in samples) >= _MIN_SAMPLES else [])]
        known = np.array([getattr(model, name) for name in names])
        errors = _find_errors(samples, model)
        slopes = [
            (_find_errors(samples, replace(model, **{name: each + _FIT_STEP})) - errors) / _FIT_STEP
            for name, each in zip(names, known.tolist(), strict=True)
        ]
        step, *_ = np.linalg.lstsq(np.array(slopes).T, -errors, rcond=None)
        found = np.maximum(known + step, np.where(np.array(names) == "fill_us", 0.0, 1e-3))
        model = replace(model, **dict(zip(names, found.tolist(), strict=True)))
        if (error := _error(samples, model)) < least:
            best, least = model, error
        if np.allclose(known, found, rtol=1e-9):
            break
    return best


def _find_longest(model: TimeModel, bounds: LaunchBounds) -> str:
    """Return the bound that decides, latency apart."""
    return max(_WORKS, key=lambda name: getattr(model, name) * getattr(bounds, name))


def _error(samples: Sequence[Sample], model: TimeModel) -> float:
    return float((_find_errors(samples, model) ** 2).sum())


def _find_errors(samples: Sequence[Sample], model: TimeModel) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how far predictions are off, as shares of what was measured."""
    return np.array([model.predict_us(sample.bounds) / sample.measured_us - 1 for sample in samples])


def _find_slack(warps: int, slacks: Sequence[tuple[int, float]]) -> float:
    return next((slack for most, slack in slacks if warps <= most), slacks[-1][1])

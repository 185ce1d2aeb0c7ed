"""Predicted times beside measured ones, and the time model's constants as measurements would have them.

The time model is `gpuexec.planner.prediction`; where that is not there, nothing is predicted.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from gpuexec.devices.dependent_launch import find_waiting
from gpuexec.ir.plan import Plan
from gpuexec.ir.target import Target
from tests.bench.tables import Figures

_COLUMNS = ("constant", "today", "fitted")


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a plan, in microseconds: of the whole, at the least, and of each command.

    ``bounds`` are what the fit of the time model takes of each command, ``bound_by`` says what decides its time, and
    ``begins_us`` is the part of it from the end of the command before to its begin.
    """

    whole_us: float
    floor_us: float
    commands_us: tuple[float, ...]
    bound_by: tuple[str, ...]
    bounds: tuple[Any, ...]
    begins_us: tuple[float, ...]


def predict(plan: Plan) -> Predicted | None:
    """Predict a plan for the GPU that stands for its target; None where there is no time model."""
    planner = _find("prediction")
    if planner is None:
        return None
    found = planner.predict_plan(plan, waits=find_waiting(Target.named(plan.target)))
    rows = found.commands
    return Predicted(
        found.predicted_us,
        found.floor_us,
        tuple(row.predicted_us for row in rows),
        tuple(row.bound_by for row in rows),
        tuple(row.bounds for row in rows),
        tuple(row.begin_us for row in rows),
    )


def fit(measured: Sequence[tuple[Any, float]]) -> list[Figures]:
    """Return the constants of the time model, today's and those that measured commands would give.

    Args:
        measured: Bounds of a command as predicted, and its microseconds in a row of its like, from its begin on.
    """
    planner = _find("time_model")
    if planner is None or not measured:
        return []
    today = planner.TIME_MODEL
    samples = [planner.Sample(bounds, max(us, 0.1)) for bounds, us in measured]
    fitted = planner.fit_time_model(samples)
    figures = Figures("Constants of the time model", _COLUMNS)
    for each in fields(today):
        figures.add(each.name, getattr(today, each.name), getattr(fitted, each.name))
    for model in (today, fitted):
        errors = sorted(abs(model.predict_us(sample.bounds) / sample.measured_us - 1) for sample in samples)
        figures.notes.append(
            f"{'today' if model is today else 'fitted'}: half of {len(samples)} commands are predicted within "
            f"{errors[len(errors) // 2]:.0%}, nine tenths within {errors[len(errors) * 9 // 10]:.0%}."
        )
    return [figures]


def _find(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"gpuexec.planner.{module}")
    except ModuleNotFoundError:
        return None

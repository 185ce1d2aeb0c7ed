"""Accuracy of each precision over the models of the folder: largest errors, and classes that stay first.

    python -m tests.system.models.precisions -k 'bert|vit' --keep

An error is the largest of an output of floats beside the largest element of that output, against the outputs that
onnxruntime gave in float. A model has classes where an output has two axes and ten columns or more. Scales of int8 come
from the inputs of the case itself; a model without a product or convolution by constant weights has none.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.precision import INT8, OVERFLOWING
from tests.system.conformance.pool import judge_all
from tests.system.models.folder import SAMPLED, ModelCase, path_of, read_case, read_manifest
from tests.system.models.judge import BACKENDS

Array = np.ndarray[Any, Any]
# What is told of each model: precision and device.
TOLD = (
    *((name, "cpu") for name in ("tf32", "fp16", "bf16", "fp8", "int8")),
    ("fp16", "simulator"),
)
_RESULTS = Path(__file__).parent / "results" / "precisions.txt"
_MIN_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a model in a precision.

    Attributes:
        error: Largest error of an element of an output of floats beside the largest of that output; None: the model has
            nothing that the precision rounds.
        same: Rows of classes whose largest is where it was.
        rows: Of classes.
        kept: Layers that stayed in float, for the range of fp16 does not hold what they multiply.
    """

    error: float | None
    same: int = 0
    rows: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of a model, in the order of `TOLD`; or why nothing is."""

    problem: str = ""
    accuracies: tuple[Accuracy, ...] = ()


def measure_accuracy(model: str, precision: str, device: str) -> Accuracy:
    """Return the accuracy of a model's first case; where fp16 overflows, with the layers in float that do.

    Raises:
        GpuexecError: It can't be loaded or run.
    """
    loaded, case = gx.load(path_of(model)), read_case(read_manifest()[model]["cases"][0])
    if precision == INT8:
        try:
            loaded = gx.calibrate(loaded, [case.inputs], backend=gx.BackendType.CPU)
        except InputError as error:
            if "nothing to quantise" in str(error):
                return Accuracy(None)
            raise
    found = _run(model, loaded, case, precision, device)
    if precision == OVERFLOWING and found.error == np.inf:
        keep = gx.measure_gap(loaded, case.inputs, "cpu", precision=precision).overflows
        found = replace(_run(model, loaded, case, precision, device, keep), kept=len(keep))
    return found


def _run(
    model: str, loaded: gx.Model, case: ModelCase, precision: str, device: str, keep: Collection[str] = ()
) -> Accuracy:
    with gx.Worker(loaded, backend=BACKENDS[device], precision=precision, keep=keep) as worker:
        outputs = worker.schedule(case.inputs).outputs
        pairs = [
            (outputs[name].readback_and_clone(), expected)
            for name, expected in case.outputs.items()
            if name not in SAMPLED.get(model, ())
        ]
    return compare(pairs)


def compare(pairs: Sequence[tuple[Array, Array]]) -> Accuracy:
    """Return the accuracy of outputs, each beside what was expected."""
    error, same, rows = 0.0, 0, 0
    for got, expected in pairs:
        if got.shape != expected.shape:
            return Accuracy(float("inf"))
        if not np.issubdtype(expected.dtype, np.floating) or not np.isfinite(expected).any():
            continue
        is_finite, wide = np.isfinite(expected), expected.astype(np.float64)
        gap = np.abs(got.astype(np.float64)[is_finite] - wide[is_finite]).max()
        gap = np.inf if np.isnan(gap) else gap  # no number where one was expected, as by an overflow
        error = max(error, float(gap / max(np.abs(wide[is_finite]).max(), 1e-30)))
        if expected.ndim == 2 and expected.shape[1] >= _MIN_CLASSES:
            is_same = (expected.argmax(1) == got.argmax(1)) & (np.isnan(got).any(1) == np.isnan(expected).any(1))
            same, rows = same + int(is_same.sum()), rows + len(expected)
    return Accuracy(error, same, rows)


def judge(model: str) -> Row:
    """Measure a model in all that is told of it."""
    return Row("", tuple(measure_accuracy(model, *each) for each in TOLD))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments choose and print a line for each model; 1 if one could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.models.precisions", description=__doc__)
    parser.add_argument("-k", dest="pattern", default="", help="a regular expression of names")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--keep", action="store_true", help=f"write the lines to {_RESULTS.name}")
    options = parser.parse_args(arguments)
    models = [name for name in sorted(read_manifest()) if re.search(options.pattern, name)]
    if not models:
        print("There are no such models: GPUEXEC_MODELS names the folder.", file=sys.stderr)
        return 2
    rows: dict[str, Row] = {}
    print(_format_head())
    for model, row in judge_all(models, judge, options.jobs, 900, fail=partial(Row)):
        rows[model] = row
        print(format_row(model, row), flush=True)
    lines = [_format_head(), *(format_row(*each) for each in sorted(rows.items())), *format_summary(rows)]
    print("\n".join(lines[1 + len(rows) :]))
    if options.keep:
        _RESULTS.write_text("\n".join(lines) + "\n")
    return int(any(row.problem for row in rows.values()))


def format_row(model: str, row: Row) -> str:
    """Return a model's line."""
    if row.problem:
        return f"{model:32} {' '.join(row.problem.split())}"
    cells = ["-" if each.error is None else f"{each.error:.1e}" for each in row.accuracies]
    classes = max((each.rows for each in row.accuracies), default=0)
    moved = [name for (name, _), each in zip(TOLD, row.accuracies, strict=True) if each.same < each.rows]
    said = [f"{classes} rows of classes"] if classes else []
    said += [f"others first in {', '.join(moved)}"] if moved else []
    if kept := max((each.kept for each in row.accuracies), default=0):
        said.append(f"{kept} layers beyond the range of {OVERFLOWING} in float there")
    told = f"  {', '.join(said)}" if said else ""
    return f"{model:32}{''.join(f'{cell:>16}' for cell in cells)}{told}"


def format_summary(rows: Mapping[str, Row]) -> list[str]:
    """Return lines with the median, the ninth decile and the largest of each column."""
    columns = list(zip(*(row.accuracies for row in rows.values() if not row.problem), strict=True))
    errors = [sorted(each.error for each in column if each.error is not None) for column in columns]
    ends = {
        "median": lambda column: statistics.median(column),
        "ninth decile": lambda column: column[len(column) * 9 // 10],
        "largest": lambda column: column[-1],
    }
    return [f"# {name:30}{''.join(f'{find(each):16.1e}' for each in errors)}" for name, find in ends.items()]


def _format_head() -> str:
    titles = [f"{name} {device}" for name, device in TOLD]
    return f"# {'model':30}{''.join(f'{title:>16}' for title in titles)}"


if __name__ == "__main__":
    sys.exit(main())

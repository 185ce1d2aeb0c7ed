"""Checks of a model's outputs against another engine's, for `run` and `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from gpuexec.cli.leaves import list_all_leaves
from gpuexec.cli.sources import Opened
from gpuexec.errors import InputError
from gpuexec.ir.spec import is_host_object
from gpuexec.system.records import Record

# An error may be this share of the largest magnitude that is expected.
_ALLOWED = 1e-3


@dataclass(frozen=True, slots=True)
class OutputCheck(Record):
    """An output beside another engine's: its largest error, and the largest finite magnitude that is expected."""

    output: str
    engine: str
    max_error: float
    largest: float
    _FOUND: ClassVar = ("is_close",)

    @property
    def is_close(self) -> bool:
        """True if the error is within a thousandth of the largest magnitude."""
        return self.max_error / max(self.largest, 1e-30) <= _ALLOWED

    def __str__(self) -> str:
        return (
            f"check {self.output}: maximum error {self.max_error:.3g} (largest value {self.largest:.3g}) against"
            f" {self.engine}"
        )


def require_model_file(opened: Opened, path: str) -> None:
    """Check that there is an ONNX file for another engine to run.

    Raises:
        InputError: It is a program.
    """
    if opened.method is not None:
        raise InputError(f"--check needs the ONNX file; a program is checked by: gpuexec verify {path}")


def check_outputs(path: str, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[OutputCheck, ...]:
    """Compare outputs with those of onnxruntime, or of onnx.reference where that is missing.

    Raises:
        InputError: The engine gives other outputs, or others in shape.
        ModelError: No engine runs the model.
    """
    from gpuexec.importer.oracle import run_oracle

    engine, expected = run_oracle(path, feeds)
    actual, right = list_all_leaves(outputs), list_all_leaves(expected)
    if actual.keys() != right.keys():
        raise InputError(f"The outputs are {', '.join(actual)}; {engine} says {', '.join(right)}.")
    rows = []
    for name, array in actual.items():
        if array.shape != right[name].shape:
            raise InputError(f"Output {name!r} is {array.shape}, {engine} says {right[name].shape}.", value=name)
        if is_host_object(array.dtype):
            # Text is right or wrong: each wrong one counts as an error of 1.
            got, wanted = (array != right[name].astype(array.dtype)).astype(np.float64), np.zeros(array.shape)
        else:
            got, wanted = array.astype(np.float64), right[name].astype(np.float64)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        error = float(np.max(np.where(same, 0.0, np.abs(got - wanted)), initial=0.0))
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        rows.append(OutputCheck(name, engine, error, scale))
    return tuple(rows)


def print_checks(console: Console, checks: Sequence[OutputCheck]) -> None:
    """Print a line for each output."""
    for check in checks:
        console.print(str(check), markup=False)

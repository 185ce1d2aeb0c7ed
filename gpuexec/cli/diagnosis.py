"""gpuexec verify of a model: comparison with another engine, gap by layer, and the pass or layer at fault."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.cli.feeds import add_input_arguments, parse_dims
from gpuexec.cli.sources import is_program, open_model, read_inputs
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.errors import InputError
from gpuexec.execution.debugging.bisecting import RTOL, bisect, measure_output
from gpuexec.execution.debugging.measuring import measure_gap
from gpuexec.execution.debugging.observing import run_plainly
from gpuexec.execution.inspection.gaps import ATOL
from gpuexec.importer.oracle import ENGINES, run_oracle
from gpuexec.model.loading import load
from gpuexec.model.model import Model

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]


def add_diagnosis_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a diagnosis: kind, reference engine and inputs."""
    add_input_arguments(parser)
    parser.add_argument(
        "--gap",
        nargs="?",
        const="cpu",
        metavar="AGAINST",
        help="print how far each layer is off, along the chain and by itself, against cpu (NumPy, the default),"
        " onnxruntime, reference, or another ONNX file with values of the same names",
    )
    parser.add_argument(
        "--bisect",
        action="store_true",
        help="find the pass that makes the outputs differ from another engine's, or else the layer",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="the reference engine (default: onnxruntime where it is installed)"
    )


def diagnose(options: argparse.Namespace, backend: Backend, reason: str) -> int:
    """Compare, measure or bisect a model; return 1 where it is out of tolerance.

    Raises:
        InputError: A program is to be bisected, or both are asked for.
    """
    from rich.console import Console

    if options.gap is not None and options.bisect:
        raise InputError("--gap and --bisect are two runs: give one of them.")
    if options.bisect and is_program(options.program):
        raise InputError(f"--bisect needs the ONNX file; {options.program} has been through the passes.")
    console = Console(highlight=False, soft_wrap=True)
    opened = open_model(options.program, options.method)
    feeds, notes = read_inputs(opened, options)
    for note in notes:
        console.print(note, style="dim", markup=False)
    console.print(f"backend  {backend.type.name}: {reason}", markup=False)
    if options.gap is not None:
        return _print_gap(console, opened.model, feeds, backend, options)
    if options.bisect:
        return _bisect(console, feeds, backend, options)
    return _compare(console, opened.model, feeds, backend, options)


def _print_gap(
    console: Console, model: Model, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace
) -> int:
    against = _read_against(options.gap)
    report = measure_gap(model, dict(feeds), backend, against, rtol=options.rtol, atol=options.atol)
    console.print(str(report), markup=False)
    for row in report.worst(3):
        if row.alone is not None and row.alone.share > 0:
            console.print(
                f"furthest off by itself: {row.operator} {row.node!r}, {row.value!r}: {row.alone}", markup=False
            )
    return 0 if report.is_close else 1


def _bisect(console: Console, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace) -> int:
    verdict = bisect(
        options.program,
        dict(feeds),
        backend=backend,
        engine=options.engine,
        dims=parse_dims(options.dims),
        rtol=RTOL if options.rtol is None else options.rtol,
        atol=_choose_atol(options),
    )
    for line in verdict.lines():
        console.print(line, markup=False)
    return 0 if verdict.kind == "close" else 1


def _compare(
    console: Console, model: Model, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace
) -> int:
    engine, expected = run_oracle(options.program, feeds, options.engine)
    rtol, atol = RTOL if options.rtol is None else options.rtol, _choose_atol(options)
    outputs = run_plainly(model, dict(feeds), backend)
    gaps = {name: measure_output(expected[name], array, rtol, atol) for name, array in outputs.items()}
    for name, gap in gaps.items():
        console.print(f"{'ok ' if gap.is_close else 'OFF'} {name} against {engine}: {gap}", markup=False)
    is_close = all(gap.is_close for gap in gaps.values())
    if not is_close:
        console.print(f"which pass or layer: gpuexec verify {options.program} --bisect", markup=False)
    return 0 if is_close else 1


def _read_against(text: str) -> BackendType | str | Model:
    if text == "cpu":
        return BackendType.CPU
    return text if text in ENGINES else load(text)


def _choose_atol(options: argparse.Namespace) -> float:
    return ATOL if options.atol is None else float(options.atol)

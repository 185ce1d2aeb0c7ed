"""gpuexec verify: check a program file and run its cases, or compare a model with another engine.

Of a model it also finds the gap by layer, and the pass or layer at fault.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.cli.feeds import add_input_arguments, parse_dims
from gpuexec.cli.json_output import add_json_argument, open_output, print_json
from gpuexec.cli.sources import add_method_argument, is_program, open_model, open_program, pick_method, read_inputs
from gpuexec.devices.backend import Backend, BackendType, choose_backend
from gpuexec.errors import InputError
from gpuexec.execution.debugging.bisecting import RTOL, bisect, measure_output
from gpuexec.execution.debugging.measuring import measure_gap
from gpuexec.execution.debugging.observing import run_plainly
from gpuexec.execution.inspection.gaps import ATOL
from gpuexec.execution.worker import Worker
from gpuexec.importer.oracle import ENGINES, run_oracle
from gpuexec.ir.spec import is_host_object
from gpuexec.model.loading import load
from gpuexec.model.model import Model
from gpuexec.program.contents import Allowance, StoredMethod, check_allowed

if TYPE_CHECKING:
    from rich.console import Console

_BACKENDS = {
    "auto": "auto",
    "cpu": "cpu",
    "simulator": "simulator",
    "simulator_pixel": "simulator_pixel",
    "gpu": "gpu_compute",
    "gpu_pixel": "gpu_pixel",
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of an output from the expected one, and whether it is within tolerance everywhere."""

    largest: float
    mean: float
    is_close: bool


@dataclass(frozen=True, slots=True)
class CaseOutput:
    """An output of a program's case, with what is allowed; ``origin`` says who made what is expected."""

    method: str
    case: int
    origin: str
    output: str
    deviation: Deviation
    allowed: Allowance

    def __str__(self) -> str:
        found, allowed = self.deviation, self.allowed
        return (
            f"{'ok ' if found.is_close else 'OFF'} {self.method} case {self.case} ({self.origin}) {self.output}:"
            f" maximum error {found.largest:.3g}, mean {found.mean:.3g}, allowed {allowed.atol:.3g} +"
            f" {allowed.rtol:.3g} relative ({allowed.reason})"
        )


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="check every part of a program and run its cases; or compare a model with another engine",
        description="Of a program, check every part, run its cases and compare with the outputs expected. Of an ONNX"
        " file, compare the outputs with another engine's. Exits with 1 where something is off.",
    )
    parser.add_argument("program", help="the program (.gxp), or the ONNX file")
    parser.add_argument("--backend", default="auto", choices=list(_BACKENDS), help="where to run (default: auto)")
    add_method_argument(parser)
    _add_diagnosis_arguments(parser)
    parser.add_argument("--rtol", type=float, help="allow this, relative, in place of what the program says")
    parser.add_argument("--atol", type=float, help="allow this, absolute, in place of what the program says")
    add_json_argument(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; return 1 where an output is out of tolerance, or there is no case to run."""
    for name in ("rtol", "atol"):
        if getattr(options, name) is not None:
            check_allowed(f"--{name}", getattr(options, name))
    backend, reason = choose_backend(BackendType(_BACKENDS[options.backend]))
    if options.gap is not None or options.bisect or not is_program(options.program):
        return _diagnose(options, backend, reason)
    console = open_output(options)
    contents = open_program(options.program)
    console.print(f"{options.program}: all checksums match, graphs and plans are valid", markup=False)
    for note in contents.notes:
        console.print(note, style="dim", markup=False)
    names = list(contents.methods) if options.method is None else [options.method]
    console.print(f"backend  {backend.type.name}: {reason}", markup=False)
    judged = [j for name in names for j in _verify(console, name, pick_method(contents, name), backend, options)]
    if not judged:
        console.print("no case was run: compile with --case to have some")
    is_close = bool(judged) and all(each.deviation.is_close for each in judged)
    found = {"model": options.program, "backend": backend.type, "reason": reason, "notes": contents.notes}
    print_json(options, **found, outputs=judged, is_close=is_close)
    return 0 if is_close else 1


def judge(expected: Array, got: Array, allowance: Allowance) -> Deviation:
    """Compare an output with the expected one; any NaN equals any NaN.

    Raises:
        InputError: They differ in shape or dtype.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        raise InputError(
            f"expected {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}: can't compare."
        )
    if is_host_object(expected.dtype):
        is_wrong = bool((expected != got).any())
        return Deviation(float("inf") if is_wrong else 0.0, float("inf") if is_wrong else 0.0, not is_wrong)
    if expected.dtype.kind in "biu" and not allowance.rtol and not allowance.atol:
        wrong = expected != got
        apart = np.abs(expected.astype(np.float64) - got.astype(np.float64))
        return Deviation(float(apart.max(initial=0.0)), float(apart.mean()) if apart.size else 0.0, not wrong.any())
    with np.errstate(all="ignore"):
        wide, other = expected.astype(np.float64), got.astype(np.float64)
        is_same = (wide == other) | (np.isnan(wide) & np.isnan(other))
        error = np.where(is_same, 0.0, np.where(np.isfinite(wide) & np.isfinite(other), np.abs(wide - other), np.inf))
        allowed = allowance.atol + allowance.rtol * np.where(np.isfinite(wide), np.abs(wide), 0.0)
    mean = float(error.mean()) if error.size else 0.0
    return Deviation(float(error.max(initial=0.0)), mean, bool((np.isfinite(error) & (error <= allowed)).all()))


def _verify(
    console: Any, name: str, method: StoredMethod, backend: Backend, options: argparse.Namespace
) -> list[CaseOutput]:
    judged = []
    # Expected outputs that contain random numbers were made with seed 0.
    with Worker(method.model, backend=backend, seed=0) as worker:
        for number, case in enumerate(method.cases):
            worker.state.reset()  # the expected outputs start from zero state
            run = worker.schedule(dict(case.inputs))
            outputs = {key: tensor.readback_and_clone() for key, tensor in run.outputs.items()}
            for key, expected in case.outputs.items():
                allowance = _choose(case.allowances[key], options)
                found = judge(expected, outputs[key], allowance)
                judged.append(CaseOutput(name, number, case.origin, key, found, allowance))
                console.print(str(judged[-1]), markup=False)
    return judged


def _choose(stored: Allowance, options: argparse.Namespace) -> Allowance:
    if options.rtol is None and options.atol is None:
        return stored
    return Allowance(options.rtol or 0.0, options.atol or 0.0, "asked for")


def _add_diagnosis_arguments(parser: argparse.ArgumentParser) -> None:
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


def _diagnose(options: argparse.Namespace, backend: Backend, reason: str) -> int:
    """Compare, measure or bisect a model; return 1 where it is out of tolerance.

    Raises:
        InputError: A program is to be bisected, or both are asked for.
    """
    if options.gap is not None and options.bisect:
        raise InputError("--gap and --bisect are two runs: give one of them.")
    if options.bisect and is_program(options.program):
        raise InputError(f"--bisect needs the ONNX file; {options.program} has been through the passes.")
    console = open_output(options)
    opened = open_model(options.program, options.method)
    feeds, notes = read_inputs(opened, options)
    for note in notes:
        console.print(note, style="dim", markup=False)
    console.print(f"backend  {backend.type.name}: {reason}", markup=False)
    if options.gap is not None:
        found, is_close = _print_gap(console, opened.model, feeds, backend, options)
    elif options.bisect:
        found, is_close = _bisect(console, feeds, backend, options)
    else:
        found, is_close = _compare(console, opened.model, feeds, backend, options)
    about = {"model": options.program, "backend": backend.type, "reason": reason, "notes": notes}
    print_json(options, **about, **found, is_close=is_close)
    return 0 if is_close else 1


def _print_gap(
    console: Console, model: Model, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    against = _read_against(options.gap)
    report = measure_gap(model, dict(feeds), backend, against, rtol=options.rtol, atol=options.atol)
    console.print(str(report), markup=False)
    for row in report.worst(3):
        if row.alone is not None and row.alone.share > 0:
            console.print(
                f"furthest off by itself: {row.operator} {row.node!r}, {row.value!r}: {row.alone}", markup=False
            )
    return {"gaps": report}, report.is_close


def _bisect(
    console: Console, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
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
    return {"verdict": verdict}, verdict.kind == "close"


def _compare(
    console: Console, model: Model, feeds: Mapping[str, Array], backend: Backend, options: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    engine, expected = run_oracle(options.program, feeds, options.engine)
    rtol, atol = RTOL if options.rtol is None else options.rtol, _choose_atol(options)
    outputs = run_plainly(model, dict(feeds), backend)
    gaps = {name: measure_output(expected[name], array, rtol, atol) for name, array in outputs.items()}
    for name, gap in gaps.items():
        console.print(f"{'ok ' if gap.is_close else 'OFF'} {name} against {engine}: {gap}", markup=False)
    is_close = all(gap.is_close for gap in gaps.values())
    if not is_close:
        console.print(f"which pass or layer: gpuexec verify {options.program} --bisect", markup=False)
    return {"engine": engine, "outputs": gaps}, is_close


def _read_against(text: str) -> BackendType | str | Model:
    if text == "cpu":
        return BackendType.CPU
    return text if text in ENGINES else load(text)


def _choose_atol(options: argparse.Namespace) -> float:
    return ATOL if options.atol is None else float(options.atol)

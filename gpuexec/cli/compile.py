"""gpuexec compile: models into a program that starts without a compiler."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.cli.feeds import make_random
from gpuexec.cli.precision_arguments import add_precision_arguments
from gpuexec.cli.sources import SUFFIX, check_output
from gpuexec.errors import GpuexecError, InputError
from gpuexec.ir.spec import DeclaredSpec
from gpuexec.model.loading import load
from gpuexec.model.model import Model, choose_precisions
from gpuexec.model.ports import ModelPort
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case, make_case
from gpuexec.program.container import write_contents
from gpuexec.program.contents import Bound, Contents, StoredCase
from gpuexec.system.array_files import load_arrays

Array = np.ndarray[Any, Any]
# Largest number of trips of a Loop with random inputs; a case of the user's own has no such limit.
_MAX_TRIPS = 1000
_BOUND = re.compile(r"(\d+)(?:\.\.(\d+))?")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compile", help="make a program of models: weights, plans and kernels in one file, to start without a compiler"
    )
    parser.add_argument("models", nargs="+", metavar="[METHOD=]MODEL", help="ONNX files; a lone one is 'forward'")
    parser.add_argument("-o", "--output", required=True, metavar=f"FILE{SUFFIX}", help="the program")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=N,A..B,...",
        help="extents of an input, or ranges of them",
    )
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=N|A..B", help="a free dimension: its extent, or its range"
    )
    parser.add_argument(
        "--arch", nargs="+", default=[], metavar="sm_90", help="GPUs to plan and compile for, beside the CPU"
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="[METHOD=]FILE.npz",
        help="inputs to test with, by name; outputs in the file are what is expected, else what the CPU computes is",
    )
    parser.add_argument(
        "--no-case",
        action="store_true",
        help="make no case of random inputs where none is given; else there is one wherever the model runs with them "
        f"and its Loops make at most {_MAX_TRIPS} trips",
    )
    add_precision_arguments(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    start = time.perf_counter()
    named = _name_models(options.models)
    check_output(options.output, named.values(), SUFFIX)
    methods = choose_precisions(
        {name: load(path) for name, path in named.items()}, options.precision, options.keep, options.fuse_rounding
    )
    bounds = {name: parse_bound(text) for name, text in _split_items(options.dim, "--dim").items()}
    shapes = {
        name: tuple([parse_bound(part) for part in text.split(",") if part])
        for name, text in _split_items(options.shape, "--shape").items()
    }
    given = _place_shapes(methods, shapes, bounds)
    cases = _read_cases(methods, options.case)
    notes = [] if options.no_case or options.case else _add_random_cases(methods, given, cases)
    contents = build_contents(methods, shapes=given, architectures=options.arch, cases=cases)
    nbytes = write_contents(contents, options.output)
    for note in notes:
        console.print(note, style="dim", markup=False)
    _print_summary(console, contents)
    console.print(f"written to {options.output}: {nbytes:,} bytes, {time.perf_counter() - start:.1f} s", markup=False)
    return 0


def parse_bound(text: str) -> Bound:
    """Parse ``4`` as an extent, ``1..8`` as a range.

    Raises:
        InputError: The text is neither.
    """
    match = _BOUND.fullmatch(text.strip())
    if match is None or len(text) > 40:
        raise InputError(f"{text[:40]!r} is no extent like 4, nor a range like 1..8.")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def _name_models(items: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals:
            name, path = "forward" if len(items) == 1 else Path(item).stem, item
        if name in named:
            raise InputError(f"Two models are called {name!r}; name them apart: other={path}")
        named[name] = path
    return named


def _split_items(items: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, text = item.rpartition("=")
        if not equals or not name:
            raise InputError(f"{option} {item!r} is not NAME=..., as in {option} x=4")
        pairs[name] = text
    return pairs


def _place_shapes(
    methods: Mapping[str, Model], shapes: Mapping[str, tuple[Bound, ...]], dims: Mapping[str, Bound]
) -> dict[str, dict[str, tuple[Bound | None, ...]]]:
    """Return shapes by method and input: those given, and those inferred from named dimensions.

    Raises:
        InputError: No model has an input or dimension of a name.
    """
    placed: dict[str, dict[str, tuple[Bound | None, ...]]] = {}
    unused = {*shapes, *dims}
    for method, model in methods.items():
        row = placed[method] = {}
        for port in model.inputs:
            names = port.spec.dims or ()
            found = {dim for dim in names if isinstance(dim, str) and dim in dims}
            unused -= {port.name, *found}
            if port.name in shapes:
                row[port.name] = shapes[port.name]
            elif found:
                row[port.name] = tuple(dims[dim] if isinstance(dim, str) and dim in dims else None for dim in names)
    if unused:
        known = sorted({port.name for model in methods.values() for port in model.inputs})
        raise InputError(f"No model has an input or dimension {sorted(unused)[0]!r}; inputs are {', '.join(known)}.")
    return placed


def _read_cases(methods: Mapping[str, Model], items: Sequence[str]) -> dict[str, list[Case | StoredCase]]:
    cases: dict[str, list[Case | StoredCase]] = {name: [] for name in methods}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals:
            name, path = next(iter(methods)) if len(methods) == 1 else "", item
        if name not in methods:
            raise InputError(f"--case {item!r} names no method; write METHOD={path}, of {', '.join(methods)}.")
        cases[name].append(_read_case(methods[name], path))
    return cases


def _read_case(model: Model, path: str) -> Case:
    arrays = load_arrays(path)
    if not isinstance(arrays, dict):
        raise InputError(f"{path} is no .npz file of arrays by name.")
    inputs, outputs = {port.name for port in model.inputs}, {port.name for port in model.outputs}
    unknown = sorted(arrays.keys() - inputs - outputs)
    if unknown:
        raise InputError(
            f"{path} holds {unknown[0]!r}, which is no input ({', '.join(sorted(inputs))}) and no output "
            f"({', '.join(sorted(outputs))}) of the model."
        )
    expected = {name: array for name, array in arrays.items() if name in outputs and name not in inputs}
    return Case({name: array for name, array in arrays.items() if name in inputs}, expected or None)


def _add_random_cases(
    methods: Mapping[str, Model],
    shapes: Mapping[str, Mapping[str, tuple[Bound | None, ...]]],
    cases: Mapping[str, list[Case | StoredCase]],
) -> list[str]:
    """Add a case of random inputs to each method that runs with them; return a line for each."""
    notes = []
    for name, model in methods.items():
        rng = np.random.default_rng(0)
        try:
            ports = [_at_end(port, shapes[name].get(port.name, ())) for port in model.inputs]
            case = Case({port.name: make_random(port, {}, rng) for port in ports})
            cases[name].append(make_case(model, case, max_trips=_MAX_TRIPS))
        except GpuexecError as error:
            notes.append(f"{name}: no case, for random inputs don't do: {error}")
        else:
            notes.append(f"{name}: a case of random inputs, with what the CPU makes of them")
    return notes


def _at_end(port: ModelPort, bounds: Sequence[Bound | None]) -> ModelPort:
    """Return an input with its largest extents, where it is bounded."""
    if not bounds:
        return port
    dims = port.spec.dims or (None,) * len(bounds)
    ends = [bound[1] if isinstance(bound, tuple) else bound for bound in bounds]
    known = tuple([dim if end is None else end for dim, end in zip(dims, ends, strict=False)])
    return ModelPort(port.name, DeclaredSpec(port.spec.dtype, known))


def _print_summary(console: Any, contents: Contents) -> None:
    for name, method in contents.methods.items():
        targets = [
            f"{target} ({plan.layout.nbytes:,} bytes)" for target, plans in method.plans.items() for plan in plans
        ]
        console.print(
            f"{name}: {len(method.model.graph.nodes)} nodes, arenas for {', '.join(targets) or 'no target'}, "
            f"{len(method.cases)} cases, precision {method.model.precision}",
            markup=False,
        )
        for gap in method.gaps:
            console.print(gap, style="yellow", markup=False)
    code = contents.code
    console.print(f"weights {contents.weights_nbytes:,} bytes, {len(code.kernels)} kernels {code.nbytes:,} bytes")

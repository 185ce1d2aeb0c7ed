"""gpuexec tune: times of our kernels and of libraries, measured once on a GPU, in a file that plans read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from gpuexec.cli.feeds import add_input_arguments
from gpuexec.cli.precision_arguments import add_precision_arguments, take_precision
from gpuexec.cli.sources import add_method_argument, check_output, open_model, read_inputs
from gpuexec.devices.backend import BackendType
from gpuexec.errors import InputError
from gpuexec.execution.profiling.terminal import make_table, open_console, print_table
from gpuexec.execution.tuning import tune
from gpuexec.ir.provider import LIBRARIES, OURS
from gpuexec.planner.tune_file import Tuning, merge_tunings, read_tuning, write_tuning


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune", help="measure products and convolutions by each provider on a GPU, once, for --tuning"
    )
    parser.add_argument("model", help="the ONNX file, or a program (.gxp)")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE.json", help="the tune file; one of the same GPU is added to"
    )
    parser.add_argument(
        "--providers", nargs="+", default=list(LIBRARIES), choices=LIBRARIES, help="libraries (default: all)"
    )
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="runs of each that count (default: 20)")
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="runs before them (default: 3)")
    parser.add_argument(
        "--backend",
        default=BackendType.GPU_COMPUTE.value,
        choices=[BackendType.GPU_COMPUTE.value],
        help="where to measure: the backend that has libraries",
    )
    add_method_argument(parser)
    add_precision_arguments(parser)
    add_input_arguments(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console = Console(highlight=False, soft_wrap=True)
    check_output(options.output, [options.model], ".json")
    before = read_tuning(options.output) if Path(options.output).exists() else None
    opened = open_model(options.model, options.method)
    model = take_precision(opened.model, options)
    feeds, notes = read_inputs(opened, options)
    for note in notes:
        console.print(note, style="dim", markup=False)
    measured = tune(
        model,
        feeds,
        providers=options.providers,
        backend=options.backend,
        runs=options.runs,
        warmup=options.warmup,
    )
    if not measured.times_us:
        raise InputError("The model has no product or convolution that a library could compute; no file was written.")
    _print_times(open_console(), measured)
    write_tuning(options.output, measured if before is None else merge_tunings(before, measured))
    console.print(f"{len(measured.times_us)} problems on {measured.gpu} written to {options.output}", markup=False)
    return 0


def _print_times(console: Console, tuning: Tuning) -> None:
    names = [OURS, *(name for name in LIBRARIES if any(name in times for times in tuning.times_us.values()))]
    table = make_table(("problem",), tuple(f"{name}, us" for name in names))
    for problem, times in tuning.times_us.items():
        table.add_row(escape(problem), *(f"{times[name]:.1f}" if name in times else "-" for name in names))
    print_table(console, table)

"""gpuexec bench: latency with its parts, throughput, and what runs are bound by, beside those of another day."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from gpuexec.cli.benchmark import Benchmark, advise, begin, measure
from gpuexec.cli.feeds import add_arguments
from gpuexec.cli.free_dims import array_of
from gpuexec.cli.json_output import add_json_argument, open_output, open_tables, print_json
from gpuexec.cli.output_checks import check_outputs, print_checks, require_model_file
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.sources import add_method_argument, open_model, open_worker, read_inputs
from gpuexec.errors import InputError
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.records import encode_fields
from gpuexec.system.version import VERSION

_PARTS = ("latency", "enqueue", "h2d", "compute", "d2h")
_NAMES = {"h2d": "H2D", "d2h": "D2H"}
_COLUMNS = ("min_ms", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms")
# What is to be alike of two benchmarks that are compared, in words.
_ALIKE = {"model": "model", "device": "device", "precision": "precision", "inputs": "size of inputs"}


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure latency with its parts and throughput, and say what runs are bound by"
    )
    add_arguments(parser)
    add_method_argument(parser)
    parser.add_argument(
        "--duration", type=float, default=3.0, metavar="S", help="seconds of each measurement (default: 3)"
    )
    parser.add_argument("--warmup", type=float, default=0.2, metavar="S", help="seconds before them (default: 0.2)")
    parser.add_argument(
        "--in-flight", type=int, default=2, metavar="N", help="runs at once, for the throughput (default: 2)"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime, or onnx.reference where that is missing"
    )
    parser.add_argument("--compare", metavar="OTHER.json", help="print the times beside those that --json printed")
    add_json_argument(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand; return 1 where outputs are not those of the other engine."""
    if not 0 < options.duration <= 3600 or not 0 <= options.warmup <= 3600:
        raise InputError(
            f"--duration must be above 0 and --warmup at least 0 seconds, both up to 3600, got {options.duration:g}"
            f" and {options.warmup:g}."
        )
    if options.in_flight < 1:
        raise InputError(f"--in-flight must be at least 1, got {options.in_flight}.")
    other = None if options.compare is None else _read_other(Path(options.compare))
    console = open_output(options)
    start = time.perf_counter()
    opened = open_model(options.model, options.method)
    load_ms = (time.perf_counter() - start) * 1e3
    if options.check:
        require_model_file(opened, options.model)
    model = take_precision(opened.model, options)
    feeds, notes = read_inputs(opened, options)
    with open_worker(model, options, frames=max(2, options.in_flight)) as worker:
        for note in notes:
            console.print(note, style="dim", markup=False)
        console.print(f"backend  {worker.backend_type.name}: {worker.backend_reason}", markup=False)
        beginning, outputs = begin(worker, feeds, load_ms)
        checks = check_outputs(options.model, feeds, outputs) if options.check else ()
        print_checks(console, checks)
        steady = measure(worker, feeds, options.in_flight, options.duration, options.warmup)
        found = Benchmark(
            model=Path(options.model).name,
            version=VERSION,
            backend=worker.backend_type.value,
            device=worker.report().backend,
            precision=str(worker.model.precision),
            inputs={port.name: str(TensorSpec.of(array_of(port, feeds[port.name]))) for port in model.inputs},
            beginning=beginning,
            steady=steady,
            advice=advise(steady, worker._backend.device.target),
            checks=checks,
        )
    tables, described = open_tables(options), found.to_dict()
    _print(console, tables, found)
    compared = None if other is None else _compare(console, tables, described, other)
    print_json(options, **described, **({} if compared is None else {"compared": compared}))
    return 0 if all(check.is_close for check in checks) else 1


def _print(console: Console, tables: Console, found: Benchmark) -> None:
    console.print(", ".join(f"{_spell(name)} {ms:.1f} ms" for name, ms in encode_fields(found.beginning).items()))
    times = make_table(("",), tuple(_spell(name) for name in _COLUMNS))
    for name in _PARTS:
        spread = getattr(found.steady, name)
        if spread is not None:
            times.add_row(_NAMES.get(name, name), *(f"{getattr(spread, column):.4f}" for column in _COLUMNS))
    print_table(tables, times, ("mean", "min", "max"))
    for each in found.steady.throughput:
        console.print(
            f"{each.in_flight} in flight: {each.runs_per_s:,.1f} runs/s, {each.rows_per_s:,.1f} rows/s, over"
            f" {each.runs} runs"
        )
    for sentence in found.advice:
        console.print(sentence, markup=False)


def _read_other(path: Path) -> Mapping[str, Any]:
    """Read what --json printed before.

    Raises:
        InputError: The file can't be read, or is nothing that `gpuexec bench --json` prints.
    """
    try:
        other = json.loads(path.read_bytes())
        dict(_list_numbers(other))
        [other[name] for name in _ALIKE]
    except OSError as error:
        raise InputError(f"--compare {path}: {error.strerror or error}.") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"--compare {path} is nothing that `gpuexec bench --json` prints.") from error
    return dict(other)


def _compare(
    console: Console, tables: Console, now: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, dict[str, float | None]]:
    """Print and return the numbers of two benchmarks by name, and the ratio of the second to the first."""
    for name in _ALIKE:
        if now[name] != other[name]:
            console.print(
                f"another {_ALIKE[name]}: {other[name]} before, {now[name]} now", style="yellow", markup=False
            )
    before = dict(_list_numbers(other))
    rows = {
        name: {"before": before[name], "now": number, "ratio": number / before[name] if before[name] else None}
        for name, number in _list_numbers(now)
        if name in before
    }
    table = make_table(("",), ("before", "now", "now / before"))
    for name, row in rows.items():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        table.add_row(name, f"{row['before']:,.4f}", f"{row['now']:,.4f}", ratio)
    print_table(tables, table)
    return rows


def _list_numbers(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a benchmark that are worth a comparison, by name."""
    for name, ms in found["beginning"].items():
        yield f"{_spell(name)} ms", float(ms)
    for name in _PARTS:
        spread = found["steady"][name]
        if spread is not None:
            for column in ("p50_ms", "p99_ms"):
                yield f"{_NAMES.get(name, name)} {_spell(column)} ms", float(spread[column])
    for each in found["steady"]["throughput"]:
        yield f"runs/s, {each['in_flight']} in flight", float(each["runs_per_s"])


def _spell(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")

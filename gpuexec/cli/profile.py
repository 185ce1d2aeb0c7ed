"""gpuexec profile: time of each layer, host waits, and a trace file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from gpuexec.cli.feeds import add_arguments
from gpuexec.cli.host_rows import print_host_rows
from gpuexec.cli.json_output import add_json_argument, open_tables, print_json
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.sources import add_method_argument, open_model, open_worker, read_inputs
from gpuexec.errors import InputError
from gpuexec.execution.profiling.complexity import WorkRow, count_work
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.profiling.rows import EventRow
from gpuexec.execution.profiling.tables import print_summary, spell
from gpuexec.execution.profiling.terminal import make_table, print_table

if TYPE_CHECKING:
    from rich.console import Console

_SIZES = ("FLOP", "bytes read", "bytes written", "weights")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile", help="run a model and print the time of each layer, with percentiles, or write a trace"
    )
    add_arguments(parser)
    add_method_argument(parser)
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="runs that are counted (default: 10)")
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="runs before them (default: 1)")
    parser.add_argument("--by", choices=("layer", "operator"), default="layer", help="what a row is (default: layer)")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows printed, 0: all (default: 40)")
    parser.add_argument("--trace", metavar="OUT.json", help="write a trace for chrome://tracing or Perfetto")
    parser.add_argument(
        "--html", metavar="OUT.html", help="write a page with segments, a timeline of the last run, and the roofline"
    )
    parser.add_argument("--tsv", metavar="OUT.tsv", help="write every layer of every run, tab-separated")
    parser.add_argument("--nvtx", action="store_true", help="mark layers and phases for NVIDIA's profilers")
    parser.add_argument("--static", action="store_true", help="only print operations and bytes by shapes; run nothing")
    add_json_argument(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    if options.runs < 1 or options.warmup < 0:
        raise InputError(f"--runs must be at least 1 and --warmup 0, got {options.runs} and {options.warmup}.")
    console = open_tables(options)
    limit = options.limit if options.limit > 0 else None
    profiler = Profiler(keep_runs=options.runs + options.warmup, nvtx=options.nvtx)
    with profiler:
        opened = open_model(options.model, options.method)
    model = take_precision(opened.model, options)
    feeds, notes = read_inputs(opened, options)
    for note in notes:
        console.print(note, style="dim", markup=False)
    if options.static:
        work = count_work(model, feeds)
        _print_work(console, work, options.by, limit)
        print_json(options, model=options.model, notes=notes, work=work)
        return 0
    with open_worker(model, options, profiler=profiler) as worker:
        for _ in range(options.warmup + options.runs):
            worker.run(feeds)
        console.print(f"backend  {worker.backend_type.name}: {worker.backend_reason}", markup=False)
        _print_runs(console, profiler, options.warmup)
        print_summary(profiler.summarise(options.by, skip=options.warmup), options.by, limit, console)
        _print_events(console, profiler.events())
        report = worker.report()
        print_host_rows(console, report)
        console.print(f"{profiler.count_syncs()} implicit waits, reads or computations of the host")
    if options.trace:
        profiler.save_chrome_trace(options.trace)
        console.print(f"trace written to {options.trace}", markup=False)
    if options.html:
        profiler.save_html(options.html)
        console.print(f"page written to {options.html}", markup=False)
    if options.tsv:
        profiler.save_tsv(options.tsv)
        console.print(f"layers written to {options.tsv}", markup=False)
    print_json(
        options, model=options.model, notes=notes, report=report, **profiler.to_dict(options.by, skip=options.warmup)
    )
    return 0


def _print_runs(console: Console, profiler: Profiler, skip: int) -> None:
    """Print the device time of runs from first to last command, and the part of it spent in layers."""
    taken = [row.duration_ms for row in profiler.runs() if row.run >= skip and row.duration_ms is not None]
    total = profiler.find_total(skip=skip)
    p10, p50, p90 = (float(each) for each in np.percentile(taken, (10, 50, 90))) if taken else (0.0, 0.0, 0.0)
    layers = 0.0 if total is None else total.p50_ms
    console.print(
        f"{len(taken)} runs after {skip}, as launches layer by layer: p10 {p10:.3f} ms, p50 {p50:.3f} ms,"
        f" p90 {p90:.3f} ms, of which layers {layers:.3f} ms"
    )
    if total is not None and total.flops is not None and total.avg_ms > 0:
        console.print(f"{spell(total.flops)}FLOP a run, {spell(total.flops / total.avg_ms * 1e3)}FLOP/s in layers")


def _print_events(console: Console, events: tuple[EventRow, ...]) -> None:
    """Print the package's events around the layers, totalled by name."""
    sums: dict[str, tuple[int, float, int]] = {}
    for row in events:
        times, taken, nbytes = sums.get(row.name, (0, 0.0, 0))
        sums[row.name] = (times + 1, taken + (row.duration_ms or 0.0), nbytes + row.nbytes)
    table = make_table(("event",), ("times", "ms in all", "bytes"))
    for name, (times, taken, nbytes) in sums.items():
        table.add_row(name, str(times), f"{taken:.3f}", spell(nbytes))
    print_table(console, table)


def _print_work(console: Console, rows: Sequence[WorkRow], by: str, limit: int | None) -> None:
    """Print the static cost of nodes, or of operators in total, the most expensive first."""
    groups: dict[tuple[str, str], list[WorkRow]] = {}
    for row in rows:
        groups.setdefault((row.node if by == "layer" else "", row.operator), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: _rank(item[1]), reverse=True)
    texts, numbers = (("node", "operator"), _SIZES) if by == "layer" else (("operator",), ("nodes", *_SIZES))
    table = make_table(texts, numbers)
    for (node, operator), group in ordered[:limit]:
        columns = zip(*[(row.flops, row.bytes_read, row.bytes_written, row.weight_bytes) for row in group], strict=True)
        sizes = ["-" if None in column else spell(sum(column)) for column in columns]
        table.add_row(*([escape(node), operator] if by == "layer" else [operator, str(len(group))]), *sizes)
    print_table(console, table)
    if limit is not None and len(ordered) > limit:
        console.print(f"and {len(ordered) - limit} more")
    console.print(f"{spell(sum(row.flops or 0 for row in rows))}FLOP in all")


def _rank(group: Sequence[WorkRow]) -> tuple[int, int]:
    """Return the sort key of nodes: operations, then bytes moved."""
    moved = sum((row.bytes_read or 0) + (row.bytes_written or 0) for row in group)
    return sum(row.flops or 0 for row in group), moved

"""gpuexec run: execution of a model with timings, checks and printed results."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.cli.feeds import add_arguments, count_rows, parse_rows, read_array
from gpuexec.cli.host_rows import print_host_rows
from gpuexec.cli.json_output import add_json_argument, open_output, print_json
from gpuexec.cli.leaves import describe_leaves, list_all_leaves, write_outputs
from gpuexec.cli.output_checks import check_outputs, print_checks, require_model_file
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.row_batches import add_batch_arguments, check_batch_arguments, run_row_batches
from gpuexec.cli.sources import add_method_argument, open_model, open_worker, read_inputs
from gpuexec.errors import InputError
from gpuexec.execution.report import Report
from gpuexec.execution.worker import Worker
from gpuexec.system.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

Array = np.ndarray[Any, Any]
# Of pixels printed in a terminal, two character cells each.
_SHADES = " ░▒▓█"


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser("run", help="run a model on inputs from files or random ones")
    add_arguments(parser)
    add_method_argument(parser)
    add_result_arguments(parser)
    parser.set_defaults(main=main)


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of what is done with the outputs: timed, checked, written, shown."""
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times more and give p50, p99 and throughput"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime, or onnx.reference where that is missing"
    )
    parser.add_argument("--output", metavar="FILE", help="write the outputs to an .npz or a .json file")
    add_batch_arguments(parser)
    parser.add_argument(
        "--labels", metavar="FILE[:KEY]", help="class of each row: print the accuracy of the first output"
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="show N rows of the first input as pictures with their class"
    )
    add_json_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console = open_output(options)
    check_batch_arguments(options)
    rows = parse_rows(options.rows)
    start = time.perf_counter()
    with show_progress(console) as progress:
        opened = open_model(options.model, options.method, progress)
    model = take_precision(opened.model, options)
    load_ms = (time.perf_counter() - start) * 1e3
    feeds, notes = read_inputs(opened, options)
    if options.check:
        require_model_file(opened, options.model)
    labels = None if options.labels is None else read_array(options.labels, rows)
    with show_progress(console) as progress, open_worker(model, options, progress=progress) as worker:
        _print_head(console, options.model, worker, notes)
        if options.batch is not None:
            run_row_batches(console, worker, feeds, options)
            return 0
        outputs, first_ms = _run(worker, feeds)
        _print_first(console, load_ms, first_ms, worker.report())
        timing = _time(worker, feeds, options.repeat) if options.repeat > 0 else None
        report = worker.report()
        if timing is not None:
            console.print(str(timing), markup=False)
        print_host_rows(console, report)
    checks = check_outputs(options.model, feeds, outputs) if options.check else ()
    print_checks(console, checks)
    for name, array in outputs.items():
        for line in describe_leaves(name, array):
            console.print(line, markup=False)
    first = next(iter(outputs.values()))
    right = None if labels is None else _count_right(first, labels)
    if labels is not None and right is not None:
        accuracy = f"[bold]accuracy {100 * right / len(labels):.2f} %[/bold]"
        console.print(f"{accuracy} ({right} of {len(labels)})")
    if options.show:
        _show_images(console, next(iter(feeds.values())), first, labels, options.show)
    if options.output:
        write_outputs(Path(options.output), outputs)
        console.print(f"written to {options.output}", markup=False)
    print_json(
        options,
        model=options.model,
        inputs=list_all_leaves(feeds),
        notes=notes,
        load_ms=load_ms,
        first_ms=first_ms,
        timing=timing,
        outputs=list_all_leaves(outputs),
        checks=checks,
        right=right,
        report=report,
    )
    return 0 if all(check.is_close for check in checks) else 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency, from schedule to answer on the host, and throughput with the next run scheduled while one is read."""

    runs: int
    p50_ms: float
    p99_ms: float
    rows_per_s: float

    def __str__(self) -> str:
        return (
            f"latency p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms over {self.runs} runs; "
            f"throughput {self.rows_per_s:,.0f} rows/s"
        )


def _print_head(console: Console, path: str, worker: Worker, notes: Sequence[str]) -> None:
    from rich.markup import escape

    model = worker.model
    console.print(f"[bold]{escape(path)}[/bold]: {len(model.graph.nodes)} nodes")
    for port in model.inputs:
        console.print(f"  input   {port}", markup=False)
    for port in model.outputs:
        console.print(f"  output  {port}", markup=False)
    for note in notes:
        console.print(f"  {note}", style="dim", markup=False)
    console.print(f"backend  {worker.backend_type.name}: {worker.backend_reason}", markup=False)


def _print_first(console: Console, load_ms: float, first_ms: float, report: Report) -> None:
    console.print(
        f"load {load_ms:.1f} ms, plan {report.plan_ms:.1f} ms, compile {report.compile_ms:.1f} ms, "
        f"first run {first_ms:.1f} ms with these"
    )
    if report.plans_restored:
        console.print(f"{report.plans_restored} of {report.plans} plans restored from the program")
    for why in report.plans_refused:
        console.print(f"a plan of the program was made again: {why}", markup=False)


@contextlib.contextmanager
def show_progress(console: Console) -> Iterator[ProgressCallback | None]:
    """Yield a progress callback that draws a bar for each stage; None where output is no terminal."""
    if not console.is_terminal or console.quiet:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Task, TransferSpeedColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Amount(DownloadColumn):
        """Bytes, or how many are done."""

        def render(self, task: Task) -> Text:
            counted = Text(f"{int(task.completed)}/{int(task.total or 0)}", style="progress.download")
            return counted if task.fields["is_counted"] else super().render(task)

    class Speed(TransferSpeedColumn):
        """Bytes in a second."""

        def render(self, task: Task) -> Text:
            return Text() if task.fields["is_counted"] else super().render(task)

    tasks: dict[str, TaskID] = {}
    with Bars("{task.description}", BarColumn(), Amount(), Speed(), console=console, transient=True) as bars:

        def report(progress: Progress) -> None:
            is_counted = progress.total_count > 0
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(progress.describe(), is_counted=is_counted)
            bars.update(
                tasks[progress.stage],
                completed=progress.done_count if is_counted else progress.done_nbytes,
                total=progress.total_count if is_counted else progress.total_nbytes,
                visible=not progress.is_over,
            )

        yield report


def _run(worker: Worker, feeds: dict[str, Any]) -> tuple[dict[str, Any], float]:
    start = time.perf_counter()
    run = worker.schedule(feeds)
    requests = {name: tensor.readback_request() for name, tensor in run.outputs.items()}
    outputs = {name: request.result() for name, request in requests.items()}
    return outputs, (time.perf_counter() - start) * 1e3


def _time(worker: Worker, feeds: dict[str, Any], repeat: int) -> Timing:
    latencies = [_run(worker, feeds)[1] for _ in range(repeat)]
    p50, p99 = np.percentile(latencies, [50, 99])
    start = time.perf_counter()
    previous = None
    for _ in range(repeat):
        request = worker.schedule(feeds).peek_output().readback_request()
        if previous is not None:
            previous.wait()
        previous = request
    if previous is not None:
        previous.wait()
    seconds = time.perf_counter() - start
    return Timing(repeat, float(p50), float(p99), repeat * count_rows(feeds) / seconds)


def _count_right(scores: Array, labels: Array) -> int:
    """Return how many rows have their largest score at their label.

    Raises:
        InputError: The scores are no rows of classes, or as many as the labels.
    """
    if scores.ndim != 2 or scores.shape[0] != labels.shape[0]:
        raise InputError(
            f"The first output is {list(scores.shape)}, the labels {list(labels.shape)}: "
            "expected [rows, classes] and [rows]."
        )
    return int(np.sum(scores.argmax(axis=1) == labels))


def _show_images(console: Console, images: Array, scores: Array, labels: Array | None, count: int) -> None:
    """Print the first ``count`` images side by side, each over its predicted class, a wrong one with the true class.

    Args:
        console: Where to print.
        images: ``[n, 1, height, width]`` or ``[n, height, width]``.
        scores: ``[n, classes]``.
        labels: ``[n]``, or None.
        count: How many; as many as fit in a line of the terminal go side by side.
    """
    images = images.reshape(images.shape[0], *images.shape[-2:])[:count]
    width = 2 * images.shape[-1] + 2
    per_line = max(1, console.width // width)
    low, high = float(images.min()), float(images.max())
    levels = ((images - low) / max(high - low, 1e-30) * (len(_SHADES) - 1)).round().astype(int)
    for start in range(0, len(images), per_line):
        group = levels[start : start + per_line]
        for row in range(group.shape[1]):
            console.print("  ".join("".join(_SHADES[level] * 2 for level in image[row]) for image in group))
        captions = []
        for index in range(start, start + len(group)):
            guess = int(scores[index].argmax())
            wrong = labels is not None and guess != int(labels[index])
            text = f"{guess}" + (f" (is {int(labels[index])})" if wrong and labels is not None else "")
            captions.append(text.center(width - 2))
        console.print("[bold]" + "  ".join(captions) + "[/bold]\n")

"""gpuexec run: execution of a model with timings, checks and printed results."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.cli.feeds import add_arguments, parse_rows, read_array
from gpuexec.cli.host_rows import print_host_rows
from gpuexec.cli.leaves import describe_leaves, list_all_leaves, write_outputs
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.sources import add_method_argument, open_model, read_inputs
from gpuexec.devices.backend import BackendType
from gpuexec.errors import InputError
from gpuexec.execution.worker import Worker
from gpuexec.ir.spec import is_host_object
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
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times more and give p50, p99 and throughput"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime, or onnx.reference where that is missing"
    )
    parser.add_argument("--output", metavar="FILE", help="write the outputs to an .npz or a .json file")
    parser.add_argument(
        "--labels", metavar="FILE[:KEY]", help="class of each row: print the accuracy of the first output"
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="show N rows of the first input as pictures with their class"
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    rows = parse_rows(options.rows)
    start = time.perf_counter()
    with show_progress(console) as progress:
        opened = open_model(options.model, options.method, progress)
    model = take_precision(opened.model, options)
    load_ms = (time.perf_counter() - start) * 1e3
    feeds, notes = read_inputs(opened, options)
    if options.check and opened.method is not None:
        raise InputError(f"--check needs the ONNX file; a program is checked by: gpuexec verify {options.model}")
    labels = None if options.labels is None else read_array(options.labels, rows)
    with (
        show_progress(console) as progress,
        Worker(
            model,
            backend=BackendType(options.backend),
            providers=options.providers,
            tuning=options.tuning,
            progress=progress,
        ) as worker,
    ):
        console.print(f"[bold]{escape(options.model)}[/bold]: {len(model.graph.nodes)} nodes")
        for port in model.inputs:
            console.print(f"  input   {port}", markup=False)
        for port in model.outputs:
            console.print(f"  output  {port}", markup=False)
        for note in notes:
            console.print(f"  {note}", style="dim", markup=False)
        console.print(f"backend  {worker.backend_type.name}: {worker.backend_reason}", markup=False)
        outputs, first_ms = _run(worker, feeds)
        report = worker.report()
        console.print(
            f"load {load_ms:.1f} ms, plan {report.plan_ms:.1f} ms, compile {report.compile_ms:.1f} ms, "
            f"first run {first_ms:.1f} ms with these"
        )
        if report.plans_restored:
            console.print(f"{report.plans_restored} of {report.plans} plans restored from the program")
        for why in report.plans_refused:
            console.print(f"a plan of the program was made again: {why}", markup=False)
        if options.repeat > 0:
            _time(console, worker, feeds, options.repeat)
        print_host_rows(console, worker.report())
        status = _check(console, options.model, feeds, outputs) if options.check else 0
        for name, array in outputs.items():
            for line in describe_leaves(name, array):
                console.print(line, markup=False)
        first = next(iter(outputs.values()))
        if labels is not None:
            _print_accuracy(console, first, labels)
        if options.show:
            _show_images(console, next(iter(feeds.values())), first, labels, options.show)
        if options.output:
            write_outputs(Path(options.output), outputs)
            console.print(f"written to {options.output}", markup=False)
    return status


@contextlib.contextmanager
def show_progress(console: Console) -> Iterator[ProgressCallback | None]:
    """Yield a progress callback that draws a bar for each stage; None where output is no terminal."""
    if not console.is_terminal:
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


def _time(console: Console, worker: Worker, feeds: dict[str, Any], repeat: int) -> None:
    """Print latency (schedule to answer on the host) and throughput (the next run scheduled while the last is read)."""
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
    rows = next((each.shape[0] for each in feeds.values() if isinstance(each, np.ndarray) and each.ndim), 1)
    console.print(
        f"latency p50 {p50:.2f} ms, p99 {p99:.2f} ms over {repeat} runs; "
        f"throughput {repeat * rows / seconds:,.0f} rows/s"
    )


def _check(console: Console, path: str, feeds: dict[str, Any], outputs: dict[str, Any]) -> int:
    from gpuexec.importer.oracle import run_oracle

    oracle, expected = run_oracle(path, feeds)
    worst = 0.0
    actual, right = list_all_leaves(outputs), list_all_leaves(expected)
    if actual.keys() != right.keys():
        raise InputError(f"The outputs are {', '.join(actual)}; {oracle} says {', '.join(right)}.")
    for name, array in actual.items():
        if array.shape != right[name].shape:
            raise InputError(f"Output {name!r} is {array.shape}, {oracle} says {right[name].shape}.", value=name)
        if is_host_object(array.dtype):
            # Text is right or wrong: each wrong one counts as an error of 1.
            got, wanted = (array != right[name].astype(array.dtype)).astype(np.float64), np.zeros(array.shape)
        else:
            got, wanted = array.astype(np.float64), right[name].astype(np.float64)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        error = float(np.max(np.where(same, 0.0, np.abs(got - wanted)), initial=0.0))
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        console.print(
            f"check {name}: maximum error {error:.3g} (largest value {scale:.3g}) against {oracle}", markup=False
        )
        worst = max(worst, error / max(scale, 1e-30)) if not np.isnan(error) else np.inf
    return 0 if worst <= 1e-3 else 1


def _print_accuracy(console: Console, scores: Array, labels: Array) -> None:
    if scores.ndim != 2 or scores.shape[0] != labels.shape[0]:
        raise InputError(
            f"The first output is {list(scores.shape)}, the labels {list(labels.shape)}: "
            "expected [rows, classes] and [rows]."
        )
    right = int(np.sum(scores.argmax(axis=1) == labels))
    console.print(f"[bold]accuracy {100 * right / len(labels):.2f} %[/bold] ({right} of {len(labels)})")


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

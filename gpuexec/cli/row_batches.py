"""gpuexec run --batch: many rows in batches, written to .npy files as they come, resumable after a kill.

While it runs, output is in ``FILE.npy.part``, beside ``FILE.npy.part.json``, which says how many rows are on the disk
and what they were computed from. At the end the parts take their names, so that an ``.npy`` file of that name is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import quote

import numpy as np

from gpuexec.cli.sources import check_output
from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.batcher import Batcher
from gpuexec.execution.worker import Worker
from gpuexec.ir.graph_json import encode_graph
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.model.model import Model
from gpuexec.model.outputs import Outputs
from gpuexec.system.atomic_file import put_in_place, write_file
from gpuexec.system.mapped import hash_content, view_bytes

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]
# How often rows are brought to the disk and counted: a kill loses so much work, and the batches under way.
_MARK_EVERY_S = 0.5
# Runs of a batch under way: the next is computed while one is read and written.
_IN_FLIGHT = 2
# Options of `run` that are about one run of all rows.
_OF_ONE_RUN = {"check": False, "labels": None, "show": 0, "repeat": 1, "json": False}


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --batch and --resume."""
    parser.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="run N rows of the inputs at a time, and write the outputs to --output FILE.npy as they come (of several"
        " outputs, each to FILE.NAME.npy)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="with --batch: go on behind the rows that an interrupted run has written"
    )


def check_batch_arguments(options: argparse.Namespace) -> None:
    """Check what --batch and --resume need, before any work is done.

    Raises:
        InputError: They are used without each other or without an .npy file, or with what is of one run.
    """
    if options.batch is None:
        if options.resume:
            raise InputError("--resume goes on with rows in batches: give --batch N, too.")
        return
    if options.batch < 1:
        raise InputError(f"--batch must be at least 1, got {options.batch}.")
    if options.output is None or not options.output.endswith(".npy"):
        raise InputError(f"--batch writes rows to --output FILE.npy, got {options.output or 'no --output'}.")
    check_output(options.output, (options.model,), ".npy")
    for name, default in _OF_ONE_RUN.items():
        if getattr(options, name) != default:
            raise InputError(f"--{name} is about one run: leave it out with --batch.")


def run_row_batches(console: Console, worker: Worker, feeds: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Run all rows of the inputs in batches, with a bar in a terminal, and write the outputs.

    Args:
        console: Where to print.
        worker: Runs the batches.
        feeds: By input; all ``[rows, ...]``.
        options: Of `add_batch_arguments`, with ``output``, ``precision``, ``keep`` and ``fuse_rounding``.

    Raises:
        InputError: Inputs have different numbers of rows, an output is no array of numbers with a row for each, or
            the rows to go on from were computed from something else.
        GpuexecError: What a run raised. The rows before it are kept.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    rows = _count_rows(feeds)
    _check_outputs(worker.model)
    names = [port.name for port in worker.model.outputs]
    with contextlib.ExitStack() as stack:
        batcher = stack.enter_context(Batcher(worker, max_batch=options.batch))
        work = _describe_work(worker, feeds, options)
        files = RowFiles(Path(options.output), names, rows, work, resumes=options.resume)
        stack.callback(files.close)
        if options.resume:
            console.print(f"resumed at row {files.done:,}" if files.done else "nothing to resume: begun at row 0")
        first, start = files.done, time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bars = stack.enter_context(Bars(*columns, console=console, transient=True, disable=not console.is_terminal))
        task = bars.add_task("rows", completed=first, total=rows)
        try:
            for answer in _run_ahead(batcher, feeds, range(first, rows, options.batch)):
                files.write(dict(answer.items()))
                bars.update(task, completed=files.done)
        except (GpuexecError, KeyboardInterrupt):
            console.print(f"stopped at row {files.done:,}; --resume goes on from there")
            raise
        finally:
            files.mark()
        seconds = time.perf_counter() - start
        specs = files.finish()
    console.print(f"{rows - first:,} rows in {seconds:.1f} s, {(rows - first) / max(seconds, 1e-9):,.0f} rows/s")
    for path, spec in specs.items():
        console.print(f"{path}: {spec}", markup=False)


@dataclass(frozen=True, slots=True, eq=False)
class RowFile:
    """An ``.npy`` file of a declared number of rows, written in order.

    Attributes:
        file: Open for reading and writing.
        spec: ``[rows, ...]``, what it holds in the end.
        header_nbytes: Where the first row is.
    """

    file: BinaryIO
    spec: TensorSpec
    header_nbytes: int

    @classmethod
    def begin(cls, file: BinaryIO, spec: TensorSpec) -> RowFile:
        """Begin one without rows, in an empty file."""
        header = {"shape": spec.shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(spec.dtype)}
        np.lib.format.write_array_header_1_0(file, header)
        return cls(file, spec, file.tell())

    @classmethod
    def go_on(cls, file: BinaryIO, done: int) -> RowFile:
        """Go on behind the first ``done`` rows of one; those behind them are dropped.

        Raises:
            ValueError: It is no such file, or has fewer rows.
        """
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        opened = cls(file, TensorSpec(shape, dtype), file.tell())
        end = opened.header_nbytes + done * (opened.spec.nbytes // shape[0])
        if os.fstat(file.fileno()).st_size < end:
            raise ValueError("it has fewer")
        file.truncate(end)
        file.seek(end)
        return opened


class RowFiles:
    """The outputs of many rows in ``.npy`` files, and the count of rows that are on the disk.

    Args:
        output: ``FILE.npy``.
        names: Of the outputs; of several, each has a file of its own.
        rows: How many there will be.
        work: What the rows are computed from, as JSON data by the words for it.
        resumes: Go on behind the rows that are on the disk, where there are any.

    Attributes:
        done: How many rows are written.

    Raises:
        InputError: The rows there were computed from something else, or can't be read.
    """

    def __init__(self, output: Path, names: Sequence[str], rows: int, work: dict[str, Any], *, resumes: bool) -> None:
        self._output, self._names, self._rows, self._work = output, names, rows, work
        self._count = output.with_suffix(".npy.part.json")
        self._files: dict[str, RowFile] = {}
        self._opened = contextlib.ExitStack()
        self.done, self._marked_s = 0, time.monotonic()
        if not resumes:
            self._count.unlink(missing_ok=True)
        elif self._count.exists():
            self._reopen()

    def _reopen(self) -> None:
        try:
            begun = json.loads(self._count.read_bytes())
            before, self.done = dict(begun["work"]), int(begun["done"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self._count} is no count of rows: leave out --resume to begin anew.") from error
        for word, value in self._work.items():
            if before.get(word) != value:
                raise InputError(
                    f"--resume: {self._output} was begun with {word} {before.get(word)}, now {value}: give the same, or"
                    " leave out --resume to begin anew."
                )
        for name in self._names if self.done else ():
            # Where the end was interrupted, some have their names.
            path = self._part(name) if self._part(name).exists() else self.path(name)
            try:
                self._files[name] = RowFile.go_on(self._open(path, "r+b"), self.done)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"--resume: {path} has not the {self.done} rows that {self._count.name} counts ({error}): leave out"
                    " --resume to begin anew."
                ) from error

    def write(self, answer: Mapping[str, Array]) -> None:
        """Write the outputs of the next rows.

        Raises:
            InputError: An output has other axes behind the first than before.
        """
        for name, array in answer.items():
            if name not in self._files:
                spec = TensorSpec((self._rows, *array.shape[1:]), array.dtype)
                self._files[name] = RowFile.begin(self._open(self._part(name), "w+b"), spec)
            shape = self._files[name].spec.shape
            if array.shape[1:] != shape[1:]:
                raise InputError(
                    f"Output {name!r} has rows of {list(shape[1:])} before row {self.done}, and then of"
                    f" {list(array.shape[1:])}; --batch needs rows of one shape.",
                    value=name,
                )
        for name, array in answer.items():
            self._files[name].file.write(np.ascontiguousarray(array).data)
        self.done += len(next(iter(answer.values())))
        if time.monotonic() - self._marked_s >= _MARK_EVERY_S:
            self.mark()

    def mark(self) -> None:
        """Bring what is written to the disk, and then the count of its rows."""
        for each in self._files.values():
            each.file.flush()
            os.fsync(each.file.fileno())
        write_file(self._count, json.dumps({"done": self.done, "work": self._work}))
        self._marked_s = time.monotonic()

    def finish(self) -> dict[Path, TensorSpec]:
        """Give the files, whole and marked, their names; return what each holds."""
        self.close()  # Windows renames no file that is open
        for name in self._names:
            if self._part(name).exists():
                put_in_place(self._part(name), self.path(name))
        self._count.unlink()
        return {self.path(name): each.spec for name, each in self._files.items()}

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    def _open(self, path: Path, mode: Literal["r+b", "w+b"]) -> BinaryIO:
        return self._opened.enter_context(open(path, mode))

    def path(self, name: str) -> Path:
        """Return the file of an output."""
        if len(self._names) == 1:
            return self._output
        return self._output.with_name(f"{self._output.stem}.{quote(name, safe='')}.npy")

    def _part(self, name: str) -> Path:
        return self.path(name).with_suffix(".npy.part")


def _run_ahead(batcher: Batcher, feeds: Mapping[str, Array], begins: range) -> Iterator[Outputs[Any]]:
    """Yield the outputs of batches in order, while the next is under way."""
    waiting: deque[Future[Outputs[Any]]] = deque()
    for begin in begins:
        waiting.append(batcher.submit({name: array[begin : begin + begins.step] for name, array in feeds.items()}))
        if len(waiting) == _IN_FLIGHT:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _count_rows(feeds: Mapping[str, Any]) -> int:
    counts = {name: len(array) if isinstance(array, np.ndarray) and array.ndim else 0 for name, array in feeds.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"--batch needs as many rows of every input, got {said}.")
    rows = next(iter(counts.values()), 0)
    if rows == 0:
        raise InputError("--batch needs inputs of one row or more, got none.")
    return rows


def _check_outputs(model: Model) -> None:
    for port in model.outputs:
        if is_host_object(port.spec.dtype) or port.spec.dtype.isbuiltin != 1:
            raise InputError(
                f"Output {port.name!r} ({port.spec}) is of a type that .npy files don't have: leave out --batch.",
                value=port.name,
            )


def _describe_work(worker: Worker, feeds: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what the bits of the rows follow from, by the words for it in messages."""
    return {
        "model": _hash_model(worker.model),
        "precision": [options.precision, sorted(options.keep or ()), bool(options.fuse_rounding)],
        "backend": worker.backend_type.value,
        "batches of": options.batch,
        "inputs": {name: f"{TensorSpec.of(array)} {_hash_array(array)}" for name, array in feeds.items()},
    }


def _hash_model(model: Model) -> str:
    """Return the SHA-256 of a model's graph and weights, wherever these lie."""
    hashes: list[str] = []

    def keep(array: Array, _: str) -> int:
        hashes.append(f"{TensorSpec.of(array)} {_hash_array(array)}")
        return len(hashes)

    graph = encode_graph(model._source_graph, keep)
    return hashlib.sha256(json.dumps([graph, hashes]).encode()).hexdigest()


def _hash_array(array: Array) -> str:
    if is_host_object(array.dtype):
        return hashlib.sha256(json.dumps(array.tolist()).encode()).hexdigest()
    return hash_content(view_bytes(array).cast("B")).hex()

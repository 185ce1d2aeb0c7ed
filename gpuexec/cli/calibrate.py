"""gpuexec calibrate: a model quantised to 8 bits, with scales from batches of inputs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.cli.feeds import add_file_arguments, parse_rows, read_given
from gpuexec.cli.sources import check_output
from gpuexec.devices.backend import BackendType
from gpuexec.errors import InputError
from gpuexec.execution.calibration.calibrating import ACTIVATIONS, METHODS, PRODUCTS, calibrate
from gpuexec.ir.graphs import walk
from gpuexec.model.loading import load
from gpuexec.model.model import Model

_FILES = (".npz", ".npy", ".json")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "calibrate", help="quantise a model to 8 bits, as QuantizeLinear and DequantizeLinear, by batches of inputs"
    )
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.onnx", help="the quantised model")
    parser.add_argument(
        "--batch",
        action="append",
        default=[],
        metavar="FILE|FOLDER",
        help="the inputs of a run, by name, in an .npz or .json file (a lone input: an .npy file), or a folder of such;"
        " may be given again",
    )
    add_file_arguments(parser)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="divide what --input gives into batches, by its first axis"
    )
    parser.add_argument(
        "--method", default="max", choices=METHODS, help="what ranges are taken from magnitudes (default: max)"
    )
    parser.add_argument("--percentile", type=float, default=99.99, metavar="P", help="of that method (default: 99.99)")
    parser.add_argument("--per-tensor", action="store_true", help="give weights one scale, in place of one a channel")
    parser.add_argument(
        "--products", default="weights", choices=PRODUCTS, help="all: those of two activations too (default: weights)"
    )
    parser.add_argument("--activations", default="int8", choices=list(ACTIVATIONS), help="(default: int8)")
    parser.add_argument("--keep", nargs="+", default=[], metavar="NODE", help="nodes that stay float; head.* fits many")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=[each.value for each in BackendType],
        help="where to run (default: the GPU when one works, else the CPU)",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    check_output(options.output, [options.model], ".onnx")
    model = load(options.model)
    quantized = calibrate(
        model,
        _read_batches(model, options),
        method=options.method,
        percentile=options.percentile,
        per_channel=not options.per_tensor,
        products=options.products,
        activations=options.activations,
        keep=options.keep,
        backend=options.backend,
    )
    quantized.save(options.output)
    for line in _list_scales(quantized):
        console.print(line, markup=False)
    before, after = (_count_bytes(each) for each in (model, quantized))
    console.print(f"written to {options.output}: weights take {after:,} bytes, {before:,} before", markup=False)
    return 0


def _read_batches(model: Model, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield batches: first those of files of their own, each read when its turn comes, then those cut by rows.

    Raises:
        InputError: A folder has none, or what is to be divided is of different length.
    """
    rows = parse_rows(options.rows)
    for path in _list_files(options.batch):
        yield read_given(model, [str(path)], rows)[0]
    if not options.input:
        return
    feeds, _ = read_given(model, options.input, rows)
    if options.batch_size is None:
        yield feeds
        return
    lengths = {name: array.shape[0] for name, array in feeds.items() if isinstance(array, np.ndarray) and array.ndim}
    if options.batch_size < 1 or len(lengths) < len(feeds) or len(set(lengths.values())) != 1:
        given = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(
            f"--batch-size {options.batch_size} can't divide inputs by their first axis: {given or 'none'}."
        )
    for first in range(0, next(iter(lengths.values())), options.batch_size):
        yield {name: array[first : first + options.batch_size] for name, array in feeds.items()}


def _list_files(items: Sequence[str]) -> Iterator[Path]:
    for item in items:
        path = Path(item)
        if not path.is_dir():
            yield path
            continue
        found = sorted(each for each in path.iterdir() if each.suffix in _FILES)
        if not found:
            raise InputError(f"--batch {item} is a folder without {', '.join(_FILES)} files.")
        yield from found


def _list_scales(model: Model) -> Iterator[str]:
    """Yield a line for each activation that the model quantises with a scale it holds."""
    graph = model.info.graph
    for node in graph.nodes:
        if node.operator.name == "QuantizeLinear" and len(node.inputs) > 2:
            arrays = [graph.constants.get(value) for value in node.inputs[1:] if value is not None]
            scale, zero = (*arrays, None)[:2]
            if scale is not None and zero is not None and scale.size == 1:
                yield f"{node.inputs[0].name if node.inputs[0] else ''}: {zero.dtype.name}, scale {float(scale):.6g}"


def _count_bytes(model: Model) -> int:
    arrays = {id(array): array for each in walk(model.info.graph) for array in each.constants.values()}
    return sum(array.nbytes for array in arrays.values())

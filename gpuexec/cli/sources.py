"""Model arguments of the command line: an ONNX file, or a method of a program (.gxp)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.cli.feeds import parse_dims, parse_rows, parse_shapes, read_feeds
from gpuexec.devices.backend import BackendType
from gpuexec.errors import InputError
from gpuexec.execution.worker import Worker
from gpuexec.model.loading import load
from gpuexec.model.model import Model
from gpuexec.program.container import read_contents
from gpuexec.program.contents import Contents, StoredMethod
from gpuexec.program.data_loader import MmapDataLoader
from gpuexec.system.progress import ProgressCallback

Array = np.ndarray[Any, Any]
SUFFIX = ".gxp"


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A model, and its method where it comes from a program."""

    model: Model
    method: StoredMethod | None = None


def add_method_argument(parser: argparse.ArgumentParser) -> None:
    """Add --method."""
    parser.add_argument("--method", metavar="NAME", help="of a program: which (default: forward, or the only one)")


def is_program(path: str) -> bool:
    """Return whether a path names a program, by its suffix."""
    return Path(path).suffix == SUFFIX


def open_program(path: str) -> Contents:
    """Read a program, verified in full."""
    return read_contents(MmapDataLoader(path))


def open_model(path: str, method: str | None, progress: ProgressCallback | None = None) -> Opened:
    """Return the model of an ONNX file, or of a method of a program.

    Raises:
        InputError: A method is named and the file is no program, or it has no such method.
    """
    if not is_program(path):
        if method is not None:
            raise InputError(f"{path} is no program ({SUFFIX}) and has no methods.")
        return Opened(load(path, progress=progress))
    found = pick_method(open_program(path), method)
    return Opened(found.model, found)


def read_inputs(opened: Opened, options: argparse.Namespace) -> tuple[dict[str, Array], list[str]]:
    """Return an array for each input, and lines about them; the default is a program's first case."""
    cases = () if opened.method is None else opened.method.cases
    if cases and not (options.input or options.dims or options.shapes):
        return dict(cases[0].inputs), ["inputs: those of the program's first case"]
    given = parse_shapes(opened.model, options.shapes), parse_dims(options.dims)
    return read_feeds(opened.model, options.input, *given, parse_rows(options.rows))


def open_worker(model: Model, options: argparse.Namespace, **others: Any) -> Worker:
    """Return a Worker on the backend and with the providers that were asked for."""
    return Worker(
        model, backend=BackendType(options.backend), providers=options.providers, tuning=options.tuning, **others
    )


def pick_method(contents: Contents, name: str | None) -> StoredMethod:
    """Return a method by name; where none is named, ``forward``, or the only one.

    Raises:
        InputError: There is none of that name.
    """
    known = contents.methods
    wanted = name if name is not None else next(iter(known), "") if len(known) == 1 else "forward"
    if wanted not in known:
        raise InputError(f"The program has no method {wanted!r}; it has {', '.join(known) or 'none'}.")
    return known[wanted]


def check_output(output: str, sources: Iterable[str], suffix: str) -> None:
    """Check that a file can be written to its path, before any work is done.

    Raises:
        InputError: It would overwrite a model, or the folder is not there.
    """
    path = Path(output)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--output {output} is no file in a folder that is there.")
    if any(path.exists() and Path(source).exists() and path.samefile(source) for source in sources):
        raise InputError(f"--output {output} would overwrite a model; name another file: model{suffix}.")

"""Model inputs on the command line: read from files, or random of the declared dimensions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.cli.array_arguments import load_array, split_key
from gpuexec.cli.free_dims import check_named, choose, list_free
from gpuexec.cli.leaves import read_json
from gpuexec.cli.precision_arguments import add_precision_arguments
from gpuexec.cli.provider_arguments import add_provider_arguments
from gpuexec.devices.backend import BackendType
from gpuexec.errors import InputError
from gpuexec.ir.containers import make_blank, pack, to_strings, unpack
from gpuexec.ir.spec import TensorSpec, is_container, is_host_object
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.system.array_files import load_arrays

Array = np.ndarray[Any, Any]
_SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and `add_run_arguments`."""
    parser.add_argument("model", help="the ONNX file, or a program (.gxp)")
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a run of a model: backend, precision, providers, inputs."""
    parser.add_argument(
        "--backend",
        default="auto",
        choices=[each.value for each in BackendType],
        help="where to run (default: the GPU when one works, else the CPU)",
    )
    add_precision_arguments(parser)
    add_provider_arguments(parser)
    add_input_arguments(parser)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs: dims or shapes for random ones, files."""
    parser.add_argument(
        "--dims", nargs="+", default=[], metavar="NAME=N", help="extents of free dimensions, for random inputs"
    )
    parser.add_argument(
        "--shapes", nargs="+", default=[], metavar="INPUT:AxBxC", help="shapes of random inputs, as in image:8x1x8x8"
    )
    add_file_arguments(parser)


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs that are read from files."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE[:KEY]",
        help="an input from a .npy file, from an .npz file (by KEY, else by input name), or from a .json file (lists,"
        " null, objects; without NAME by input name); may be given again",
    )
    parser.add_argument(
        "--rows", metavar="A:B", help="take these rows of the first axis of every array read, e.g. -360:"
    )


def parse_dims(items: Sequence[str]) -> dict[str, int]:
    """Parse ``NAME=N`` items to a dict.

    Raises:
        InputError: An item is not of that form.
    """
    dims = {}
    for item in items:
        name, _, extent = item.rpartition("=")
        if not name or not re.fullmatch(r"-?[0-9]{1,18}", extent):
            raise InputError(f"--dims {item!r} is not NAME=N, as in batch=4.")
        dims[name] = int(extent)
    return dims


def parse_shapes(model: Model, items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse ``INPUT:AxBxC`` items to shapes by input; nothing behind the colon is a scalar.

    Raises:
        InputError: An item is not of that form, there is no such input, or it does not take that shape.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    ports = {port.name: port for port in model.inputs}
    for item in items:
        name, colon, text = item.rpartition(":")
        if not colon or not re.fullmatch(r"([0-9]{1,18}(x[0-9]{1,18})*)?", text):
            raise InputError(f"--shapes {item!r} is not INPUT:AxBxC, as in image:8x1x8x8.")
        if name not in ports:
            raise InputError(f"The model has no input {name!r}; it has {', '.join(ports)}.", value=name)
        shape, dims = tuple(map(int, text.split("x") if text else ())), ports[name].spec.dims
        fits = dims is None or (
            len(dims) == len(shape) and all(dim == each for dim, each in zip(dims, shape) if isinstance(dim, int))
        )
        if not fits:
            raise InputError(f"--shapes {item!r}: input {ports[name]} does not take that shape.", value=name)
        shapes[name] = shape
    return shapes


def count_rows(feeds: Mapping[str, Any]) -> int:
    """Return the rows of a run: the first axis of the first input that has one, else 1."""
    return next((each.shape[0] for each in feeds.values() if isinstance(each, np.ndarray) and each.ndim), 1)


def parse_rows(text: str | None) -> slice:
    """Parse ``A:B`` to a slice; None takes all.

    Raises:
        InputError: The text is not of that form.
    """
    if text is None:
        return slice(None)
    first, colon, last = text.partition(":")
    try:
        return (
            slice(int(first) if first else None, int(last) if last else None)
            if colon
            else slice(int(first), int(first) + 1)
        )
    except ValueError:
        raise InputError(f"--rows {text!r} is not A:B, as in -360: or 0:8.") from None


def read_feeds(
    model: Model, items: Sequence[str], shapes: Mapping[str, tuple[int, ...]], dims: dict[str, int], rows: slice
) -> tuple[dict[str, Any], list[str]]:
    """Return an array for each input (of containers their content), and a line for each conversion made.

    Inputs without a file are random: a fixed seed, normal floats, small non-negative integers; containers are empty.

    Raises:
        InputError: A file, a shape and an extent contradict each other or the model.
    """
    feeds, notes = read_given(model, items, rows)
    if twice := sorted(feeds.keys() & shapes.keys()):
        raise InputError(f"--shapes are those of random inputs, and {twice[0]!r} is read from a file.", value=twice[0])
    dims = _join_extents(model, shapes, dims)
    check_named(model, dims)
    missing = [port for port in model.inputs if port.name not in feeds]
    if missing:
        read = _find_extents(model, feeds)
        known = {**read, **dims}

        def make(extents: Mapping[str, int], unnamed: int) -> dict[str, Any]:
            rng = np.random.default_rng(_SEED)
            made = {port.name: make_random(port, extents, rng, unnamed, shapes.get(port.name)) for port in missing}
            return feeds | made

        extents, made = choose(model, known, make)
        free = [name for name in list_free(missing) if name not in known]
        if free:
            assumed = " ".join(f"{name}={extents[name]}" for name in free)
            notes.append(f"assumed {assumed}; others by --dims {assumed}")
        for port in missing:
            array = made[port.name]
            feeds[port.name] = unpack(array) if is_container(array.dtype) else array
            notes.append(f"{port.name}: {'empty' if is_container(array.dtype) else 'random'} {TensorSpec.of(array)}")
    return {port.name: feeds[port.name] for port in model.inputs}, notes


def read_given(model: Model, items: Sequence[str], rows: slice) -> tuple[dict[str, Any], list[str]]:
    """Return the inputs that files hold, by name, and a line for each conversion made.

    Raises:
        InputError: The model has no input of a name, or a file holds none.
    """
    notes: list[str] = []
    feeds: dict[str, Any] = {}
    for item in items:
        for name, array in _read(model, item).items():
            port = next((each for each in model.inputs if each.name == name), None)
            if port is None:
                raise InputError(
                    f"The model has no input {name!r}; it has {', '.join(each.name for each in model.inputs)}.",
                    value=name,
                )
            feeds[name] = _fit_given(port, array, rows, notes)
    return feeds, notes


def _find_extents(model: Model, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the extents of named dimensions in arrays read from files."""
    extents: dict[str, int] = {}
    for port in model.inputs:
        array = feeds.get(port.name)
        if isinstance(array, np.ndarray) and port.spec.dims is not None and len(port.spec.dims) == array.ndim:
            named = zip(port.spec.dims, array.shape, strict=True)
            extents |= {dim: extent for dim, extent in named if isinstance(dim, str)}
    return extents


def _join_extents(model: Model, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]) -> dict[str, int]:
    """Return the extents of named dimensions, those that shapes give too.

    Raises:
        InputError: One has two extents.
    """
    found = dict(dims)
    for port in model.inputs:
        for dim, extent in zip(port.spec.dims or (), shapes.get(port.name, ())):
            if isinstance(dim, str) and found.setdefault(dim, extent) != extent:
                raise InputError(
                    f"--shapes: dimension {dim!r} of input {port.name!r} is {extent}, and {found[dim]} elsewhere."
                )
    return found


def _fit_given(port: ModelPort, given: Any, rows: slice, notes: list[str]) -> Any:
    """Convert a given value to an input's type; text is parsed as the type that the input declares."""
    is_array = isinstance(given, np.ndarray)
    try:
        if is_container(port.spec.dtype):
            return unpack(pack(given, port.spec))
        given = given if is_array else pack(given, replace(port.spec, dims=None))
    except InputError as error:
        raise InputError(f"Input {port.name!r}: {error}", value=port.name) from None
    return fit(port, given[rows] if given.ndim else given, notes)


def read_array(item: str, rows: slice) -> Array:
    """Read one array from ``FILE.npy`` or ``FILE.npz:KEY``."""
    return load_array(item)[rows]


def fit(port: ModelPort, array: Array, notes: list[str]) -> Array:
    """Convert an array to the declared dtype and rank, where that loses nothing; note each conversion."""
    done = []
    is_other = array.dtype != port.spec.dtype and not is_host_object(port.spec.dtype)
    if is_other and np.can_cast(array.dtype, port.spec.dtype, "safe"):
        done.append(f"{array.dtype} to {port.spec.dtype}")
        array = array.astype(port.spec.dtype)
    dims = port.spec.dims
    if dims is not None and array.ndim < len(dims):
        ones = [axis for axis, dim in enumerate(dims) if dim == 1]
        missing = len(dims) - array.ndim
        if len(ones) >= missing:
            array = np.expand_dims(array, tuple(ones[:missing]))
            done.append(f"axes of 1 added: {list(array.shape)}")
    if done:
        notes.append(f"{port.name}: {', '.join(done)}")
    return array


def make_random(
    port: ModelPort,
    dims: Mapping[str, int],
    rng: np.random.Generator,
    unnamed: int = 1,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """Return normal floats, or small non-negative integers, of an input's shape.

    Strings are such integers as text; containers are empty.

    Args:
        port: The input.
        dims: Free extents by name.
        rng: Draws the numbers.
        unnamed: The extent of those without a name, but for the first axis, which is 1.
        shape: The shape in place of all that.

    Raises:
        InputError: The input declares no rank, and no shape is given.
    """
    if shape is None:
        if port.spec.dims is None:
            raise InputError(f"Input {port.name!r} declares no rank; give it by --input or --shapes.", value=port.name)
        others = (1, *(unnamed,) * len(port.spec.dims))
        shape = tuple(
            dim if isinstance(dim, int) else dims.get(dim or "", other) for dim, other in zip(port.spec.dims, others)
        )
    if is_container(port.spec.dtype):
        return make_blank(shape, port.spec.dtype)
    if is_host_object(port.spec.dtype):
        return to_strings(rng.integers(0, 2, shape).astype(str))
    if port.spec.dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(port.spec.dtype)
    return rng.standard_normal(shape).astype(port.spec.dtype)


def _read(model: Model, item: str) -> dict[str, Any]:
    name, equals, rest = item.partition("=")
    if not equals:
        name, rest = "", item
    path, key = split_key(rest)
    if path.suffix == ".json":
        return read_json(path, name)
    if key is not None:
        return {name or model.inputs[0].name: load_array(rest)}
    loaded = load_arrays(path)
    if isinstance(loaded, np.ndarray):
        return {name or model.inputs[0].name: loaded}
    names = {each.name for each in model.inputs}
    found = {each: array for each, array in loaded.items() if each in names}
    numbered = zip(loaded.get("input_names", ()), range(len(loaded)), strict=False)
    found.update({str(each): loaded[f"in_{i}"] for each, i in numbered if f"in_{i}" in loaded})
    if not found:
        raise InputError(
            f"{path} holds {', '.join(loaded)}, none of them an input ({', '.join(sorted(names))}); use NAME=FILE:KEY."
        )
    return found

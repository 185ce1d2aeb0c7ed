"""Strings and containers on the command line: read from JSON, printed tensor by tensor, written to files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.system.atomic_file import atomic_file, write_file

Array = np.ndarray[Any, Any]


def list_leaves(name: str, value: Any) -> dict[str, Array]:
    """Return the tensors within a value, by path: ``scores[0]``, ``scores[0]['cat']``.

    Args:
        name: Name of the value.
        value: An array or scalar, a list, a dict, or None.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {k: v for key, each in value.items() for k, v in list_leaves(f"{name}[{key!r}]", each).items()}
    if isinstance(value, (list, tuple)):
        return {k: v for index, each in enumerate(value) for k, v in list_leaves(f"{name}[{index}]", each).items()}
    return {name: np.asarray(value)}


def list_all_leaves(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return the tensors within named values, by path."""
    return {k: v for name, value in values.items() for k, v in list_leaves(name, value).items()}


def describe_leaves(name: str, value: Any) -> list[str]:
    """Return a line for each tensor of an output, or one that says there is none."""
    leaves = list_leaves(name, value)
    if not leaves:
        return [f"{name}: {'empty optional' if value is None else f'empty {type(value).__name__}'}"]
    return [f"{each}: {TensorSpec(array.shape, array.dtype)}, {_summarize(array)}" for each, array in leaves.items()]


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read inputs from a JSON file: the one of this name, or without a name all entries of its object.

    Raises:
        InputError: It is no JSON, or no object where inputs are to be found by name.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}.") from error
    if name:
        return {name: content}
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; name the input, NAME={path}, or give an object.")
    return content


def write_outputs(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write outputs to a ``.json`` file, containers as lists, null and objects; or to an ``.npz`` file by leaves.

    Raises:
        InputError: Text ends in NUL, which no ``.npz`` file keeps.
        AccessError: The file can't be written.
    """
    if path.suffix == ".json":
        write_file(path, json.dumps({name: _to_json(value) for name, value in outputs.items()}) + "\n")
        return
    plain = {k: _to_text(k, v) if is_host_object(v.dtype) else v for k, v in list_all_leaves(outputs).items()}
    # NumPy's rule for file names without a suffix.
    target = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    with atomic_file(target) as file:
        np.savez(file, allow_pickle=False, **plain)


def _to_text(name: str, array: Array) -> Array:
    text = array.astype(str)
    if not (text == array).all():
        raise InputError(f"Output {name!r} has text that ends in NUL, which no .npz file keeps: write it to .json.")
    return text


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if value is None:
        return None
    array = np.asarray(value)
    known = array.dtype.kind in "biufO" or is_host_object(array.dtype)
    return (array if known else array.astype(np.float64)).tolist()


def _summarize(array: Array) -> str:
    if array.size == 0:
        return "empty"
    if is_host_object(array.dtype):
        first = str(array.reshape(-1)[0])
        return f"first {first[:40]!r}"
    if array.dtype.kind == "b":
        return f"{int(array.sum())} of {array.size} true"
    values = array.astype(np.float64)
    return f"min {values.min():.4g}, mean {values.mean():.4g}, max {values.max():.4g}"

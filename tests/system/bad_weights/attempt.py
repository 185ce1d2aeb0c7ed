"""One attempt with a bad file of weights: it is refused by an error of the package that names it, or used.

A Worker that refused a file must go on with what it had, to the same results.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

import gpuexec as gx
from tests.system.bad_models.attempt import Outcome
from tests.system.bad_weights.mutant import Mutant
from tests.system.bad_weights.seeds import WEIGHTS, WIDTH, make_arrays, make_model

_LONGEST_MESSAGE = 3000
_X = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
_SUFFIXES = {"safetensors": ".safetensors", "npz": ".npz", "state": ".safetensors", "external": ".bin"}


def attempt(mutant: Mutant, folder: Path, device: str = "cpu") -> Outcome:
    """Write the file, and use it; say what became of it."""
    path = folder / f"w{_SUFFIXES[mutant.kind]}"
    path.write_bytes(mutant.content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of arithmetic with weights that may be anything
        try:
            return WAYS[mutant.kind](mutant, path, gx.BackendType(device))
        except BaseException as error:
            return judge(error, mutant, path)


def judge(error: BaseException, mutant: Mutant, path: Path) -> Outcome:
    """Say of an error whether it is a good one: ours, with a message of some size that names the file or a weight."""
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, gx.GpuexecError):
        return Outcome("bad", kind, text[:600])
    if not text or len(text) > _LONGEST_MESSAGE:
        return Outcome("bad", "message", f"{kind} of {len(text)} characters: {text[:600]}")
    names = (
        path.name,
        *(f"%{name}" for name in WEIGHTS),
        *(repr(name) for name in WEIGHTS),
        "'held'",
        "memory",
        "don't fit",
    )
    if not any(name in text for name in names):
        return Outcome("bad", "message", f"{kind} names neither file nor weight: {text[:600]}")
    return Outcome("refused", kind, text)


def change(mutant: Mutant, path: Path) -> None:
    """Do to the file what happens between its opening and its use."""
    if mutant.change == "cut":
        os.truncate(path, len(mutant.content) // 3)
    elif mutant.change == "overwritten":
        with path.open("r+b") as file:
            file.write(b"\xff" * (len(mutant.content) // 2))
        os.utime(path, ns=(1, 1))


def exchange_weights(mutant: Mutant, path: Path, device: gx.BackendType) -> Outcome:
    """Have a Worker go on with the weights of the file."""
    model = gx.load(make_model())
    with gx.Worker(model, backend=device) as worker:
        return _use(worker, lambda: worker.replace_weights(_open_weights(mutant, path)), mutant, path)


def _open_weights(mutant: Mutant, path: Path) -> gx.NamedDataMap:
    weights = gx.NamedDataMap.load(path)
    change(mutant, path)
    return weights


def load_state(mutant: Mutant, path: Path, device: gx.BackendType) -> Outcome:
    """Have a Worker's memory hold the state of the file."""
    change(mutant, path)
    model = gx.load(make_model()).bind_state({"next": "held"})
    with gx.Worker(model, backend=device) as worker:
        return _use(worker, lambda: worker.state.load(path), mutant, path)


def _use(worker: gx.Worker, take: Callable[[], None], mutant: Mutant, path: Path) -> Outcome:
    """Take a file in the middle of runs."""
    before = _run(worker)
    try:
        take()
    except gx.GpuexecError as error:
        outcome = judge(error, mutant, path)
        if worker.model.memories:
            worker.state.reset()
        if not np.array_equal(_run(worker), before):
            return Outcome("bad", "left changed", f"after it refused the file, a run gives something else: {error}")
        return outcome
    _run(worker)
    return Outcome("ran")


def load_external(mutant: Mutant, path: Path, device: gx.BackendType) -> Outcome:
    """Load and run a model whose weights are said to lie in the file."""
    path.with_name("link").symlink_to(path)
    os.mkfifo(path.with_name("pipe"))
    path.with_name("empty").touch()
    file = path.with_name("m.onnx")
    file.write_bytes(_point_to(mutant).SerializeToString())
    with gx.Worker(gx.load(file), backend=device) as worker:
        change(mutant, path)
        _run(worker)
        return Outcome("ran")


def _point_to(mutant: Mutant) -> onnx.ModelProto:
    """Return the model with its weights elsewhere, as the mutant's rows say."""
    model = onnx.ModelProto()
    model.CopyFrom(make_model())
    offset = 0
    for tensor, array in zip(model.graph.initializer, make_arrays(0).values(), strict=True):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        rows = {"location": "w.bin", "offset": str(offset), "length": str(array.nbytes)}
        rows |= {key: value for name, key, value in mutant.rows if name == tensor.name}
        for key, value in rows.items():
            tensor.external_data.add(key=key, value=value)
        offset += array.nbytes
    return model


def _run(worker: gx.Worker) -> np.ndarray:
    worker.schedule({port.name: _X for port in worker.model.inputs})
    return np.asarray(worker.read_output("y"))


WAYS: dict[str, Callable[[Mutant, Path, gx.BackendType], Outcome]] = {
    "safetensors": exchange_weights,
    "npz": exchange_weights,
    "state": load_state,
    "external": load_external,
}

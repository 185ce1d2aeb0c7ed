"""One attempt with a bad model: it runs, or is refused by an error of the package that names a place."""

from __future__ import annotations

import contextlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.recorder.tracer import TracerDevice

# Inputs and plans up to here are run; beyond, planning them is enough.
_LARGEST_RUN_BYTES = 32 << 20
_LONGEST_RUN_S = 5.0
LONGEST_WORK_S = 60.0  # of what is on a stream and can't be taken back, with the kernels that are compiled for it
_FREE_EXTENTS = (1, 2, 3)
# Errors about the file as a whole, which has no nodes or values that could be named yet.
_WHOLE_FILE = re.compile(
    r"expected an ONNX model|is of opset|no opset for it|functions of the model|the model can't be read|is not UTF-8"
)
# What may stand behind an error of ours: what the system, the libraries for reading files and `struct` say.
_READING = (
    "DecodeError",
    "ValidationError",
    "UnicodeDecodeError",
    "MemoryError",
    "error",
    "OverflowError",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attempt with a bad model.

    ``kind`` is "ran", "planned" (too large to run here), "given up" (it would run for years), "refused", or "bad";
    ``error`` the class of what was raised.
    """

    kind: str
    error: str = ""
    message: str = ""

    @property
    def is_bad(self) -> bool:
        """True if the package broke its promise."""
        return self.kind == "bad"


def attempt(path: Path, seed: int, device: str = "cpu") -> Outcome:
    """Load a model, plan it for a GPU, run it on a device with random inputs; say what became of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return _run(path, seed, gx.BackendType(device))
        except BaseException as error:
            return judge(error)


def judge(error: BaseException) -> Outcome:
    """Say of an error whether it is a good one: ours, it says where, and nothing raw stands behind it."""
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, gx.GpuexecError):
        return Outcome("bad", kind, text)
    cause: BaseException | None = error
    while (cause := cause.__cause__) is not None:
        # onnx says by these what is wrong with data in another file, or with a function.
        is_known = isinstance(cause, OSError) or type(cause).__name__ in _READING
        is_known |= bool(re.search("can't be (read|expanded)", text)) and type(cause) in (ValueError, RuntimeError)
        if not isinstance(cause, gx.GpuexecError) and not is_known:
            return Outcome("bad", kind, f"behind it a {type(cause).__name__}: {text}")
    is_located = error.node or error.value or isinstance(error, gx.UnsupportedError) or _WHOLE_FILE.search(text)
    # What has no name is told by its operator and first output: Conv 'y'.
    if not is_located and not re.search(r"%|\w '", text):
        return Outcome("bad", kind, f"no place is named: {text}")
    return Outcome("refused", kind, text)


def _run(path: Path, seed: int, device: gx.BackendType) -> Outcome:
    model = gx.load(path)
    rng = np.random.default_rng(seed)
    extents = {name: int(rng.choice(_FREE_EXTENTS)) for name in "NMBST"}
    shapes = {port.name: _shape(port.spec.dims, extents, rng) for port in model.inputs}
    with (
        gx.Worker(model, backend=Backend(TracerDevice(is_writing=False), gx.BackendType.GPU_COMPUTE, "to plan")) as gpu,
        contextlib.suppress(gx.UnsupportedError),
    ):  # an operator that has no kernels
        gpu.prepare(shapes)
    with gx.Worker(model, backend=device) as worker:
        nbytes = [int(np.prod(shapes[p.name], dtype=object)) * p.spec.dtype.itemsize for p in model.inputs]
        if sum(nbytes) > _LARGEST_RUN_BYTES:
            worker.prepare(shapes)
            return Outcome("planned")
        feeds = {p.name: _fill(shapes[p.name], p.spec.dtype, rng) for p in model.inputs}
        worker.prepare(feeds)
        if sum(buffer.nbytes for plan in worker.plans for buffer in plan.buffers) > 4 * _LARGEST_RUN_BYTES:
            return Outcome("planned")
        run = worker.schedule(feeds)
        if not run.wait(_LONGEST_RUN_S):
            # A Loop of 2**62 turns is no mistake of ours; that it can be given up is our promise.
            if run.cancel():
                return Outcome("given up")
            if not run.wait(LONGEST_WORK_S):  # all of it is on the stream
                return Outcome("bad", "cancel", "a run without end goes on")
        for name in run.outputs:
            worker.read_output(name)
    return Outcome("ran")


def _shape(dims: Any, extents: dict[str, int], rng: np.random.Generator) -> tuple[int, ...]:
    if dims is None:
        return tuple(int(rng.choice(_FREE_EXTENTS)) for _ in range(rng.integers(0, 5)))
    free = int(rng.choice(_FREE_EXTENTS))
    return tuple(dim if isinstance(dim, int) else extents.setdefault(dim, free) if dim else free for dim in dims)


def _fill(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Any:
    """Return values a model may be given: small integers, floats with a few that are odd."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -1, 3, shape).astype(dtype)
    array = rng.standard_normal(shape) * 2
    if array.size > 3 and rng.random() < 0.3:
        array.reshape(-1)[:3] = [np.nan, np.inf, -np.inf]
    return array.astype(dtype)

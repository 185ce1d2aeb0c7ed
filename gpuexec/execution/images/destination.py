"""Destination of an image conversion: a new tensor, or memory of the caller's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.errors import InputError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.results.arenas import take_memory, wrap_region
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.spec import TensorSpec


def check_out(out: Any, spec: TensorSpec) -> None:
    """Check that a destination, if one is given, has the dtype and shape of the result.

    Raises:
        InputError: It has others, or is read-only.
    """
    if out is None:
        return
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
    # torch spells its dtypes torch.float32.
    fits = shape is not None and tuple(shape) == spec.shape and str(dtype).rpartition(".")[2] == spec.dtype.name
    if not fits:
        raise InputError(f"`out` is a {type(out).__name__}, {dtype} of shape {shape}; expected {spec}.")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InputError(f"`out` is a read-only {type(out).__name__}; give memory that can be written.")


def open_target(backend: Backend, spec: TensorSpec, out: Any, name: str) -> Tensor:
    """Return the Tensor to write: the caller's, one over the caller's memory, or a new one.

    Raises:
        InputError: It lies elsewhere, or is a Worker's.
    """
    if isinstance(out, Tensor):
        content = out._content
        content.check()
        if not content.lease.is_own or content.backend.device is not backend.device:
            raise InputError(f"`out` is {out!r}; expected a tensor of your own on {backend.device.name}.")
        return out
    with backend.transfers.lock:
        stream = backend.transfers.open()
        if out is None:
            region = Region(backend.device.allocate(max(spec.nbytes, 1)), 0, spec.nbytes)
        else:
            memory = take_memory(out, backend, stream, spec.nbytes, f"`out` ({spec})", is_host=False, alignment=1)
            region = Region(memory, 0, spec.nbytes)
        return wrap_region(backend, region, spec, name, stream)


def show_bytes(target: Tensor) -> Tensor:
    """Return a tensor over the same bytes without waits, for a writer that waits for their users itself."""
    content = target._content
    return Tensor(replace(content, fence=Fence.of(), lease=Lease(content.backend), request=None))


def fill_host(out: Any, made: Tensor) -> None:
    """Wait for a tensor, and copy it to memory of the caller's on the host."""
    made.readback_and_clone(out if isinstance(out, np.ndarray) else dlpack.view_host(dlpack.take(out)))

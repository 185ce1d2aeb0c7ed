"""Copies of tensors on the device, owned by the caller, made without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.errors import InputError
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.spec import TensorSpec


def copy_tensor(tensor: Tensor, out: Tensor | None, backend: Backend, caller: CallerStream | None) -> Tensor:
    """Copy a tensor into another one, which is returned; it may be pending.

    Args:
        tensor: What to copy.
        out: What this gave before, of the same dtype and shape; None: a new one.
        backend: Where both lie.
        caller: A stream of the caller's in whose order it is copied.

    Raises:
        InputError: ``out`` does not fit, or the tensor has no bytes on a device.
    """
    source = tensor._content
    source.check()
    source.wait_known("copied before its shape was known")
    if out is None:
        assert source.region is not None
        out = _allocate_tensor(source.name, source.spec, backend)
    if not isinstance(out, Tensor):
        raise InputError(
            f"`out` is a {type(out).__name__}; expected a tensor made by copy_output with {source.spec}.",
            value=source.name,
        )
    target = out._content
    if target.spec != source.spec or not target.lease.is_own or target.backend.device is not backend.device:
        raise InputError(
            f"`out` is {out!r}; expected a tensor made by copy_output with {source.spec}.", value=source.name
        )
    target.check()
    target.copy_from(source, caller)
    return out


def create_tensor(array: np.ndarray[Any, Any], backend: Backend, name: str = "") -> Tensor:
    """Return a Tensor of its own memory with a copy of an array, which is put on the device's stream."""
    tensor = _allocate_tensor(name, TensorSpec(array.shape, array.dtype), backend)
    tensor.upload(array)
    return tensor


def _allocate_tensor(name: str, spec: TensorSpec, backend: Backend) -> Tensor:
    region = Region(backend.device.allocate(max(spec.nbytes, 1)), 0, spec.nbytes)
    return Tensor(Content(name, backend, Place(name, spec, region), Fence.of(), Lease(backend), None))

"""Copies of tensors that are the caller's own: made on the device, without waiting."""

from __future__ import annotations

from gpuexec.errors import InputError
from gpuexec.resources.caller_stream import CallerStream
from gpuexec.resources.fence import Fence
from gpuexec.resources.frames import Lease
from gpuexec.results.content import Content
from gpuexec.results.place import Place
from gpuexec.results.tensor import Tensor
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Region


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
        region = Region(backend.device.allocate(max(source.spec.nbytes, 1)), 0, source.spec.nbytes)
        place = Place(source.name, source.spec, region)
        out = Tensor(Content(source.name, backend, place, Fence.of(), Lease(backend), None))
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

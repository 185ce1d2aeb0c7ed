"""Values for memories: arrays of the host or a device, copied before the call returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.results.exchange import import_cuda, import_dlpack
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.state.carried import Carried
from gpuexec.ir.spec import TensorSpec, convert_numbers
from gpuexec.model.state_spec import Memory, check_held

Array = np.ndarray[Any, Any]


def take_value(memory: Memory, item: object, backend: Backend) -> Carried:
    """Return what a memory holds from now on: a copy of an array, on the host or, where it lies there, on the device.

    The call returns when the copy is done: the caller may write the array then, on whatever stream.

    Raises:
        InputError: It can't be read, or its dtype or shape does not fit the memory.
        OutOfMemoryError: The device has no room for the copy.
    """
    try:
        return _take(memory, item, backend)
    except GpuexecError as error:
        if repr(memory.input) not in str(error):
            error.args = (f"Memory {memory.input!r}: {error.message}",)
        raise
    except Exception as error:
        raise InputError(
            f"Memory {memory.input!r}: a {type(item).__name__} can't be read as an array: {error}.", value=memory.input
        ) from error


def _take(memory: Memory, item: Any, backend: Backend) -> Carried:
    if isinstance(item, Tensor):
        return _keep(memory, item.readback_and_clone())
    if isinstance(item, (np.ndarray, np.generic)):
        return _keep(memory, np.array(item, order="C"))
    has_dlpack = hasattr(item, "__dlpack__")
    if has_dlpack or hasattr(item, "__cuda_array_interface__"):
        return _take_foreign(memory, item, backend, has_dlpack=has_dlpack)
    return _keep(memory, convert_numbers(np.array(item, order="C"), memory.dtype))


def _take_foreign(memory: Memory, item: Any, backend: Backend, *, has_dlpack: bool) -> Carried:
    """Take over an array of another package."""
    with backend.transfers.lock:
        stream = backend.transfers.open()
        taken = import_dlpack(item, backend, stream) if has_dlpack else import_cuda(item, backend)
        if isinstance(taken, np.ndarray):
            return _keep(memory, np.array(taken, order="C"))
        spec, source, fence = taken
        check_held(memory, spec)
        copy = backend.device.allocate(max(1, spec.nbytes), stream)
        for each in fence.events:
            stream.wait(each)
        if spec.nbytes:
            stream.copy(copy.address, source.address, spec.nbytes)
        event = backend.device.create_event()
        stream.record(event)
    event.synchronize()
    return Carried(Place(memory.input, spec, Region(copy, 0, spec.nbytes)), Fence.of(event), owner=copy)


def _keep(memory: Memory, array: Array) -> Carried:
    spec = TensorSpec(array.shape, array.dtype)
    check_held(memory, spec)
    return Carried(Place(memory.input, spec), Fence.of(), array=array)

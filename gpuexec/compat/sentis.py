"""Unity Sentis's names over gpuexec: ModelLoader, Worker and Tensor, in Python's spelling.

    from gpuexec.compat.sentis import BackendType, ModelLoader, Tensor, Worker

    worker = Worker(ModelLoader.load("model.onnx"), BackendType.AUTO)
    worker.schedule(Tensor((1, 4), [0.5, 1, 2, 4]))
    output = worker.peek_output()
    output.readback_request()
    while not output.is_readback_request_done():
        ...
    scores = output.download_to_array()
    worker.dispose()

Names are those of Sentis 2, which is called Inference Engine too. Errors are gpuexec's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuexec.compat.barracuda import ModelLoader as ModelLoader
from gpuexec.compat.unity import UnityTensor, UnityWorker
from gpuexec.devices.backend import BackendLike, open_backend
from gpuexec.devices.backend import BackendType as BackendType
from gpuexec.errors import InputError
from gpuexec.execution import worker as workers
from gpuexec.execution.results.copying import create_tensor
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.runs.run import Step
from gpuexec.importer.read import Source
from gpuexec.model.model import Model

Array = np.ndarray[Any, Any]


class TensorData:
    """A tensor's bytes on its device.

    Args:
        tensor: Whose.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def backend_type(self) -> BackendType:
        """Where the bytes lie."""
        return self._tensor.backend_type

    @property
    def max_capacity(self) -> int:
        """Elements the memory has room for."""
        ours = self._tensor.tensor
        return ours._content.region.nbytes // ours.dtype.itemsize

    def download(self) -> Array:
        """Block for the content as an array of the caller's own."""
        return self._tensor.download_to_array()

    async def download_async(self) -> Array:
        """Wait for the content as an array of the caller's own, without blocking the loop."""
        return await self._tensor.tensor.readback_and_clone_async()

    def upload(self, array: Array) -> None:
        """Replace the first elements; see `gpuexec.Tensor.upload`."""
        self._tensor.upload(array)

    def readback_request(self) -> ReadbackRequest:
        """Start a copy to the host; return at once."""
        return self._tensor.readback_request()

    def is_readback_request_done(self) -> bool:
        """Return whether a readback was requested and is done."""
        return self._tensor.is_readback_request_done()

    def complete_all_pending_operations(self) -> None:
        """Wait for the work that makes or uploads the content; copies nothing."""
        self._tensor.complete_all_pending_operations()


class Tensor(UnityTensor):
    """A tensor by Sentis's names: made of a shape and data, or what a Worker gives."""

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.tensor.size

    @property
    def backend_type(self) -> BackendType:
        """Where the content lies."""
        return self.tensor.backend_type

    @property
    def data_on_backend(self) -> TensorData:
        """The device side of the tensor."""
        return TensorData(self)

    def upload(self, array: Array) -> None:
        """Replace the first elements; see `gpuexec.Tensor.upload`."""
        self.tensor.upload(array)

    def readback_request(self) -> ReadbackRequest:
        """Start a copy to the host; return at once. Until the content changes, further calls return the same one."""
        return self.tensor.readback_request()

    def is_readback_request_done(self) -> bool:
        """Return whether a readback was requested and is done; False where none was requested."""
        return self.tensor._content.is_read_back()

    def readback_and_clone(self) -> Tensor:
        """Block for a copy of the tensor on the CPU."""
        return _copy_of(self.tensor.readback_and_clone(), self.name)

    async def readback_and_clone_async(self) -> Tensor:
        """Wait for a copy of the tensor on the CPU, without blocking the loop."""
        return _copy_of(await self.tensor.readback_and_clone_async(), self.name)

    def download_to_array(self, out: Array | None = None) -> Array:
        """Block for the content as an array of the caller's own, in the tensor's shape.

        Args:
            out: An array to write to and return, of the same shape and dtype; None: a new one.

        Raises:
            InputError: ``out`` does not fit.
        """
        return self.tensor.readback_and_clone(out)

    def download_to_native_array(self) -> Array:
        """Block for the content as a read-only view of pinned bytes."""
        return self.tensor.readback_request().view()

    def complete_all_pending_operations(self) -> None:
        """Wait for the work that makes or uploads the content; copies nothing."""
        self.tensor.wait()

    def __getitem__(self, key: Any) -> Any:
        return self.tensor[key]

    def __len__(self) -> int:
        return len(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.tensor.__array__(dtype, copy)


class Worker(UnityWorker):
    """Runs a model by Sentis's names. `schedule` returns at once.

    Args:
        model: What `ModelLoader.load` gave or takes; or a Worker of ours, to speak to by these names.
        backend: Where to run.
        **options: As for `gpuexec.Worker`.

    Raises:
        DeviceNotFoundError: The backend can't run here.
    """

    def __init__(
        self, model: Model | Source | workers.Worker, backend: BackendLike = BackendType.AUTO, **options: Any
    ) -> None:
        if not isinstance(model, workers.Worker):
            model = workers.Worker(model, backend=backend, **options)
        super().__init__(model)

    def schedule(self, *inputs: object) -> None:
        """Put a run on the stream and return at once.

        Args:
            *inputs: Tensors in the model's order; none: what `set_input` set.
        """
        self.worker.schedule(self._take(inputs))

    def schedule_iterable(self, *inputs: object) -> Iterator[Step]:
        """Put a run on the stream layer by layer, one each time the iterator is advanced; inputs as for `schedule`."""
        return self.worker.schedule_iterable(self._take(inputs))

    def peek_output(self, name: str | int | None = None) -> Tensor:
        """Return an output of the last run by name or place (the first, without), good until the next.

        It may be pending; nothing is copied.

        Raises:
            InputError: There is none of that name or in that place.
        """
        if isinstance(name, int):
            ports = self.worker.model.outputs
            if not 0 <= name < len(ports):
                raise InputError(f"The model has {len(ports)} outputs, from 0; there is none in place {name}.")
            name = ports[name].name
        return Tensor(self.worker.peek_output(name))

    def copy_output(self, name: str | None = None, out: Tensor | None = None) -> Tensor:
        """Copy an output of the last run on the device, without waiting; the copy is the caller's.

        Args:
            name: Which output; None: the first.
            out: What this gave before, to copy into.
        """
        copied = self.worker.copy_output(name, None if out is None else out.tensor)
        return Tensor(copied)


def _copy_of(array: Array, name: str) -> Tensor:
    copied = create_tensor(array, open_backend(BackendType.CPU), name)
    copied.wait()
    return Tensor(copied)

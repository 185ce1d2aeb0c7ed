"""Unity Barracuda's names over gpuexec: ModelLoader, WorkerFactory, a worker and its tensors, in Python's spelling.

    from gpuexec.compat.barracuda import ModelLoader, Tensor, WorkerFactory

    model = ModelLoader.load("model.onnx")
    worker = WorkerFactory.create_worker(WorkerFactory.Type.AUTO, model)
    worker.execute(Tensor((1, 4), [0.5, 1, 2, 4]))
    output = worker.peek_output()
    print(output[0, 3])
    worker.dispose()

Names are those of Barracuda 3. Shapes are the model's own, and not brought to Barracuda's order of axes. Errors are
gpuexec's.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from gpuexec.compat.unity import UnityTensor, UnityWorker
from gpuexec.devices.backend import BackendLike, BackendType
from gpuexec.execution import worker as workers
from gpuexec.execution.runs.run import Step
from gpuexec.importer.read import Source
from gpuexec.model.loading import load
from gpuexec.model.model import Model

Array = np.ndarray[Any, Any]


class ModelLoader:
    """Reads models."""

    @staticmethod
    def load(source: Source) -> Model:
        """Load a model: a path, bytes, a binary file or an onnx.ModelProto.

        Raises:
            ModelError: It is broken.
        """
        return load(source)


class Tensor(UnityTensor):
    """A tensor whose elements are read as in Barracuda: blocking for them where they are not on the host."""

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.tensor.size

    def to_read_only_array(self) -> Array:
        """Block for the content as a read-only array."""
        return self.tensor.readback_request().view()

    def __getitem__(self, key: Any) -> Any:
        return self.to_read_only_array()[key]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.to_read_only_array(), dtype)


class Worker(UnityWorker):
    """Runs a model by Barracuda's names. `execute` returns at once."""

    def execute(self, *inputs: object) -> Worker:
        """Put a run on the stream and return at once, this worker, so that ``execute(x).peek_output()`` reads on.

        Args:
            *inputs: Tensors in the model's order, or one mapping by name; none: what `set_input` set.
        """
        self.worker.schedule(self._take(inputs))
        return self

    def start_manual_schedule(self, *inputs: object) -> Iterator[Step]:
        """Put a run on the stream layer by layer, one each time the iterator is advanced; inputs as for `execute`."""
        return self.worker.schedule_iterable(self._take(inputs))

    def execute_async(self, *inputs: object) -> Iterator[Step]:
        """Do as `start_manual_schedule` does."""
        return self.start_manual_schedule(*inputs)

    def flush_schedule(self, blocking: bool = False) -> None:
        """Hand everything issued so far to the device, whose it is from the moment it is issued.

        Args:
            blocking: Wait for it.
        """
        if blocking:
            self.worker.wait_for_completion()

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far."""
        self.worker.wait_for_completion()

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output of the last run (the first, without a name), good until the next; it may be pending."""
        return Tensor(self.worker.peek_output(name))

    def copy_output(self, name: str | None = None) -> Tensor:
        """Return a copy of an output that is the caller's own, made on the device."""
        return Tensor(self.worker.copy_output(name))

    def summary(self) -> str:
        """Return what was done and is held as readable text."""
        return self.worker.summary()


class WorkerType(Enum):
    """The kinds of workers, by the backend each is here: those that Burst compiles are the CPU's."""

    AUTO = "auto"
    COMPUTE = "compute"
    COMPUTE_PRECOMPILED = "compute precompiled"
    COMPUTE_REF = "compute reference"
    PIXEL_SHADER = "pixel shader"
    CSHARP = "C#"
    CSHARP_BURST = "C# Burst"
    CSHARP_REF = "C# reference"

    @property
    def backend(self) -> BackendType:
        """The backend."""
        if self is WorkerType.AUTO:
            return BackendType.AUTO
        if self is WorkerType.PIXEL_SHADER:
            return BackendType.GPU_PIXEL
        return BackendType.GPU_COMPUTE if self.name.startswith("COMPUTE") else BackendType.CPU


class WorkerFactory:
    """Makes workers."""

    Type = WorkerType

    @staticmethod
    def create_worker(kind: WorkerType | BackendLike, model: Model, **options: Any) -> Worker:
        """Return a worker of a model.

        Args:
            kind: One of `WorkerFactory.Type`, or a backend of ours.
            model: What `ModelLoader.load` gave.
            **options: As for `gpuexec.Worker`.

        Raises:
            DeviceNotFoundError: The backend can't run here.
        """
        backend = kind.backend if isinstance(kind, WorkerType) else kind
        return Worker(workers.Worker(model, backend=backend, **options))

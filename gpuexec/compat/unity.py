"""Tensors made of a shape and data, and inputs set one by one: what Unity Barracuda and Unity Sentis have in common.

Classes of `gpuexec.compat.barracuda` and `gpuexec.compat.sentis` build on these two, which hold ours: a
`gpuexec.Tensor` and a `gpuexec.Worker`. Names are those of the C# packages in Python's spelling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gpuexec.devices.backend import BackendType, open_backend
from gpuexec.errors import InputError
from gpuexec.execution.results.copying import create_tensor
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.worker import Worker

Array = np.ndarray[Any, Any]


class UnityTensor:
    """A Tensor of ours by the names of Unity's packages. Extents are ONNX's, in the model's order.

    Args:
        shape: Extents of a tensor on the CPU; or a Tensor of ours, to speak to by these names.
        data: Its elements in row-major order, in whatever shape, which give the dtype, floating-point numbers of
            Python being float32; None: zeros of float32.

    Raises:
        InputError: There are more or fewer elements than the shape has.
    """

    def __init__(self, shape: Sequence[int] | Tensor, data: object = None) -> None:
        self.tensor = shape if isinstance(shape, Tensor) else _make(tuple(shape), data)

    @property
    def name(self) -> str:
        """The output it is or was copied from."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.tensor.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.tensor.dtype

    def dispose(self) -> None:
        """Let go of the content; twice is harmless."""
        self.tensor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tensor!r})"


class UnityWorker:
    """A Worker of ours by the names of Unity's packages; ``worker`` is ours.

    Args:
        worker: What runs.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._given: dict[str, Any] = {}

    def set_input(self, name: str | int, tensor: object) -> None:
        """Set an input for the next run and those after it.

        Args:
            name: Its name, or its place in the model's order.
            tensor: A tensor of these packages, or whatever our Worker takes.

        Raises:
            InputError: The model has no input in that place.
        """
        self._given[name if isinstance(name, str) else self._find_name(name)] = unwrap(tensor)

    @property
    def schedule_progress(self) -> float:
        """Share of the present run's layers that are on the stream, 0 to 1."""
        return self.worker.schedule_progress

    @property
    def backend_type(self) -> BackendType:
        """Where it runs; never AUTO."""
        return self.worker.backend_type

    def dispose(self) -> None:
        """Wait for all work and give everything back; twice is harmless."""
        self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def _take(self, inputs: Sequence[object]) -> dict[str, Any] | None:
        """Return the inputs of a run: those set before, and those given now, by position or in one mapping."""
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            self._given |= {name: unwrap(each) for name, each in inputs[0].items()}
        else:
            self._given |= {self._find_name(place): unwrap(each) for place, each in enumerate(inputs)}
        taken, self._given = self._given, {}
        return taken or None

    def _find_name(self, place: int) -> str:
        ports = self.worker.model.inputs
        if not 0 <= place < len(ports):
            raise InputError(f"The model has {len(ports)} inputs, from 0; there is none in place {place}.")
        return ports[place].name


def unwrap(item: object) -> object:
    """Return the Tensor of ours that a tensor of these packages holds; anything else as it is."""
    return item.tensor if isinstance(item, UnityTensor) else item


def _make(shape: tuple[int, ...], data: object) -> Tensor:
    array = np.zeros(shape, np.float32) if data is None else np.asarray(data)
    if not isinstance(data, np.ndarray) and array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.size != math.prod(shape):
        raise InputError(f"A tensor of shape {list(shape)} has {math.prod(shape)} elements, got {array.size}.")
    tensor = create_tensor(array.reshape(shape), open_backend(BackendType.CPU))
    tensor.wait()
    return tensor

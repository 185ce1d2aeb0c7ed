"""A stand-in of ``triton_python_backend_utils`` and of the server around it, for one model.

It has the classes and signatures of Triton's Python backend that a model meets, and does what the server does: calls
`initialize`, `execute` and `finalize` in turn, checks what a model answers against its configuration, and takes the
memory of requests back once they are answered. It has no network, no scheduler and no shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_DTYPES = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64}


class Tensor:
    """A named array, of the name and content it was made with."""

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor takes an ndarray, got {type(numpy_array).__name__}.")
        self._name, self._array = name, numpy_array.copy()

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return a view."""
        return self._array


class TritonError:
    """The message of a request that failed."""

    def __init__(self, msg: str) -> None:
        self._message = msg

    def message(self) -> str:
        """Return the message."""
        return self._message


class InferenceRequest:
    """The inputs of a client, and the names of the outputs it asks for."""

    def __init__(self, inputs: Sequence[Tensor], requested_output_names: Collection[str]) -> None:
        self._inputs, self._names = list(inputs), list(requested_output_names)

    def inputs(self) -> list[Tensor]:
        """Return the inputs."""
        return self._inputs

    def requested_output_names(self) -> list[str]:
        """Return the names of outputs."""
        return self._names


class InferenceResponse:
    """Outputs, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor], error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return self._outputs

    def error(self) -> TritonError | None:
        """Return the error."""
        return self._error


class Server:
    """Serves one instance of a model, on the CPU.

    Args:
        model: Has the methods of a ``TritonPythonModel``.
        folder: Of the model in the repository.
        config: The content of its ``config.pbtxt``.
    """

    def __init__(self, model: Any, folder: Path, config: Mapping[str, Any]) -> None:
        self._model, self._outputs = model, {each["name"]: each for each in config["output"]}
        self._largest = config["max_batch_size"]
        arguments = {"model_config": json.dumps(config), "model_instance_kind": "CPU", "model_instance_device_id": "0"}
        arguments |= {"model_repository": str(folder), "model_version": "1", "model_name": folder.name}
        model.initialize(arguments)

    def infer(self, requests: Sequence[Mapping[str, Array]], names: Collection[str]) -> list[dict[str, Array] | str]:
        """Send requests together; return the outputs of each, or the message of its error."""
        given = [InferenceRequest([Tensor(name, x) for name, x in each.items()], names) for each in requests]
        responses = self._model.execute(given)
        for tensor in (tensor for request in given for tensor in request.inputs()):
            tensor.as_numpy().fill(-1)  # as memory is that goes to the next request
        assert isinstance(responses, list) and len(responses) == len(requests)
        return [self._check(response, names) for response in responses]

    def close(self) -> None:
        """Unload the model."""
        self._model.finalize()

    def _check(self, response: InferenceResponse, names: Collection[str]) -> dict[str, Array] | str:
        assert isinstance(response, InferenceResponse)
        error = response.error()
        if error is not None:
            return error.message()
        outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        assert outputs.keys() == set(names)
        for name, array in outputs.items():
            declared = self._outputs[name]
            assert array.dtype == _DTYPES[declared["data_type"]]
            assert [*array.shape[1:]] == declared["dims"] and 1 <= len(array) <= self._largest
        return outputs

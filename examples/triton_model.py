"""A model behind Triton's Python backend: requests that come together share runs by a Batcher.

Put this file into Triton's model repository as ``digits/1/model.py``, the model beside it as ``digits/1/model.onnx``,
and this as ``digits/config.pbtxt``; inputs and outputs are those of the model, without the batch axis:

    backend: "python"
    max_batch_size: 64
    dynamic_batching { }
    input [ { name: "image", data_type: TYPE_FP32, dims: [ 1, 8, 8 ] } ]
    output [ { name: "logits", data_type: TYPE_FP32, dims: [ 10 ] } ]
    instance_group [ { kind: KIND_GPU } ]

A request that does not fit, or whose run fails, is answered with its error, and the others with their rows. It has been
tested with a stand-in of ``triton_python_backend_utils`` that has its classes and signatures, and has never run in
Triton itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

import gpuexec as gx


class TritonPythonModel:
    """An instance of the model: a Worker on the device that Triton gave it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model, once, before the first request."""
        config = json.loads(args["model_config"])
        on_gpu = args["model_instance_kind"] == "GPU"
        largest = int(config["max_batch_size"])
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.outputs = [each["name"] for each in config["output"]]
        self.worker = gx.Worker(
            gx.load(path).keep_outputs(self.outputs),
            backend="gpu_compute" if on_gpu else "cpu",
            device=int(args["model_instance_device_id"]) if on_gpu else None,
        )
        self.batcher = gx.Batcher(self.worker, max_batch=largest)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response to each request, in order. What Triton gives together runs together."""
        answers = [self._submit(request) for request in requests]
        return [self._respond(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def finalize(self) -> None:
        """Close the model, behind the last request."""
        self.batcher.close()
        self.worker.close()

    def _submit(self, request: Any) -> Future[gx.Outputs[Any]] | gx.GpuexecError:
        try:
            return self.batcher.submit({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except gx.GpuexecError as error:
            return error

    def _respond(self, request: Any, answer: Future[gx.Outputs[Any]] | gx.GpuexecError) -> Any:
        try:
            if isinstance(answer, gx.GpuexecError):
                raise answer
            found = answer.result()
        except gx.GpuexecError as error:
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        wanted = [name for name in self.outputs if name in request.requested_output_names()]
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, found[name]) for name in wanted])

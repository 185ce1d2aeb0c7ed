"""Ray over gpuexec: `Predictor` for batches of Ray Data, `deploy` for Ray Serve.

    from gpuexec.compat.ray import Predictor, deploy

    ray.data.read_images(folder).map_batches(
        Predictor, fn_constructor_args=["model.onnx"], batch_size=256, num_gpus=1, compute=ActorPoolStrategy(size=4)
    )
    serve.run(deploy("model.onnx", num_gpus=1))

Each actor and each replica has one Worker, on the GPU that Ray assigned to it, or on the CPU where it assigned none.
A model is a path that every node has, or what `ray.put(gpuexec.load(path))` returned: then it comes to each node once.
Weights in files beside a model are mapped, so that the actors of a node share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.data.block import BlockAccessor
from starlette.requests import Request
from starlette.responses import JSONResponse

from gpuexec.devices.backend import BackendType
from gpuexec.errors import ClosedError, DeviceLostError, GpuexecError, InputError, locate
from gpuexec.execution.batcher import Batcher
from gpuexec.execution.worker import Worker
from gpuexec.importer.read import Source
from gpuexec.model.model import Model
from gpuexec.model.outputs import Outputs

Array = np.ndarray[Any, Any]
# Nothing is refused by a Batcher here: a batch brings what it brings, and Serve counts what waits.
_ANY_NUMBER = 1 << 30


class Predictor:
    """Runs a model over batches of a dataset: a class for `ray.data.Dataset.map_batches`.

    A batch is columns of NumPy, an Arrow table or a DataFrame of Pandas. What comes back are the columns that are no
    inputs and, beside them, the outputs by name, row by row in the order of the batch. Batches may have any number of
    rows, and may be read-only views on Ray's object store. Of the data's context (`ray.data.DataContext`),
    ``execution_options.preserve_order`` keeps the order of batches too, and ``raise_original_map_exception`` the class
    of an error, of which Ray Data otherwise shows the text.

    Args:
        model: What `gpuexec.load` takes or returned, or a reference to that in Ray's object store.
        columns: The column of each input, by the input's name; those left out have the input's name.
        max_batch: The most rows of a run. A larger batch takes several, which overlap on a GPU.
        error_column: Name of a column of text. A row that does not fit, or whose run fails, has its error there, and
            NaN, zeros or empty texts for outputs; other rows have ``""``. None: the first such row is an error of the
            batch, which names it.
        worker_options: What the Worker takes beside the model, such as ``{"precision": "fp16"}``. Without a
            ``backend`` it runs on the GPU that Ray assigned to the actor, else on the CPU.

    Raises:
        InputError: ``columns`` names an input that the model does not have; as by `Batcher`.
        ModelError: The model can't be loaded.
    """

    def __init__(
        self,
        model: Model | Source | ray.ObjectRef[Any],
        *,
        columns: Mapping[str, str] | None = None,
        max_batch: int = 64,
        error_column: str | None = None,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._worker = _open_worker(model, worker_options)
        names = [port.name for port in self._worker.model.inputs]
        unknown = [name for name in columns or {} if name not in names]
        if unknown:
            raise InputError(f"The model has no input {unknown[0]!r}; it has {', '.join(names)}.", value=unknown[0])
        self._columns = {name: (columns or {}).get(name, name) for name in names}
        self._max_batch, self._error_column = max_batch, error_column
        self._batcher = Batcher(self._worker, max_batch=max_batch, max_waiting=_ANY_NUMBER)

    def __call__(self, batch: Any) -> dict[str, Array]:
        """Return a batch with the outputs in place of the inputs.

        Args:
            batch: Columns by name as NumPy arrays, or a table of Arrow or Pandas.

        Raises:
            InputError: A column is missing; or a row does not fit, and there is no ``error_column``.
            GpuexecError: What the run of a row raised, where there is no ``error_column``.
        """
        given: dict[str, Array] = batch if isinstance(batch, dict) else BlockAccessor.for_block(batch).to_numpy()
        inputs: dict[str, Array] = {}
        for name, column in self._columns.items():
            if column not in given:
                raise InputError(
                    f"Input {name!r} expects the column {column!r}, and the batch has {', '.join(given)}.", value=name
                )
            inputs[name] = given[column]
        found = {name: array for name, array in given.items() if name not in self._columns.values()}
        (count,) = {len(array) for array in inputs.values()}
        answers = [*self._ask(inputs, count)]
        found |= self._collect(answers)
        if self._error_column is not None:
            errors = [str(answer) if isinstance(answer, GpuexecError) else "" for rows, answer in answers for _ in rows]
            found[self._error_column] = np.array(errors, object)
        return found

    def close(self) -> None:
        """End the Worker and its thread; the end of an actor does so by itself."""
        self._batcher.close()
        self._worker.close()

    def _ask(self, inputs: Mapping[str, Array], count: int) -> Iterator[tuple[range, Outputs[Any] | GpuexecError]]:
        """Yield answers for all rows in order: for runs of many, and row by row where one of these fails."""
        parts = [range(first, min(first + self._max_batch, count)) for first in range(0, count, self._max_batch)]
        asked = [(rows, self._submit(inputs, rows)) for rows in parts or [range(0)]]
        for rows, future in asked:
            answer = _wait(future)
            if not isinstance(answer, GpuexecError):
                yield rows, answer
                continue
            alone = [range(row, row + 1) for row in rows]
            for each, future in [(row, self._submit(inputs, row)) for row in alone]:
                answer = _wait(future)
                if isinstance(answer, GpuexecError) and self._error_column is None:
                    raise locate(answer, f"Row {each.start} of the batch")
                yield each, answer

    def _submit(self, inputs: Mapping[str, Array], rows: range) -> Future[Outputs[Any]] | GpuexecError:
        try:
            return self._batcher.submit({name: _take(array, rows) for name, array in inputs.items()})
        except InputError as error:
            return error

    def _collect(self, answers: Sequence[tuple[range, Outputs[Any] | GpuexecError]]) -> dict[str, Array]:
        """Return the outputs of all rows by name, with blanks for those that have none."""
        right = next((answer for _, answer in answers if not isinstance(answer, GpuexecError)), None)
        collected: dict[str, Array] = {}
        for port in self._worker.model.outputs:
            # Where no row is right, as the model declares it.
            shape = tuple([dim if isinstance(dim, int) else 0 for dim in port.spec.dims or ()])
            like = np.empty(shape or (0,), port.spec.dtype) if right is None else right[port.name]
            parts = [
                _make_blank(len(rows), like) if isinstance(answer, GpuexecError) else answer[port.name]
                for rows, answer in answers
            ]
            collected[port.name] = _stack(parts)
        return collected


class ModelServer:
    """A replica of `deploy`: JSON over HTTP, or arrays through a handle (``handle.predict.remote({"image": x})``).

    The body of a request is ``{"image": nested lists}``, inputs by name with a batch axis, and so is the answer. Inputs
    that do not fit are answered with 422 and the message, which names the input.

    Args:
        model: As for `deploy`.
        max_batch: As for `deploy`.
        max_delay_ms: As for `deploy`.
        frames: As for `deploy`.
        worker_options: As for `deploy`.
    """

    def __init__(
        self,
        model: Any,
        max_batch: int,
        max_delay_ms: float,
        frames: int,
        worker_options: Mapping[str, Any] | None,
    ) -> None:
        self._worker = _open_worker(model, {**(worker_options or {}), "frames": frames})
        self._batcher = Batcher(self._worker, max_batch=max_batch, max_waiting=_ANY_NUMBER)
        self._fault: GpuexecError | None = None
        self._join = serve.batch(
            max_batch_size=max_batch, batch_wait_timeout_s=max_delay_ms / 1e3, max_concurrent_batches=frames
        )(self._run)

    async def predict(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return outputs by name for inputs by name, from a run that is shared with other requests.

        Raises:
            InputError: As by `Batcher.submit`.
            GpuexecError: What the run raised.
        """
        answer = await self._join(inputs)
        if isinstance(answer, BaseException):
            if isinstance(answer, (ClosedError, DeviceLostError)):
                self._fault = answer
            raise answer
        return dict(answer.items())

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer a request over HTTP."""
        try:
            inputs = await request.json()
            if not isinstance(inputs, dict):
                raise InputError(f"The body expects an object of inputs by name, got a {type(inputs).__name__}.")
            outputs = await self.predict(inputs)
        except (InputError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 422)
        return JSONResponse({name: array.tolist() for name, array in outputs.items()})

    def check_health(self) -> None:
        """Check that the Worker can go on; Ray Serve makes a new replica where it can't.

        Raises:
            GpuexecError: It is closed, or its device is lost.
        """
        if self._fault is not None:
            raise self._fault
        if self._worker.is_closed:
            raise ClosedError("The Worker is closed.")

    async def _run(self, requests: list[Mapping[str, Any]]) -> list[Outputs[Any] | BaseException]:
        return await asyncio.gather(*map(self._batcher.run_async, requests), return_exceptions=True)


def deploy(
    model: Model | Source | ray.ObjectRef[Any],
    *,
    name: str = "gpuexec",
    max_batch: int = 64,
    max_delay_ms: float = 1.0,
    max_queued: int = 1024,
    frames: int = 2,
    num_replicas: int = 1,
    num_gpus: float = 0,
    num_cpus: float = 1,
    worker_options: Mapping[str, Any] | None = None,
) -> serve.Application:
    """Return an application of Ray Serve that runs a model: ``serve.run(deploy("model.onnx"), route_prefix="/")``.

    Each replica is a `ModelServer`. Its requests are joined by `ray.serve.batch`, and one that does not fit, or whose
    run fails, fails alone. So many batches as the Worker has frames may be under way, and so a replica takes
    ``max_batch * frames`` requests at a time; beyond ``max_queued`` that wait for one, Serve answers 503.

    Args:
        model: What `gpuexec.load` takes or returned, or a reference to that in Ray's object store.
        name: Of the deployment.
        max_batch: The most requests, and the most rows, of a run.
        max_delay_ms: How long the first request of a batch waits for others.
        max_queued: How many requests may wait.
        frames: Batches under way at once, as for the Worker.
        num_replicas: How many there are.
        num_gpus: GPUs of each; 0: it runs on the CPU.
        num_cpus: Cores that Ray reserves for each.
        worker_options: What the Worker takes beside the model and its frames.
    """
    server: Any = serve.deployment(
        ModelServer,
        name=name,
        num_replicas=num_replicas,
        max_ongoing_requests=max_batch * frames,
        max_queued_requests=max_queued,
        ray_actor_options={"num_gpus": num_gpus, "num_cpus": num_cpus},
    )
    application: serve.Application = server.bind(model, max_batch, max_delay_ms, frames, worker_options)
    return application


def _open_worker(model: Any, options: Mapping[str, Any] | None) -> Worker:
    """Return a Worker on the GPU that Ray assigned to this process, else on the CPU."""
    model = ray.get(model) if isinstance(model, ray.ObjectRef) else model
    # Without Ray (a test, a notebook) it is what a Worker takes by itself.
    has_gpu = not ray.is_initialized() or bool(ray.get_runtime_context().get_accelerator_ids()["GPU"])
    return Worker(model, **{"backend": BackendType.AUTO if has_gpu else BackendType.CPU, **(options or {})})


def _take(array: Array, rows: range) -> Array:
    """Return rows of a column; one of arrays, which may differ in shape, as one array.

    Raises:
        InputError: They differ in shape.
    """
    part = array[rows.start : rows.stop]
    if part.dtype != object or not all(isinstance(row, np.ndarray) for row in part):
        return part
    if len({row.shape for row in part}) > 1:
        raise InputError(f"Rows {rows.start} to {rows.stop - 1} have different shapes.")
    return np.stack(list(part)) if len(part) else part


def _wait(future: Future[Outputs[Any]] | GpuexecError) -> Outputs[Any] | GpuexecError:
    """Return an answer, or the error of a request that can be told from that of its actor.

    Raises:
        ClosedError: The Worker is closed.
        DeviceLostError: Its device is lost.
    """
    if isinstance(future, GpuexecError):
        return future
    try:
        return future.result()
    except (ClosedError, DeviceLostError):
        raise
    except GpuexecError as error:
        return error


def _make_blank(count: int, like: Array) -> Array:
    """Return so many rows of NaN where these are floats, else of zeros or empty texts."""
    blank = np.zeros((count, *like.shape[1:]), like.dtype)
    if like.dtype.kind == "f":
        blank[...] = np.nan
    elif like.dtype == object:
        blank[...] = ""
    return blank


def _stack(parts: Sequence[Array]) -> Array:
    """Return all rows as one array; of arrays, where they differ in shape."""
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = [row for part in parts for row in part]
    stacked = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        stacked[number] = row
    return stacked

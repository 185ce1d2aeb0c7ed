"""The Worker: for people who have a model and want answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.content import Content
from gpuexec.engine import Engine
from gpuexec.errors import InputError, StateError
from gpuexec.exchange import open_stream
from gpuexec.fence import Fence
from gpuexec.frames import Lease
from gpuexec.inputs import GivenInput, HostArray, check_shapes
from gpuexec.model import Model, ModelPort
from gpuexec.place import Place
from gpuexec.plan import Plan
from gpuexec.run import Run, Step
from gpuexec.runtime.backend import Backend, BackendType, choose_backend
from gpuexec.runtime.device import Region
from gpuexec.spec import TensorSpec
from gpuexec.syncs import CallRow, ReadRow
from gpuexec.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What a Worker did and where: counted, named, nothing hidden.

    ``compared`` is how many layers were compared with another backend. ``host_calls`` are nodes that ran on the host
    although the device has kernels; ``host_reads`` the values read back to go on; ``host_syncs`` what the caller waited
    for without having asked by name: (what, why) rows. Times in milliseconds.
    """

    backend: str
    reason: str
    runs: int
    plans: int
    variants: int
    plan_ms: float
    compile_ms: float
    compared: int
    host_calls: tuple[CallRow, ...]
    host_reads: tuple[ReadRow, ...]
    host_syncs: tuple[tuple[str, str], ...]


class Worker:
    """Runs a model. Nothing waits for the device unless you ask.

    A Worker belongs to one caller at a time; a second one entering is refused. Many Workers over one Model share its
    weights.

    Args:
        model: What `load` returned.
        backend: Where to run; AUTO takes the GPU when one works and says which and why (`backend_reason`).
        frames: How many runs may be in flight before outputs are written again. A run that would overwrite what
            somebody still reads waits for it on the stream; the caller does not wait.
        stream: A stream of the caller's to run on, instead of one of the Worker's: an object with ``__cuda_stream__``
            or a handle.
        strict: Refuse a model for which the host would have to read from the device, or to compute for it, with
            ImplicitSyncError: in `schedule`, before any work, where that is known then.
        synchronous: Finish each command before the next, in the call; an error names the node that failed. For
            finding faults.
        compare_with: ``BackendType.CPU`` compares each node with what NumPy makes of the same inputs, in the call, and
            the first that differs by more than its operator's tolerance is named in a MismatchError. The run is
            synchronous then, and all that its nodes make is kept meanwhile.

    Raises:
        DeviceNotFoundError: The backend asked for can't run here; the message says what to install.
        InputError: ``frames`` is below 1, ``stream`` is none of the device's, or ``compare_with`` is not the CPU.
    """

    def __init__(
        self,
        model: Model,
        *,
        backend: BackendType | Backend = BackendType.AUTO,
        frames: int = 2,
        stream: object = None,
        strict: bool = False,
        synchronous: bool = False,
        compare_with: BackendType | None = None,
    ) -> None:
        model.check_process()
        if frames < 1:
            raise InputError(f"frames must be at least 1, got {frames}.")
        if compare_with not in (None, BackendType.CPU):
            raise InputError(f"compare_with takes BackendType.CPU, got {compare_with!r}.")
        self.model = model
        chosen = choose_backend(backend) if isinstance(backend, BackendType) else (backend, backend.reason)
        self._backend, self._reason = chosen
        self._engine = Engine(
            model,
            self._backend,
            frames,
            None if stream is None else open_stream(self._backend, stream),
            is_strict=strict,
            is_synchronous=synchronous,
            is_comparing=compare_with is not None,
        )
        self._last: Run | None = None
        self._progress = 0.0

    # ---- running

    def schedule(self, inputs: object = None, *, copy: bool = True) -> Run:
        """Put a run on the stream and return at once.

        Args:
            inputs: One array, a list in the model's order, or ``{"name": array}``. Host arrays are copied before this
                returns; device arrays and Tensors (pending ones too) are borrowed until the run is done. Inputs left
                out stay as they were in the run before.
            copy: False borrows host arrays too, where they are dense: leave them as they are until the run is done.

        Raises:
            InputError: An input is missing, misspelt, or of the wrong dtype or shape; nothing was done.
        """
        with self._engine.entering():
            self._last = self._engine.schedule(inputs, copy=copy)
            self._progress = 1.0
            return self._last

    execute = schedule

    def run(self, inputs: object = None, *, copy: bool = True) -> Array | list[Array]:
        """Run and block for the answer: an array, or a list of them for several outputs."""
        run = self.schedule(inputs, copy=copy)
        requests = [tensor.readback_request() for tensor in run.outputs.values()]
        arrays = [request.result() for request in requests]
        return arrays[0] if len(arrays) == 1 else arrays

    def schedule_iterable(
        self, inputs: object = None, *, copy: bool = True, budget_ms: float | None = None
    ) -> Iterator[Step]:
        """Put a run on the stream step by step, each issued when the iterator is advanced.

        Inputs are taken at the call. A step may say that it is ``waiting`` for an input from elsewhere, or for content
        that the host needs, having issued nothing. A newer run makes the iterator stale: advancing it raises
        StaleError.

        Args:
            inputs: As for `schedule`.
            copy: As for `schedule`.
            budget_ms: Put as many layers into a step as take no longer than this on the device (or on the host, where
                they run there), and at least one. Layers are timed while they run with a budget; those that were not
                yet have a step each. None: every layer has.

        Raises:
            InputError: An input does not fit, or the budget is below 0.
        """
        if budget_ms is not None and not budget_ms >= 0:
            raise InputError(f"budget_ms must be a time in milliseconds, 0 or more, got {budget_ms!r}.")
        with self._engine.entering():
            self._last, steps = self._engine.begin(inputs, copy=copy, budget_ms=budget_ms)
            self._progress = 0.0
            return self._follow(steps)

    execute_async = schedule_iterable
    start_manual_schedule = schedule_iterable

    def _follow(self, steps: Iterator[tuple[Step, int]]) -> Iterator[Step]:
        for step, left in steps:
            issued = step.index + len(step.nodes)
            # How long loops run is not known beforehand; what was shown is not taken back.
            self._progress = max(self._progress, issued / max(issued + left, 1))
            yield step
        self._progress = 1.0

    @property
    def schedule_progress(self) -> float:
        """Share of the present run's layers that are on the stream, 0 to 1; 0 as soon as a manual schedule starts."""
        return self._progress

    def prepare(self, inputs: object = None) -> Plan | None:
        """Plan, compile and allocate for these inputs without running; return the plan the run begins with.

        What depends on data is planned when the data is there. None: the run begins on the host.

        Args:
            inputs: As for `schedule`, with a shape (a tuple) in place of any array; inputs of fixed shape need not be
                given.

        Raises:
            InputError: The shapes don't fit the model.
        """
        with self._engine.entering():
            given = _describe(self.model, inputs)
            check_shapes(self.model, {name: item.spec for name, item in given.items()})
            return self._engine.prepare(given)

    # ---- results

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output of the last run (the first, without a name); it may be pending. No copy, no wait."""
        return self._require_run().peek_output(name)

    def read_output(self, name: str | None = None) -> Array:
        """Block for an output of the last run as an array of the caller's own."""
        return self.peek_output(name).readback_and_clone()

    def copy_output(self, name: str | None = None, out: Tensor | None = None) -> Tensor:
        """Copy an output of the last run on the device, without waiting; the copy is the caller's.

        Args:
            name: Which output; None: the first.
            out: A tensor that `copy_output` made before, of the same dtype and shape, to copy into.

        Raises:
            InputError: ``out`` does not fit.
        """
        with self._engine.entering():
            source = self._require_run().peek_output(name)._content
            source.check()
            source.wait_known("copied before its shape was known")
            if out is None:
                region = Region(self._backend.device.allocate(max(source.spec.nbytes, 1)), 0, source.spec.nbytes)
                lease = Lease(self._backend)
                place = Place(source.name, source.spec, region)
                out = Tensor(Content(source.name, self._backend, place, Fence.of(), lease, None))
            target = out._content
            if (
                target.spec != source.spec
                or not target.lease.is_own
                or target.backend.device is not self._backend.device
            ):
                raise InputError(
                    f"`out` is {out!r}; expected a tensor made by copy_output with {source.spec}.", value=source.name
                )
            target.check()
            target.copy_from(source)
            return out

    # ---- waiting

    def flush_schedule(self, blocking: bool = False) -> None:
        """Hand everything issued so far to the device; with ``blocking`` wait for it. Copies nothing.

        Raises:
            GpuexecError: Waiting, and the last run failed.
        """
        with self._engine.entering():
            mark = self._engine.mark()
        if blocking:
            mark.synchronize()

    async def flush_schedule_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        with self._engine.entering():
            mark = self._engine.mark()
        await mark.wait(self._backend.completion)

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far, between steps too."""
        self.flush_schedule(blocking=True)

    async def wait_for_completion_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        await self.flush_schedule_async()

    def cancel(self) -> bool:
        """Give up the present run if it is not wholly on the stream; the Worker stays usable."""
        with self._engine.entering():
            return self._last is not None and self._last.cancel()

    # ---- what there is to know

    @property
    def backend_type(self) -> BackendType:
        """The backend chosen; never AUTO."""
        return self._backend.type

    @property
    def backend_reason(self) -> str:
        """Why that backend was chosen."""
        return self._reason

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, newest first."""
        return tuple(self._engine.site.plans)

    def report(self) -> Report:
        """Return what was done so far."""
        counters, syncs = self._engine.site.counters, self._engine.syncs
        return Report(
            backend=self._backend.device.name,
            reason=self._reason,
            runs=self._engine.turns.number,
            plans=counters.plans,
            variants=counters.variants,
            plan_ms=counters.plan_ms,
            compile_ms=counters.compile_ms,
            compared=0 if self._engine.comparer is None else self._engine.comparer.compared,
            host_calls=syncs.calls,
            host_reads=syncs.reads,
            host_syncs=tuple(syncs.waits),
        )

    def memory_stats(self) -> dict[str, int]:
        """Return bytes held: ``arena`` beside ``arena_lower_bound``, ``exchange``, ``weights``, ``frames``, ``pinned``.

        Weights are the model's and shared by its Workers on a device; pinned bytes are the device's and shared by all.
        """
        engine = self._engine
        return {
            "arena": engine.arena.nbytes,
            "arena_lower_bound": max((plan.layout.lower_bound for plan in engine.site.plans), default=0),
            "exchange": engine.pool.nbytes,
            "weights": engine.weights.nbytes,
            "frames": sum(frame.nbytes for frame in engine.frames),
            "pinned": self._backend.staging.nbytes,
        }

    def summary(self) -> str:
        """Return the report and memory as readable text."""
        report, memory = self.report(), self.memory_stats()
        lines = [
            f"{self.model.graph.name}: {len(self.model.graph.nodes)} nodes on {report.backend} ({report.reason})",
            f"  runs {report.runs}, plans {report.plans}, sizes {report.variants}",
            f"  planning {report.plan_ms:.1f} ms, compiling {report.compile_ms:.1f} ms",
            "  memory " + ", ".join(f"{name} {nbytes:,} B" for name, nbytes in memory.items()),
        ]
        lines += [
            f"  host call {row.node} ({row.operator}), {row.times} times, {row.computed_ms:.2f} ms: {row.why}"
            for row in report.host_calls
        ]
        lines += [
            f"  host read {row.value} for {row.node} ({row.why}), {row.times} times, {row.nbytes} B,"
            f" waited {row.waited_ms:.2f} ms, copied {row.copied_ms:.2f} ms"
            for row in report.host_reads
        ]
        if report.compared:
            lines.append(f"  compared {report.compared} layers with NumPy: all within their operators' tolerances")
        lines += [f"  host wait for {what}: {why}" for what, why in report.host_syncs]
        return "\n".join(lines)

    # ---- life

    def trim(self) -> None:
        """Wait for all work and give back memory that is not needed now."""
        with self._engine.entering():
            self._engine.trim()

    def close(self) -> None:
        """Wait for all work and give everything back; twice is harmless. Readbacks requested before stay readable."""
        if not self._engine.is_closed:
            with self._engine.entering():
                self._engine.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_run(self) -> Run:
        self._engine.check_open()
        if self._last is None:
            raise StateError("No run was scheduled yet; call schedule(inputs) first.")
        return self._last


def _describe(model: Model, inputs: object) -> dict[str, GivenInput]:
    """Return inputs given as arrays or shapes, for planning; fixed shapes need not be given."""
    if inputs is None or isinstance(inputs, Mapping):
        named = dict(inputs or {})
    else:
        items = inputs if isinstance(inputs, list) else [inputs]
        if len(items) > len(model.inputs):
            raise InputError(f"The model has {len(model.inputs)} inputs, got {len(items)}.")
        named = {port.name: item for port, item in zip(model.inputs, items, strict=False)}
    unknown = sorted(set(named) - {port.name for port in model.inputs})
    if unknown:
        raise InputError(
            f"The model has no input {unknown[0]!r}; it has {', '.join(p.name for p in model.inputs)}.",
            value=unknown[0],
        )
    return {port.name: _describe_port(model, port, named.get(port.name)) for port in model.inputs}


def _describe_port(model: Model, port: ModelPort, item: Any) -> GivenInput:
    if isinstance(item, np.ndarray):
        if item.dtype != port.spec.dtype:
            raise InputError(
                f"Input {port.name!r} expects {port.spec.dtype.name}, got {item.dtype.name}; give a shape or cast it.",
                value=port.name,
            )
        return HostArray(TensorSpec(item.shape, item.dtype), item)
    if item is not None:
        shape = item if isinstance(item, tuple) else item.shape
        return HostArray(TensorSpec(tuple(int(extent) for extent in shape), port.spec.dtype))
    extents = [model.dims.get(dim) if isinstance(dim, str) else dim for dim in port.spec.dims or ()]
    fixed = tuple(extent for extent in extents if isinstance(extent, int))
    if port.spec.dims is None or len(fixed) != len(extents):
        raise InputError(
            f"Input {port.name!r} ({port.spec}) has free dimensions; give an array or a shape.", value=port.name
        )
    return HostArray(TensorSpec(fixed, port.spec.dtype))

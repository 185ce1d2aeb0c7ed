"""The Worker: for people who have a model and want answers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import ClosedError, InputError, StateError
from gpuexec.inputs import check_shapes
from gpuexec.model import Model
from gpuexec.plan import Plan
from gpuexec.readback import Fence, wait_in_loop
from gpuexec.run import Engine, Run, Step
from gpuexec.runtime.backend import Backend, BackendType, open_backend
from gpuexec.runtime.device import Region, Stream
from gpuexec.spec import TensorSpec
from gpuexec.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What a Worker did and where: counted, named, nothing hidden.

    ``host_calls`` are operators that ran on the host although the device has kernels; ``host_reads`` the values read back to
    decide what to run. Both are (node or operator, reason) rows. Times in milliseconds.
    """

    backend: str
    reason: str
    runs: int
    plans: int
    variants: int
    plan_ms: float
    compile_ms: float
    host_calls: tuple[tuple[str, str], ...]
    host_reads: tuple[tuple[str, str], ...]


class Worker:
    """Runs a model. Nothing waits for the device unless you ask.

    A Worker belongs to one caller at a time. Many Workers over one Model share its weights.

    Args:
        model: What `load` returned.
        backend: Where to run; AUTO takes the GPU when one works and says which and why (`backend_reason`).
        frames: How many runs may be in flight before outputs are written again.
        stream: A stream of the caller's to run on, instead of one of the Worker's.

    Raises:
        DeviceNotFoundError: The backend asked for can't run here; the message says what to install.
    """

    def __init__(
        self, model: Model, *, backend: BackendType | Backend = BackendType.AUTO, frames: int = 2, stream: Stream | None = None
    ) -> None:
        self.model = model
        self._backend = open_backend(backend) if isinstance(backend, BackendType) else backend
        self._engine = Engine(model, self._backend, frames, stream)
        self._last: Run | None = None
        self._progress = 0.0
        self._closed = False

    # ---- running

    def schedule(self, inputs: object = None) -> Run:
        """Put a run on the stream and return at once.

        Args:
            inputs: One array, a list in the model's order, or ``{"name": array}``. NumPy arrays are copied before this returns;
                device arrays and Tensors (pending ones too) are borrowed until the run is done. Inputs left out stay as they
                were in the run before.

        Raises:
            InputError: An input is missing, misspelt, or of the wrong dtype or shape; nothing was done.
        """
        self._check()
        self._last = self._engine.schedule(inputs)
        self._progress = 1.0
        return self._last

    execute = schedule

    def run(self, inputs: object = None) -> Array | list[Array]:
        """Run and block for the answer: an array, or a list of them for several outputs."""
        run = self.schedule(inputs)
        requests = [tensor.readback_request() for tensor in run.outputs.values()]
        arrays = [request.result() for request in requests]
        return arrays[0] if len(arrays) == 1 else arrays

    def schedule_iterable(self, inputs: object = None) -> Iterator[Step]:
        """Put a run on the stream one layer at a time: one step per layer, each issued when the iterator is advanced.

        Inputs are taken at the call. A newer run makes the iterator stale: advancing it raises StaleError.
        """
        self._check()
        issue = self._engine.begin(inputs)
        self._last, self._progress = issue.run, 0.0
        return self._step(issue, self._engine.count_layers(issue))

    execute_async = schedule_iterable
    start_manual_schedule = schedule_iterable

    def _step(self, issue: Any, count: int) -> Generator[Step, None, None]:
        for step in self._engine.step(issue):
            self._progress = (step.index + 1) / count
            yield step
        self._progress = 1.0

    @property
    def schedule_progress(self) -> float:
        """Share of the layers of the present run that are on the stream, 0 to 1; 0 as soon as a manual schedule starts."""
        return self._progress

    def prepare(self, inputs: Mapping[str, object] | object = None) -> Plan:
        """Plan, compile and allocate for these inputs (arrays, or shapes by name) without running; return the plan.

        Raises:
            InputError: The shapes don't fit the model.
        """
        self._check()
        specs = self._specs(inputs)
        check_shapes(self.model, specs)
        return self._engine.prepare(specs)

    def _specs(self, inputs: object) -> dict[str, TensorSpec]:
        """Return specs of inputs given as arrays or shapes; fixed dims need not be given."""
        if inputs is None:
            inputs = {}
        named = inputs if isinstance(inputs, Mapping) else None
        if named is None:
            items = inputs if isinstance(inputs, list) else [inputs]
            named = {port.name: item for port, item in zip(self.model.inputs, items, strict=False)}
        specs = {}
        for port in self.model.inputs:
            item = named.get(port.name)
            if item is None:
                dims = port.spec.dims or ()
                shape = tuple(self.model.dims.get(dim) if isinstance(dim, str) else dim for dim in dims)
                if port.spec.dims is None or not all(isinstance(extent, int) for extent in shape):
                    raise InputError(f"Input {port.name!r} ({port.spec}) has free dimensions; give an array or a shape.", value=port.name)
            else:
                shape = tuple(item) if isinstance(item, (tuple, list)) else tuple(getattr(item, "shape"))
            specs[port.name] = TensorSpec(tuple(int(extent) for extent in shape if extent is not None), port.spec.dtype)
        return specs

    # ---- results

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output of the last run (the first, without a name); it may be pending. No copy, no wait."""
        return self._require_run().peek_output(name)

    def read_output(self, name: str | None = None) -> Array:
        """Block for an output of the last run as an array of the caller's own."""
        return self.peek_output(name).readback_and_clone()

    def copy_output(self, name: str | None = None, out: Tensor | None = None) -> Tensor:
        """Copy an output of the last run on the device, without waiting; the copy is the caller's and outlives later runs.

        Args:
            name: Which output; None: the first.
            out: A tensor that `copy_output` made before, of the same dtype and shape, to copy into.
        """
        source = self.peek_output(name)
        source._check()
        device, stream = self._backend.device, self._engine.stream
        if out is None:
            region = Region(device.allocate(max(source.nbytes, 1)), 0, source.nbytes)
            out = Tensor(source.name, source.spec, self._backend, region, Fence(), None)
        elif out.spec != source.spec or out._lease is not None or out._backend is not self._backend:
            raise InputError(f"`out` is {out!r}; expected a tensor made by copy_output with {source.spec}.", value=source.name)
        run = self._require_run()
        if not run._fence.is_issued():
            self._engine.synchronize()
        if source.nbytes:
            stream.copy(out._region.address, source._region.address, source.nbytes)
        event = device.create_event()
        stream.record(event)
        source._guard(event)
        fence = Fence()
        fence.issue((event, *run._fence.events))
        out._fence, out._request = fence, None
        return out

    # ---- waiting

    def flush_schedule(self, blocking: bool = False) -> None:
        """Hand everything issued so far to the device; with ``blocking`` wait for it. Copies nothing."""
        self._check()
        if blocking:
            self._engine.synchronize()

    async def flush_schedule_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        self._check()
        await wait_in_loop(self._engine.notify)

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far, between steps too."""
        self.flush_schedule(blocking=True)

    async def wait_for_completion_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        await self.flush_schedule_async()

    def cancel(self) -> bool:
        """Give up the present run if it is not wholly on the stream; the Worker stays usable."""
        self._check()
        return self._last is not None and self._last.cancel()

    # ---- what there is to know

    @property
    def backend_type(self) -> BackendType:
        """The backend chosen; never AUTO."""
        return self._backend.type

    @property
    def backend_reason(self) -> str:
        """Why that backend was chosen."""
        return self._backend.reason

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, newest first."""
        return self._engine.plans

    def report(self) -> Report:
        """Return what was done so far."""
        counters = self._engine.counters
        return Report(
            backend=self._backend.device.name,
            reason=self._backend.reason,
            runs=counters.runs,
            plans=counters.plans,
            variants=counters.variants,
            plan_ms=counters.plan_ms - counters.compile_ms,
            compile_ms=counters.compile_ms,
            host_calls=tuple((call.operator, "no lowering for this device") for call in self._engine.host_calls()),
            host_reads=(),
        )

    def memory_stats(self) -> dict[str, int]:
        """Return bytes held: ``arena`` beside ``arena_lower_bound``, ``weights``, ``frames``, ``pinned``."""
        return self._engine.memory_stats()

    def summary(self) -> str:
        """Return the report and memory as readable text."""
        report, memory = self.report(), self.memory_stats()
        lines = [
            f"{self.model.graph.name or 'model'}: {len(self.model.graph.nodes)} nodes on {report.backend} ({report.reason})",
            f"  runs {report.runs}, plans {report.plans}, sizes {report.variants}",
            f"  planning {report.plan_ms:.1f} ms, compiling {report.compile_ms:.1f} ms",
            "  memory " + ", ".join(f"{name} {nbytes:,} B" for name, nbytes in memory.items()),
        ]
        lines += [f"  host call {operator}: {reason}" for operator, reason in report.host_calls]
        return "\n".join(lines)

    # ---- life

    def trim(self) -> None:
        """Wait for all work and give back memory that is not needed now."""
        self._check()
        self._engine.trim()

    def close(self) -> None:
        """Wait for all work and give everything back; twice is harmless. Finished readbacks stay readable."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("The Worker is closed.")
        self._backend.check_process()

    def _require_run(self) -> Run:
        self._check()
        if self._last is None:
            raise StateError("No run was scheduled yet; call schedule(inputs) first.")
        return self._last



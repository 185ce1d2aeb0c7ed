"""Worker: runs a model on a device and returns its outputs."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from gpuexec.devices.backend import BackendLike, BackendType, check_backend, find_backend
from gpuexec.devices.working_here import waking_deferred, working_here
from gpuexec.errors import InputError, StateError
from gpuexec.execution.engine import Engine
from gpuexec.execution.inspection.inspector import Inspector
from gpuexec.execution.profiling.profiler import Profiler, check_profiler
from gpuexec.execution.replay.replay import Replay, record_replay
from gpuexec.execution.report import Report, count_memory, describe_memory, make_report, summarise
from gpuexec.execution.resources.caller_stream import CallerStream, open_stream
from gpuexec.execution.resources.exclusive_caller import is_interrupt
from gpuexec.execution.resources.memory_usage import MemoryUsageRow
from gpuexec.execution.resources.opened_providers import open_providers, read_providers
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.resources.weights import weights_of
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.copying import copy_tensor
from gpuexec.execution.results.given import ArrayLike, Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import describe_inputs
from gpuexec.execution.runs.lane import LastLap
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.execution.runs.pacing import check_budget
from gpuexec.execution.runs.run import Run, Step
from gpuexec.execution.runs.storage import own_storage
from gpuexec.execution.state.seeds import check_seed
from gpuexec.execution.state.state import State
from gpuexec.execution.weights.alike import take_weights
from gpuexec.importer.read import Source
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import STRICT, Precision
from gpuexec.model.editing.weight_replacement import WeightSource
from gpuexec.model.loading import load
from gpuexec.model.model import Model, check_process, choose_precision
from gpuexec.model.outputs import Outputs
from gpuexec.system.pickling import not_picklable
from gpuexec.system.progress import ProgressCallback, check_progress_callback, open_progress_line
from gpuexec.system.threads import check_threads

Array = np.ndarray[Any, Any]
_log = logging.getLogger("gpuexec")


def _take(content: Content) -> Array:
    """Return an output that is the caller's own from now on, without a copy where that can be."""
    content.fence.synchronize()
    taken = content.hand_over()
    return content.read_privately().result() if taken is None else taken


@not_picklable("Send its model, and make a Worker of that there.")
class Worker:
    """Runs a model on a device. Nothing waits for the device unless you ask.

        with gpuexec.Worker("model.onnx") as worker:
            (y,) = worker.run(x)            # blocks for the outputs
            worker.schedule(x)              # returns at once
            y = worker.read_output("y")     # blocks for one output

    To run: `run`, `schedule`, `schedule_iterable`, `cancel`. To read outputs: `peek_output`, `read_output`,
    `copy_output`. To order work: `order_before`, `wait_for_completion`. Before runs: `prepare`, `wait_for_kernels`,
    `record`, `tap`, `replace_weights`, `state`. To look: `summary`, `report`, `memory_report`, `plans`,
    `backend_reason`, `is_compiled`. At the end: `trim`, `close`.

    A Worker belongs to one caller at a time; a second one entering is refused. Many Workers over one Model share its
    weights.

    Args:
        model: What `load` returned, or what it takes: a path, bytes, a binary file or an onnx.ModelProto.
        backend: Where to run, a BackendType or its name (``"cpu"``); AUTO takes the GPU when one works and says which
            and why (`backend_reason`).
        device: Which of several GPUs, counted from 0 as CUDA counts; None: the first.
        frames: How many runs may be in flight before outputs are written again. A run that would overwrite what
            somebody still reads waits for it on the stream; the caller does not wait.
        stream: A stream of the caller's to run on, instead of one of the Worker's: an object with ``__cuda_stream__``
            or a handle.
        strict: Refuse a model for which the host would have to read from the device, or to compute for it, with
            ImplicitSyncError: in `schedule`, before any work, where that is known then.
        synchronous: Finish each command before the next, in the call; an error names the node that failed. For
            finding faults.
        compare_with: ``"cpu"`` compares each node with what NumPy makes of the same inputs, in the call, and
            the first that differs by more than its operator's tolerance is named in a MismatchError. The run is
            synchronous then, and all that its nodes make is kept meanwhile.
        max_bytes: The most it may hold on its device: arena, frames, what passes between plans, the model's weights,
            state. A run that needs more is refused with OutOfMemoryError, before anything is compiled or allocated
            for it where that is known then, and the Worker goes on. What `copy_output` and `record` make is beside it.
        seed: What random operators draw from, from 0 to 2**64 - 1; a Worker with the same one draws the same, run by
            run, on any device. None: the next of the process; see `set_seed`.
        precision: What products and convolutions of float are computed in. ``"strict"``: float. ``"reference"``: float,
            and every sum in the order of its terms, whatever that costs. ``"tf32"``, ``"fp16"``, ``"bf16"``, ``"fp8"``:
            what they multiply is rounded to that type, and added up in float; all else stays in float: norms, softmax,
            sums, what the model gives. ``"int8"``: as its QuantizeLinear and DequantizeLinear say. Every backend rounds
            at the same places. None: as the model is, which is ``"strict"`` unless a program says otherwise.
        keep: Names of nodes that stay in float in a lower precision, or patterns of them such as ``"decoder/*"``;
            `measure_gap` says which lose most.
        fuse_rounding: What passes from step to step within a fused kernel stays as it is computed, in float for half
            and bfloat16: a model in those types takes fewer instructions and loses less, and its results differ by
            roundings from those of single operators. False: it is rounded to its type, and fusing changes no bit.
            None: as the model is, which is False unless a program says otherwise.
        deterministic: ``"size"``: sums are taken in an order that depends on the size class alone, so that a row of a
            batch has the same bits however many rows there are within a class. None: it may depend on the sizes too,
            which keeps more of a device busy.
        providers: Libraries that products and convolutions may be computed by, beside our kernels, on ``GPU_COMPUTE``:
            ``"cublaslt"`` and ``"cudnn"``. The cheapest is taken where a plan is made, by predictions or what was
            measured (``tuning``); nothing is measured for it. Their bits follow from the library and the GPU, so none
            is taken with ``precision="reference"`` or ``deterministic="size"``. Other backends have no libraries.
        tuning: A file that `gpuexec tune` wrote on a GPU of the same name.
        profiler: Records all its runs, whatever profiler the context has; see `Profiler`.
        watch: Look in every run for NaN and infinities that a node makes, by statistics that the device takes of all
            floating-point values. ``"raise"``: the run ends with NonFiniteError, which names the first such node, and
            leaves nothing behind; a thread of ours waits for each plan, the caller does not. ``"report"``: nothing
            waits, and `Run.inspection` has what was found.
        progress: Called with a `Progress` after each piece of the weights that is uploaded, in the call that uploads
            them, and of a model loaded here, that is read; and between the classes of a range that are planned, and
            the kernels that are compiled. What it raises ends the work, which then leaves nothing behind. None: a line
            shows what takes longer than a second, in a terminal or notebook, unless GPUEXEC_PROGRESS=0.
        compile: ``"background"``: nothing waits for kernels whose text is generated for fused operators. Runs take
            plans without them until they are compiled, on threads beside; the first schedule after that takes the fused
            plan, with the same bits. See `is_compiled` and `wait_for_kernels`. None: they are compiled before the first
            run.
        threads: How many cores a run takes on the CPU, from 1 to 4096; no bit of a result depends on it. With AUTO it
            is for the CPU, should that be chosen. Workers of one number share a model's weights. None: as
            GPUEXEC_CPU_THREADS says, else as many as the process may run on. See `gpuexec.system.blas` for what it
            means to NumPy's own threads.

    Raises:
        DeviceNotFoundError: The backend or provider asked for can't run here; the message says what to install.
        ModelError: The model given by its bytes is broken; see `load`.
        InputError: ``frames`` or ``max_bytes`` is below 1, ``device`` is no ordinal, ``stream`` is none of the
            device's, ``compare_with`` is not the CPU, ``compile`` is another word, there is no such precision or node
            to keep, ``threads`` is no such number, or another backend is asked for, or ``model``, ``watch``,
            ``profiler`` or ``progress`` is something else; there is no such provider, or ``tuning`` goes without one,
            is no tune file, or was measured on another GPU.

    Example:
        >>> with gx.Worker("digits.onnx", backend="cpu") as worker:
        ...     logits, probabilities = worker.run(x)
        >>> logits.shape
        (8, 10)
    """

    def __init__(
        self,
        model: Model | Source,
        *,
        backend: BackendLike = BackendType.AUTO,
        device: int | None = None,
        frames: int = 2,
        stream: object = None,
        strict: bool = False,
        synchronous: bool = False,
        compare_with: BackendType | str | None = None,
        max_bytes: int | None = None,
        seed: int | None = None,
        watch: str | None = None,
        deterministic: str | None = None,
        precision: str | None = None,
        keep: Collection[str] = (),
        fuse_rounding: bool | None = None,
        providers: Collection[str] = (),
        tuning: str | os.PathLike[str] | None = None,
        profiler: Profiler | None = None,
        progress: ProgressCallback | None = None,
        compile: str | None = None,
        threads: int | None = None,
    ) -> None:
        if compile not in (None, "background"):
            raise InputError(f"compile takes None or 'background', got {compile!r}.")
        if deterministic not in (None, "size"):
            raise InputError(f"deterministic takes None or 'size', got {deterministic!r}.")
        if not isinstance(frames, int) or frames < 1:
            raise InputError(f"frames must be a whole number, at least 1, got {frames!r}.")
        backend = check_backend(backend)
        if compare_with is not None and BackendType(compare_with) is not BackendType.CPU:
            raise InputError(f"compare_with takes BackendType.CPU or 'cpu', got {compare_with!r}.")
        if threads is not None:
            check_threads(threads)
        inspector = Inspector.of(watch, keeps_all=compare_with is not None)
        if seed is not None:
            check_seed(seed)
        check_profiler(profiler)
        check_progress_callback(progress)
        Precision.of(
            STRICT if precision is None else precision, keep, False if fuse_rounding is None else fuse_rounding
        )
        chosen = read_providers(providers, tuning)
        model = model if isinstance(model, Model) else load(model, progress=progress)
        check_process(model)
        model = choose_precision(model, precision, keep, fuse_rounding)
        self.model = model
        self._backend, self._reason = find_backend(backend, device, threads)
        _log.info("%s runs on %s: %s", model.graph.name, self._backend.device.name, self._reason)
        limit = None if max_bytes is None else MemoryLimit(max_bytes, weights_of(model, self._backend), frames)
        self._engine = Engine(
            model,
            self._backend,
            frames,
            None if stream is None else open_stream(self._backend, stream),
            is_strict=strict,
            is_synchronous=synchronous,
            is_comparing=compare_with is not None,
            inspector=inspector,
            open_storage=own_storage(frames, limit),
            fixes_division=deterministic == "size",
            providers=open_providers(chosen, self._backend.device),
            compiles_later=compile is not None,
        )
        self._engine.planning.listener.report = open_progress_line() if progress is None else progress
        self._engine.profiler = profiler
        if seed is not None:
            self._engine.states.state.seed(seed)
        # The last run; where it was computed in the call, a Run is made of it once somebody asks.
        self._last: Run | LastLap | None = None
        self._progress = 0.0
        self._unclosed = warn_unless_closed(self, f"A Worker of {model.graph.name!r}", "close(), or use `with`")

    def schedule(self, inputs: Inputs | None = None, *, copy: bool = True, stream: object = None) -> Run:
        """Put a run on the stream and return at once.

        Args:
            inputs: One array, a list in the model's order, or ``{"name": array}``. Host arrays are copied before this
                returns; device arrays and Tensors (pending ones too) are borrowed until the run is done. Inputs left
                out stay as they were in the run before. One given under the name of a memory's input replaces what the
                state holds, for this run; the next goes on from its result.
            copy: False borrows host arrays too, where they are dense: leave them as they are until the run is done.
            stream: A stream of yours (of CuPy, torch, the device, a handle, anything with ``__cuda_stream__``): the run
                comes after what is on it now, and what you put on it afterwards comes after the run. The run itself
                stays on the Worker's stream; nothing waits but streams, unless the run must wait for the host.

        Raises:
            InputError: An input is missing, misspelt, or of the wrong dtype or shape, or ``stream`` is none; nothing
                was done.
            StateError: The stream is capturing a graph.
        """
        with self._engine.exclusive:
            self._last = self._engine.schedule(inputs, copy=copy, stream=stream)
            self._progress = 1.0
            return self._last

    def run(self, inputs: Inputs | None = None, *, copy: bool | None = None, stream: object = None) -> Outputs[Any]:
        """Run and block for all outputs: a tuple that also knows names, whether they are one or several.

        Each is an array of the caller's own. Strings are an array of str, a sequence is a list, an optional what it
        holds or None, a map a dict. A KeyboardInterrupt cancels the run.

        Args:
            inputs: As for `schedule`.
            copy: True: inputs are copied as for `schedule`, and so are outputs. None: on the CPU, large arrays are not.
                An input that the run before was given too is read where it lies; a later run that leaves it out is
                refused. An output is the very bytes that the run wrote: `peek_output` stands for them until the next
                run, and no run writes them again. False: as None, and dense inputs are borrowed as for `schedule`.
            stream: As for `schedule`.

        Raises:
            InputError: As `schedule`, or an input is left out that was not kept.
        """
        if stream is None:
            with self._engine.exclusive:
                lap = self._engine.run_here(inputs, copies=bool(copy))
                if lap is not None:
                    self._last, self._progress = lap, 1.0
                    return Outputs(lap.arrays)
        with working_here(), waking_deferred(), self._engine.cancel_on_error():
            with self._engine.exclusive:
                is_copied = copy is None or copy
                run = self._engine.schedule(inputs, copy=is_copied, stream=stream, is_waited_for=copy is None)
                self._last, self._progress = run, 1.0
            contents = {name: tensor._content for name, tensor in run.outputs.items()}
            # Nobody else asks for these: their pinned memory goes back with them.
            requests = {
                name: content.read_privately() for name, content in contents.items() if copy or not content.is_large()
            }
            outputs = Outputs({
                name: requests[name].result() if name in requests else _take(content)
                for name, content in contents.items()
            })  # fmt: skip
        with self._engine.exclusive:
            self._engine.note_done()
        return outputs

    def schedule_iterable(
        self,
        inputs: Inputs | None = None,
        *,
        copy: bool = True,
        budget_ms: float | None = None,
        stream: object = None,
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
            stream: As for `schedule`; it waits for the run from the last step on.

        Raises:
            InputError: An input does not fit, or the budget is below 0.
        """
        check_budget(budget_ms)
        with self._engine.exclusive:
            self._last, steps = self._engine.begin(inputs, copy=copy, budget_ms=budget_ms, stream=stream)
            self._progress = 0.0
            return self._follow(steps)

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

    def cancel(self) -> bool:
        """Give up the present run if it is not wholly on the stream; the Worker stays usable."""
        with self._engine.exclusive:
            return self._last is not None and self._require_run().cancel()

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output of the last run (the first, without a name); it may be pending. No copy, no wait."""
        return self._require_run().peek_output(name)

    def read_output(self, name: str | None = None) -> Array:
        """Block for an output of the last run as an array of the caller's own; see `run`."""
        return self.peek_output(name).readback_and_clone()

    def copy_output(self, name: str | None = None, out: Tensor | None = None, *, stream: object = None) -> Tensor:
        """Copy an output of the last run on the device, without waiting; the copy is the caller's.

        Args:
            name: Which output; None: the first.
            out: A tensor that `copy_output` made before, of the same dtype and shape, to copy into.
            stream: A stream of yours: the copy comes after what is on it now, and what you put on it afterwards comes
                after the copy.

        Raises:
            InputError: ``out`` does not fit, ``stream`` is none, or the output is strings or a container, which lie on
                the host.
        """
        with self._engine.exclusive:
            caller = None if stream is None else CallerStream.of(self._engine.backend, stream)
            return copy_tensor(self._require_run().peek_output(name), out, self._engine.backend, caller)

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far, between steps too, and give staging back.

        The device's pinned blocks that nobody uses are freed, that of the inputs too, which stay set.

        Raises:
            GpuexecError: The last run failed.
        """
        with self._engine.exclusive:
            mark = self._engine.mark()
        with self._engine.releasing_staging():
            mark.synchronize()

    async def wait_for_completion_async(self) -> None:
        """Wait as `wait_for_completion` does, without blocking the loop."""
        with self._engine.exclusive:
            mark = self._engine.mark()
        with self._engine.releasing_staging():
            await mark.wait(self._engine.backend.completion)

    @property
    def is_compiled(self) -> bool:
        """True if nothing is being compiled in the background; see ``compile`` of the Worker."""
        self._engine.check_open()
        compiler = self._engine.planning.compiler
        return compiler is None or compiler.waiting == 0

    def wait_for_kernels(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is compiled in the background any more; False when the time ran out.

        The runs scheduled from then on take fused plans, but for kernels that can't be compiled: see `report`.

        Raises:
            ClosedError: The Worker is closed.
        """
        self._engine.check_open()
        compiler = self._engine.planning.compiler
        return compiler is None or compiler.wait(timeout_s)

    def order_before(self, stream: object) -> None:
        """Have a stream of yours wait for everything issued so far; return at once.

        Args:
            stream: Of CuPy, torch, the device, a handle, anything with ``__cuda_stream__``: what you put on it
                afterwards comes after all that was issued so far.

        Raises:
            InputError: ``stream`` is none.
        """
        with self._engine.exclusive:
            self._engine.mark(stream)

    def prepare(self, inputs: Inputs | None = None, *, progress: ProgressCallback | None = None) -> Plan | None:
        """Plan, compile and allocate for these inputs without running; return the plan the run begins with.

        What depends on data is planned when the data is there. None: the run begins on the host. Where nothing is under
        way and inputs, outputs and memories take 256 MB at most, the plan's commands run once over zeros, to time the
        layers: the first run with a budget groups them then. Simulators are not timed.

        Args:
            inputs: As for `schedule`, with a shape (a tuple) in place of any array; inputs of fixed shape need not be
                given.
            progress: As for the Worker, in its place during this call.

        Raises:
            InputError: The shapes don't fit the model.
            AccessError: A file that weights are in changed since the model was loaded.
        """
        check_progress_callback(progress)
        with self._engine.exclusive, self._engine.planning.listener.instead(progress):
            given, _ = describe_inputs(self._engine.input_reader, inputs)
            return self._engine.prepare(given, times_layers=self.backend_type._keeps_time)

    def tap(self, wanted: Mapping[str, object] | None = None) -> None:
        """Take statistics of inner values from the next run on, in place of those taken so far; None: of none.

        They are taken by the device, of each value where it lies, and read back with the run without anybody waiting;
        `Run.inspection` has them. Only for a function of yours the whole tensor comes to the host.

        Args:
            wanted: By name of a value, or of a node for all that it makes: reducers, of ``"min"``, ``"max"``,
                ``"absmax"``, ``"mean"``, ``"std"``, ``"nonfinite"``, ``"histogram"``, and functions of an array.

        Raises:
            InputError: There is no such value (where passes removed it, the nearest is named) or reducer; taps stay as
                they were.
        """
        with self._engine.exclusive:
            self._engine.planning.inspector.tap(self.model, wanted or {})

    def record(
        self, inputs: Inputs | None = None, *, outputs: Mapping[str, ArrayLike] | None = None, stream: object = None
    ) -> Replay:
        """Record the run of these inputs, to be put on streams again and again with other arrays of the same shapes.

        What it runs in is its own, so that it and the Worker's runs don't disturb each other; closing the Worker closes
        it. Where the device has graphs, it is one.

        Args:
            inputs: As for `schedule`, or a shape (a tuple) in place of an array that the first submission gives. Of
                inputs that planning reads the content is needed, and stays.
            outputs: Device memory by name that outputs are written to; without, it has its own.
            stream: A stream of yours that `Replay.submit` takes where it is given no other; None: the Worker's.

        Raises:
            InputError: An input or output does not fit.
            ImplicitSyncError: The host has to read, compute or loop in the middle of the run; names the nodes.
            StateError: The Worker is synchronous, compares, watches or taps, or the model has memories.
        """
        with self._engine.exclusive:
            return record_replay(self._engine, inputs, outputs or {}, stream)

    def replace_weights(self, weights: WeightSource | Model) -> None:
        """Go on with other content for some of the model's weights, from the next run on; nothing is loaded anew.

        Runs under way keep the weights they have. State, inputs that stay set, and memory stay as they are, and plans
        keep their layouts and kernels. What was worked out from weights is worked out anew. `model` is then the model
        with these weights; the one the Worker was made of stays as it was, and so do other Workers.

        Args:
            weights: As for `Model.with_weights`; or a model that differs from the Worker's in nothing else. Where it is
                what that gave, several Workers share what lies of it on a device.

        Raises:
            InputError: There is no weight of that name, or its type or shape is another; tells all that is wrong, and
                nothing was done.
            ModelError: The file can't be read.
            OutOfMemoryError: The device has no room for the new ones beside the old; nothing was done.
            StateError: A run is half scheduled.
        """
        with self._engine.exclusive:
            self._engine.adopt(take_weights(self.model, weights))
            self.model = self._engine.model

    @property
    def state(self) -> State:
        """What the model's memories hold; runs go on from it and leave their results there."""
        self._engine.check_open()
        return self._engine.states.state

    @state.setter
    def state(self, state: State) -> None:
        with self._engine.exclusive:
            self._engine.states.replace(state)

    def create_state(self) -> State:
        """Return another state, which holds nothing yet: for a sequence of its own, set as `state` between runs."""
        self._engine.check_open()
        return State(self.model, self._backend)

    @property
    def backend_type(self) -> BackendType:
        """The backend chosen; never AUTO."""
        return self._engine.backend.type

    @property
    def backend_reason(self) -> str:
        """Reason for the choice of the backend."""
        return self._reason

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, newest first."""
        return tuple(self._engine.planning.plans)

    def report(self) -> Report:
        """Return a report of the runs so far."""
        return make_report(self._engine, self._reason)

    def memory_stats(self) -> dict[str, int]:
        """Return bytes by purpose: ``arena`` beside ``arena_lower_bound``, ``exchange``, ``weights``, ``frames``...

        ``lane`` are inputs and outputs of small runs, and of trips of loops, that the CPU computes over arrays bound
        once. Weights are the model's and shared by its Workers on a device; ``pinned`` bytes are the device's and
        shared by all, as are those ``cached``, which were freed, by whomever, and are kept to be used again (see
        `trim`); they count for no ``max_bytes``. Those of ``graphs`` are an estimate.
        """
        return count_memory(self._engine)

    def memory_report(self) -> tuple[MemoryUsageRow, ...]:
        """Return the rows of `memory_stats` with since which run and layer they are held, and the most there was."""
        return describe_memory(self._engine)

    def summary(self) -> str:
        """Return the report and memory as readable text, which an interactive Python shows line by line."""
        graph = self._engine.model.graph
        states = self._engine.states.state.memories
        return summarise(graph.name, len(graph.nodes), self.report(), self.memory_report(), states)

    @property
    def is_closed(self) -> bool:
        """True if it was closed, by `close` or by an interrupt in the middle of a call."""
        return self._engine.is_closed or self._engine.exclusive.is_broken

    def trim(self) -> None:
        """Wait for all work and give back memory that is not needed now, to the driver what the device keeps of it."""
        with self._engine.exclusive:
            self._engine.trim()

    def close(self) -> None:
        """Wait for all work and give everything back; twice is harmless. Readbacks requested before stay readable.

        A run that waits for the host (a Loop, a node without a kernel) and is not done after GPUEXEC_CLOSE_GRACE
        seconds is cancelled with a warning, unless somebody waits for it: a thread, a task, a callback, a readback
        that was requested. An interrupt ends the wait at once, and the Worker is closed.
        """
        self._close(cancels=False)

    def _close(self, *, cancels: bool) -> None:
        if not self._engine.is_closed:
            with self._engine.closing():
                self._engine.close(cancels=cancels)
            self._last = None
            self._unclosed.detach()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Who was interrupted waits for nothing any more.
        self._close(cancels=kind is not None and is_interrupt(kind))

    def _require_run(self) -> Run:
        self._engine.check_open()
        if isinstance(self._last, LastLap):
            self._last = self._last.make_run()
        if self._last is None:
            raise StateError("No run was scheduled yet; call schedule(inputs) first.")
        return self._last

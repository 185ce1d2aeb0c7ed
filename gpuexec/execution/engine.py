"""Engine of a Worker or Method: reads inputs, finds a plan, binds a frame, puts commands on a stream.

A run whose inputs are there goes onto the stream within the call. One that waits for something outside the stream (an
input from another device, a run that is not scheduled yet) is advanced by the driver thread, and so are those that come
after it meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.devices.transfers import close_stream
from gpuexec.errors import GpuexecError, StateError
from gpuexec.execution.inspection.inspector import Inspector
from gpuexec.execution.profiling.log import ProfileLog
from gpuexec.execution.profiling.profiler import Profiler, find_log, watching
from gpuexec.execution.resources.caller_stream import CallerStream, check_not_capturing
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller
from gpuexec.execution.resources.fence import Fence, settle_stream
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.resources.unclosed import find_caller
from gpuexec.execution.resources.weights import weights_of
from gpuexec.execution.run_binder import RunBinder, check_strict
from gpuexec.execution.runs.background_compiler import BackgroundCompiler
from gpuexec.execution.runs.bound_body import BoundBodies
from gpuexec.execution.runs.comparing import Comparer, Observe, Observer
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.host_transfers import HostTransfers
from gpuexec.execution.runs.inputs import GivenInput, InputReader
from gpuexec.execution.runs.lane import Lane, LastLap
from gpuexec.execution.runs.layer_timing import time_layers
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import following, profile_run
from gpuexec.execution.runs.run import Run, Step
from gpuexec.execution.runs.stopwatch import Stopwatch
from gpuexec.execution.runs.storage import OpenStorage, own_storage, watch_memory
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.execution.runs.submitter import CancelOnError, Stepping, Submitter
from gpuexec.execution.state.binding import HeldContents, StateBinder
from gpuexec.ir.plan import Plan
from gpuexec.model.model import Model
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.system import knobs

_log = logging.getLogger("gpuexec")
_LEFT = {True: "on the stream", False: "left to the driver thread"}


class Engine:
    """Runs one model on one backend. One caller at a time.

    Args:
        model: What to run.
        backend: Where.
        frames: Runs in flight before outputs are written again.
        stream: The caller's stream, or None for one of its own.
        is_strict: Refuse what reads or computes on the host.
        is_synchronous: Finish each command before the next.
        is_comparing: Compare what every node gives with NumPy; the run is synchronous then.
        observe: Called with each node and its arrays, in place of comparing them.
        inspector: What is looked at in its runs; its values are all kept where nodes are compared or observed.
        open_storage: Opens the memory it runs in; None: its own, in so many frames.
        fixes_division: Divide work at all sizes of a class as at its upper end.
        providers: What products and convolutions may be emitted by.
        compiles_later: Whether kernels of generated text are compiled in the background.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        frames: int,
        stream: Stream | None = None,
        *,
        is_strict: bool = False,
        is_synchronous: bool = False,
        is_comparing: bool = False,
        observe: Observe | None = None,
        inspector: Inspector | None = None,
        open_storage: OpenStorage | None = None,
        fixes_division: bool = False,
        providers: Providers = NO_PROVIDERS,
        compiles_later: bool = False,
    ) -> None:
        self.model, self.backend = model, backend
        self.stream = stream if stream is not None else backend.device.create_stream()
        self.syncs = SyncLog(is_strict=is_strict)
        storage = (open_storage or own_storage(frames))(backend, self.stream, self.syncs)
        self.run_counter, self.frames, self.binder = storage.run_counter, storage.frames, storage.binder
        weights = weights_of(model, backend)
        self.arena, self.pool = storage.arena, storage.pool
        is_comparing = is_comparing or observe is not None
        inspector = inspector or Inspector.of(None, keeps_all=is_comparing)
        self.planning = PlanningContext(
            model,
            backend,
            weights.enter(),
            self.arena,
            inspector=inspector,
            limit=storage.limit,
            is_exact=storage.is_exact,
            fixes_division=fixes_division,
            providers=providers,
            compiler=BackgroundCompiler(backend.device) if compiles_later else None,
        )
        self.is_synchronous = is_synchronous or is_comparing
        self.comparer: Comparer | None = None
        if is_comparing:
            comparer = Comparer(backend, self.stream) if observe is None else Observer(backend, self.stream, observe)
            self.comparer = comparer
        self._owns_stream = stream is None
        stopwatch = Stopwatch(backend.device, self.stream)
        lock = threading.RLock()
        is_plain = not (self.is_synchronous or storage.limit is not None) and not backend.device.target.has_kernels
        self._bodies = BoundBodies(backend, self.stream, lock) if is_plain else None
        context = self._context = ExecutionContext(
            self.planning,
            self.stream,
            lock,
            self.pool,
            self.syncs,
            stopwatch,
            HostTransfers(self.planning, self.stream, self.pool),
            is_synchronous=self.is_synchronous,
            comparer=self.comparer,
            bodies=self._bodies,
        )
        self._submitter = Submitter(backend, context)
        owner = self.run_counter.owner
        # Admits one caller at a time.
        self.exclusive = ExclusiveCaller(
            backend,
            f"Another caller is inside this {owner}; make one {owner} per thread (they share the model's weights).",
            f"The {owner} is closed.",
            owner,
            lambda: self._submitter.break_off(f"Its {owner} was closed by an interrupt."),
        )
        self._lane: Lane | None = None
        self.memory_usage = watch_memory(storage, weights, self.planning.graphs, backend, self._count_bound)
        self._stepping = Stepping(self._submitter, stopwatch, self.memory_usage, self.exclusive)
        self.input_reader = InputReader(model, backend, self.stream)
        self.states = StateBinder(model, backend, self.stream, self.pool, self.syncs)
        self._runs = RunBinder(context, storage, self.states, self._stepping.give_up, self.trim)
        has_lane = is_plain and stream is None
        self._lane = Lane(context, storage, self.states, self._stepping.give_up) if has_lane else None
        # How the last run began.
        self._last: tuple[Stage, PlannedVariant | None] | None = None
        # Who profiles its runs, whatever the context says; and how many were.
        self.profiler: Profiler | None = None
        self.profiled = 0
        # What was recorded apart from the runs, and ends with the engine: see `gpuexec.execution.replay.replay`.
        self.replays: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.exclusive.is_closed

    def check_open(self) -> None:
        """Check that the Worker can be used.

        Raises:
            StateError: The process was forked.
            ClosedError: The Worker is closed.
        """
        self.exclusive.check_open()

    def closing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which to `close`; what an interrupt broke admits whoever closes it."""
        self.exclusive.recover()
        return contextlib.nullcontext() if self.exclusive.is_broken else self.exclusive

    def schedule(self, inputs: object, *, copy: bool, stream: object = None, is_waited_for: bool = False) -> Run:
        """Put a run on the stream, or give it to the driver thread, and return.

        Args:
            inputs: Of the run.
            copy: Whether host arrays are copied.
            stream: A stream of the caller's in whose order the run is.
            is_waited_for: Whether the caller waits for the end of the run before it returns.
        """
        log = find_log(self.profiler)
        if log is None:
            prepared = self._bind(inputs, copy=copy, stream=stream, is_waited_for=is_waited_for)
            is_issued = self._submitter.put(prepared)
        else:
            with watching(log, "schedule"):
                prepared = self._bind(inputs, copy=copy, stream=stream, log=log, is_waited_for=is_waited_for)
                with following(prepared.profile):
                    is_issued = self._submitter.put(prepared)
        if not is_issued and (prepared.caller is not None or not self._owns_stream):
            # What the caller puts on the stream next must come after the run.
            self.syncs.note_wait(
                f"run {prepared.run.number}", "what the run has to wait for, on a stream of the caller's"
            )
            with self.exclusive.at_rest(), self.cancel_on_error(prepared.run.number):
                self._submitter.driver.synchronize()
        self.memory_usage.observe(prepared.run.number)
        self._last = prepared.stage, prepared.planned
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("run %d of %s is %s", prepared.run.number, self.model.graph.name, _LEFT[is_issued])
        return prepared.run

    def note_done(self) -> None:
        """Prepare for runs like the last one, which the caller has waited for, to be computed in the call."""
        if self._last is not None and self._lane is not None:
            with self.exclusive.at_rest():
                self._lane.note(*self._last)

    def run_here(self, inputs: object, *, copies: bool) -> LastLap | None:
        """Compute a run in the call, where that can be; None: it has to be scheduled.

        Args:
            inputs: Of the run.
            copies: Whether large inputs and outputs are copied too.
        """
        lane = self._lane
        if (
            lane is None
            or not self._is_idle()
            or self.planning.inspector.exposure
            or find_log(self.profiler) is not None
        ):
            return None
        with self.exclusive.at_rest():
            lap = lane.run(self.model, inputs, copies=copies)
        if lap is not None and _log.isEnabledFor(logging.DEBUG):
            _log.debug("run %d of %s was computed in the call", self.run_counter.number - 1, self.model.graph.name)
        return lap

    def _is_idle(self) -> bool:
        """Return whether nothing is under way."""
        return self._stepping.prepared is None and self.stream.is_done() and not self._submitter.driver.is_busy()

    def begin(
        self, inputs: object, *, copy: bool, budget_ms: float | None, stream: object = None
    ) -> tuple[Run, Iterator[tuple[Step, int]]]:
        """Bind a run to be put on the stream step by step: a layer each, or as many as fit the budget.

        A stream of the caller's waits for the run once its last step is issued.

        Returns:
            The run, and its steps, each with a guess of how many layers follow.
        """
        log = find_log(self.profiler)
        with watching(log, "schedule"):
            prepared = self._bind(inputs, copy=copy, stream=stream, log=log)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("run %d of %s begins step by step", prepared.run.number, self.model.graph.name)
        return prepared.run, self._stepping.begin(prepared, budget_ms)

    def prepare(self, given: Mapping[str, GivenInput], *, times_layers: bool = False) -> Plan | None:
        """Plan, compile and allocate for these inputs, without running; what depends on their content comes later.

        Args:
            given: The inputs by name.
            times_layers: Time the layers of the first plan over zeros, unless something is under way.
        """
        with watching(find_log(self.profiler), "prepare"):
            return self._prepare(given, times_layers=times_layers)

    def _prepare(self, given: Mapping[str, GivenInput], *, times_layers: bool) -> Plan | None:
        given = dict(given)
        with self.exclusive.at_rest():
            held = self.states.fill(given, None) if self.states.outputs else ()
            stage, chosen = self._runs.choose(given, held)
            planned = self._runs.check_limit(stage, chosen, given)
            if planned is None or stage.plans is None:
                return None
        # A run half scheduled keeps its recording as it is.
        self._runs.reserve_all(stage, planned, records=self._stepping.prepared is None)
        if times_layers and self._owns_stream and not self.planning.inspector.exposure and self._is_idle():
            with self.exclusive.at_rest():
                time_layers(self._context, stage, planned)
        self.memory_usage.observe(self.run_counter.number - 1 if self.run_counter.number else None)
        return planned.compiled.plan

    def choose(self, given: Mapping[str, GivenInput]) -> tuple[Stage, PlannedVariant | None]:
        """Return the first stage of a run of these inputs, and its planned variant, made if it is new."""
        return self._runs.choose(given)

    def adopt(self, model: Model) -> None:
        """Go on with a model that differs in the content of constants alone; runs under way keep theirs.

        Raises:
            StateError: A run is half scheduled.
            OutOfMemoryError: There is no room for the new weights beside the old; nothing was done.
        """
        if self._stepping.prepared is not None:
            number = self._stepping.prepared.run.number
            raise StateError(f"Run {number} is half scheduled; finish or cancel it first.")
        if self._submitter.driver.is_busy():
            self.syncs.note_wait(
                f"run {self.run_counter.number - 1}", "weights are replaced once runs before are issued"
            )
            with self.exclusive.at_rest():
                self._submitter.driver.synchronize()
        with self._submitter.lock:
            limit = self.planning.limit
            admit = None if limit is None else limit.admit
            # What only the old ones need goes once the runs before are done, and replays that were recorded with them.
            weights = self.planning.weights.replace(self.model.graph, model.graph, self.stream, admit)
            self.planning.adopt(model, weights)
            self.model = self.planning.model
            self.input_reader = InputReader(self.model, self.backend, self.stream)
            self.states.adopt(self.model)
            self._runs.adopt()
            self._forget_bound()

    def mark(self, stream: object = None) -> Fence:
        """Return a fence for all that was issued so far; a stream of the caller's comes after it from now on.

        Raises:
            InputError: It is no stream of the device.
        """
        caller = None if stream is None else CallerStream.of(self.backend, stream)
        mark = self._submitter.mark()
        if caller is not None:
            if not mark.is_issued():
                run = f"run {self.run_counter.number}"
                self.syncs.note_wait(run, "what it has to wait for, on a stream of the caller's")
                mark.wait_issued()
            for event in mark.events:
                caller.order_after(event)
        return mark

    @contextlib.contextmanager
    def releasing_staging(self) -> Iterator[None]:
        """Wait for what was issued, in the context; then pinned memory that nobody uses is freed, however it ended."""
        try:
            yield
        except GpuexecError:
            self._release_staging()
            raise
        self._release_staging()

    def _release_staging(self) -> None:
        """Free pinned memory that nobody uses, that of inputs which stay set too; the caller has waited."""
        if not self.exclusive.try_enter():
            return  # whoever is inside needs it
        try:
            prepared, has_kernels = self._stepping.prepared, self.backend.device.target.has_kernels
            # Without kernels, a run half scheduled works on the block itself.
            is_free = prepared is None or (has_kernels and prepared.upload is None)
            if is_free and not self.exclusive.is_closed and not self._submitter.driver.is_busy():
                settle_stream(self.backend.device, self.stream)
                self.binder.unpin()
        finally:
            self.exclusive.leave()
        self.backend.deferred_free.prune()
        self.backend.staging.trim()

    def _count_bound(self) -> int:
        return sum(each.nbytes for each in (self._lane, self._bodies) if each is not None)

    def _forget_bound(self) -> None:
        self._last = None
        for each in (self._lane, self._bodies):
            if each is not None:
                each.forget()

    def trim(self) -> None:
        """Wait for all work, and give back memory that no plan needs now; a run half scheduled is given up.

        Freed memory that the device keeps goes back to the driver, whoever freed it.
        """
        with self.exclusive.midway():
            self._stepping.drop("a trim")
        with self.exclusive.at_rest():
            self._submitter.driver.synchronize()
            self._settle()
        with self.exclusive.midway(), self._submitter.lock:
            self._settle()
            self._forget_bound()
            self.planning.graphs.clear()
            self.arena.release_retired()
            self.pool.trim()
            for frame in self.frames:
                frame.release_dropped()
        self.backend.deferred_free.prune()
        self.backend.staging.trim()
        self.backend.device.trim()

    def close(self, *, cancels: bool = False) -> bool:
        """Wait for all work, then free everything. Twice is harmless.

        A run that is not wholly on the stream after a while (`knobs.close_grace_s`) is cancelled, unless somebody waits
        for it, and a warning says so. One that does not stop then either is left behind, as is all that is under way
        when an interrupt ends the wait: what it uses goes when it is done and the engine is let go of.

        Args:
            cancels: Cancel all runs at once, and quietly.

        Returns:
            Whether all work is done.
        """
        if self.is_closed:
            return True
        if self.exclusive.is_broken:
            self.abandon()
            return False
        grace_s = knobs.close_grace_s()
        self.exclusive.is_closed = True
        self._stop_compiling()
        messages: list[str] = []
        try:
            self._stepping.drop("the Worker's end")
            if cancels:
                self._submitter.give_up_since(0, "It was closed.")
            is_settled = self._finish_runs(grace_s, messages, is_cancelled=cancels)
            for replay in list(self.replays):
                replay.close()
            if is_settled:
                self._submitter.driver.close()
                self._free()
                if self._owns_stream:
                    close_stream(self.stream)
        except BaseException:
            self.abandon()
            raise
        if not is_settled:
            self.abandon()
        if messages and not cancels:
            file, line = find_caller()
            warnings.warn_explicit(" ".join(messages), RuntimeWarning, file, line)
        return is_settled

    def abandon(self) -> None:
        """Refuse later callers, and leave runs under way behind; nothing is waited for. Twice is harmless."""
        self.exclusive.is_closed = self.run_counter.is_closed = True
        self._stop_compiling()
        self._submitter.break_off(f"Its {self.run_counter.owner} was closed.")
        self._submitter.driver.close()
        with contextlib.suppress(GpuexecError):
            event = self.backend.device.create_event()
            self.stream.record(event)
            self.backend.deferred_free.hold(event, self.arena, self.frames, self.pool, self.planning.weights)

    def _stop_compiling(self) -> None:
        if self.planning.compiler is not None:
            self.planning.compiler.close()

    def _finish_runs(self, grace_s: float, messages: list[str], *, is_cancelled: bool) -> bool:
        """Wait for the driver thread, and cancel what nobody waits for after a while; False if it goes on all the same.

        Args:
            grace_s: How long to wait before it is cancelled, and for the end of what was.
            messages: Warnings are added here.
            is_cancelled: Whether runs were cancelled already.
        """
        owner = f"a {self.run_counter.owner} of {self.model.graph.name!r}"
        while not self._submitter.driver.synchronize(grace_s):
            given_up = self._submitter.give_up_unwanted(f"Its {self.run_counter.owner} was closed.")
            if given_up:
                is_cancelled = True
                runs = ", ".join(map(str, given_up))
                messages.append(
                    f"close() of {owner} cancelled run {runs}: not done after {grace_s:g} s, and nobody waits for it."
                    " Wait for runs before, or set GPUEXEC_CLOSE_GRACE to more seconds."
                )
            elif is_cancelled and not self._submitter.is_wanted():
                messages.append(f"close() of {owner} left a run behind that was cancelled and has not stopped yet.")
                return False
        return True

    def _settle(self) -> None:
        """Wait for the stream and all readers, however they end."""
        settle_stream(self.backend.device, self.stream)
        for frame in self.frames:
            frame.settle()

    def _free(self) -> None:
        """Wait for the stream and all readers, and free everything; nothing is issued any more."""
        self._settle()
        self._forget_bound()
        self.planning.graphs.clear()
        self.run_counter.close()
        for frame in self.frames:
            frame.free()
        self.arena.free()
        self.pool.close()
        self.binder.release()
        self.backend.deferred_free.prune()
        self.planning.weights.leave()
        self.backend.staging.trim()

    def cancel_on_error(self, number: int | None = None) -> CancelOnError:
        """Return a context for a call that waits for its own run: an exception cancels the run too.

        Args:
            number: Of the run; None: the next.
        """
        return CancelOnError(self._submitter, self.run_counter.number if number is None else number)

    def _bind(
        self,
        inputs: object,
        *,
        copy: bool,
        stream: object = None,
        log: ProfileLog | None = None,
        is_waited_for: bool = False,
    ) -> PreparedRun:
        """Accept inputs, find the plan, and bind everything; nothing is on the stream yet.

        Raises:
            InputError: An input is missing, misspelt or ill-typed; nothing has been done.
            OutOfMemoryError: The device has no room, even after a `trim`.
            StateError: The stream is capturing.
        """
        caller = None if stream is None else CallerStream.of(self.backend, stream)
        if not self._owns_stream:
            check_not_capturing(self.stream)
        stepping = self._stepping.prepared
        with self.exclusive.at_rest():
            given = self.input_reader.accept(inputs, self.binder.kept, copy=copy, is_waited_for=is_waited_for)
            held: HeldContents = ()
            if self.states.outputs:
                held = self.states.fill(given, None if stepping is None else stepping.run._fence)
            stage, planned = self._runs.choose(given, held)
            if self.syncs.is_strict:
                check_strict(stage)
            if self.planning.limit is not None:
                planned = self._runs.check_limit(stage, planned, given)
            if stepping is not None:
                with self.exclusive.midway():
                    self._stepping.drop("a newer one")
            reserved = self._runs.reserve(stage, planned, given, held)
        prepared = self._runs.bind(given, held, stage, planned, reserved)
        prepared.caller = caller
        if log is not None:
            profile_run(prepared, log, self.model.graph.name, self.stream, self.memory_usage)
            self.profiled += 1
        return prepared

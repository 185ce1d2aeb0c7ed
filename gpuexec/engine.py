"""The engine under a Worker: inputs accepted, a plan found, a frame bound, commands put on a stream.

A run whose inputs are there goes onto the stream within the call. One that waits for something outside the stream (an
input from another device, a run that is not scheduled yet) is advanced by the driver thread, and so are those that come
after it meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from gpuexec.errors import ClosedError, GpuexecError, OutOfMemoryError, StaleError, StateError
from gpuexec.inspecting.inspector import Inspector
from gpuexec.model import Model
from gpuexec.plan import Plan
from gpuexec.profiling.profiler import Profiler, find_profiler, watching
from gpuexec.resources.caller_stream import CallerStream, check_not_capturing
from gpuexec.resources.fence import Fence
from gpuexec.resources.syncs import SyncLog
from gpuexec.resources.weights import weights_of
from gpuexec.run_binder import RunBinder, check_strict
from gpuexec.running.binding import Bound
from gpuexec.running.comparing import Comparer, Observe, Observer
from gpuexec.running.course import Road
from gpuexec.running.inputs import Acceptor, GivenInput
from gpuexec.running.issuer import Issuer
from gpuexec.running.pacing import Pacer
from gpuexec.running.part import Stage
from gpuexec.running.plan_cache import Choice, Site, describe_needs
from gpuexec.running.profiled import following, profile_run
from gpuexec.running.run import Issued, Pause, Run, Step
from gpuexec.running.stopwatch import Stopwatch
from gpuexec.running.storage import OpenStorage, own_storage, watch_memory
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Stream
from gpuexec.runtime.transfers import close_stream
from gpuexec.state.binding import StateBinder


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
    ) -> None:
        self.model, self.backend = model, backend
        self.stream = stream if stream is not None else backend.device.create_stream()
        self.syncs = SyncLog(is_strict=is_strict)
        storage = (open_storage or own_storage(frames))(backend, self.stream, self.syncs)
        self.turns, self.frames = storage.turns, storage.frames
        weights = weights_of(model, backend)
        self.arena, self.pool = storage.arena, storage.pool
        is_comparing = is_comparing or observe is not None
        inspector = inspector or Inspector.of(None, keeps_all=is_comparing)
        self.site = Site(
            model,
            backend,
            weights.enter(),
            self.arena,
            inspector=inspector,
            limit=storage.limit,
            is_exact=storage.is_exact,
        )
        self.is_synchronous = is_synchronous or is_comparing
        self.comparer: Comparer | None = None
        if is_comparing:
            comparer = Comparer(backend, self.stream) if observe is None else Observer(backend, self.stream, observe)
            self.comparer = comparer
        self._stopwatch = Stopwatch(backend.device, self.stream)
        self._owns_stream = stream is None
        lock = threading.RLock()
        road = Road(
            self.site,
            self.stream,
            lock,
            self.pool,
            self.syncs,
            self._stopwatch,
            is_synchronous=self.is_synchronous,
            comparer=self.comparer,
        )
        self._issuer = Issuer(backend, road)
        self.acceptor = Acceptor(model, backend, self.stream)
        self.binder = storage.binder
        self.states = StateBinder(model, backend, self.stream, self.pool, self.syncs)
        self._runs = RunBinder(self.site, storage, self.states, self.stream, lock, self.give_up)
        self._caller = threading.Lock()
        self._stepping: Bound | None = None
        self._closed = False
        # Who profiles its runs, whatever the context says; and how many were.
        self.profiler: Profiler | None = None
        self.profiled = 0
        # What was recorded apart from the runs, and ends with the engine: see `gpuexec.replay.replay`.
        self.replays: weakref.WeakSet[Any] = weakref.WeakSet()
        self.holdings = watch_memory(self.arena, self.pool, weights, self.frames, self.site.graphs, backend.staging)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Check that the Worker can be used.

        Raises:
            StateError: The process was forked.
            ClosedError: The Worker is closed.
        """
        self.backend.check_process()
        if self._closed:
            raise ClosedError(f"The {self.turns.owner} is closed.")

    @contextlib.contextmanager
    def entering(self) -> Iterator[None]:
        """Admit one caller at a time.

        Raises:
            StateError: Another thread is inside, the Worker is closed, or the process was forked.
        """
        self.check_open()
        if not self._caller.acquire(blocking=False):
            raise StateError(
                f"Another caller is inside this {self.turns.owner}; make one {self.turns.owner} per thread (they share"
                " the model's weights)."
            )
        try:
            yield
        finally:
            self._caller.release()

    # ---- running

    def schedule(self, inputs: object, *, copy: bool, stream: object = None) -> Run:
        """Put a run on the stream, or give it to the driver thread, and return.

        Args:
            inputs: Of the run.
            copy: Whether host arrays are copied.
            stream: A stream of the caller's in whose order the run is.
        """
        profiler = find_profiler(self.profiler)
        if profiler is None:
            bound = self._bind(inputs, copy=copy, stream=stream)
            is_issued = self._issuer.put(bound)
        else:
            with watching(profiler, "schedule"):
                bound = self._bind(inputs, copy=copy, stream=stream, profiler=profiler)
                with following(bound.profile):
                    is_issued = self._issuer.put(bound)
        if not is_issued and (bound.caller is not None or not self._owns_stream):
            # What the caller puts on the stream next must come after the run.
            self.syncs.note_wait(f"run {bound.run.number}", "what the run has to wait for, on a stream of the caller's")
            self._issuer.driver.synchronize()
        self.holdings.observe(bound.run.number)
        return bound.run

    def begin(
        self, inputs: object, *, copy: bool, budget_ms: float | None, stream: object = None
    ) -> tuple[Run, Iterator[tuple[Step, int]]]:
        """Bind a run to be put on the stream step by step: a layer each, or as many as fit the budget.

        A stream of the caller's waits for the run once its last step is issued.

        Returns:
            The run, and its steps, each with a guess of how many layers follow.
        """
        profiler = find_profiler(self.profiler)
        with watching(profiler, "schedule"):
            bound = self._bind(inputs, copy=copy, stream=stream, profiler=profiler)
        bound.run._fence.stepper = bound.reading.stepper = threading.get_ident()
        bound.turns = self._issuer.take(bound, Pacer(self._stopwatch, budget_ms))
        self._stepping = bound
        return bound.run, self._step(bound)

    def give_up(self, run: Run) -> bool:
        """Give a run up unless it is wholly on the stream; False if it is."""
        with self._issuer.lock:
            stepping = self._stepping
            if stepping is None or stepping.run is not run:
                return self._issuer.cancel(run, f"Run {run.number} was cancelled.")
            self._drop_step("its caller")
            return True

    def prepare(self, given: Mapping[str, GivenInput]) -> Plan | None:
        """Plan, compile and allocate for these inputs, without running; what depends on their content comes later."""
        with watching(find_profiler(self.profiler), "prepare"):
            return self._prepare(given)

    def _prepare(self, given: Mapping[str, GivenInput]) -> Plan | None:
        given = dict(given)
        self.states.fill(given, None)
        stage, choice = self._runs.choose(given)
        if choice is None or stage.plans is None:
            return None
        self._runs.check_limit(stage, choice, given)
        # A run half scheduled keeps its recording as it is.
        is_free = self._stepping is None
        try:
            self._runs.reserve_all(stage, choice, records=is_free)
        except OutOfMemoryError:
            if self.site.limit is None or not is_free:
                raise
            self.trim()
            self._runs.give_back()
            self._runs.reserve_all(stage, choice, records=True)
        self.holdings.observe(self.turns.number - 1 if self.turns.number else None)
        return choice.prepared.plan

    def choose(self, given: Mapping[str, GivenInput]) -> tuple[Stage, Choice | None]:
        """Return how a run of these inputs begins, and the plan for that, which is made if it is new."""
        return self._runs.choose(given)

    def adopt(self, model: Model) -> None:
        """Go on with a model that differs in the content of constants alone; runs under way keep theirs.

        Raises:
            StateError: A run is half scheduled.
            OutOfMemoryError: There is no room for the new weights beside the old; nothing was done.
        """
        if self._stepping is not None:
            raise StateError(f"Run {self._stepping.run.number} is half scheduled; finish or cancel it first.")
        if self._issuer.driver.is_busy():
            self.syncs.note_wait(f"run {self.turns.number - 1}", "weights are replaced once runs before are issued")
            self._issuer.driver.synchronize()
        with self._issuer.lock:
            limit = self.site.limit
            admit = None if limit is None else limit.admit
            # What only the old ones need goes once the runs before are done, and replays that were recorded with them.
            weights = self.site.weights.replace(self.model.graph, model.graph, self.stream, admit)
            self.site.adopt(model, weights)
            self.model = self.site.model
            self.acceptor = Acceptor(self.model, self.backend, self.stream)
            self.states.adopt(self.model)
            self._runs.adopt()

    # ---- waiting

    def mark(self, stream: object = None) -> Fence:
        """Return a fence for all that was issued so far; a stream of the caller's comes after it from now on.

        Raises:
            InputError: It is no stream of the device.
        """
        caller = None if stream is None else CallerStream.of(self.backend, stream)
        mark = self._issuer.mark()
        if caller is not None:
            if not mark.is_issued():
                self.syncs.note_wait(f"run {self.turns.number}", "what it has to wait for, on a stream of the caller's")
                mark.wait_issued()
            for event in mark.events:
                caller.follow(event)
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
        if not self._caller.acquire(blocking=False):
            return  # whoever is inside needs it
        try:
            bound, has_kernels = self._stepping, self.backend.device.target.has_kernels
            # Without kernels, a run half scheduled works on the block itself.
            is_free = bound is None or (has_kernels and bound.upload is None)
            if is_free and not self._closed and not self._issuer.driver.is_busy():
                self._settle_stream()
                self.binder.unpin()
        finally:
            self._caller.release()
        self.backend.keeper.prune()
        self.backend.staging.trim()

    def trim(self) -> None:
        """Wait for all work, and give back memory that no plan needs now; a run half scheduled is given up."""
        self._drop_step("a trim")
        self._issuer.driver.synchronize()
        with self._issuer.lock:
            self._settle()
            self.site.graphs.clear()
            self.arena.release_retired()
            self.pool.trim()
            for frame in self.frames:
                frame.release_dropped()
        self.backend.keeper.prune()
        self.backend.staging.trim()

    def close(self) -> None:
        """Wait for all work, then give everything back. Twice is harmless."""
        if self._closed:
            return
        self._drop_step("the Worker's end")
        for replay in list(self.replays):
            replay.close()
        self._closed = True
        self._issuer.driver.synchronize()
        self._issuer.driver.close()
        self._settle()
        self.site.graphs.clear()
        self.turns.close()
        for frame in self.frames:
            frame.free()
        self.arena.free()
        self.pool.close()
        self.binder.release()
        self.backend.keeper.prune()
        self.site.weights.leave()
        self.backend.staging.trim()
        if self._owns_stream:
            close_stream(self.stream)

    def _settle_stream(self) -> None:
        """Wait for the stream, however its work ends: who asked for a run that failed has been told."""
        with contextlib.suppress(GpuexecError):
            event = self.backend.device.create_event()
            self.stream.record(event)
            event.synchronize()

    def _settle(self) -> None:
        """Wait for the stream and all readers, however they end."""
        self._settle_stream()
        for frame in self.frames:
            frame.settle()

    # ---- binding

    def _bind(self, inputs: object, *, copy: bool, stream: object = None, profiler: Profiler | None = None) -> Bound:
        """Accept inputs, find the plan, and bind everything; nothing is on the stream yet.

        Raises:
            InputError: An input is missing, misspelt or ill-typed; nothing has been done.
            OutOfMemoryError: The device has no room, even after a `trim`.
            StateError: The stream is capturing.
        """
        caller = None if stream is None else CallerStream.of(self.backend, stream)
        if not self._owns_stream:
            check_not_capturing(self.stream)
        given = self.acceptor.accept(inputs, self.binder.kept, copy=copy)
        self.states.fill(given, None if self._stepping is None else self._stepping.run._fence)
        stage, choice = self._runs.choose(given)
        if self.syncs.is_strict:
            check_strict(stage)
        self._runs.check_limit(stage, choice, given)
        self._drop_step("a newer one")
        try:
            regions = self._runs.reserve(stage, choice, given)
        except OutOfMemoryError:
            self.syncs.note_wait(f"run {self.turns.number}", "the device was out of memory")
            self.trim()
            if self.site.limit is not None:
                self._runs.give_back()
            try:
                regions = self._runs.reserve(stage, choice, given)
            except OutOfMemoryError as error:
                needs = describe_needs(choice, self.site.weights, len(self.frames))
                raise OutOfMemoryError(f"{error} {needs}") from error
        bound = self._runs.bind(given, stage, choice, regions)
        bound.caller = caller
        if profiler is not None:
            profile_run(bound, profiler, self.model.graph.name, self.stream, self.holdings)
            self.profiled += 1
        return bound

    # ---- piece by piece

    def _step(self, bound: Bound) -> Generator[tuple[Step, int], None, None]:
        index = 0
        pause: Pause | None = None
        while True:
            if pause is not None and not pause.is_work and not pause.is_over():
                with self._stepping_on(bound):
                    pass
                yield Step(index, (), True), 1
                continue
            with self._stepping_on(bound):
                turn = next(bound.turns, None)
                if turn is None:
                    self._stepping = None
                    return
                pause = turn if isinstance(turn, Pause) else None
            if isinstance(turn, Issued):
                self.holdings.observe(bound.run.number, turn.nodes[-1] if turn.nodes else "")
                yield Step(index, turn.nodes, False), turn.left
                index += len(turn.nodes)

    @contextlib.contextmanager
    def _stepping_on(self, bound: Bound) -> Iterator[None]:
        """Enter for the next turn of a run that is scheduled piece by piece.

        Raises:
            StaleError: It is not the present one any more.
        """
        with self.entering(), following(bound.profile):
            if self._stepping is not bound:
                raise StaleError("A newer run has begun, or this one was cancelled; this iterator can't go on.")
            try:
                yield
            except BaseException:
                self._stepping = None
                raise

    def _drop_step(self, reason: str) -> None:
        """Give up a run that is scheduled piece by piece."""
        with self._issuer.lock:
            bound, self._stepping = self._stepping, None
            if bound is not None:
                self._issuer.drop(bound, f"Run {bound.run.number} was given up for {reason}.")

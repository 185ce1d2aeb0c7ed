"""Execution of session runs: feeds converted, Workers lent from a pool, runs waited for, threads for async runs."""

from __future__ import annotations

import atexit
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.errors import ArgumentTypeError, Fail, InvalidArgument, make_error
from gpuexec.compat.onnxruntime.loading import promote
from gpuexec.compat.onnxruntime.options import RunOptions
from gpuexec.compat.onnxruntime.providers import CPU_PROVIDER, Provider
from gpuexec.compat.onnxruntime.values import unwrap
from gpuexec.devices.backend import Backend
from gpuexec.devices.latch import Wakeup
from gpuexec.devices.working_here import waking_deferred, working_here
from gpuexec.errors import CancelledError, GpuexecError, InputError
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.resources.exclusive_caller import is_interrupt
from gpuexec.execution.runs.run import Run
from gpuexec.execution.state.seeds import draw_seed
from gpuexec.execution.worker import Worker
from gpuexec.ir.spec import MAP, OPTIONAL, SEQUENCE, STRING, DeclaredSpec, dtype_row, is_host_object
from gpuexec.model.model import Model
from gpuexec.model.outputs import Outputs
from gpuexec.passes.add_random_key import find_keys
from gpuexec.system import knobs
from gpuexec.system.threads import WorkPool

_RUNS_APART = 2**32
Array = np.ndarray[Any, Any]


class BaseSession:
    """A model and what runs it: what the sessions of both interfaces are, and bindings need of either.

    Args:
        model: The model.
        runner: Of the model; a session of the other interface over this one has the same.
    """

    def __init__(self, model: Model, runner: Runner) -> None:
        self.model, self._runner = model, runner

    @property
    def backend(self) -> Backend:
        """The backend it runs on."""
        return self._runner.provider.backend

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [port.name for port in self.model.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [port.name for port in self.model.outputs]


class Runner:
    """Runs a model on a provider, for many callers at once.

    Args:
        model: The model.
        provider: Where.
        max_workers: Largest number of concurrent runs.
        is_strict: Refuse, but on the CPU, a model for which the host has to read or compute.
        profiler: Profiler of all runs.
    """

    def __init__(
        self, model: Model, provider: Provider, max_workers: int, *, is_strict: bool, profiler: Profiler | None = None
    ) -> None:
        self.provider, self._profiler = provider, profiler
        self._model, self._max_workers, self._is_strict = model, max_workers, is_strict
        self._overridable = set(model.info.header.overridable)
        self._specs = {port.name: port.spec for port in model.inputs}
        # By the initializers given as inputs: each set has a model of its own.
        self._pools: dict[frozenset[str], WorkerPool] = {}
        self._threads: WorkPool | None = None
        # Workers share a seed but start at different run numbers, so that no two runs draw the same random numbers.
        self._seed, self._starts = draw_seed() if find_keys(model.graph) else None, itertools.count(0, _RUNS_APART)
        self._is_closed = False
        self._lock = threading.Lock()

    def move(self, provider: Provider, profiler: Profiler | None = None) -> None:
        """Use another provider and profiler from now on; runs under way finish as they are."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
            self.provider, self._profiler = provider, profiler
        for pool in pools:
            pool.close()

    def submit(self, work: Callable[[], object]) -> None:
        """Run a call on a thread.

        Raises:
            Fail: The session is closed.
        """
        with self._lock:
            self._check_open()
            if self._threads is None:
                self._threads = WorkPool(self._max_workers, "gpuexec-session")
                atexit.register(_finish, weakref.ref(self._threads))
            self._threads.submit(work)

    def close(self) -> None:
        """Release all resources; runs under way finish first."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
        if self._threads is not None:
            self._threads.close()
        for pool in pools:
            pool.close()

    def check_feed(self, feed: Mapping[str, Any]) -> frozenset[str]:
        """Check all names of a feed, and return the initializers among them."""
        if not isinstance(feed, Mapping):
            raise make_error(ArgumentTypeError, f"Inputs are given by name, in a dict; got a {type(feed).__name__}.")
        missing = [name for name in self._specs if name not in feed]
        if missing:
            raise make_error(InvalidArgument, f"Required inputs {missing} are missing; given are {list(feed)}.")
        others = frozenset(feed).difference(self._specs)
        unknown = sorted(map(str, others - self._overridable))
        if unknown:
            names = ", ".join([*self._specs, *sorted(self._overridable)])
            raise make_error(InvalidArgument, f"There is no input {unknown[0]!r}; the model has {names}.")
        return others

    def run(self, feed: Mapping[str, Any]) -> Outputs[Any]:
        """Run and wait for all outputs, as `Worker.run` does."""
        given = self.check_feed(feed)
        inputs: dict[str, Any] = {name: _take_input(item, self._specs.get(name), name) for name, item in feed.items()}
        with self._find_pool(given).lending() as worker:
            return worker.run(inputs, copy=False)

    @contextmanager
    def running(
        self,
        feed: Mapping[str, Any],
        options: RunOptions | None,
        stream: int | None = None,
        *,
        is_borrowing: bool = True,
    ) -> Iterator[tuple[Worker, Run]]:
        """Start a run on a lent Worker; it is done after the context if it borrows host arrays."""
        if not isinstance(options, RunOptions | None):
            raise make_error(ArgumentTypeError, f"Expected RunOptions, got {type(options).__name__}.")
        options = RunOptions() if options is None else options
        given = self.check_feed(feed)
        inputs: dict[str, Any] = {name: _take_input(item, self._specs.get(name), name) for name, item in feed.items()}
        if options.terminate:
            raise make_error(Fail, "The run was not begun: RunOptions.terminate is set.")
        with self._find_pool(given).lending() as worker, working_here(), waking_deferred():
            run = worker.schedule(inputs, copy=not is_borrowing, stream=stream)
            try:
                with options.watching(run.cancel):
                    yield worker, run
            except CancelledError as error:
                raise make_error(Fail, "The run was cancelled: RunOptions.terminate was set.", error) from error
            except BaseException as error:
                if is_interrupt(type(error)):
                    run.cancel()
                raise
            finally:
                if is_borrowing:
                    with suppress(GpuexecError):
                        run.wait()
            if options.is_on("memory.enable_memory_arena_shrinkage"):
                worker.trim()

    def _find_pool(self, given: frozenset[str]) -> WorkerPool:
        """Return the pool of Workers for runs with these initializers as inputs."""
        with self._lock:
            self._check_open()
            if given not in self._pools:
                model = promote(self._model, given) if given else self._model
                provider = self.provider
                is_single = provider.max_bytes is not None or provider.stream is not None
                make = functools.partial(
                    self._make_worker,
                    model,
                    backend=provider.backend,
                    stream=provider.stream,
                    max_bytes=provider.max_bytes,
                    strict=self._is_strict and provider.name != CPU_PROVIDER,
                    profiler=self._profiler,
                )
                self._pools[given] = WorkerPool(make, 1 if is_single else self._max_workers)
            return self._pools[given]

    def _make_worker(self, model: Model, **options: Any) -> Worker:
        worker = Worker(model, seed=self._seed, **options)
        if self._seed is not None:
            worker.state.seed(self._seed, run=next(self._starts))
        return worker

    def _check_open(self) -> None:
        if self._is_closed:
            raise make_error(Fail, "The session is closed.")


class WorkerPool:
    """A bounded pool of Workers; callers wait while all are lent.

    The one returned last is lent first, so that its plans and kernels are reused.

    Args:
        make: Makes a Worker.
        max_workers: How many there may be.
    """

    def __init__(self, make: Callable[[], Worker], max_workers: int) -> None:
        self._make, self._max_workers = make, max_workers
        self._idle: list[Worker] = []
        self._count = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._changed = Wakeup()

    @contextmanager
    def lending(self) -> Iterator[Worker]:
        """Lend a Worker; one lent by a closed pool is closed when it is returned."""
        worker = self._take()
        try:
            yield worker
        finally:
            with self._lock:
                # A Worker closed by an interrupt is not lent again.
                is_kept = not (self._is_closed or worker.is_closed)
                if is_kept:
                    self._idle.append(worker)
                else:
                    self._count -= 1
            self._changed.notify()
            if not is_kept:
                worker.close()

    def close(self) -> None:
        """Close the Workers, lent ones when they are returned. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        self._changed.notify()
        for worker in idle:
            worker.close()

    def _take(self) -> Worker:
        while True:
            self._changed.wait_for(lambda: bool(self._idle) or self._count < self._max_workers)
            with self._lock:
                if self._idle:
                    return self._idle.pop()
                # Another waiter may have taken it first.
                if self._count < self._max_workers:
                    self._count += 1
                    break
        try:
            return self._make()
        except BaseException:
            with self._lock:
                self._count -= 1
            self._changed.notify()
            raise


def _finish(threads: weakref.ref[WorkPool]) -> None:
    """Wait for submitted calls as the process ends, for a bounded time."""
    pool = threads()
    if pool is not None:
        pool.close()
        pool.join(knobs.close_grace_s())


def _take_input(item: Any, spec: DeclaredSpec | None, name: str) -> object:
    """Convert an input to what a Worker takes.

    Of a tensor of strings, each object is the text that ``str`` makes of it, None and NaN too, and each element of a
    void array its bytes as UTF-8, with every NUL. A number that a map holds becomes one of the declared type. Lists
    become arrays of the input's dtype where that loses nothing.

    Raises:
        InvalidArgument: A list holds something else, or bytes or objects are no text.
    """
    if isinstance(item, np.generic):
        return np.asarray(item)
    if spec is None:
        return unwrap(item)
    if is_host_object(spec.dtype):
        try:
            return _take_object(unwrap(item), spec)
        except InputError as error:
            raise make_error(InvalidArgument, f"Input {name!r}: {error}") from error
    if isinstance(item, list | tuple):
        try:
            return np.asarray(item).astype(spec.dtype, casting="same_kind")
        except (TypeError, ValueError) as error:
            raise make_error(InvalidArgument, f"Input {name!r} expects {spec}, got a list: {error}") from error
    return unwrap(item)


def _take_object(item: Any, spec: DeclaredSpec) -> Any:
    """Convert strings or a container; leave anything else as it is, to be refused like any other input."""
    held = spec.item
    if spec.dtype == STRING:
        return _take_strings(item)
    if held is None or item is None:
        return item
    if spec.dtype == OPTIONAL:
        return _take_object(item, held)
    if spec.dtype == SEQUENCE and isinstance(item, list | tuple):
        return [_take_object(each, held) for each in item]
    if spec.dtype == MAP and isinstance(item, Mapping) and not is_host_object(held.dtype):
        return {key: _take_number(each, held) for key, each in item.items()}
    return item


def _take_strings(item: Any) -> Any:
    is_list = isinstance(item, list | tuple)
    if not is_list and not isinstance(item, np.ndarray):
        return item
    array = np.array(item, object) if is_list else item
    flat = array.reshape(-1)
    if array.dtype.kind == "V" and array.dtype.names is None:
        texts = [_decode_text(each.tobytes()) for each in flat]
    elif array.dtype == object and not (is_list and any(isinstance(each, list | tuple) for each in flat)):
        texts = [each if type(each) is str else _write_text(each) for each in flat]
    else:
        return item
    return np.array(texts, object).reshape(array.shape)


def _take_number(item: Any, held: DeclaredSpec) -> Any:
    """Convert a number to Python's, which becomes the declared type; return anything else as it is."""
    if isinstance(item, np.generic) or (isinstance(item, np.ndarray) and item.ndim == 0):
        item = item.item()
    return float(item) if isinstance(item, bool) and dtype_row(held.dtype).is_float else item


def _decode_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(f"{content[:20]!r} is not text in UTF-8.") from None


def _write_text(item: Any) -> str:
    try:
        return str(item)
    except Exception as error:
        raise InputError(f"a {type(item).__name__} can't be written as text: {error}.") from error

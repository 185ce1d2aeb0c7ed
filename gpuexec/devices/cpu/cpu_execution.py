"""Execution of commands as NumPy calls, in an order that their edges allow.

Expensive commands run side by side, the rest in line. Where none is expensive they are one loop over prepared calls.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuexec.devices.cpu.cpu_memory import CpuMemory
from gpuexec.devices.cpu.cpu_stream import fill_bytes
from gpuexec.devices.device import ByteArray, MemoryBlock, Region
from gpuexec.devices.latch import Latch
from gpuexec.errors import GpuexecError, OutOfMemoryError, PlanError, locate
from gpuexec.ir.apply import host_failure
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.operator import Operator, PreparedCalls, build
from gpuexec.ir.plan import Segment
from gpuexec.ir.prepared_calls import compute_into, prepare_calls
from gpuexec.ir.size_layout import FieldKind, SizeField
from gpuexec.system import knobs
from gpuexec.system.threads import computing, find_pool, shared_by

# The calls of a command on certain memory, by the row of a size.
BoundCall = Callable[[Sequence[int]], PreparedCalls]
_View = np.ndarray[Any, Any] | None
_PrepareMoving = Callable[
    [Sequence[_View], Sequence[_View], Sequence[bool], Sequence[np.ndarray[Any, Any]]],
    Callable[[], PreparedCalls | None] | None,
]

# A command is worth another thread when it took this long the last time; before it ever ran, when it moves this many
# bytes.
_HEAVY_BYTES = 1 << 18
_HEAVY_SECONDS = 2e-4
# What a caller is kept for: by commands that might have run side by side, and by others.
_BRIEF_SECONDS, _LIGHT_SECONDS = 3e-3, 100e-3
# Places of memory that comes and goes which a command is prepared for: of the frames of a Worker, say, and of loops.
_MOST_PLACES = 4
# New places in a row after which memory is taken for such that never comes back.
_MOST_MISSED = 8
_ALL = contextlib.nullcontext()


class Call:
    """One command as NumPy calls, prepared for the memory that they work on when that is met again.

    A command of a size that never comes back is not prepared, nor is one over memory that does not: frames come back,
    what a caller gives or takes does not.

    Args:
        command: A HostCall, Copy or Fill.
        memory: The places of the buffers that are not bound at submit.
        constants: Those of them that nothing writes.
        like: The call that stood in its place before; its operator is used again where it is the same.
    """

    __slots__ = (
        *("_bound", "_constants", "_memory", "_missed", "_operator", "_prepared", "_seen", "_views"),
        *("command", "nbytes", "uses_all_cores"),
    )

    def __init__(
        self,
        command: Command,
        memory: Mapping[int, Region],
        constants: Collection[int] = (),
        like: Call | None = None,
    ) -> None:
        if isinstance(command, Launch):
            raise PlanError(f"{command.kernel}: the CPU device runs host calls, not kernels.")
        if isinstance(command, LibraryCall):
            raise PlanError(f"{command.library}: the CPU device runs host calls, not libraries of a GPU.")
        self.command, self._memory, self._constants = command, memory, constants
        self._views: dict[int, Any] = {}
        self._operator = _find_operator(command, like) if isinstance(command, HostCall) else None
        self.uses_all_cores = self._operator is not None and self._operator.uses_all_cores
        slots = [*command.reads_from(), *command.writes_to()]
        self.nbytes = sum(slot.spec.nbytes for slot in slots)
        self._bound = tuple(dict.fromkeys(slot.buffer for slot in slots if slot.buffer not in memory))
        # The calls by the places of bound buffers, and the places met once; how many places in a row were new.
        self._prepared: dict[tuple[int, ...], PreparedCalls] = {}
        self._seen: dict[tuple[int, ...], list[weakref.ref[MemoryBlock]]] = {}
        self._missed = 0

    def run(self, bindings: Mapping[int, Region], row: Sequence[int]) -> None:
        """Execute the command; the caller has NumPy warn of nothing.

        Args:
            bindings: Where the buffers lie that are bound.
            row: Of the size's layout (`gpuexec.ir.size_layout`).
        """
        bound = self._bound
        if not bound:
            calls = self._prepared.get(())
        elif self._missed > _MOST_MISSED:
            calls = None
        else:
            calls = self._prepared.get(tuple([bindings[buffer].address for buffer in bound]))
        if calls is None:
            calls = self._find_calls(bindings)
        for call in calls:
            call()

    def bind(self, bindings: Mapping[int, Region]) -> BoundCall:
        """Return what gives the calls that execute the command on this memory, at the size of a row.

        A buffer that is not among the bindings yet is looked up there at each call.
        """
        if not bindings.keys() >= {*self._bound}:
            return lambda row: [partial(self.run, bindings, row)]
        return self._bind_for_good(bindings)

    def _bind_for_good(self, bindings: Mapping[int, Region]) -> BoundCall:
        calls = self._bind(bindings, is_prepared=True)
        return lambda row: calls

    def describe(self, origin: str) -> str:
        """Describe the command, its node and its operands, for messages."""
        if not isinstance(self.command, HostCall):
            return origin
        specs = ", ".join("nothing" if slot is None else str(slot.spec) for slot in self.command.inputs)
        return f"{self.command.operator} {origin!r} ({specs})"

    def _find_calls(self, bindings: Mapping[int, Region]) -> PreparedCalls:
        """Return calls for places that none are prepared for; they are prepared where the places come back."""
        places = tuple([bindings[buffer].address for buffer in self._bound])
        memories = [bindings[buffer].memory for buffer in self._bound]
        if not self._is_back(places, memories):
            return self._bind(bindings, is_prepared=False)
        calls = self._prepared[places] = self._bind(bindings, is_prepared=True)
        return calls

    def _is_back(self, places: tuple[int, ...], memories: Sequence[MemoryBlock]) -> bool:
        """Return whether the same memory was met at these places before; what is met first is noted.

        Arrays of a caller's are lent for one run.
        """
        if not all(isinstance(memory, CpuMemory) for memory in memories):
            return False
        known = self._seen.get(places)
        if known is not None and all(a() is b for a, b in zip(known, memories, strict=True)):
            self._missed = 0
            return True
        self._missed += 1
        if self._missed > _MOST_MISSED:
            self._seen.clear()  # nothing is prepared by now: newer places took the room
            return False
        prepared, seen = self._prepared, self._seen

        def forget(_: object) -> None:
            prepared.pop(places, None)
            seen.pop(places, None)

        if len(seen) >= _MOST_PLACES:
            first = next(iter(seen))
            seen.pop(first, None)
            prepared.pop(first, None)
        seen[places] = [weakref.ref(memory, forget) for memory in memories]
        return False

    def _bind(self, bindings: Mapping[int, Region], *, is_prepared: bool) -> PreparedCalls:
        """Return the calls that execute the command on this memory."""
        command = self.command
        match command:
            case HostCall():
                operator = self._operator
                assert operator is not None
                inputs = [None if slot is None else self._view(slot, bindings) for slot in command.inputs]
                out = [None if slot is None else self._view(slot, bindings) for slot in command.outputs]
                constant = [slot is not None and slot.buffer in self._constants for slot in command.inputs]
                scratch = [self._view(slot, bindings) for slot in command.scratch]
                if is_prepared:
                    return prepare_calls(operator, inputs, out, constant, scratch)
                return [partial(compute_into, operator, inputs, out)]
            case Copy():
                return [
                    partial(np.copyto, self._raw(command.destination, bindings), self._raw(command.source, bindings))
                ]
            case Fill():
                return [partial(fill_bytes, self._raw(command.destination, bindings), command.pattern)]
        raise AssertionError(command)

    def _view(self, slot: Slot, bindings: Mapping[int, Region]) -> np.ndarray[Any, Any]:
        view = self._views.get(id(slot))
        if view is None:
            region = self._memory.get(slot.buffer)
            view = make_view(slot, region or bindings[slot.buffer])
            if region is not None:
                self._views[id(slot)] = view
        return view

    def _raw(self, slot: Slot, bindings: Mapping[int, Region]) -> ByteArray:
        region = self._memory.get(slot.buffer) or bindings[slot.buffer]
        start = region.offset + slot.offset_bytes
        array = region.memory.array
        assert array is not None
        return array[start : start + slot.spec.nbytes]


class MovingCall(Call):
    """A host call of which extents, strides and offsets depend on the sizes: a size makes those views again.

    Args:
        command: At any size.
        memory: As for `Call`.
        constants: As for `Call`.
        like: As for `Call`.
        fields: The numbers that depend on the sizes.
    """

    __slots__ = ("_fields", "_places", "_views_here")

    def __init__(
        self,
        command: HostCall,
        memory: Mapping[int, Region],
        constants: Collection[int],
        like: Call | None,
        fields: Sequence[SizeField],
    ) -> None:
        super().__init__(command, memory, constants, like)
        self._fields = fields
        # The views, if they are kept, and what they are of: memory and offsets of bound buffers.
        self._views_here: _MovingViews | None = None
        self._places: list[tuple[weakref.ref[MemoryBlock], int]] = []

    def run(self, bindings: Mapping[int, Region], row: Sequence[int]) -> None:
        """Execute the command at the size of a row; the caller has NumPy warn of nothing.

        Views of memory that is not met twice in a row are not kept, as it may be the caller's by then.
        """
        is_kept = len(self._places) == len(self._bound)
        for buffer, (memory, offset) in zip(self._bound, self._places, strict=False):
            region = bindings[buffer]
            is_kept = is_kept and memory() is region.memory and offset == region.offset
        views = self._views_here if is_kept else None
        if views is None:
            views = self._place(bindings)
        for call in views(row):
            call()
        self._views_here = views if is_kept else None
        if not is_kept:
            regions = [bindings[buffer] for buffer in self._bound]
            is_known = all(isinstance(region.memory, CpuMemory) for region in regions)
            self._places = [(weakref.ref(region.memory), region.offset) for region in regions] if is_known else []

    def _bind_for_good(self, bindings: Mapping[int, Region]) -> BoundCall:
        return self._place(bindings, is_bound=True)

    def _place(self, bindings: Mapping[int, Region], *, is_bound: bool = False) -> _MovingViews:
        """Return the views over this memory."""
        command, operator, constants = self.command, self._operator, self._constants
        assert isinstance(command, HostCall) and operator is not None
        inputs: list[_View] = []
        out: list[_View] = []
        moved = []
        fields = [(field.position, (field.kind, field.at, field.entry)) for field in self._fields]
        for position, slot in enumerate((*command.inputs, *command.outputs)):
            arrays = inputs if position < len(command.inputs) else out
            picks = tuple([pick for at, pick in fields if at == position])
            if slot is not None and picks:
                region = self._memory.get(slot.buffer) or bindings[slot.buffer]
                assert region.memory.array is not None
                form = _find_form(slot.offset_bytes, slot.shape, slot.strides, slot.dtype, picks)
                moved.append((arrays, len(arrays), form, region.memory.array.data, region.offset))
            arrays.append(None if slot is None or picks else self._view(slot, bindings))
        constant = [slot is not None and slot.buffer in constants for slot in command.inputs]
        scratch = [self._view(slot, bindings) for slot in command.scratch]
        has_strides = all(kind is not FieldKind.STRIDE for _, (kind, _, _) in fields)
        by_size = operator.prepare_moving if has_strides else None
        return _MovingViews(operator, (inputs, out), moved, (constant, scratch), by_size, is_bound=is_bound)


class _MovingViews:
    """The arrays of a moving call over one memory, and its calls at the size asked for last.

    Args:
        operator: Of the command.
        arrays: Inputs and outputs; None: absent, or it moves.
        moved: Those that move: among which, at which place, the form, and where it lies.
        rest: Which inputs never change, and scratch, as of `Operator.prepare`.
        by_size: `Operator.prepare_moving`, where strides stay.
        is_bound: Whether the size asked for first is one that comes again.
    """

    __slots__ = (
        *("_arrays", "_by_size", "_calls", "_computed", "_find_calls"),
        *("_is_bound", "_moved", "_operator", "_rest", "_row"),
    )

    def __init__(
        self,
        operator: Operator,
        arrays: tuple[list[_View], list[_View]],
        moved: Sequence[tuple[list[_View], int, _ViewForm, memoryview, int]],
        rest: tuple[Sequence[bool], Sequence[np.ndarray[Any, Any]]],
        by_size: _PrepareMoving | None,
        *,
        is_bound: bool,
    ) -> None:
        self._operator, self._arrays, self._moved, self._rest = operator, arrays, moved, rest
        self._by_size, self._is_bound = by_size, is_bound
        self._row: Sequence[int] | None = None
        self._find_calls: Callable[[], PreparedCalls | None] | None = None
        self._calls: PreparedCalls = ()
        self._computed: PreparedCalls = ()

    def __call__(self, row: Sequence[int]) -> PreparedCalls:
        """Return the calls at the size of a row."""
        if row is not self._row:
            for arrays, place, form, memory, start in self._moved:
                shape, offset, strides = form.find(row)
                arrays[place] = np.ndarray(shape, form.dtype, memory, start + offset, strides)
            find_calls = self._find_calls
            calls = self._prepare() if find_calls is None else find_calls()
            self._calls = self._computed if calls is None else calls
            self._row = row
        return self._calls

    def _prepare(self) -> PreparedCalls | None:
        """Return the calls at the first size, and note what gives those of the others."""
        (inputs, out), (constant, scratch) = self._arrays, self._rest
        self._computed = [partial(compute_into, self._operator, inputs, out)]
        find_calls = None if self._by_size is None else self._by_size(inputs, out, constant, scratch)
        self._find_calls = find_calls or (lambda: None)
        if find_calls is not None:
            return find_calls()
        return prepare_calls(self._operator, [*inputs], [*out], constant, scratch) if self._is_bound else None


class _ViewForm:
    """The shape, the offset and the strides of views that are alike, of which some numbers are entries of a row.

    Attributes:
        dtype: Of the elements.
    """

    __slots__ = ("_last", "_numbers", "_picks", "_rank", "dtype")

    def __init__(
        self,
        offset_bytes: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        picks: tuple[tuple[FieldKind, int, int], ...],
    ) -> None:
        self.dtype, self._rank = dtype, len(shape)
        # Offset, extents and strides, in bytes; of those that depend on sizes the place, the entry, and its bytes.
        self._numbers = [offset_bytes, *shape, *[stride * dtype.itemsize for stride in strides]]
        first = {FieldKind.OFFSET: (0, 1), FieldKind.EXTENT: (1, 1), FieldKind.STRIDE: (1 + len(shape), dtype.itemsize)}
        self._picks = [(first[kind][0] + at, entry, first[kind][1]) for kind, at, entry in picks]
        # The row asked for last, with what was found: one object, for threads may ask at once.
        self._last: tuple[Sequence[int], _Numbers] = (), ((), 0, None)

    def find(self, row: Sequence[int]) -> _Numbers:
        """Return shape, offset and strides at the size of a row, found once for all views of the form."""
        last = self._last
        if row is last[0]:
            return last[1]
        numbers, end = list(self._numbers), 1 + self._rank
        for place, entry, nbytes in self._picks:
            numbers[place] = row[entry] * nbytes
        shape = tuple(numbers[1:end])
        found = (shape, 0, None) if 0 in shape else (shape, numbers[0], tuple(numbers[end:]))
        self._last = row, found
        return found


_Numbers = tuple[tuple[int, ...], int, tuple[int, ...] | None]
# Layers have views that are alike.
_find_form = lru_cache(1024)(_ViewForm)


@dataclass(slots=True)
class Order:
    """Dependencies between a segment's commands.

    ``seconds`` is how long each command took the last time that it was timed. ``is_light``: in a whole pass none was
    worth a thread beside others, and passes have not become much longer since. ``pass_seconds`` is what the last whole
    pass took.
    """

    after: Sequence[Sequence[int]]
    waits: Sequence[int]
    origins: Sequence[str]
    seconds: list[float]
    is_light: bool = False
    pass_seconds: float = math.inf

    @property
    def is_brief(self) -> bool:
        """Whether the last whole pass took less time than a caller is kept for."""
        return self.pass_seconds < (_LIGHT_SECONDS if self.is_light else _BRIEF_SECONDS)

    @staticmethod
    def of(segment: Segment) -> Order:
        """Return the order of a segment."""
        count = len(segment.commands)
        after: list[list[int]] = [[] for _ in range(count)]
        waits = [0] * count
        for first, second in segment.edges:
            after[first].append(second)
            waits[second] += 1
        return Order(after, waits, segment.origins, [0.0] * count)

    def note(self, seconds: float) -> None:
        """Note a whole pass; commands are timed again where it took much longer than they did."""
        self.pass_seconds = seconds
        if seconds > 3 * sum(self.seconds) + _HEAVY_SECONDS:
            self.is_light = False


class Execution:
    """One pass over the commands ``[first, last)``; those before ``first`` have run.

    Args:
        calls: The commands.
        row: Of their size's layout.
        order: Their order.
        bindings: Where the buffers lie that are bound.
        span: The first command, and the one behind the last.
        choose: Picks which of n ready commands runs next, one at a time; None: plan order, some side by side.
        threads: How many threads it takes, this one included; None: as GPUEXEC_CPU_THREADS says.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        row: Sequence[int],
        order: Order,
        bindings: Mapping[int, Region],
        span: tuple[int, int],
        choose: Callable[[int], int] | None,
        threads: int | None = None,
    ) -> None:
        self._threads, self._row = threads, row
        self._calls, self._order, self._bindings, self._choose = calls, order, bindings, choose
        self._first, self._last = span
        self._done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._flying = 0
        self._flights: list[_Flight] = []
        self._has_given = False  # a command to another thread, whether or not it was taken back

    def _begin(self) -> None:
        """Find the commands that can run at once."""
        order = self._order
        self._waits = list(order.waits)
        for before in range(self._first):
            for index in order.after[before]:
                self._waits[index] -= 1
        self._ready = [i for i in range(self._first, self._last) if self._waits[i] == 0]

    def run(self) -> None:
        """Run all commands; raise the first error once nothing runs any more.

        After an exception from outside, such as KeyboardInterrupt, some may still run: see `settle`.
        """
        start, is_whole = time.perf_counter(), self._first == 0 and self._last == len(self._calls)
        with np.errstate(all="ignore"), computing(self._threads):
            if self._order.is_light and self._choose is None:
                self._run_in_line()
            else:
                self._run_side_by_side()
                self._order.is_light = is_whole and not self._has_given
        if is_whole:
            self._order.note(time.perf_counter() - start)

    def _run_in_line(self) -> None:
        """Run all commands in the plan's order."""
        for index in range(self._first, self._last):
            try:
                self._calls[index].run(self._bindings, self._row)
            except Exception as error:
                failure = self._locate(index, error)
                raise failure from failure.__cause__

    def _run_side_by_side(self) -> None:
        self._begin()
        failed: BaseException | None = None
        threads = self._threads or knobs.compute_threads()
        while self._flying or self._ready:
            if self._ready and failed is None:
                index, flies = self._take(is_room=self._flying < threads - 1)
                if flies and self._send(index, threads):
                    self._flying += 1
                else:
                    failed = self._call(index, threads - self._flying if self._flying else None)
                    self._release(index)
            elif not self._flying:
                break
            # Wait for a thread only where there is nothing else to do, and nothing that no thread came to do.
            while self._flying and (not self._done.empty() or not self._ready or failed is not None):
                flight = self._take_back()
                if flight is None:
                    index, error = self._done.get()
                else:
                    index = flight.index
                    error = None if failed else self._call(index, threads - self._flying + 1)
                self._flying -= 1
                failed = failed or error
                self._release(index)
        if failed is not None:
            raise failed

    def _take_back(self) -> _Flight | None:
        """Return a command that was given to another thread, which is at others, so far; None where one is done."""
        if not self._done.empty():
            return None
        found = next((flight for flight in reversed(self._flights) if flight.claim("taken back")), None)
        if found is not None:
            self._flights.remove(found)
        return found

    def settle(self) -> None:
        """Wait until no command runs that an interrupted `run` gave to other threads; none begins any more."""
        for flight in self._flights:
            if not flight.claim("settled") and flight.is_flown():
                flight.ended.wait()

    def _take(self, *, is_room: bool) -> tuple[int, bool]:
        """Take a ready command, and return whether it goes to another thread; those go before any runs in line."""
        if self._choose is not None:
            return self._ready.pop(self._choose(len(self._ready))), False
        if is_room and (self._flying or len(self._ready) > 1):
            for position, index in enumerate(self._ready):
                if self._is_worth_a_thread(index):
                    return self._ready.pop(position), True
        return self._ready.pop(0), False

    def _is_worth_a_thread(self, index: int) -> bool:
        """Return whether a command is expensive enough for a thread and leaves cores to others.

        Those that use all cores by themselves run in line, hence one at a time.
        """
        call, seconds = self._calls[index], self._order.seconds[index]
        if call.uses_all_cores:
            return False
        return seconds >= _HEAVY_SECONDS if seconds else call.nbytes >= _HEAVY_BYTES

    def _send(self, index: int, threads: int) -> bool:
        """Give a command to another thread; return False where there is no room for one."""
        flight = _Flight(index)
        self._flights.append(flight)
        try:
            find_pool(threads).submit(partial(self._fly, flight))
        except OutOfMemoryError:
            return False
        self._has_given = True
        return True

    def _fly(self, flight: _Flight) -> None:
        if flight.claim("flown"):
            with np.errstate(all="ignore"), computing(1):
                self._done.put((flight.index, self._call(flight.index)))
            flight.ended.set()

    def _call(self, index: int, threads: int | None = None) -> BaseException | None:
        """Execute a command, on so many threads where others are taken."""
        start = time.perf_counter()
        try:
            with _ALL if threads is None else shared_by(threads):
                self._calls[index].run(self._bindings, self._row)
        except Exception as error:
            return self._locate(index, error)
        self._order.seconds[index] = time.perf_counter() - start
        return None

    def _locate(self, index: int, error: Exception) -> BaseException:
        """Return an error of a command with its node."""
        origin = self._order.origins[index]
        if isinstance(error, GpuexecError):
            return locate(error, self._calls[index].describe(origin), origin)
        failure = host_failure(self._calls[index].describe(origin), error)
        failure.node, failure.__cause__ = origin, error
        return failure

    def _release(self, index: int) -> None:
        for after in self._order.after[index]:
            self._waits[after] -= 1
            if self._waits[after] == 0 and after < self._last:
                # Plan order among what is ready: the list is short.
                position = next((p for p, other in enumerate(self._ready) if other > after), len(self._ready))
                self._ready.insert(position, after)


class _Flight:
    """A command for another thread, which runs there once, or never where it was taken back or settled before."""

    __slots__ = ("_claims", "ended", "index")

    def __init__(self, index: int) -> None:
        self.index, self.ended = index, Latch()
        self._claims: dict[str, str] = {}

    def claim(self, use: str) -> bool:
        """Return whether this use came first."""
        return self._claims.setdefault("", use) == use

    def is_flown(self) -> bool:
        """Return whether the other thread came first."""
        return self.claim("flown")


def make_view(slot: Slot, region: Region) -> np.ndarray[Any, Any]:
    """Return the slot as a NumPy array over host-accessible memory."""
    array = region.memory.array
    assert array is not None
    if slot.spec.size == 0:
        return np.empty(slot.shape, slot.dtype)
    strides = tuple([stride * slot.dtype.itemsize for stride in slot.strides])
    return np.ndarray(slot.shape, slot.dtype, array.data, region.offset + slot.offset_bytes, strides)


def _find_operator(command: HostCall, like: Call | None) -> Operator:
    if like is not None and isinstance(like.command, HostCall) and like._operator is not None:
        before = like.command
        if before.operator == command.operator and before.attributes == command.attributes:
            return like._operator
    return build(command.operator, dict(command.attributes))

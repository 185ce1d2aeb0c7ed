"""Binding a run: which bytes its inputs are, and what to do about them before and after its commands."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.graph import Value
from gpuexec.inspecting.exposing import Exposure
from gpuexec.profiling.run_profile import RunProfile
from gpuexec.resources.caller_stream import CallerStream
from gpuexec.resources.fence import Fence
from gpuexec.resources.frames import Frame
from gpuexec.resources.memory import BorrowedMemory
from gpuexec.results.place import Place
from gpuexec.results.readback import ReadbackRequest
from gpuexec.running.held import Held
from gpuexec.running.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.running.part import Stage
from gpuexec.running.plan_cache import Choice
from gpuexec.running.run import Run, Turn
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import ByteArray, Device, Event, Memory, Region, Stream, begin_host_write
from gpuexec.spec import is_host_object

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256


@dataclass(slots=True, eq=False)
class Bound:
    """A run with its frame, its inputs, and what is left to do.

    Attributes:
        stage: How it begins, and the plan for that.
        write: The number of the write of the frame's outputs.
        env: Where the values are that are there so far: the inputs, to begin with.
        sources: Fences of the inputs' content.
        requests: Readbacks of inputs from other devices.
        upload: Brings the inputs to the device, on the run's stream; None once it has.
        begin: Called with an event for all up to and with the upload: at the end of the run, or, where that is put on
            its stream step by step, at the first.
        reading: Issued when the run is; who made the inputs waits for it before writing them again.
        finish: Called with the event that stands for the end of the run.
        keep: What must live until then.
        borrowed: Inputs that lie on the device, and their places.
        objects: Strings and containers that another run makes, and their readbacks.
        carry: Brings what the memories hold to where the run wants it, on the run's stream.
        commit: Says where the run, which is wholly on its stream, leaves the memories.
        caller: The stream in whose order the run is, where it is not its own.
        turns: What is left to do, done piece by piece as it is iterated.
        is_over: Nothing more of it will come.
        profile: Who is told what it does; mostly nobody.
        exposure: What is looked at, by what the Worker was to look at when the run began.
    """

    run: Run
    stage: Stage
    choice: Choice | None
    frame: Frame
    write: int = 0
    env: dict[Value, Held] = field(default_factory=dict)
    sources: list[Fence] = field(default_factory=list)
    requests: list[ReadbackRequest] = field(default_factory=list)
    upload: Callable[[], None] | None = None
    reading: Fence = field(default_factory=Fence)
    begin: list[Callable[[Event], None]] = field(default_factory=list)
    finish: list[Callable[[Event], None]] = field(default_factory=list)
    keep: list[object] = field(default_factory=list)
    borrowed: list[tuple[Held, Place]] = field(default_factory=list)
    objects: list[tuple[Held, ReadbackRequest]] = field(default_factory=list)
    carry: Callable[[], None] | None = None
    commit: Callable[[], None] | None = None
    caller: CallerStream | None = None
    turns: Iterator[Turn] = field(default_factory=lambda: iter(()))
    is_over: bool = False
    profile: RunProfile | None = None
    exposure: Exposure = field(default_factory=Exposure)

    def locate(self, held: Held, place: Place) -> None:
        """Note where an input on the device lies."""
        held.region = place.region
        self.keep.append(held.region.memory)
        # With one frame, a run may read what the run before wrote: its own outputs need other bytes then.
        self.frame.take_out(held.region.memory)

    def list_uploaded(self) -> list[Held]:
        """Return the inputs that are brought from the host to the device."""
        borrowed = {id(held) for held, _ in self.borrowed}
        return [h for h in self.env.values() if id(h) not in borrowed and not is_host_object(h.spec.dtype)]

    def note_begun(self, device: Device, stream: Stream) -> None:
        """Let go of what only the beginning of the run needs, which is on the stream."""
        if self.begin:
            event = device.create_event()
            stream.record(event)
            self._call_begin(event)

    def note_end(self, event: Event) -> None:
        """Tell everybody concerned of the event that stands for the end of the run."""
        self._call_begin(event)
        for finish in self.finish:
            finish(event)
        if self.caller is not None:
            self.caller.follow(event)

    def _call_begin(self, event: Event) -> None:
        calls, self.begin = self.begin, []
        for call in calls:
            call(event)

    def is_ready(self) -> bool:
        """Return whether the run can be put on its stream without the caller waiting for anything."""
        has_inputs = all(fence.is_issued() for fence in self.sources) and all(r.is_done() for r in self.requests)
        return has_inputs and not self.frame.readers.list_unissued(self.write)

    def wait_ready(self) -> None:
        """Wait until the run can be put on its stream.

        Raises:
            GpuexecError: What made an input failed.
        """
        for fence in [*self.frame.readers.list_unissued(self.write), *self.sources]:
            reached = threading.Event()
            fence.when_issued(reached.set)
            # A run that is given up waits no longer.
            self.run._fence.when_issued(reached.set)
            reached.wait()
        for request in self.requests:
            request.wait()


class InputBinder:
    """Binds inputs run after run: device arrays where they are, host arrays through one pinned block and one upload.

    ``kept`` are the inputs of the last run; those from the host are views of its pinned block.
    """

    def __init__(self, backend: Backend, stream: Stream) -> None:
        self._backend, self._stream = backend, stream
        self._block: Memory | None = None
        self.kept: dict[str, GivenInput] = {}

    def bind(self, bound: Bound, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run, and copy host arrays that are not borrowed."""
        staged: list[tuple[Value, HostArray]] = []
        borrowed: list[tuple[Value, HostArray, ByteArray]] = []
        kept = dict(given)
        for value in inputs:
            item = given[value.name]
            if isinstance(item, DeviceArray):
                bind_device(bound, value, item)
            elif is_host_object(item.spec.dtype):
                bind_object(bound, value, item)
            elif (raw := self._find_bytes(item)) is not None:
                borrowed.append((value, item, raw))
                bound.keep.append(item.array)
            else:
                staged.append((value, item))
        kept.update(self._bind_host(bound, staged, borrowed))
        self.kept = kept

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on the device for inputs from the host."""
        if self._backend.device.target.has_kernels:
            frame.input(count_host_bytes(given))

    def unpin(self) -> None:
        """Keep inputs that stay set in ordinary memory, and give the pinned block back; the caller has waited."""
        for name, item in self.kept.items():
            if isinstance(item, HostArray) and item.request is not None and item.request.is_done():
                # A readback that failed is told of by the run that takes it.
                with contextlib.suppress(GpuexecError):
                    self.kept[name] = HostArray(item.spec, item.request.view().copy())
            elif isinstance(item, HostArray) and item.array is not None and not item.is_borrowed:
                self.kept[name] = HostArray(item.spec, item.array.copy())
        if self._block is not None:
            self._backend.staging.give_back(self._block)
        self._block = None

    def give_back(self) -> None:
        """Keep what there is: inputs lie in the frames."""

    def release(self) -> None:
        """Give the pinned block back; the caller has waited for all runs."""
        if self._block is not None:
            self._backend.staging.give_back(self._block)
        self._block = None
        self.kept = {}

    def _find_bytes(self, item: HostArray) -> ByteArray | None:
        """Return the bytes of a borrowed array where they can be used as they lie."""
        array = item.array
        if not item.is_borrowed or array is None or not (array.flags.c_contiguous and array.flags.aligned):
            return None
        return array.reshape(-1).view(np.uint8)

    def _bind_host(
        self,
        bound: Bound,
        staged: Sequence[tuple[Value, HostArray]],
        borrowed: Sequence[tuple[Value, HostArray, ByteArray]],
    ) -> dict[str, GivenInput]:
        """Lay staged arrays one after the other into a pinned block, borrowed ones behind them; return what to keep."""
        has_kernels = self._backend.device.target.has_kernels
        staged_bytes = sum(_align(item.spec.nbytes) for _, item in staged)
        total = staged_bytes + sum(_align(raw.nbytes) for _, _, raw in borrowed)
        self._release_at_end(bound)
        block = self._block = self._backend.staging.take(max(staged_bytes, 1)) if staged else None
        if block is not None:
            begin_host_write(block, staged_bytes)
        home = bound.frame.input(total) if has_kernels else block
        kept: dict[str, GivenInput] = {}
        late: list[tuple[Held, Array, ReadbackRequest]] = []
        direct: list[tuple[int, ByteArray]] = []
        offset = 0
        for value, item in staged:
            assert block is not None and block.array is not None and home is not None
            nbytes = item.spec.nbytes
            window = block.array[offset : offset + nbytes].view(item.spec.dtype).reshape(item.spec.shape)
            held = bound.env[value] = Held(item.spec, Region(home, offset, nbytes))
            if item.request is not None:
                bound.requests.append(item.request)
                late.append((held, window, item.request))
                kept[value.name] = HostArray(item.spec, request=item.request)
            else:
                assert item.array is not None
                np.copyto(window, item.array)
                held.array = window
                kept[value.name] = HostArray(item.spec, window)
            offset += _align(nbytes)
        for value, item, raw in borrowed:
            if has_kernels:
                assert home is not None
                region = Region(home, offset, raw.nbytes)
                direct.append((region.address, raw))
                offset += _align(raw.nbytes)
            else:
                region = Region(BorrowedMemory.of(raw), 0, raw.nbytes)
            bound.env[value] = Held(item.spec, region, item.array)
        source = block.array[:staged_bytes] if block is not None and block.array is not None else None
        if late or (has_kernels and total):
            bound.upload = self._make_upload(home if has_kernels else None, source, late, direct)
        return kept

    def _make_upload(
        self,
        home: Memory | None,
        source: ByteArray | None,
        late: Sequence[tuple[Held, Array, ReadbackRequest]],
        direct: Sequence[tuple[int, ByteArray]],
    ) -> Callable[[], None]:
        stream = self._stream

        def upload() -> None:
            for held, window, request in late:
                np.copyto(window, request.view())
                held.array = window
            if home is not None and source is not None and source.nbytes:
                stream.copy_to_device(home.address, source)
            for address, raw in direct:
                if raw.nbytes:
                    stream.copy_to_device(address, raw)

        return upload

    def _release_at_end(self, bound: Bound) -> None:
        """Give the last run's block back once this one has begun: its arrays have been copied from it by then."""
        if self._block is not None:
            previous, staging = self._block, self._backend.staging
            bound.begin.append(lambda event: staging.give_back(previous, event))


def bind_device(bound: Bound, value: Value, item: DeviceArray) -> Held:
    """Bind an input where it lies on the device."""
    bound.sources.append(item.fence)
    bound.keep.append(item.source)
    if item.readers is not None and item.readers is not bound.frame.readers:
        item.readers.add(bound.reading)
    held = bound.env[value] = Held(item.spec)
    bound.borrowed.append((held, item.place))
    if item.place.is_known:
        bound.locate(held, item.place)
    return held


def bind_object(bound: Bound, value: Value, item: HostArray) -> None:
    """Bind strings or a container, which stay on the host; what another run makes comes when it is done."""
    held = bound.env[value] = Held(item.spec, array=item.array)
    if item.request is not None:
        bound.requests.append(item.request)
        bound.objects.append((held, item.request))


def count_host_bytes(given: Mapping[str, GivenInput]) -> int:
    """Return how many bytes inputs from the host take on a device."""
    taken = (item.spec for item in given.values() if isinstance(item, HostArray))
    return sum(_align(spec.nbytes) for spec in taken if not is_host_object(spec.dtype))


def _align(nbytes: int) -> int:
    """Round up to what every region starts at."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

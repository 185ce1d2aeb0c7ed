"""Prepared run: its frame, its inputs, and the calls before and after its commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpuexec.devices.device import Device, Event, Region, Stream
from gpuexec.devices.latch import Latch
from gpuexec.execution.inspection.exposing import Exposure
from gpuexec.execution.profiling.log import RunProfile
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.runs.in_place import InPlaceMemories
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.run import Run, RunProgress
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import is_host_object

_NOTHING: Iterator[RunProgress] = iter(())


@dataclass(slots=True, eq=False)
class PreparedRun:
    """A run with its frame, its inputs, and the steps that remain.

    Attributes:
        stage: Its first stage, planned by ``planned``.
        write: The number of the write of the frame's outputs.
        values: Locations of the values made so far: the inputs, to begin with.
        sources: Fences of the inputs' content.
        requests: Readbacks of inputs from other devices.
        upload: Brings the inputs to the device, on the run's stream; None once it has.
        begin: Called with an event for all up to and with the upload: at the end of the run, or, where that is put on
            its stream step by step, at the first.
        reading: Issued when the run is; who made the inputs waits for it before writing them again.
        finish: Called with the event that stands for the end of the run.
        keep: Objects that must live until then.
        borrowed: Inputs that lie on the device, by name, and their places.
        room: Gives inputs that can't be read where they start aligned bytes, by name and number; None: the pool does.
        objects: Strings and containers that another run makes, and their readbacks.
        carry: Brings what the memories hold to where the run wants it, on the run's stream; called with whether nobody
            asks for the locations of those that stay in place.
        in_place: Memories that have no location in ``values``, because they stay in place.
        commit: Says where the run, which is wholly on its stream, leaves the memories.
        caller: The stream in whose order the run is, where it is not its own.
        remaining: The steps left; iterating over them executes them.
        is_over: It has ended: nothing more of it is issued.
        is_driven: The driver thread executes it.
        profile: Its profile, where it is profiled.
        exposure: The values exposed to taps and watches, as set when the run began.
    """

    run: Run
    stage: Stage
    planned: PlannedVariant | None
    frame: Frame
    write: int = 0
    values: dict[Value, ValueLocation] = field(default_factory=dict)
    sources: list[Fence] = field(default_factory=list)
    requests: list[ReadbackRequest] = field(default_factory=list)
    upload: Callable[[], None] | None = None
    reading: Fence = field(default_factory=Fence)
    begin: list[Callable[[Event], None]] = field(default_factory=list)
    finish: list[Callable[[Event], None]] = field(default_factory=list)
    keep: list[object] = field(default_factory=list)
    borrowed: list[tuple[str, ValueLocation, Place]] = field(default_factory=list)
    room: Callable[[str, int], Region] | None = None
    objects: list[tuple[ValueLocation, ReadbackRequest]] = field(default_factory=list)
    carry: Callable[[bool], None] | None = None
    in_place: InPlaceMemories | None = None
    commit: Callable[[], None] | None = None
    caller: CallerStream | None = None
    remaining: Iterator[RunProgress] = _NOTHING
    is_over: bool = False
    is_driven: bool = False
    profile: RunProfile | None = None
    exposure: Exposure = field(default_factory=Exposure)

    def locate(self, location: ValueLocation, place: Place) -> None:
        """Set the location of an input on the device."""
        location.region = place.region
        self.keep.append(location.region.memory)
        # With one frame, a run may read what the run before wrote: its own outputs need other bytes then.
        self.frame.take_out(location.region.memory)

    def list_uploaded(self) -> list[ValueLocation]:
        """Return the inputs that are uploaded from the host."""
        borrowed = {id(location) for _, location, _ in self.borrowed}
        return [h for h in self.values.values() if id(h) not in borrowed and not is_host_object(h.spec.dtype)]

    def note_begun(self, device: Device, stream: Stream) -> None:
        """Call the ``begin`` callbacks: the upload is on the stream."""
        if self.begin:
            event = device.create_event()
            stream.record(event)
            self._call_begin(event)

    def note_end(self, event: Event) -> None:
        """Call the ``finish`` callbacks with the run's last event, and order the caller's stream after it."""
        self._call_begin(event)
        for finish in self.finish:
            finish(event)
        if self.caller is not None:
            self.caller.order_after(event)

    def _call_begin(self, event: Event) -> None:
        calls, self.begin = self.begin, []
        for call in calls:
            call(event)

    def is_ready(self) -> bool:
        """Return whether the run can be put on its stream without a wait."""
        for fence in self.sources:
            if not fence.is_issued():
                return False
        for request in self.requests:
            if not request.is_done():
                return False
        return not self.frame.readers.list_unissued(self.write)

    def wait_ready(self) -> None:
        """Wait until the run can be put on its stream.

        Raises:
            GpuexecError: What made an input failed.
        """
        for fence in [*self.frame.readers.list_unissued(self.write), *self.sources]:
            reached = Latch()
            fence.when_issued(reached.set, self.run._fence.is_wanted)
            # A run that is given up waits no longer.
            self.run._fence.when_issued(reached.set, lambda: False)
            reached.wait()
        for request in self.requests:
            request.wait()

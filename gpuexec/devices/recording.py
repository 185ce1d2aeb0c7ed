"""Recordings for devices with kernels: a segment prepared once and submitted many times, in two forms.

A stream of launches in plan order, and a graph of the commands and edges. Both stand on the same prepared commands, so
each submission of the whole segment takes the form that costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpuexec.devices.dependent_launch import find_early
from gpuexec.devices.device import Device, Recording, Region, Stream
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.devices.graph_form import GraphForm
from gpuexec.devices.prepared import GraphDevice, PreparedSegment
from gpuexec.errors import GpuexecError, locate
from gpuexec.ir.command import Command
from gpuexec.ir.plan import Segment, Variant
from gpuexec.ir.size_layout import SizedVariant
from gpuexec.system import knobs


class LaunchRecording:
    """A segment as prepared commands: issued one by one in plan order, or launched as a graph.

    The graph form takes whole submissions only, and none on a stream that is capturing. With GPUEXEC_SYNC_EACH set when
    recording, there is no graph, and the host waits after every command, so that a fault names its node.
    """

    def __init__(self, device: Device, segment: Segment, memory: Mapping[int, Region]) -> None:
        self._segment = PreparedSegment(device, segment.commands, memory, segment.origins)
        self._commands = self._segment.commands
        self._target = device.target
        self._issues, self._early = self._find_issues()
        self._origins = segment.origins if knobs.sync_each() else None
        self._graph: GraphForm | None = None
        # A device that must be current for its calls is made so once for each submission.
        self._calling: Callable[[str], AbstractContextManager[object]] = getattr(device, "calling", nullcontext)

    @property
    def alignment(self) -> int:
        """Required alignment of bound addresses: `BUFFER_ALIGNMENT`, or less where kernels need less."""
        return self._segment.alignment

    @alignment.setter
    def alignment(self, nbytes: int) -> None:
        self._segment.alignment = nbytes

    @property
    def has_graph(self) -> bool:
        """True if there is a graph now."""
        return self._graph is not None and self._graph.is_made

    def add_graph(self, device: GraphDevice, segment: Segment, graphs: GraphCache | None) -> None:
        """Add the graph form; see `GraphForm` for ``graphs``."""
        if self._origins is None:
            self._graph = GraphForm(device, self._segment, segment.edges, segment.origins, graphs)

    def prepare(self, bindings: Mapping[int, Region]) -> None:
        """Make the graph now with these bindings, if it is to be used from the first submission on."""
        touched = self._segment.bind(bindings)
        if self._graph is not None and not self._graph.is_made:
            self._graph.make()
        elif self._graph is not None:
            self._graph.note_bound(touched)

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Issue commands ``[first, last)``. See `gpuexec.devices.device.Recording`."""
        touched, graph = self._segment.bind(bindings), self._graph
        if graph is not None:
            graph.note_bound(touched)
            if last is None and not first and not stream.is_capturing() and graph.launch(stream, touched):
                return
        self._segment.write()
        if self._origins is not None:
            self._issue_each(stream, range(len(self._origins))[first:last], self._origins)
            return
        issues = self._issues
        if first or last is not None or (self._early and stream.is_capturing()):
            issues = self._find_part(stream, first, last)
        with self._calling("submitting commands"):
            for issue in issues:
                issue(stream)

    def patch(self, commands: Sequence[Command]) -> None:
        """Replace the commands by those of another size of the same class."""
        self._note_patched(self._segment.patch(commands))

    def resize(self, variant: Variant) -> None:
        """Set the commands to another size of the same class."""
        if not isinstance(variant, SizedVariant):
            self.patch(variant.commands)
            return
        is_stored = self._segment.has_layout(variant)
        changed = self._segment.store(variant)
        if not is_stored:
            self._note_patched(changed)
        elif self._graph is not None:
            self._graph.note_resized()

    def _note_patched(self, changed: Collection[int]) -> None:
        """Issue commands that took the place of others, from now on."""
        if changed:
            self._issues, self._early = self._find_issues()
        if self._graph is not None:
            self._graph.note_patched(changed)

    def close(self) -> None:
        """Release the graph; runs under way finish, and a later submission may make it again."""
        if self._graph is not None:
            self._graph.close()

    def _find_issues(self) -> tuple[list[Callable[[Stream], None]], frozenset[int]]:
        """Return the call that issues each command in a whole submission, and which of them are launched early."""
        early = find_early(self._target, self._commands)
        return [
            command.issue_early if position in early else command.issue  # type: ignore[attr-defined]
            for position, command in enumerate(self._commands)
        ], early

    def _find_part(self, stream: Stream, first: int, last: int | None) -> list[Callable[[Stream], None]]:
        """Return the calls that issue a part of the commands.

        The first of them comes after whatever is on the stream, and a captured launch goes into a graph of another's.
        """
        if stream.is_capturing():
            return [command.issue for command in self._commands[first:last]]
        issues = self._issues[first:last]
        if first in self._early and issues:
            issues[0] = self._commands[first].issue
        return issues

    def _issue_each(self, stream: Stream, positions: range, origins: Sequence[str]) -> None:
        for position in positions:
            try:
                self._commands[position].issue(stream)
                stream.synchronize()
            except GpuexecError as error:
                raise locate(error, f"Command {position} ({origins[position]})", origins[position]) from None


def record_launches(device: Device, segment: Segment, memory: Mapping[int, Region]) -> LaunchRecording:
    """Record a segment on a device with kernels, in stream form alone."""
    return LaunchRecording(device, segment, memory)


def record_graph(device: GraphDevice, segment: Segment, memory: Mapping[int, Region]) -> LaunchRecording:
    """Record a segment in graph form from the first whole submission on, whatever patching costs."""
    recording = LaunchRecording(device, segment, memory)
    recording.add_graph(device, segment, None)
    return recording


def record_segment(
    device: Device, segment: Segment, memory: Mapping[int, Region], graphs: GraphCache | None
) -> Recording:
    """Record a segment in the forms that a device supports.

    Args:
        device: Where it is issued.
        segment: The commands.
        memory: The places of the buffers that are not bound at submit.
        graphs: Where its graph is counted, which is made after a few submissions and used when that costs the host less
            than launches. None: the graph is used from the first submission on.
    """
    recording = device.record(segment, memory)
    # Layers of a device with textures are issued one by one, as scheduled.
    has_graphs = hasattr(device, "create_graph") and not device.target.has_textures
    if isinstance(recording, LaunchRecording) and has_graphs:
        graph_device: Any = device
        recording.add_graph(graph_device, segment, graphs)
    return recording

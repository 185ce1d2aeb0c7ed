"""Programmatic edges and dependent launches: which commands of a recording begin early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.dependent_launch import find_programmatic
from gpuexec.devices.device import Region
from gpuexec.devices.prepared import PreparedSegment
from gpuexec.devices.recorder.tracer import DEPENDENT, TracerDevice, TracerStream
from gpuexec.devices.recording import LaunchRecording, record_graph, record_launches
from gpuexec.ir.command import Command, Copy, Fill, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.edges import find_edges

SOURCE = str(Path(__file__).parent / "simulator" / "kernels" / "dependent.cu")
SPEC = TensorSpec((64,), np.dtype(np.float32))
WAITS, PLAIN = "right", "plain"


def slot(buffer: int) -> Slot:
    return Slot(buffer, 0, SPEC, (1,))


def launch(kernel: str, x: int, y: int) -> Launch:
    return Launch(Kernel(SOURCE, kernel), (1, 1, 1), (64, 1, 1), (slot(x), slot(0), slot(y), np.int32(64)), (2,))


# A fork at %2, joined at 5; 3 does not wait, and 6 and 7 are no launches.
COMMANDS: tuple[Command, ...] = (
    launch(WAITS, 1, 2),
    launch(WAITS, 2, 3),
    launch(WAITS, 2, 4),
    launch(PLAIN, 3, 5),
    launch(WAITS, 5, 6),
    Launch(Kernel(SOURCE, WAITS), (1, 1, 1), (64, 1, 1), (slot(4), slot(6), slot(7), np.int32(64)), (2,)),
    Copy(slot(8), slot(7)),
    Fill(slot(3), b"\0"),
    launch(WAITS, 8, 9),
    launch(WAITS, 9, 10),
)
SEGMENT = Segment(COMMANDS, find_edges(COMMANDS), ("",) * len(COMMANDS))
PROGRAMMATIC = ((0, 1), (0, 2), (2, 5), (3, 4), (4, 5), (8, 9))
# In a stream each command follows the one before.
EARLY = (1, 2, 4, 5, 9)


def record(
    target: str = "sm_90", *, as_graph: bool = False, commands: tuple[Command, ...] = COMMANDS
) -> tuple[TracerDevice, LaunchRecording]:
    device = TracerDevice(target)
    device.load([Kernel(SOURCE, WAITS), Kernel(SOURCE, PLAIN)])
    memory = {buffer: Region(device.allocate(256), 0, 256) for buffer in range(11)}
    segment = Segment(commands, find_edges(commands), ("",) * len(commands))
    return device, (record_graph if as_graph else record_launches)(device, segment, memory)


def submit(
    device: TracerDevice, recording: LaunchRecording, stream: TracerStream | None = None, **part: int
) -> list[int]:
    """Return the positions of the commands that began early."""
    device.log.clear()
    recording.submit(stream or device.create_stream(), {}, **part)
    return [at for at, row in enumerate(device.log, part.get("first", 0)) if DEPENDENT in row[5:]]


def find(target: str, commands: tuple[Command, ...] = COMMANDS) -> list[tuple[int, int]]:
    device = TracerDevice(target)
    device.load([Kernel(SOURCE, WAITS), Kernel(SOURCE, PLAIN)])
    memory = {buffer: Region(device.allocate(256), 0, 256) for buffer in range(11)}
    prepared = PreparedSegment(device, commands, memory).commands
    return sorted(find_programmatic(Target.named(target), prepared, find_edges(commands)))


def test_edges_between_launches_are_programmatic_where_the_later_one_waits() -> None:
    assert find("sm_90") == find("sm_120") == list(PROGRAMMATIC)


@pytest.mark.parametrize("target", ["sm_75", "sm_89", "pixel_90"])
def test_no_edge_is_programmatic_on_older_gpus_or_over_textures(target: str) -> None:
    device = TracerDevice("sm_80")
    device.load([Kernel(SOURCE, WAITS), Kernel(SOURCE, PLAIN)])
    memory = {buffer: Region(device.allocate(256), 0, 256) for buffer in range(11)}
    prepared = PreparedSegment(device, COMMANDS, memory).commands
    assert find_programmatic(Target.named(target), prepared, SEGMENT.edges) == frozenset()


def test_no_edge_is_programmatic_where_the_knob_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_DEPENDENT_LAUNCH", "0")
    assert find("sm_90") == []


def test_edges_of_a_cooperative_launch_stay_full() -> None:
    second = replace(launch(WAITS, 2, 3), cooperative=True)
    assert find("sm_90", (launch(WAITS, 1, 2), second, launch(WAITS, 3, 4), launch(WAITS, 4, 5))) == [(2, 3)]


def test_stream_launches_early_what_follows_a_launch_and_waits() -> None:
    device, recording = record()
    assert tuple(submit(device, recording)) == EARLY
    older, same = record("sm_89")
    assert submit(older, same) == []


@pytest.mark.parametrize(("first", "last", "early"), [(1, None, [2, 4, 5, 9]), (4, 6, [5]), (9, 10, [])])
def test_first_launch_of_a_part_begins_in_order(first: int, last: int | None, early: list[int]) -> None:
    """Between two parts others may put anything on the stream."""
    device, recording = record()
    assert submit(device, recording, first=first, **({} if last is None else {"last": last})) == early
    assert tuple(submit(device, recording)) == EARLY


class CapturingStream(TracerStream):
    """A stream that is being captured into a graph of another's."""

    def is_capturing(self) -> bool:
        return True


def test_captured_launches_begin_in_order() -> None:
    """Edges with data can't be asked for by those who know none."""
    device, recording = record()
    assert submit(device, recording, CapturingStream(device, 7)) == []


def test_graph_has_programmatic_edges_among_its_own() -> None:
    device, recording = record(as_graph=True)
    assert submit(device, recording) == []
    edges = {row[0]: row[-1] for row in device.log if row[0] in ("graph", "programmatic edges")}
    assert edges == {"graph": SEGMENT.edges, "programmatic edges": PROGRAMMATIC}


def test_other_size_of_the_class_begins_as_early() -> None:
    device, recording = record()
    recording.patch([replace(each, grid=(2, 1, 1)) if isinstance(each, Launch) else each for each in COMMANDS])
    assert tuple(submit(device, recording)) == EARLY


def test_graph_is_made_again_where_another_kernel_waits_or_does_not() -> None:
    device, recording = record(as_graph=True)
    submit(device, recording)
    recording.patch([*COMMANDS[:4], launch(PLAIN, 5, 6), *COMMANDS[5:]])
    submit(device, recording)
    (edges,) = [row[-1] for row in device.log if row[0] == "programmatic edges"]
    assert edges == tuple(edge for edge in PROGRAMMATIC if edge != (3, 4))
    recording.patch([replace(each, grid=(2, 1, 1)) if isinstance(each, Launch) else each for each in COMMANDS])
    submit(device, recording)
    assert [row[-1] for row in device.log if row[0] == "programmatic edges"] == [PROGRAMMATIC]
    recording.patch(COMMANDS)
    submit(device, recording)
    assert "programmatic edges" not in [row[0] for row in device.log]


def test_waiting_after_each_command_launches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_SYNC_EACH", "1")
    device, recording = record()
    device.log.clear()
    recording.submit(device.create_stream(), {})
    assert not any(DEPENDENT in row for row in device.log)

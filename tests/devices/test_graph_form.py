"""The graph form of recordings: after a few uses, where it costs the host less, within a byte limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpuexec.devices.device import Recording, Region
from gpuexec.devices.graph_cache import NODE_NBYTES, GraphCache
from gpuexec.devices.graph_form import MAX_GRAPHS
from gpuexec.devices.launch_costs import PACKED_COSTS, RAW_KERNEL_COSTS
from gpuexec.devices.recorder.tracer import TRACER_COSTS, TracerDevice, TracerMemory, TracerStream
from gpuexec.devices.recording import LaunchRecording, record_segment
from gpuexec.errors import KernelError, OutOfMemoryError, PlanError
from gpuexec.ir.command import Command, Fill, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.system import knobs

KERNEL = Kernel("a.cu", "k")
ARENA, INPUT = 0, 1
SPEC = TensorSpec((8,), np.dtype(np.uint8))
WIDE = TensorSpec((1,), np.dtype(np.int64))
COMMANDS = 20  # a stream of them costs 13 us; a graph costs 6, and 1 for each node patched


def window(buffer: int, spec: TensorSpec = SPEC) -> Slot:
    return Slot(buffer, 0, spec, (1,))


def make_commands(count: int, readers: int, size: int = 1) -> tuple[Command, ...]:
    """Return launches of ``size`` blocks, of which the first few read the bound buffer."""
    return tuple(
        Launch(KERNEL, (size, 1, 1), (32, 1, 1), (window(INPUT if i < readers else ARENA), np.int32(size)), ())
        for i in range(count)
    )


class Recorded:
    """Commands recorded on a tracer of their own; the edges make a chain."""

    def __init__(
        self,
        commands: Sequence[Command] | None = None,
        graphs: GraphCache | None = None,
        device: TracerDevice | None = None,
    ) -> None:
        self.commands = tuple(commands or make_commands(COMMANDS, 2))
        self.graphs = graphs or GraphCache(1 << 30)
        self.device = device or TracerDevice()
        self.device.load([KERNEL])
        edges = tuple((i, i + 1) for i in range(len(self.commands) - 1))
        segment = Segment(self.commands, edges, tuple(f"n{i}" for i in range(len(self.commands))))
        places = {ARENA: Region(TracerMemory(0x1000, 256), 0, 256)}
        self.recording: Recording = record_segment(self.device, segment, places, self.graphs)
        self.stream = self.device.create_stream()
        self.address = 0x10000

    def submit(self, *, moves: bool = True, at: int = 0, **part: int) -> list[str]:
        """Submit, with the input elsewhere if it moves, or ``at`` an address; return the calls made to the tracer."""
        self.address = at or self.address + (0x100 if moves else 0)
        self.device.log.clear()
        self.recording.submit(self.stream, {INPUT: Region(TracerMemory(self.address, 256), 0, 256)}, **part)
        return [str(row[0]) for row in self.device.log]

    def warm_up(self) -> None:
        """Submit until there is a graph."""
        for _ in range(4):
            self.submit()
        assert self.has_graph

    @property
    def has_graph(self) -> bool:
        assert isinstance(self.recording, LaunchRecording)
        return self.recording.has_graph


def test_graph_is_made_at_the_fourth_submission() -> None:
    recorded = Recorded()
    for _ in range(3):
        assert recorded.submit() == ["launch"] * COMMANDS
    assert recorded.submit() == ["graph", *["node"] * COMMANDS, "graph launch"]
    assert recorded.submit(moves=False) == ["graph launch"]


def test_what_is_bound_elsewhere_is_patched_and_nothing_else() -> None:
    recorded = Recorded(make_commands(COMMANDS, 3))
    recorded.warm_up()
    assert recorded.submit() == ["node"] * 3 + ["graph launch"]
    nodes = recorded.device.log[:3]
    assert [row[2] for row in nodes] == [0, 1, 2]
    assert [row[7][0] for row in nodes] == [recorded.address.to_bytes(8, "little")] * 3  # type: ignore[index]


def test_another_size_of_the_class_patches_the_graph() -> None:
    recorded = Recorded()
    recorded.warm_up()
    recorded.recording.patch((*make_commands(3, 2, size=5), *recorded.commands[3:]))
    assert recorded.submit(moves=False) == ["node"] * 3 + ["graph launch"]
    assert recorded.device.log[0][5] == (5, 1, 1)


@pytest.mark.parametrize("readers", [7, 8])
def test_more_patches_than_launches_are_worth_are_a_stream_of_launches(readers: int) -> None:
    recorded = Recorded(make_commands(COMMANDS, readers))
    for _ in range(8):
        calls = recorded.submit()
    # 3.5 us and 1 for each node, beside 2.5 us and 0.4 for each of 20 launches: 7 nodes are worth it, 8 are not.
    assert calls == (["node"] * 7 + ["graph launch"] if readers == 7 else ["launch"] * COMMANDS)


def test_stale_nodes_are_patched_once_the_size_stays() -> None:
    """A change of size makes all nodes stale: more than launches cost, but not than those of many runs."""
    recorded = Recorded()
    recorded.warm_up()
    recorded.recording.patch(make_commands(COMMANDS, 2, size=5))
    calls = [recorded.submit() for _ in range(7)]
    streams = calls.index(["node"] * COMMANDS + ["graph launch"])
    assert calls[:streams] == [["launch"] * COMMANDS] * streams
    assert streams == 4, "18 stale nodes, of which each stream after the first loses 5 us that would have paid for them"
    assert calls[streams + 1 :] == [["node", "node", "graph launch"]] * (6 - streams)


def test_sizes_that_change_all_the_time_are_a_stream_of_launches() -> None:
    recorded = Recorded()
    recorded.warm_up()
    for size in range(2, 12):
        recorded.recording.patch(make_commands(COMMANDS, 2, size))
        assert recorded.submit() == ["launch"] * COMMANDS


@pytest.mark.parametrize("part", [{"first": 1}, {"last": 19}, {"first": 0, "last": 1}])
def test_parts_are_launches_and_are_not_forgotten(part: dict[str, int]) -> None:
    recorded = Recorded()
    recorded.warm_up()
    assert set(recorded.submit(**part)) == {"launch"}
    assert recorded.submit(moves=False) == ["node", "node", "graph launch"]


def test_small_plan_is_never_a_graph() -> None:
    recorded = Recorded(make_commands(3, 1))
    assert [recorded.submit() for _ in range(8)] == [["launch"] * 3] * 8


def test_stream_that_is_capturing_gets_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    recorded.warm_up()
    monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
    assert recorded.submit() == ["launch"] * COMMANDS
    monkeypatch.undo()
    assert recorded.submit(moves=False) == ["node", "node", "graph launch"]


def make_together(size: int = 1) -> tuple[Command, ...]:
    """Return commands of which the last, of ``size`` blocks, is a cooperative launch."""
    *rest, last = make_commands(COMMANDS, 2)
    assert isinstance(last, Launch)
    return (*rest, replace(last, grid=(size, 1, 1), cooperative=True))


def test_cooperative_launch_is_a_node_of_the_graph() -> None:
    recorded = Recorded(make_together())
    for _ in range(3):
        assert recorded.submit() == ["launch"] * 19 + ["cooperative launch"]
    assert recorded.submit() == ["graph", *["node"] * COMMANDS, "graph launch"]
    nodes = [row[3] for row in recorded.device.log if row[0] == "node"]
    assert nodes == ["launch"] * 19 + ["cooperative launch"]
    recorded.recording.patch(make_together(size=2))
    assert recorded.submit(moves=False) == ["node", "graph launch"]
    assert recorded.device.log[0][3:6:2] == ("cooperative launch", (2, 1, 1))


def test_cooperative_launch_of_more_blocks_than_fit_is_refused_when_it_is_recorded() -> None:
    # 1536 threads of a multiprocessor are 48 blocks of 32, but it holds 16 blocks at most.
    small, large = (TracerDevice(multiprocessors=count) for count in (4, 5))
    Recorded(make_together(size=64), device=small)
    with pytest.raises(KernelError, match=r"a.cu:k: a cooperative grid of 65 blocks does not fit: .* holds 64 at once"):
        Recorded(make_together(size=65), device=small)
    recorded = Recorded(make_together(size=80), device=large)
    recorded.submit()
    with pytest.raises(KernelError, match="grid of 81 blocks does not fit"):
        recorded.recording.patch((*make_commands(2, 2, size=7), *make_together(size=81)[2:]))
    assert recorded.submit() == ["launch"] * 19 + ["cooperative launch"], "what was refused changed nothing"
    assert recorded.device.log[-1][2] == (80, 1, 1) and recorded.device.log[0][2] == (1, 1, 1)
    assert recorded.device.log[0][4][0] == recorded.address.to_bytes(8, "little")  # type: ignore[index]


def test_another_size_can_not_make_a_launch_cooperative() -> None:
    recorded = Recorded()
    with pytest.raises(PlanError, match="a launch stays cooperative, or not"):
        recorded.recording.patch(make_together())


@pytest.mark.parametrize(("launch_us", "calls"), [(0.4, "launch"), (3.0, "node")])
def test_what_a_launch_costs_on_the_path_in_use_decides(launch_us: float, calls: str) -> None:
    device = TracerDevice()
    device.launch_costs = replace(device.launch_costs, launch_us=launch_us)
    recorded = Recorded(make_commands(COMMANDS, 12), device=device)
    assert [recorded.submit()[0] for _ in range(6)][-1] == calls


def test_each_path_of_a_gpu_has_costs_of_its_own() -> None:
    """With the tracer's 0.4 us a launch, a plan of 17 commands of which 9 are touched would never be a graph."""
    assert TRACER_COSTS.find_worth(17) < 9 < PACKED_COSTS.find_worth(17) < RAW_KERNEL_COSTS.find_worth(17)


def test_waiting_after_each_command_needs_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_SYNC_EACH", "1")
    recorded = Recorded()
    for _ in range(6):
        assert recorded.submit() == ["launch", "synchronize"] * COMMANDS


PATTERN = b"\x01\0\0\0\x02\0\0\0"


def test_fill_that_can_not_be_patched_is_no_reason_to_make_a_graph_again_and_again() -> None:
    recorded = Recorded([Fill(window(INPUT, WIDE), PATTERN), *make_commands(COMMANDS - 1, 0)])
    calls = [recorded.submit() for _ in range(8)]
    assert calls == [["fill", *["launch"] * (COMMANDS - 1)]] * 8
    for _ in range(4):
        calls = [recorded.submit(moves=False)]
    assert calls == [["graph launch"]], "once it stays where it is, a graph is worth it"
    assert recorded.submit()[0] == "fill"
    after = [recorded.submit(moves=False) for _ in range(60)]
    assert after[0][0] == "fill" and after[-1] == ["graph launch"]
    assert sum(rows[0] == "close graph" for rows in after) == 1, "made again once, after many launches instead of it"


PLACES = tuple(0x90000 + 0x100 * place for place in range(5))
UPDATED = ["node", "node", "graph launch"]


def test_addresses_that_come_back_get_a_graph_each() -> None:
    recorded = Recorded()
    recorded.warm_up()
    calls = [recorded.submit(at=place) for _ in range(6) for place in PLACES[:2]]
    assert calls[:4] == [UPDATED] * 4
    assert calls[4] == ["graph", *["node"] * COMMANDS, "graph launch"], "when it comes again for the second time"
    assert calls[5:] == [["graph launch"]] * 7, "nobody else takes the first one's nodes"
    assert (recorded.graphs.count, recorded.graphs.nbytes) == (2, 2 * COMMANDS * NODE_NBYTES)
    assert recorded.graphs.updated == {("k", False): 8}


def test_addresses_that_are_new_each_time_get_none() -> None:
    recorded = Recorded()
    recorded.warm_up()
    assert [recorded.submit() for _ in range(40)] == [UPDATED] * 40
    assert recorded.graphs.count == 1


def test_addresses_that_stay_get_no_other_graph() -> None:
    recorded = Recorded()
    recorded.warm_up()
    assert recorded.submit() == UPDATED
    assert [recorded.submit(moves=False) for _ in range(8)] == [["graph launch"]] * 8
    assert recorded.graphs.count == 1


def test_addresses_beyond_the_most_graphs_take_the_nodes_of_the_oldest() -> None:
    recorded = Recorded()
    recorded.warm_up()
    for _ in range(5):
        for place in PLACES[: MAX_GRAPHS - 1]:
            recorded.submit(at=place)
            recorded.submit(at=PLACES[MAX_GRAPHS - 1])
    assert recorded.graphs.count == MAX_GRAPHS
    turn = [PLACES[0], PLACES[1], PLACES[3]]
    assert [recorded.submit(at=place) for place in turn] == [["graph launch"]] * 3
    assert recorded.submit(at=PLACES[4]) == UPDATED
    assert [recorded.submit(at=place) for place in (PLACES[4], *turn)] == [["graph launch"]] * 4
    assert recorded.submit(at=PLACES[2]) == UPDATED, "whose graph was launched longest ago"


def test_more_commands_than_an_update_is_worth_are_graphs_once_their_addresses_come_back() -> None:
    recorded = Recorded(make_commands(COMMANDS, COMMANDS))
    calls = [recorded.submit(at=place) for _ in range(8) for place in PLACES[:2]]
    assert calls[-6:] == [["graph launch"]] * 6
    assert [row for row in calls if row not in (["launch"] * COMMANDS, ["graph launch"])] == [
        ["graph", *["node"] * COMMANDS, "graph launch"]
    ] * 2


def test_another_size_updates_each_graph_once() -> None:
    recorded = Recorded()
    recorded.warm_up()
    for place in PLACES[:2] * 4:
        recorded.submit(at=place)
    recorded.recording.patch((*make_commands(3, 2, size=5), *recorded.commands[3:]))
    calls = [recorded.submit(at=place) for place in PLACES[:2] * 3]
    assert calls == [["node"] * 3 + ["graph launch"]] * 2 + [["graph launch"]] * 4


def test_sizes_that_change_more_than_an_update_is_worth_get_no_other_graph() -> None:
    recorded = Recorded()
    recorded.warm_up()
    for size in range(2, 20):
        recorded.recording.patch(make_commands(COMMANDS, 2, size))
        assert recorded.submit(at=PLACES[size % 2]) == ["launch"] * COMMANDS
    assert recorded.graphs.count == 1


def test_no_graph_is_closed_for_another_set_of_addresses() -> None:
    (first, second), graphs = make_many(2, capacity=2)
    first.warm_up()
    second.warm_up()
    assert [second.submit(at=place) for _ in range(6) for place in PLACES[:2]] == [UPDATED] * 12
    assert first.has_graph and graphs.count == 2


def test_graph_of_a_set_of_addresses_is_closed_by_itself() -> None:
    (first, second), graphs = make_many(2, capacity=2)
    first.warm_up()
    for place in PLACES[:2] * 4:
        first.submit(at=place)
    assert graphs.count == 2
    second.warm_up()
    assert first.has_graph and graphs.count == 2
    assert [first.submit(at=place) for place in (PLACES[1], PLACES[0])] == [["graph launch"], UPDATED]


def test_without_memory_for_another_graph_the_first_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    recorded.warm_up()
    refuse(monkeypatch, recorded.device, times=1)
    assert [recorded.submit(at=place) for _ in range(6) for place in PLACES[:2]] == [UPDATED] * 12
    assert (recorded.graphs.count, recorded.graphs.refused) == (1, 0)


def make_many(count: int, capacity: int) -> tuple[list[Recorded], GraphCache]:
    device, graphs = TracerDevice(), GraphCache(capacity * COMMANDS * NODE_NBYTES)
    return [Recorded(None, graphs, device) for _ in range(count)], graphs


def test_graph_used_longest_ago_is_closed_for_a_new_one() -> None:
    (first, second, third), graphs = make_many(3, capacity=2)
    first.warm_up()
    second.warm_up()
    assert (graphs.count, graphs.nbytes) == (2, 2 * COMMANDS * NODE_NBYTES)
    first.submit()
    third.warm_up()
    assert [each.has_graph for each in (first, second, third)] == [True, False, True]
    assert graphs.count == 2
    assert ("close graph", 2) in third.device.log


def test_closed_graph_comes_back_after_a_few_uses() -> None:
    (first, second), _ = make_many(2, capacity=1)
    first.warm_up()
    second.warm_up()
    assert [first.submit()[0] for _ in range(4)] == ["launch", "launch", "launch", "close graph"]
    assert first.has_graph and not second.has_graph
    assert first.submit(moves=False) == ["graph launch"]
    assert second.submit() == ["launch"] * COMMANDS


def test_graph_of_more_than_the_capacity_is_not_made() -> None:
    (large, small), graphs = make_many(2, capacity=1)
    small.warm_up()
    large = Recorded(make_commands(COMMANDS + 1, 2), graphs, small.device)
    for _ in range(6):
        assert large.submit() == ["launch"] * (COMMANDS + 1)
    assert small.has_graph, "nothing is closed for what does not fit"


def test_capacity_is_a_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_GRAPH_BYTES", "0")
    recorded = Recorded(None, GraphCache(), None)
    assert [recorded.submit()[0] for _ in range(6)] == ["launch"] * 6
    monkeypatch.delenv("GPUEXEC_GRAPH_BYTES")
    assert GraphCache().capacity_bytes == knobs.graph_bytes() == 512 << 20


def test_clear_closes_all() -> None:
    many, graphs = make_many(3, capacity=3)
    for each in many:
        each.warm_up()
    many[0].device.log.clear()
    graphs.clear()
    assert sorted(many[0].device.log) == [("close graph", number) for number in (1, 2, 3)]
    assert (graphs.count, graphs.nbytes) == (0, 0)
    assert not any(each.has_graph for each in many)


def refuse(monkeypatch: pytest.MonkeyPatch, device: TracerDevice, times: int) -> None:
    """Let a device have no memory for so many graphs."""
    create: Callable[..., object] = device.create_graph
    left = [times]

    def create_graph(*arguments: object) -> object:
        if left[0]:
            left[0] -= 1
            raise OutOfMemoryError("no room")
        return create(*arguments)

    monkeypatch.setattr(device, "create_graph", create_graph)


def test_without_memory_for_a_graph_others_are_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), graphs = make_many(2, capacity=2)
    first.warm_up()
    refuse(monkeypatch, first.device, times=1)
    second.warm_up()
    assert not first.has_graph and (graphs.count, graphs.refused) == (1, 0)


def test_without_memory_for_a_graph_launches_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), graphs = make_many(2, capacity=2)
    refuse(monkeypatch, first.device, times=2)
    for _ in range(8):
        assert first.submit() == ["launch"] * COMMANDS
    assert (graphs.count, graphs.refused) == (0, 1), "asked for once, and counted"
    second.warm_up()

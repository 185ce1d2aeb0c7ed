"""Windows of Concats with a pitch: what is made in them, by which kernels, and with the bits of a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gpuexec.ir.command import Command, Launch
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import build
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from gpuexec.passes.fuse_regions import fuse_regions
from gpuexec.planner import concat_windows, lower
from gpuexec.planner.concat_windows import ConcatWindows
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder
from tests.planner.test_symbolic_variant import check_sizes

HALF = np.dtype(np.float16)
TARGET = Target.named("sm_90")
RNG = np.random.default_rng(6)


class Builder(GraphBuilder):
    """Builder of graphs of images of half."""

    def __init__(self, batch: int = 2, extents: tuple[int, int] = (6, 5)) -> None:
        super().__init__()
        self.batch, self.extents = batch, extents
        self.channels: dict[Value, int] = {}

    def image(self, channels: int) -> Value:
        x = self.input("x", self.batch, channels, *self.extents, dtype=HALF)
        self.channels[x] = channels
        return x

    def op(self, name: str, *inputs: Value, **attributes: object) -> Value:
        made = self.node(build(name, attributes), *inputs)
        self.channels[made] = self.channels[inputs[0]]
        return made

    def conv(self, x: Value, outs: int, taps: int = 1, groups: int = 1) -> Value:
        w = RNG.integers(-2, 3, (outs, self.channels[x] // groups, taps, taps)).astype(HALF)
        pads = (taps // 2,) * 4
        made = self.op("Conv", x, self.constant(w), pads=pads, group=groups)
        self.channels[made] = outs
        return made

    def split(self, x: Value, *widths: int) -> list[Value]:
        made = self.nodes(build("Split", {"axis": 1}), x, self.constant(np.array(widths)), count=len(widths))
        self.channels.update(zip(made, widths, strict=True))
        return made

    def concat(self, *parts: Value) -> Value:
        made = self.op("Concat", *parts, axis=1)
        self.channels[made] = sum(self.channels[part] for part in parts)
        return made


def specs_of(graph: Builder, made: Graph) -> dict[str, TensorSpec]:
    return {value.name: TensorSpec((graph.batch, graph.channels[value], *graph.extents), HALF) for value in made.inputs}


def count_launches(plan: Plan) -> int:
    return sum(isinstance(command, Launch) for command in plan.segment.commands)


def take_all(graph: Graph, able: ConcatWindows, *others: object) -> ConcatWindows:
    return able


def run(plan: Plan, graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    device = make_simulator(target="sm_90", check_kernels=True)
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        got = loaded.run({"x": x})
    device.close()
    return list(got)


def check(builder: Builder, made: Graph, monkeypatch: pytest.MonkeyPatch, *, fewer: int | None = None) -> Plan:
    """Run a graph with all windows and with none, and compare bits; return the plan with windows."""
    specs = specs_of(builder, made)
    made = fuse_regions(fuse_epilogues(made, specs), specs)
    with monkeypatch.context() as patch:
        patch.setattr(lower, "list_windows", lambda *given: {})
        apart = plan_graph(made, specs, TARGET).plan
    with monkeypatch.context() as patch:
        patch.setattr(lower, "choose_windows", take_all)
        inside = plan_graph(made, specs, TARGET).plan
    x = RNG.integers(-3, 4, specs["x"].shape).astype(HALF)
    for a, b in zip(run(inside, made, x), run(apart, made, x), strict=True):
        np.testing.assert_array_equal(a, b)
    if fewer is not None:
        assert count_launches(apart) - count_launches(inside) == fewer
    return inside


def test_products_and_convolutions_write_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.image(16)
    parts = [graph.op("Relu", graph.conv(x, 24)), graph.op("Relu", graph.conv(x, 8, taps=3)), graph.conv(x, 16)]
    made = graph.graph(graph.conv(graph.concat(*parts), 8))
    check(graph, made, monkeypatch, fewer=1)


def test_values_in_windows_have_other_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product, a convolution, a pool and an addend of an epilogue read rows with gaps."""
    graph = Builder()
    x = graph.image(16)
    first = graph.op("Relu", graph.conv(x, 16))
    added = graph.op("Add", graph.op("Relu", graph.conv(graph.conv(x, 16), 16, taps=3)), first)
    joined = graph.concat(first, added)
    ends = [graph.conv(first, 8), graph.conv(first, 8, taps=3), graph.op("MaxPool", first, kernel_shape=(2, 2))]
    made = graph.graph(graph.conv(joined, 8), *ends)
    check(graph, made, monkeypatch, fewer=1)


@pytest.mark.parametrize("outs", [1, 3, 4, 12])
def test_rows_need_no_alignment(outs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder(batch=1)
    x = graph.image(8)
    joined = graph.concat(graph.conv(x, outs), graph.op("Relu", graph.conv(x, 5)))
    check(graph, graph.graph(graph.op("Neg", joined)), monkeypatch)


def test_concat_in_a_concat(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.image(8)
    inner = graph.concat(graph.conv(x, 8), graph.conv(x, 16))
    outer = graph.concat(graph.conv(inner, 8), inner)
    check(graph, graph.graph(graph.conv(outer, 8)), monkeypatch, fewer=2)


KINDS: dict[str, Callable[[Builder, Value], Value]] = {
    "pool": lambda graph, x: graph.op("Relu", graph.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))),
    "mean": lambda graph, x: graph.op("Relu", graph.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))),
    "norm": lambda graph, x: graph.op(
        "Relu",
        graph.op("InstanceNormalization", x, *[graph.constant(np.linspace(1, 2, 8, dtype=HALF)) for _ in range(2)]),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extents", [(6, 5), (72, 64)])
def test_epilogues_store_in_windows(kind: str, extents: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder(batch=1, extents=extents)
    x = graph.conv(graph.image(8), 8)
    made = graph.graph(graph.conv(graph.concat(KINDS[kind](graph, x), graph.conv(x, 8)), 8))
    check(graph, made, monkeypatch, fewer=1)


def joins_split(graph: Builder, widths: tuple[int, int], part: int) -> tuple[Value, Value]:
    """Return a Concat of a part of a Split and of what is made of the other one, which is returned beside it."""
    parts = graph.split(graph.op("Relu", graph.conv(graph.image(8), sum(widths))), *widths)
    other = parts[1 - part]
    made = graph.conv(graph.op("Relu", graph.conv(other, 8, taps=3)), widths[1 - part])
    return graph.concat(*((parts[0], made) if part == 0 else (made, parts[1]))), other


@pytest.mark.parametrize(("widths", "part"), [((16, 8), 1), ((8, 16), 0), ((4, 12), 1)])
def test_split_result_lies_where_what_follows_from_a_part_takes_its_place(
    widths: tuple[int, int], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Builder()
    joined, _ = joins_split(graph, widths, part)
    plan = check(graph, graph.graph(graph.conv(joined, 8)), monkeypatch, fewer=1)
    assert not any(
        command.kernel.source == "flat.cu" for command in plan.segment.commands if isinstance(command, Launch)
    )


def test_part_that_is_read_later_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    joined, other = joins_split(graph, (16, 8), 1)
    check(graph, graph.graph(graph.conv(joined, 8), graph.conv(other, 8)), monkeypatch)


def test_parts_of_two_splits_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.image(8)
    firsts, seconds = (graph.split(graph.op("Relu", graph.conv(x, 24)), 8, 16) for _ in range(2))
    made = [graph.conv(graph.op("Relu", graph.conv(each, 8)), 8) for each in (firsts[0], seconds[0])]
    joined = graph.concat(made[0], firsts[1], made[1], seconds[1])
    check(
        graph,
        graph.graph(graph.conv(joined, 8), graph.conv(graph.concat(seconds[1], firsts[1], *made), 8)),
        monkeypatch,
    )


def test_part_lies_in_no_concat_that_is_made_in_another_one_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.image(8)
    early = graph.conv(x, 8)
    parts = graph.split(graph.op("Relu", graph.conv(early, 24)), 16, 8)
    inner = graph.concat(early, graph.conv(graph.conv(parts[0], 8), 8))
    joined = graph.concat(inner, parts[1])
    check(graph, graph.graph(graph.conv(joined, 8), graph.conv(early, 8)), monkeypatch)


@pytest.mark.parametrize("extents", [(6, 5), (2, 2)])
@pytest.mark.parametrize("outs", [8, 3])
def test_epilogues_read_and_store_rows_of_other_pitches(
    outs: int, extents: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An addend lies in a window, and a further result outside; of few positions the transposed product is made."""
    graph = Builder(batch=1, extents=extents)
    x = graph.image(8)
    first = graph.op("Relu", graph.conv(x, outs))
    beside = graph.op("Sigmoid", first)
    joined = graph.concat(graph.conv(x, 8), first)
    added = graph.op("Add", graph.op("Relu", graph.conv(graph.conv(x, 8), outs)), first)
    ends = [graph.conv(each, 8) for each in (joined, beside, added)]
    plan = check(graph, graph.graph(*ends), monkeypatch)
    texts = [command.kernel.text for command in plan.segment.commands if isinstance(command, Launch)]
    assert any("write_pitched" in text for text in texts) and any("read_pitched" in text for text in texts)


def test_sizes_of_a_class_have_windows() -> None:
    graph = Builder(batch=4, extents=(12, 10))
    x = graph.image(8)
    first = graph.op("Relu", graph.conv(x, 16))
    added = graph.op("Add", graph.op("Relu", graph.conv(graph.conv(x, 16), 16)), first)
    pooled = graph.op("Relu", graph.op("MaxPool", added, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))
    made = graph.graph(graph.conv(graph.concat(first, added, pooled), 8))
    specs = specs_of(graph, made)
    made = fuse_regions(fuse_epilogues(made, specs), specs)
    template = plan_graph(made, specs, TARGET)
    assert any(slot.order is None for command in template.plan.segment.commands for slot in command.writes_to())
    shapes = list(enumerate([(4, 8, 12, 10), (1, 8, 12, 10), (3, 8, 1, 10), (1, 8, 7, 1), (2, 8, 1, 2), (2, 8, 5, 9)]))
    for _, shape in shapes:
        variant = template.specialise({"x": TensorSpec(shape, HALF)})
        assert len(variant.commands) == len(template.plan.segment.commands)
    groups = [[("x", 0)], [("x", 2)], [("x", 3)]]
    check_sizes(template, {size: {"x": TensorSpec(shape, HALF)} for size, shape in shapes}, groups)


@pytest.mark.parametrize("is_cheaper", [True, False])
def test_cost_decides(is_cheaper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what reads or writes rows with gaps must copy them, a Concat copies its parts."""
    graph = Builder(extents=(40, 40))
    x = graph.image(8)
    parts = [graph.op("Relu", graph.conv(x, 8)) for _ in range(2)]
    made = graph.graph(graph.conv(graph.concat(*parts), 8))
    specs = specs_of(graph, made)
    made = fuse_regions(fuse_epilogues(made, specs), specs)
    if not is_cheaper:
        predict = concat_windows.predict_commands_us

        def count_gaps(commands: Sequence[Command], target: Target) -> float:
            gaps = sum(slot.order is None for command in commands for slot in command.writes_to())
            return predict(commands, target) + 10 * gaps

        monkeypatch.setattr(concat_windows, "predict_commands_us", count_gaps)
    plan = plan_graph(made, specs, TARGET).plan
    has_gaps = any(slot.order is None for command in plan.segment.commands for slot in command.writes_to())
    assert has_gaps == is_cheaper


@pytest.mark.parametrize("channels", [8, 5])
def test_regions_store_in_windows(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.conv(graph.image(8), channels)
    summed = graph.op("Add", graph.op("Exp", x), graph.op("MaxPool", x, kernel_shape=(1, 1)))
    kept = graph.op("Mul", graph.op("Sigmoid", summed), summed)
    made = graph.graph(graph.conv(graph.concat(kept, graph.conv(kept, 8)), 8))
    check(graph, made, monkeypatch)


def test_output_of_the_graph_is_a_concat(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Builder()
    x = graph.image(8)
    both = graph.conv(x, 8), graph.conv(x, 8)
    check(graph, graph.graph(graph.concat(*both), both[0]), monkeypatch)

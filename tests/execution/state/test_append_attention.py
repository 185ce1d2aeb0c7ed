"""Decoding whose attention appends to its caches: results, states and launches, against the plan that copies first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.command import Launch
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner import lower
from gpuexec.planner.verify import verify
from tests.bench.architectures import ArchitectureBuilder, make_gpt2
from tests.bench.models import BenchModel
from tests.devices.opening import open_device

Array = np.ndarray[Any, Any]
DEPTH = 8
DEVICES = ("cpu", "check")  # check mode runs the kernels of the simulator
SIMULATOR = gx.BackendType.SIMULATOR


@dataclass(frozen=True)
class Decoder:
    """A layer of attention with a cache, and the rows of its steps.

    Attributes:
        id: Its name.
        steps: New rows of each step.
        past: Rows that are held before the first.
        heads: Of queries.
        group: Heads of queries that share one of keys.
        batch: Sequences.
        is_row_first: Whether the cache is ``[batch, rows, heads, depth]``.
        mask: None, a bias of floats (``Add``), or bools that say what stays (``Where``).
        reads_shape: Whether the shape that heads are repeated to is asked of the keys.
        precision: Of products.
        depth: Numbers of a head.
        capacity: Rows that there is room for.
    """

    id: str
    steps: Sequence[int]
    past: int = 0
    heads: int = 2
    group: int = 1
    batch: int = 1
    is_row_first: bool = False
    mask: str = ""
    reads_shape: bool = False
    precision: str = "fp16"
    depth: int = DEPTH
    capacity: int = 48

    def make(self) -> BenchModel:
        """Return the model: one product makes queries, keys and values."""
        build = ArchitectureBuilder(5, has_weights=True, opset=20)
        batch, heads, depth, of_keys = self.batch, self.heads, self.depth, self.heads // self.group
        width, sizes = heads * depth, [heads * depth, of_keys * depth, of_keys * depth]
        product = build.node("MatMul", "x", build.parameter("qkv", width, sum(sizes)))
        parts = build.nodes("Split", 3, product, build.constant(sizes, np.int64), axis=2)
        query, *new = (
            build.reshape(part, batch, -1, count, depth) for part, count in zip(parts, (heads, of_keys, of_keys))
        )
        query = build.node("Transpose", query, perm=[0, 2, 1, 3])
        held, state = [], {}
        for name, rows in zip(("past.key", "past.value"), new, strict=True):
            rows = rows if self.is_row_first else build.node("Transpose", rows, perm=[0, 2, 1, 3])
            present = build.node("Concat", name, rows, axis=1 if self.is_row_first else -2)
            state[present] = name
            held.append(present)
        shape: list[Any] = [batch, "past", of_keys, depth] if self.is_row_first else [batch, of_keys, "past", depth]
        past = {name: self.draw(*(self.past if each == "past" else each for each in shape)) for name in state.values()}
        keys, values = (
            build.node("Transpose", each, perm=[0, 2, 1, 3]) if self.is_row_first else each for each in held
        )
        if self.group > 1:
            keys, values = (self._repeat(build, each) for each in (keys, values))
        scores = build.node("MatMul", query, build.node("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = build.node("Mul", scores, build.constant(depth**-0.5))
        inputs = {"x": self.draw(batch, 1, width), **past}
        free: dict[str, Sequence[int | str]] = {"x": (batch, "new", width), **dict.fromkeys(past, shape)}
        if self.mask:
            inputs["mask"] = self.draw_mask(1, self.past + 1)
            free["mask"] = (1, 1, "new", "total")
        if self.mask == "Add":
            scores = build.node("Add", scores, "mask")
        elif self.mask:
            scores = build.node("Where", "mask", scores, build.constant(-np.inf))
        mixed = build.node("MatMul", build.node("Softmax", scores, axis=-1), values)
        joined = build.reshape(build.node("Transpose", mixed, perm=[0, 2, 1, 3]), batch, -1, width)
        y = build.node("MatMul", joined, build.parameter("out", width, width))
        whole = ["total" if each == "past" else each for each in shape]
        outputs = {y: (batch, "new", width), **dict.fromkeys(state, whole)}
        made = build.finish(self.id, inputs, outputs, free=free, state=state, capacity=self.capacity)
        return replace(made, precision=self.precision)

    def _repeat(self, build: ArchitectureBuilder, x: str) -> str:
        """Return heads of keys or values, each as often as heads of queries share it."""
        batch, of_keys = self.batch, self.heads // self.group
        apart = build.node("Unsqueeze", x, build.constant([2], np.int64))
        if self.reads_shape:
            total = build.node("Gather", build.node("Shape", x), build.constant([2], np.int64))
            before = build.constant([batch, of_keys, self.group], np.int64)
            shape = build.node("Concat", before, total, build.constant([self.depth], np.int64), axis=0)
        else:
            shape = build.constant([1, 1, self.group, 1, 1], np.int64)
        return build.reshape(build.node("Expand", apart, shape), batch, self.heads, -1, self.depth)

    def draw(self, *shape: int) -> Array:
        """Return numbers that are the same in each process."""
        return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)

    def draw_mask(self, rows: int, keys: int) -> Array:
        """Return what is added to scores, or which stay: each query sees those before it and itself."""
        stays = np.tril(np.ones((rows, keys), bool), keys - rows)[None, None]
        return stays if self.mask == "Where" else np.where(stays, self.draw(1, 1, rows, keys), np.float32(-1e9))


DECODERS = [
    Decoder("heads", (3, *(1,) * 20)),
    Decoder("a prompt", (20, 1, 1), heads=4),
    Decoder("bfloat16", (1,) * 4, precision="bf16", past=2),
    Decoder("floats", (3, *(1,) * 6), precision="strict", heads=8, group=4, batch=2),
    Decoder("several rows of floats", (2, 8, 1), precision="strict", mask="Where", past=70, capacity=90),
    Decoder("several rows", (2, 4, 1, 8, 1), heads=4),
    Decoder("batch", (1, 1, 2, 1), batch=3, past=1, mask="Where"),
    Decoder("a bias", (4, 1, 1, 3), mask="Add"),
    Decoder("groups", (3, *(1,) * 20), heads=8, group=4, batch=2),
    Decoder("groups of a shape that is asked for", (2, 1, 1), heads=8, group=4, reads_shape=True),
    Decoder("groups in tiles of rows", (1, 2, 1, 3), heads=14, group=7, past=3, mask="Where"),
    Decoder("rows before heads", (2, 1, 1, 3), heads=4, group=2, is_row_first=True, batch=2),
    Decoder("slices", (1, 2, 1, 1), past=380, capacity=400, depth=16, heads=4, group=4),
    Decoder("one row of room", (1,), capacity=1),
    Decoder("a step of no rows", (2, 1, 0, 1)),
]


GROUPS = next(each for each in DECODERS if each.id == "groups")


def run(decoder: Decoder, device: str) -> list[Array]:
    """Return the results of all steps, and what is held at the end."""
    made, total = decoder.make(), decoder.past
    opened = open_device(device)
    kind = gx.BackendType.CPU if device == "cpu" else SIMULATOR
    found = []
    with gx.Worker(made.load(), backend=Backend(opened, kind, "for a test")) as worker:
        if decoder.past:
            worker.state.set(made.memories)
        for number, rows in enumerate(decoder.steps):
            total += rows
            feeds = {"x": decoder.draw(decoder.batch, rows, decoder.heads * decoder.depth) + np.float32(number)}
            if decoder.mask:
                feeds["mask"] = decoder.draw_mask(rows, total)
            results = worker.run(feeds)
            found.append(results[0] if isinstance(results, tuple) else results)
        found += [worker.state.get(name) for name in made.state]
    return [np.array(each) for each in found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.id)
def test_steps_give_what_they_give_with_rows_copied_first(
    decoder: Decoder, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = run(decoder, device)
    with monkeypatch.context() as patch:
        patch.setattr(lower, "join_appends", lambda graph, *rest: graph)
        apart = run(decoder, device)
    for got, expected in zip(joined, apart, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_caches_that_two_go_on_from_stay_apart() -> None:
    """Who goes on second finds its rows taken, and has a cache of its own."""
    decoder = replace(GROUPS, past=4)
    made = decoder.make()
    rows = [decoder.draw(decoder.batch, 1, 64) + np.float32(number) for number in range(4)]
    with gx.Worker(made.load(), backend=Backend(open_device("check"), SIMULATOR, "for a test")) as worker:
        worker.state.set(made.memories)
        worker.run({"x": rows[0]})
        start, expected = worker.state.snapshot(), []
        for x in rows[1:]:
            expected.append(np.array(worker.run({"x": x})))
        held = worker.state.get(next(iter(made.state)))
        worker.state.restore(start)
        worker.run({"x": rows[3]})
        worker.state.restore(start)
        for x, y in zip(rows[1:], expected, strict=True):
            np.testing.assert_array_equal(np.array(worker.run({"x": x})), y)
        np.testing.assert_array_equal(worker.state.get(next(iter(made.state))), held)


def test_runs_compared_with_the_cpu_go_on() -> None:
    decoder = GROUPS
    backend = Backend(open_device("simulator"), SIMULATOR, "for a test")
    with gx.Worker(decoder.make().load(), backend=backend, compare_with=gx.BackendType.CPU) as worker:
        for number in range(3):
            worker.run({"x": decoder.draw(decoder.batch, 1 + number, 64)})
        assert worker.state.get(next(iter(decoder.make().state))).shape[2] == 6


def list_launches(plan: Plan) -> list[str]:
    """Return the names of the kernels of a plan."""
    commands = plan.segment.commands
    return [each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.id)
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_one_launch_appends_and_attends(decoder: Decoder, target: str) -> None:
    template = decoder.make().make_template(Target.named(target))
    commands = template.plan.segment.commands
    states = {buffer.id for buffer in template.plan.buffers if buffer.role is Role.STATE}
    assert len(states) == 2
    writers = [each for each in commands if states & {slot.buffer for slot in each.writes_to()}]
    assert [each.kernel.expression.partition("<")[0] for each in writers if isinstance(each, Launch)] == ["attend_few"]
    assert len(writers) == 1 and "copy_strided" not in list_launches(template.plan)
    # It reads what is held, and writes the rows behind that.
    (launch,) = writers
    held, room = (
        [slot for slot in slots if slot.buffer in states] for slots in (launch.reads_from(), launch.writes_to())
    )
    assert {slot.buffer for slot in held} == {slot.buffer for slot in room} == states
    for past, new in zip(held, room, strict=True):
        assert new.shape[2] == 1 and new.offset_bytes == past.offset_bytes + past.shape[2] * past.strides[2] * 4


def test_gpt2_has_five_launches_in_a_layer() -> None:
    small = replace(make_gpt2(1, 5, 32, 32, 2, 3, 20), precision="fp16")
    names = list_launches(small.plan(Target.named("sm_90")))
    first = names.index("rows")  # the first norm, with the embeddings that it normalizes
    layer = ["mma_of_rows", "attend_few", "mma_few", "mma_of_rows", "mma_few"]  # products make the norms in front
    assert names[first + 1 :] == ["mma_few", *layer[1:], *layer, *layer, "mma_of_rows"]


def test_gpt2_in_float_has_seven_launches_in_a_layer() -> None:
    names = list_launches(make_gpt2(1, 5, 32, 32, 2, 3, 20).plan(Target.named("sm_90")))
    norm, product = "normalize_short_rows", "gemv_along_columns"
    layer = [product, "attend_few", product, norm, product, product, norm]
    assert names[names.index("rows") + 1 :] == [*layer, *layer, *layer, product]


@pytest.mark.parametrize("past", [0, 1, 5, 30])
def test_sizes_of_a_class_append_in_one_launch(past: int) -> None:
    decoder = GROUPS
    made = decoder.make()
    template = made.make_template(Target.named("sm_90"))
    specs = {port.name: port.spec for port in template.plan.inputs}
    for name in made.state.values():
        batch, heads, _, depth = specs[name].shape
        specs[name] = TensorSpec((batch, heads, past, depth), specs[name].dtype)
    specs["x"] = TensorSpec((2, 1, 64), np.dtype(np.float32))
    verify(template.plan, template.specialise(specs))


def test_a_prompt_copies_its_rows_and_so_does_another_precision_of_floats() -> None:
    for decoder, rows in ((replace(DECODERS[0], capacity=99), 40), (replace(DECODERS[0], precision="tf32"), 1)):
        made = decoder.make()
        made = replace(made, inputs=made.inputs | {"x": decoder.draw(1, rows, 16)})
        names = list_launches(made.plan(Target.named("sm_90")))
        assert "attend_few" not in names and names.count("copy_strided") >= 2


def test_a_cache_that_is_full_is_refused() -> None:
    decoder = replace(DECODERS[0], capacity=3, steps=(2, 2))
    with pytest.raises(gx.InputError, match=r"'past.key' is full: it holds 2 rows, 2 more exceed its capacity of 3"):
        run(decoder, "simulator")

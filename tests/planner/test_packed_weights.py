"""Packed weights in plans: which slots are weights, names of equal layers, and the same form at all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Buffer, Role, format_plan
from gpuexec.ir.plan_json import from_json, to_json
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import ColumnsFirst, PackedForm
from gpuexec.planner.emitter import CommandEmitter
from gpuexec.planner.template import Template, plan_graph
from gpuexec.planner.unpacked_plan import UnpackedBuffer, UnpackedPlan, dense
from tests.execution.weights.packed_models import SHAPE, PaddedRows, Recall, weight
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import FLOAT

SPEC = TensorSpec((4, 6), FLOAT)


def emitter(target: str = "sm_90", choices: list[int] | None = None) -> CommandEmitter:
    """Return an emitter over a weight, an input, a temporary, a table and a packed weight."""
    form = PackedForm.of(ColumnsFirst(), SPEC, (0, 1))
    unpacked = UnpackedPlan(
        [
            UnpackedBuffer(Role.CONSTANT, SPEC.nbytes, "w"),
            UnpackedBuffer(Role.INPUT, SPEC.nbytes, "x"),
            UnpackedBuffer(Role.TEMP, SPEC.nbytes),
            UnpackedBuffer(Role.CONSTANT, SPEC.nbytes, data=bytes(SPEC.nbytes)),
            UnpackedBuffer(Role.CONSTANT, SPEC.nbytes, packed=(0, form)),
        ]
    )
    return CommandEmitter(Target.named(target), unpacked, choices)


def plan(graph: Graph, target: str = "sm_90", rows: int = 8) -> Template:
    return plan_graph(graph, specs(rows), Target.named(target))


def specs(rows: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec((rows,), FLOAT)}


def constants(template: Template) -> list[Buffer]:
    return [buffer for buffer in template.plan.buffers if buffer.role is Role.CONSTANT]


def test_a_whole_weight_is_a_dense_slot_of_its_form() -> None:
    emit = emitter()
    slot = emit.packed(dense(0, SPEC), PaddedRows(4))
    assert slot is not None and slot.shape == (4, 8) and slot.is_contiguous and slot.buffer == 5
    (buffer,) = emit.effects.buffers
    assert buffer.nbytes == 4 * 8 * 4
    assert buffer.packed == (0, PackedForm("test_padded_rows", (4,), SPEC, (0, 1)))


def test_a_packed_weight_is_packed_again_behind_its_own_form() -> None:
    emit = emitter()
    slot = emit.packed(dense(4, SPEC), PaddedRows(4))
    assert slot is not None and slot.shape == (4, 8)
    (buffer,) = emit.effects.buffers
    first = PackedForm.of(ColumnsFirst(), SPEC, (0, 1))
    assert buffer.packed == (4, PackedForm("test_padded_rows", (4,), SPEC, (0, 1), first))


@pytest.mark.parametrize(
    ("shape", "strides", "axes", "source"),
    [
        ((6, 4), (1, 6), (1, 0), (4, 6)),
        ((2, 6, 2), (6, 1, 12), (1, 2, 0), (2, 2, 6)),
        ((4, 1, 6), (6, 0, 1), (0, 1, 2), (4, 1, 6)),
        ((6, 1, 4), (1, 99, 6), (2, 0, 1), (1, 4, 6)),
    ],
)
def test_a_transposed_view_is_packed_as_it_looks(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...], source: tuple[int, ...]
) -> None:
    emit = emitter()
    array = np.arange(24, dtype=np.float32)
    slot = emit.packed(Slot(0, 0, TensorSpec(shape, FLOAT), strides), ColumnsFirst())
    (buffer,) = emit.effects.buffers
    assert slot is not None and buffer.packed is not None
    form = buffer.packed[1]
    assert (form.source.shape, form.axes) == (source, axes)
    seen = np.lib.stride_tricks.as_strided(array, shape, [4 * stride for stride in strides])
    np.testing.assert_array_equal(form.pack(array), seen.swapaxes(-1, -2))
    assert slot.shape == (*shape[:-2], shape[-1], shape[-2])


@pytest.mark.parametrize(
    "slot",
    [
        *(dense(buffer, SPEC) for buffer in (1, 2, 3)),
        Slot(4, 24, TensorSpec((3, 6), FLOAT), (6, 1)),
        Slot(0, 0, TensorSpec((2, 6), FLOAT), (6, 1)),
        Slot(0, 24, TensorSpec((3, 6), FLOAT), (6, 1)),
        Slot(0, 0, TensorSpec((4, 6), FLOAT), (0, 1)),
        Slot(0, 80, TensorSpec((4, 6), FLOAT), (-6, 1)),
        Slot(0, 0, TensorSpec((0, 6), FLOAT), (6, 1)),
    ],
)
def test_what_is_no_whole_weight_is_not_packed(slot: Slot) -> None:
    emit = emitter()
    assert emit.packed(slot, ColumnsFirst()) is None
    assert emit.effects.buffers == []


def test_a_weight_of_this_node_is_not_packed() -> None:
    emit = emitter()
    assert emit.packed(emit.temp((4, 6), FLOAT), ColumnsFirst()) is None


@pytest.mark.parametrize("target", ["cpu", "pixel_90"])
def test_targets_without_kernels_or_with_textures_pack_nothing(target: str) -> None:
    assert emitter(target).packed(dense(0, SPEC), ColumnsFirst()) is None


def test_all_sizes_of_a_class_are_packed_as_the_upper_end() -> None:
    assert emitter(choices=[0]).packed(dense(0, SPEC), ColumnsFirst()) is None
    with pytest.raises(PlanError, match="is not a whole weight, as it is at the upper end"):
        emitter(choices=[1]).packed(dense(1, SPEC), ColumnsFirst())


def test_a_weight_that_is_only_read_packed_is_in_the_plan_once() -> None:
    build = GraphBuilder()
    x, w = build.input("x", "n"), build.constant(weight(), "w")
    template = plan(build.graph(build.node(Recall(), x, w)))
    (buffer,) = constants(template)
    form = PackedForm("columns_first", (), TensorSpec(SHAPE, FLOAT), (0, 1))
    assert (buffer.name, buffer.nbytes, buffer.form) == ("w", weight().nbytes, form)
    assert "w as columns_first()" in format_plan(template.plan)


def test_equal_layers_have_weights_of_their_own() -> None:
    build = GraphBuilder()
    x = build.input("x", "n")
    weights = [build.constant(weight(seed), f"w{seed}") for seed in range(3)]
    template = plan(build.graph(*(build.node(Recall(), x, w) for w in weights)))
    assert [buffer.name for buffer in constants(template)] == ["w0", "w1", "w2"]
    for port, buffer in zip(template.plan.outputs, constants(template), strict=True):
        readers = [c for c in template.plan.segment.commands if any(s.buffer == port.buffer for s in c.writes_to())]
        assert [[slot.buffer for slot in reader.reads_from()] for reader in readers] == [[buffer.id]]


def test_a_size_that_asks_for_another_form_is_refused() -> None:
    build = GraphBuilder()
    x, w = build.input("x", "n"), build.constant(weight(), "w")
    template = plan(build.graph(build.node(Recall(by_rows=1), x, w)))
    with pytest.raises(PlanError, match="is packed in another form at this size"):
        template.specialise(specs(5))


def test_sizes_of_a_class_share_the_packed_weight() -> None:
    build = GraphBuilder()
    x, w = build.input("x", "n"), build.constant(weight(), "w")
    template = plan(build.graph(build.node(Recall(), x, w)))
    (command,) = template.specialise(specs(7)).commands
    assert [slot.buffer for slot in command.reads_from()] == [constants(template)[0].id]


@pytest.mark.parametrize("op", [Recall(), Recall(width=16)])
def test_plans_with_packed_weights_are_data(op: Recall) -> None:
    build = GraphBuilder()
    x, w = build.input("x", "n"), build.constant(weight(), "w")
    made: Any = plan(build.graph(build.node(op, x, w))).plan
    assert from_json(to_json(made)) == made
    assert to_json(made).count('"form":{') == 1

"""Attention that appends: the operator, and the kernel of few queries where memories grow in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import find_form
from gpuexec.ops.nn.attention_few import FEW_QUERIES
from gpuexec.ops.tensor.append import Append
from gpuexec.planner import lower
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case
from tests.ops.harness import run_case
from tests.ops.strided import Window
from tests.ops.test_attention_few import PRECISIONS, make

Array = np.ndarray[Any, Any]
NAME, ATTENTION = "gpuexec.AppendingAttention", "gpuexec.ScaledDotProductAttention"
SOURCE = "attention_few.cu"
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
RNG = np.random.default_rng(8)
JOINS = (("Concat", (("axis", 2),), (0, 1)), ("Concat", (("axis", 2),), (2, 3)))
SWAP = ("Transpose", (("perm", (0, 1, 3, 2)),), (-1,))


def append(id: str, past: int, *arguments: Any, **options: Any) -> Case:
    """Return a case of `make` whose keys and values are those of a past, and new ones behind them."""
    case = make(id, *arguments, **options)
    q, k, v, *operands = case.inputs
    assert q is not None and k is not None and v is not None and case.expected is not None
    group = k.shape[2] if k.ndim == 5 else 1
    k, v = (each[:, :, 0] if group > 1 else each for each in (k, v))
    keys = np.ascontiguousarray(k.swapaxes(2, 3))
    steps: list[Any] = [*JOINS, SWAP]
    shown, place = (-3, -2), 5 + len(operands)
    const = tuple(5 + index for index, each in enumerate(operands) if each is not None and each.size == 1)
    more: list[Array] = []
    if group > 1:
        more = [np.array([2]), np.array([1, 1, group, 1, 1])]
        const += (place, place + 1)
        steps[2:] = [
            ("Unsqueeze", (), (-1, place)),
            ("Expand", (), (-3, place + 1)),
            ("Transpose", (("perm", (0, 1, 2, 4, 3)),), (-4,)),
            ("Unsqueeze", (), (-2, place)),
            ("Expand", (), (-6, place + 1)),
        ]
        shown = (-5, -7)
    attributes = tuple(sorted(case.attributes.items()))
    given = (4, *shown, *range(5, 5 + len(operands)))
    inputs = (keys[:, :, :past], keys[:, :, past:], v[:, :, :past], v[:, :, past:], q, *operands, *more)
    return Case(
        id,
        NAME,
        inputs,
        {"steps": (*steps, (ATTENTION, attributes, given))},
        const=const,
        outputs=(True, True, True),
        expected=(*case.expected, keys, v),
        terms=case.terms,
    )


def append_plainly(id: str, past: int, dtype: Any = FLOAT, **attributes: Any) -> Case:
    """Return a case without a precision, which is worked out in doubles."""
    q, k, v = (RNG.standard_normal(shape).astype(dtype) for shape in ((2, 3, 2, 4), (2, 3, 5, 4), (2, 3, 5, 6)))
    wide_q, wide_k, wide_v = (each.astype(np.float64) for each in (q, k, v))
    scores = np.exp(wide_q @ wide_k.swapaxes(2, 3) * attributes.get("scale", 1.0))
    y = (scores / scores.sum(axis=-1, keepdims=True) @ wide_v).astype(dtype)
    steps = (*JOINS, SWAP, (ATTENTION, tuple(attributes.items()), (4, -3, -2)))
    inputs = (k[:, :, :past], k[:, :, past:], v[:, :, :past], v[:, :, past:], q)
    return Case(id, NAME, inputs, {"steps": steps}, outputs=(True,) * 3, expected=(y, k, v), terms=32)


SOME = RNG.random((2, 1, 3, 20)) > 0.4
CASES = [
    append_plainly("plain", 3, scale=0.5),
    append_plainly("doubles", 0, np.float64, scale=0.25),
    append("one row", 19, (2, 3, 1, 20, 8, 12), scale=0.3),
    append("nothing held", 0, (1, 2, 3, 3, 8, 8)),
    append("nothing new", 20, (1, 2, 1, 20, 8, 8)),
    append("halves", 17, (1, 2, 1, 20, 8, 8), stored=HALF),
    append("floats", 19, (2, 3, 1, 20, 8, 12), FLOAT, scale=0.3),
    append("bfloat16, narrow", 19, (1, 2, 1, 20, 8, 8), BFLOAT16, is_narrow=1),
    append("groups", 18, (1, 4, 2, 20, 8, 8), group=2),
    append(
        "mask", 17, (2, 2, 3, 20, 8, 8), operands=[SOME, np.float32([-np.inf])], score_steps=("Where",), is_guarded=1
    ),
    append("many rows", 7, (1, 2, 40, 47, 8, 8)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_appending_attention(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_shapes_that_are_not_known_are_asked_for_by_the_input_that_has_them() -> None:
    case = next(case for case in CASES if case.id == "groups")
    specs = [None if x is None else TensorSpec(x.shape, x.dtype) for x in case.inputs]
    with pytest.raises(NeedsHostValue) as caught:
        build(NAME, case.attributes).infer(*specs)
    assert (caught.value.index, caught.value.role) == (5, "axes")


def test_steps_that_are_no_attention_over_what_is_joined_are_refused() -> None:
    specs = [TensorSpec((1, 2, 3, 4), FLOAT)] * 5
    for steps in (JOINS, (*JOINS, SWAP), (SWAP, *JOINS)):
        with pytest.raises(InputError, match="expects two Concats, views, and attention as its steps"):
            build(NAME, {"steps": steps}).infer(*specs)


@dataclass(frozen=True)
class Grown:
    """Attention over memories that grow, whose queries and new rows are windows on one product.

    Attributes:
        id: Its name.
        sizes: Batch, heads, queries, depth, values.
        past: Rows that are held.
        new: Rows that are appended.
        group: Heads of queries that share one of keys.
        dtype: Of products.
        stored: Of what is held and of the product.
        capacity: Rows that there is room for.
        spare: Numbers of a row of the product that nothing reads.
        mask: Bools, of ``[queries, keys]``.
        attributes: Of attention.
        copies: Launches that copy new rows.
    """

    id: str
    sizes: tuple[int, int, int, int, int]
    past: int
    new: int = 1
    group: int = 1
    dtype: Any = HALF
    stored: Any = FLOAT
    capacity: int = 40
    spare: int = 0
    mask: Array | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    copies: int = 0

    @property
    def of_keys(self) -> int:
        """Heads of keys."""
        return self.sizes[1] // self.group

    @property
    def rows(self) -> int:
        """Rows of the product."""
        return max(self.new, self.sizes[2])

    @property
    def width(self) -> int:
        """Numbers of a row of the product."""
        _, heads, _, depth, values = self.sizes
        return heads * depth + self.of_keys * (depth + values) + self.spare

    def make_graph(self, *, joins_heads: bool = False) -> Graph:
        """Return the graph; with one axis for batch and heads where attention is to see it so."""
        batch, heads, queries, depth, values = self.sizes
        draw, of_keys, stored = GraphBuilder(), self.of_keys, np.dtype(self.stored)
        product = draw.input("product", batch * self.rows * self.width, dtype=stored)

        def show(start: int, count: int, rows: int, size: int) -> Any:
            strides = (self.rows * self.width, size, self.width, 1)
            return draw.node(Window((batch, count, rows, size), strides, start), product)

        q, k_start = show(0, heads, queries, depth), heads * depth
        grown = []
        for name, start, size in (("k", k_start, depth), ("v", k_start + of_keys * depth, values)):
            held = draw.input(name, batch, of_keys, "past", size, dtype=stored)
            rows = show(start, of_keys, self.new, size)
            grown.append(draw.node(Append(2, self.capacity, name), held, rows, name=f"append {name}"))
        k, v = grown
        if self.group > 1:
            axes = draw.constant(np.array([2]))
            shape = draw.constant(np.array([1, 1, self.group, 1, 1]))
            k, v = (
                draw.node(build("Expand", {}), draw.node(build("Unsqueeze", {}), each, axes), shape) for each in (k, v)
            )
        if joins_heads:
            q, k, v = (
                draw.node(build("Reshape", {}), each, draw.constant(np.array([batch * heads, -1, size])))
                for each, size in ((q, depth), (k, depth), (v, values))
            )
        last = {3: (0, 2, 1), 4: (0, 1, 3, 2), 5: (0, 1, 2, 4, 3)}[3 if joins_heads else 4 + (self.group > 1)]
        k = draw.node(build("Transpose", {"perm": last}), k)
        operands, steps = [], ()
        if self.mask is not None:
            operands = [draw.input("mask", "queries", "keys", dtype=np.dtype(np.bool_))]
            operands.append(draw.constant(np.float32([-np.inf])))
            steps = ("Where",)
        attributes = {"precision": PRECISIONS[np.dtype(self.dtype)], "score_steps": steps, **self.attributes}
        y = draw.node(build(ATTENTION, attributes), q, k, v, *operands)
        return draw.graph(y, *grown)

    def draw(self) -> dict[str, Array]:
        """Return the inputs; memories with numbers in their room."""
        batch, _, _, depth, values = self.sizes
        rng = np.random.default_rng(self.past)
        shapes: dict[str, tuple[int, ...]] = {"product": (batch * self.rows * self.width,)}
        shapes |= {name: (batch, self.of_keys, self.capacity, size) for name, size in (("k", depth), ("v", values))}
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        stored = {name: array.astype(self.stored) for name, array in arrays.items()}
        return stored if self.mask is None else stored | {"mask": self.mask}

    def describe(self, past: int) -> dict[str, TensorSpec]:
        """Return the specs of the inputs with so many rows held."""
        arrays = self.draw()
        specs = {name: TensorSpec(array.shape, array.dtype) for name, array in arrays.items()}
        for name in "kv":
            batch, heads, _, size = specs[name].shape
            specs[name] = specs[name].with_shape((batch, heads, past, size))
        return specs

    def plan(self, target: Target, **options: Any) -> Template:
        """Plan it."""
        return plan_graph(self.make_graph(**options), self.describe(self.past), target, grows=True)


MASK = RNG.random((3, 24)) > 0.3
GROWN = [
    Grown("one row", (2, 2, 1, 8, 8), 9),
    Grown("nothing held", (1, 2, 2, 8, 8), 0, new=2),
    Grown("nothing new", (1, 2, 1, 8, 8), 5, new=0),
    Grown("full", (1, 2, 1, 8, 8), 39),
    Grown("values wider than keys", (1, 3, 1, 8, 36), 11, new=3),
    Grown("keys wider than values", (2, 1, 2, 40, 12), 11, new=2),
    Grown("halves", (1, 2, 1, 16, 16), 13, stored=HALF),
    Grown("rows of halves", (1, 8, 2, 16, 16), 13, new=2, stored=HALF, group=4),
    Grown("floats", (2, 4, 2, 16, 16), 13, new=2, dtype=FLOAT, group=2),
    Grown("slices of floats", (1, 4, 1, 8, 8), 517, new=3, dtype=FLOAT, group=4, capacity=600),
    Grown("bfloat16", (1, 2, 1, 16, 16), 13, dtype=BFLOAT16, stored=BFLOAT16),
    Grown("floats as bfloat16", (1, 6, 1, 16, 16), 13, dtype=BFLOAT16, group=3),
    Grown("groups in tiles of rows", (2, 7, 2, 8, 8), 30, new=3, group=7),
    Grown("mask", (2, 2, 3, 8, 8), 21, new=3, mask=MASK, attributes={"is_guarded": 1}),
    Grown("slices", (1, 4, 1, 8, 8), 517, new=3, group=4, capacity=600),
    Grown("slices of a wide head", (1, 1, 1, 128, 128), 130, new=FEW_QUERIES, capacity=160),
    Grown("a new tile of keys", (1, 2, 1, 8, 8), 128, new=2, capacity=140),
    Grown("odd rows", (1, 2, 1, 8, 8), 9, spare=2, new=2, copies=2),
]


def run_grown(grown: Grown, device: str, **options: Any) -> list[Array]:
    """Return what attention gives, and all bytes of both memories."""
    opened, specs = open_living(device), grown.describe(grown.past)
    template, arrays = grown.plan(opened.target, **options), grown.draw()
    variant = template.specialise(specs)
    constants = {value.name: array for value, array in grown.make_graph(**options).constants.items()}
    with LoadedPlan(template.plan, constants, opened) as loaded:
        loaded.run(arrays, variant)
        return loaded.download([variant.outputs[0], *(TensorSpec.of(arrays[name]) for name in "kv")])


def list_launches(commands: Sequence[Any]) -> list[str]:
    return [each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)]


@pytest.mark.parametrize("grown", GROWN, ids=lambda each: each.id)
@pytest.mark.parametrize("device", ["simulator", "check"])
def test_launch_stores_what_copies_would(grown: Grown, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = run_grown(grown, device)
    with monkeypatch.context() as patch:
        patch.setattr(lower, "join_appends", lambda graph, *rest: graph)
        apart = run_grown(grown, device)
    for got, expected in zip(joined, apart, strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
    held = grown.draw()
    end = grown.past + grown.new
    for name, memory in zip("kv", joined[1:], strict=True):
        for rows in (slice(grown.past), slice(end, None)):
            np.testing.assert_array_equal(memory[:, :, rows], held[name][:, :, rows])
        assert not grown.new or (memory[:, :, grown.past : end] != held[name][:, :, grown.past : end]).any()


@pytest.mark.parametrize("grown", GROWN, ids=lambda each: each.id)
def test_launch_appends_where_rows_lie_as_vectors(grown: Grown) -> None:
    names = list_launches(grown.plan(Target.named("sm_90")).plan.segment.commands)
    assert names == ["copy_strided"] * grown.copies + ["attend_few"]


def test_heads_that_are_one_axis_with_the_batch_are_copied() -> None:
    """No stride of theirs tells which new row is whose."""
    grown = Grown("joined", (2, 2, 1, 8, 8), 9)
    names = list_launches(grown.plan(Target.named("sm_90"), joins_heads=True).plan.segment.commands)
    assert sorted(set(names)) == ["attend_few", "copy_strided"] and names[-1] == "attend_few"
    (y, *_), (apart, *_) = run_grown(grown, "check", joins_heads=True), run_grown(grown, "check")
    np.testing.assert_array_equal(y.ravel(), apart.ravel())


def test_work_of_a_launch_that_appends_has_the_rows_and_what_is_held() -> None:
    grown = Grown("work", (1, 2, 1, 64, 64), 300, capacity=512)
    template = grown.plan(Target.named("sm_90"))
    (launch,) = template.specialise(grown.describe(300)).commands[-1:]
    assert isinstance(launch, Launch) and launch.kernel.source == SOURCE
    form = find_form(launch.kernel)
    assert form is not None
    work = form(launch)
    assert work.operand_nbytes[1] == work.operand_nbytes[2] == 2 * 300 * 64 * 4
    rooms = [slot for slot in launch.writes_to() if slot.shape == (1, 2, 1, 64)]
    assert sum(slot.spec.nbytes for slot in rooms[-2:]) == 2 * 2 * 64 * 4
    assert all(isinstance(each, Slot) for each in launch.arguments[7:11])


@pytest.mark.parametrize("past", [0, 1, 5, 38, 39])
def test_all_sizes_of_a_class_launch_alike(past: int) -> None:
    for grown in (GROWN[0], GROWN[10]):
        template = grown.plan(Target.named("sm_90"))
        new = min(grown.new, grown.capacity - past)
        if new == grown.new:
            assert list_launches(template.specialise(grown.describe(past)).commands) == ["attend_few"]

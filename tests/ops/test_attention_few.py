"""Attention of few queries in float and 16 bits: the kernel, which rounds what it reads, when it is taken, its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.module import load_file
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import find_form
from gpuexec.ops.nn.attention_few import FEW_QUERIES
from gpuexec.planner.template import plan_graph
from tests.bench.architectures import SMALL_ARCHITECTURES
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case
from tests.ops.counted_launch import count_wavefronts
from tests.ops.direct import DirectEmitter
from tests.ops.harness import run_case

Array = np.ndarray[Any, Any]
NAME = "gpuexec.ScaledDotProductAttention"
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
PRECISIONS = {FLOAT: "", HALF: "fp16", BFLOAT16: "bf16"}
# Terms of a sum of weights that are rounded, as many as make half a unit in their last place of float's.
ROUNDED_TERMS = {HALF: 1 << 12, BFLOAT16: 1 << 15}
RNG = np.random.default_rng(3)
INF = np.inf


def make(
    id: str,
    sizes: Sequence[int],
    dtype: Any = HALF,
    stored: Any = FLOAT,
    operands: Sequence[Array] = (),
    group: int = 1,
    v: Array | None = None,
    **attributes: Any,
) -> Case:
    """Return a case of sizes [batch, heads, queries, keys, depth, values], worked out in double of rounded operands."""
    batch, heads, queries, keys, depth, values = sizes
    of_keys = heads // group
    q, k = (RNG.standard_normal(shape) for shape in ((batch, heads, queries, depth), (batch, of_keys, keys, depth)))
    v = RNG.standard_normal((batch, of_keys, keys, values)) if v is None else v
    q, k, v = (each.astype(np.float32).astype(stored) for each in (q, k, v))
    wide_q, wide_k, wide_v = (each.astype(dtype).astype(np.float64) for each in (q, k, v))
    wide_k, wide_v = (each.repeat(group, axis=1) for each in (wide_k, wide_v))
    given = iter(operands)
    with np.errstate(all="ignore"):
        scores = wide_q @ wide_k.swapaxes(2, 3) * attributes.get("scale", 1.0)
        for step in attributes.get("score_steps", ()):
            scores = np.where(next(given), scores, next(given)) if step == "Where" else scores + next(given)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-INF))
        weights /= weights.sum(axis=-1, keepdims=True)
        if attributes.get("is_guarded"):
            weights[np.isnan(weights)] = 0
        y = (weights @ wide_v).astype(dtype if attributes.get("is_narrow") else np.float32)
    y = y if attributes.get("perm") is None else y.transpose(attributes["perm"])
    k = k.swapaxes(2, 3)
    if group > 1:
        k, v = (np.broadcast_to(each[:, :, np.newaxis], (*each.shape[:2], group, *each.shape[2:])) for each in (k, v))
    attributes["precision"] = PRECISIONS[np.dtype(dtype)]
    const = tuple(3 + index for index, each in enumerate(operands) if each.size == 1)
    terms = ROUNDED_TERMS.get(np.dtype(dtype), keys + depth)
    return Case(id, NAME, (q, k, v, *operands), attributes, const=const, expected=(y,), terms=terms)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


SOME = RNG.random((2, 1, 3, 70)) > 0.4
SOME[1, 0, 2] = False
LONE = np.zeros((1, 2, 40, 8), np.float32)
LONE[0, 1, 7, 3] = np.nan
CASES = [
    make("one query", (2, 3, 1, 70, 16, 12), scale=0.3),
    make("one query of a head of 128", (1, 1, 1, 67, 128, 128), BFLOAT16, scale=0.1),
    make("slices", (1, 2, 1, 600, 8, 8), BFLOAT16, scale=0.3, perm=(0, 2, 1, 3)),
    make("slices of rows", (1, 2, 3, 600, 8, 36), scale=0.3),
    make("halves", (1, 2, 1, 300, 64, 64), stored=HALF, scale=0.1),
    make("rows of halves", (2, 2, 5, 33, 20, 24), stored=HALF),
    make("bfloat16", (1, 2, 1, 40, 8, 8), BFLOAT16, BFLOAT16),
    make("rows of bfloat16", (1, 4, 2, 40, 8, 8), BFLOAT16, BFLOAT16, group=2),
    make("rows of floats as bfloat16", (1, 4, 2, 40, 8, 8), BFLOAT16, group=4),
    make("groups and a bias", (1, 8, 1, 130, 16, 16), operands=[draw(8, 1, 130)], group=4, score_steps=("Add",)),
    make("mask", (2, 2, 3, 70, 8, 8), operands=[SOME, np.float32([-1e9])], score_steps=("Where",)),
    make("empty rows", (2, 2, 3, 70, 8, 8), operands=[SOME, np.float32([-INF])], score_steps=("Where",)),
    make(
        "guarded", (2, 2, 3, 70, 8, 8), operands=[SOME, np.float32([-INF])], score_steps=("Where",), is_guarded=1
    ),
    make("NaN in a value", (1, 2, 1, 40, 8, 8), v=LONE),
    make("floats", (2, 3, 1, 70, 16, 12), FLOAT, scale=0.3),
    make("floats in slices of rows", (1, 4, 3, 600, 8, 36), FLOAT, group=2, scale=0.3, perm=(0, 2, 1, 3)),
    make("floats and a bias", (1, 8, 1, 130, 16, 16), FLOAT, operands=[draw(8, 1, 130)], group=4, score_steps=("Add",)),
    make(
        "guarded floats", (2, 2, 3, 70, 8, 8), FLOAT, operands=[SOME, np.float32([-INF])], score_steps=("Where",),
        is_guarded=1,
    ),
    make("NaN in a float", (1, 2, 1, 40, 8, 8), FLOAT, v=LONE),
    make("no keys for floats", (1, 2, 1, 0, 8, 8), FLOAT),
    make("no keys", (1, 2, 1, 0, 8, 8)),
    make("no queries", (1, 2, 0, 8, 8, 8)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_few_queries(checks: str, case: Case) -> None:
    run_case(case, checks)


class CountingEmitter(DirectEmitter):
    """Runs the kernel in count mode; keeps its launch and what was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[LaunchCounts] = []
        self.made: list[Launch] = []

    def slot(self, array: Array, known: bool = False) -> Slot:
        """Return a window on memory as a device aligns it."""
        slot = super().slot(array, known)
        self._align()
        return slot

    def fresh(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return a window on new memory, aligned alike."""
        slot = super().fresh(shape, dtype)
        self._align()
        return slot

    def _align(self) -> None:
        memory = self.arrays[-1]
        room = np.empty(memory.size + 256, np.uint8)
        start = -room.ctypes.data % 256
        self.arrays[-1] = room[start : start + memory.size]
        self.arrays[-1][:] = memory

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel."""
        self.made.append(Launch(kernel, grid, block, tuple(arguments), tuple(writes), shared_bytes))
        values = [self.arrays[a.buffer][a.offset_bytes :] if isinstance(a, Slot) else a for a in arguments]
        function = load_file(kernel.source, [kernel.expression], mode="count")[kernel.expression]
        function.launch_arrays(grid, block, *values, counts=self.counts)


def lower(case: Case, emit: DirectEmitter, dtype: Any = FLOAT) -> Array:
    """Lower a case through an emitter; return what is made of it, in a type."""
    op = build(case.op, case.attributes)
    assert op.lower is not None and case.expected is not None
    y = emit.fresh(case.expected[0].shape, dtype)
    known = [place in case.const for place in range(len(case.inputs))]
    op.lower(emit, tuple(emit.slot(x, known=k) for x, k in zip(case.inputs, known, strict=True) if x is not None), (y,))
    return emit.read(y)


def launch(case: Case, dtype: Any = FLOAT, target: str = "sm_90") -> list[str]:
    """Return the names of the kernels that a case is lowered to."""
    emit = DirectEmitter()
    emit.target = Target.named(target)
    lower(case, emit, dtype)
    return [kernel.expression.partition("<")[0] for kernel, _ in emit.launches]


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_few_queries_are_one_launch_at_any_length(target: str) -> None:
    for keys in (1, 77, 900):
        assert launch(make("", (1, 2, 1, keys, 8, 8)), target=target) == ["attend_few"]
        assert launch(make("", (1, 2, 1, keys, 8, 8), FLOAT), target=target) == ["attend_few"]
    narrow = make("", (1, 2, FEW_QUERIES, 77, 8, 8), is_narrow=1, perm=(0, 2, 1, 3))
    assert launch(narrow, HALF, target) == ["attend_few"]


@pytest.mark.parametrize(
    ("queries", "keys", "kernels"),
    [
        (1, 4096, ["attend_few"]),
        (FEW_QUERIES, 256, ["attend_few"]),
        (FEW_QUERIES, 4096, ["gemv_along_k", "softmax", "gemv_along_columns"]),
    ],
)
def test_floats_are_one_launch_where_that_takes_less_time(queries: int, keys: int, kernels: Sequence[str]) -> None:
    draw, specs = GraphBuilder(), {"q": TensorSpec((1, 12, queries, 64), FLOAT)}
    specs |= dict.fromkeys("kv", TensorSpec((1, 12, keys, 64), FLOAT))
    q, k, v = (draw.input(name, *spec.shape) for name, spec in specs.items())
    k = draw.node(build("Transpose", {"perm": (0, 1, 3, 2)}), k)
    plan = plan_graph(draw.graph(draw.node(build(NAME, {}), q, k, v)), specs, Target.named("sm_90")).plan
    names = [each.kernel.expression for each in plan.segment.commands if isinstance(each, Launch)]
    assert [name.partition("<")[0] for name in names] == kernels


@pytest.mark.parametrize("precision", ["tf32", "reference"])
def test_floats_of_other_precisions_are_multiplied_as_these_say(precision: str) -> None:
    case = make("", (1, 2, 1, 77, 8, 8), FLOAT)
    assert "attend_few" not in launch(replace(case, attributes={**case.attributes, "precision": precision}))


@pytest.mark.parametrize(
    "sizes",
    [(1, 2, FEW_QUERIES + 1, 20, 8, 8), (1, 1, 1, 20, 6, 8), (1, 1, 1, 20, 8, 132)],
    ids=["many queries", "odd depth", "long values"],
)
def test_other_heads_are_rounded_by_launches(sizes: Sequence[int]) -> None:
    kernels = launch(make("", sizes))
    assert "attend_few" not in kernels and kernels[:3] == ["convert"] * 3


def test_a_decoding_step_of_16_bits_has_no_cast_of_its_own() -> None:
    """Roundings are in the stores of kernels in front, and in the loads of attention."""
    small = SMALL_ARCHITECTURES["gpt2_decode"]()
    for precision in ("fp16", "bf16"):
        plan = replace(small, precision=precision).plan(Target.named("sm_90"))
        names = [each.kernel.expression for each in plan.segment.commands if isinstance(each, Launch)]
        assert sum("attend_few" in each for each in names) == 1, "of one layer"
        assert not [each for each in names if each.startswith(("convert", "softmax"))]
    strict = small.plan(Target.named("sm_90"))
    assert len(plan.segment.commands) <= len(strict.segment.commands)
    names = [each.kernel.expression for each in strict.segment.commands if isinstance(each, Launch)]
    assert "attend_few<float, float, 1>" in names and not [each for each in names if each.startswith("softmax")]


@pytest.mark.parametrize(
    ("sizes", "dtype", "stored"),
    [
        ((1, 3, 1, 300, 64, 64), HALF, FLOAT),
        ((1, 1, 4, 130, 32, 32), HALF, HALF),
        ((1, 2, 1, 200, 64, 64), FLOAT, FLOAT),
    ],
    ids=str,
)
def test_work_is_as_counted_and_takes_the_least_sectors(sizes: Sequence[int], dtype: Any, stored: Any) -> None:
    emit = CountingEmitter()
    lower(make("", sizes, dtype, stored, scale=0.1), emit)
    (made,), (counts,) = emit.made, emit.counts
    form = find_form(made.kernel)
    assert form is not None
    work = form(made)
    for line in counts.lines:
        if line.access != "atomic":
            assert line.counts.ratio == 1.0, line
    assert {(line.space, line.width) for line in counts.lines} >= {("global", 4 * np.dtype(stored).itemsize)}
    assert work.multiply_adds == counts.multiply_adds.issued
    assert work.needed_multiply_adds <= counts.multiply_adds.issued
    # Count mode has no L1, which answers what other warps of a block read of q.
    assert 0.8 <= work.l2_nbytes / (counts.l2_read_nbytes + counts.l2_written_nbytes) <= 1
    assert work.wavefronts == count_wavefronts(counts, 1)

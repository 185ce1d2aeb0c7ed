"""Attention as exporters spell it out, in both forms that it is lowered in, and which one is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.nn import dot_product_attention
from gpuexec.planner.prediction import PlanPrediction, predict_plan
from gpuexec.planner.template import plan_graph
from tests.ops.case import Case
from tests.ops.direct import DirectEmitter
from tests.ops.harness import run_case

Array = np.ndarray[Any, Any]
NAME = dot_product_attention.ScaledDotProductAttention.name
RNG = np.random.default_rng(5)
INF = np.inf


def draw(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def make(
    id: str,
    sizes: Sequence[int],
    operands: Sequence[Array] = (),
    group: int = 1,
    dtype: Any = np.float32,
    q: Array | None = None,
    **attributes: Any,
) -> Case:
    """Return a case of sizes [batch, heads, queries, keys, depth, values], worked out in double.

    Heads of K and V in groups share their bytes. Numbers among the operands are constants.
    """
    batch, heads, queries, keys, depth, values = sizes
    q = draw(batch, heads, queries, depth, dtype=dtype) if q is None else q
    k, v = draw(batch, heads // group, depth, keys, dtype=dtype), draw(batch, heads // group, keys, values, dtype=dtype)
    full_k, full_v = (each.repeat(group, axis=1) for each in (k, v))
    if group > 1:
        k, v = (np.broadcast_to(each[:, :, np.newaxis], (*each.shape[:2], group, *each.shape[2:])) for each in (k, v))
    expected = work_out(q, full_k, full_v, operands, **attributes)
    const = tuple(3 + index for index, each in enumerate(operands) if each.size == 1)
    return Case(
        id, NAME, (q, k, v, *operands), attributes, const=const, expected=(expected,), terms=(keys + 1) * (depth + 1)
    )


def work_out(q: Array, k: Array, v: Array, operands: Sequence[Array], **attributes: Any) -> Array:
    given = iter(operands)
    with np.errstate(all="ignore"):
        scores = q.astype(np.float64) @ k * attributes.get("scale", 1.0)
        for step in attributes.get("score_steps", ()):
            if step == "Tanh":
                scores = np.tanh(scores)
            elif step in ("Where", "Fill"):
                mask, other = next(given), next(given)
                scores = np.where(mask if step == "Where" else ~mask, scores, other)
            else:
                function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[step]
                scores = function(scores, next(given).astype(np.float64))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-INF))
        weights /= weights.sum(axis=-1, keepdims=True)
        if attributes.get("is_guarded"):
            weights[np.isnan(weights)] = 0
        y = weights @ v
    perm = attributes.get("perm")
    return (y if perm is None else y.transpose(perm)).astype(q.dtype)


def number(value: float) -> Array:
    return np.array(value, np.float32)


SIZES = (2, 4, 5, 7, 8, 6)
SOME = RNG.random((5, 7)) > 0.3
SOME[2] = False
FAR = np.where(np.arange(7) < 4, 0, -3.4e38).astype(np.float32)
WILD = draw(2, 4, 5, 8)
WILD[0, 1, 2] = np.nan
CASES = [
    make("plain", SIZES, scale=0.5),
    make("joined", SIZES, scale=0.5, perm=(0, 2, 1, 3)),
    make("bias", SIZES, [draw(2, 1, 1, 7)], scale=0.5, score_steps=("Add",)),
    make("bias of heads", SIZES, [draw(1, 4, 5, 7)], score_steps=("Add",), perm=(0, 2, 1, 3)),
    make("far bias", SIZES, [FAR], score_steps=("Add",)),
    make("bias of one key", SIZES, [draw(5, 1)], score_steps=("Add",)),
    make("mask", SIZES, [SOME, number(-1e9)], scale=0.5, score_steps=("Where",)),
    make("empty rows", SIZES, [SOME, number(-INF)], scale=0.5, score_steps=("Where",)),
    make("guarded", SIZES, [SOME, number(-INF)], scale=0.5, score_steps=("Where",), is_guarded=1),
    make("guarded against NaN", SIZES, q=WILD, is_guarded=1),
    make("NaN", SIZES, q=WILD),
    make("filled", SIZES, [SOME, number(-1e9)], score_steps=("Fill",)),
    make("numbers", SIZES, [number(0.5), number(4), draw(2, 1, 1, 7)], score_steps=("Mul", "Div", "Add")),
    make("capped", SIZES, [number(3), draw(5, 7)], scale=0.3, score_steps=("Tanh", "Mul", "Sub")),
    make("mask and bias", SIZES, [SOME, number(-1e9), FAR], scale=0.5, score_steps=("Where", "Add")),
    make("biases", SIZES, [draw(5, 7), draw(7), draw(1, 4, 1, 1)], score_steps=("Add", "Add", "Mul")),
    make("groups", SIZES, [draw(2, 1, 5, 7)], group=2, score_steps=("Add",), perm=(0, 2, 1, 3)),
    make("groups and a bias of heads", SIZES, [draw(4, 5, 7)], group=2, score_steps=("Add",)),
    make("groups and a bias of a row", SIZES, [draw(7)], group=4, score_steps=("Add",)),
    make("doubles", SIZES, dtype=np.float64, scale=0.3),
    make("one query", (1, 2, 1, 300, 4, 6), [SOME[:1, :1], number(-INF)], score_steps=("Where",)),
    make("chunks", (1, 2, 3, 300, 4, 6), [draw(3, 300)], score_steps=("Add",)),
    make(
        "chunks, empty", (1, 2, 3, 300, 4, 6), [np.full((3, 1), -INF, np.float32)], score_steps=("Add",), is_guarded=1
    ),
    make("tiles", (1, 2, 70, 66, 33, 130), scale=0.1),
    make("no keys", (1, 2, 3, 0, 4, 6)),
    make("no queries", (1, 2, 0, 3, 4, 6)),
]


@pytest.mark.parametrize("is_fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_dot_product_attention(checks: str, case: Case, is_fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot_product_attention, "_is_fused_faster", lambda *_: is_fused)
    run_case(case, checks)


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_any_number_of_axes(checks: str, rank: int) -> None:
    shapes = [(2, 3, 4, *last)[5 - rank :] for last in ((5, 8), (8, 7), (7, 6))]
    arrays = tuple(draw(*shape) for shape in shapes)
    perm = (1, 0, 2) if rank == 3 else None
    expected = work_out(*arrays, (), perm=perm)
    attributes = {} if perm is None else {"perm": perm}
    run_case(Case(f"rank {rank}", NAME, arrays, attributes, expected=(expected,), terms=60), checks)


def test_groups_are_read_where_they_are() -> None:
    emit = DirectEmitter()
    q, y = emit.slot(draw(1, 4, 9, 8)), emit.fresh((1, 4, 9, 6), np.float32)
    k, v = (
        emit.slot(np.broadcast_to(draw(1, 2, 1, *last), (1, 2, 2, *last)))
        for last in ((8, 7), (7, 6))
    )  # fmt: skip
    op = build(NAME, {})
    assert op.lower is not None
    op.lower(emit, (q, k, v), (y,))
    assert not [kernel for kernel, _ in emit.launches if "copy" in kernel.source]


@pytest.mark.parametrize(
    ("attributes", "operands", "message"),
    [
        ({"score_steps": ("Add",)}, (), "expects steps"),
        ({"score_steps": ("Exp",)}, (), "expects steps"),
        ({}, (draw(7),), "expects steps"),
        ({"score_steps": ("Where",)}, (draw(7), number(0)), "a mask"),
        ({"score_steps": ("Add",)}, (draw(7).astype(np.float64),), "the operand of Add"),
    ],
)
def test_operands_that_do_not_fit_are_refused(attributes: Any, operands: Sequence[Array], message: str) -> None:
    arrays = (draw(5, 8), draw(8, 7), draw(7, 6), *operands)
    with pytest.raises(InputError, match=message):
        build(NAME, attributes).infer(*map(TensorSpec.of, arrays))


def test_halves_are_refused() -> None:
    halves = [TensorSpec(shape, np.dtype(np.float16)) for shape in ((5, 8), (8, 7), (7, 6))]
    with pytest.raises(InputError, match="Q"):
        build(NAME, {}).infer(*halves)


def predict(architecture: str, sizes: Sequence[int]) -> PlanPrediction:
    batch, heads, queries, keys, depth = sizes
    shapes = ((batch, heads, queries, depth), (batch, heads, depth, keys), (batch, heads, keys, depth))
    specs = {f"x{i}": TensorSpec(shape, np.dtype(np.float32)) for i, shape in enumerate(shapes)}
    values, y = tuple(map(Value, specs)), Value("y")
    graph = Graph(values, (y,), (Node(build(NAME, {"scale": depth**-0.5}), values, (y,), "node"),), {}, "g")
    return predict_plan(plan_graph(graph, specs, Target.named(architecture)).plan)


def is_fused(prediction: PlanPrediction) -> bool:
    return any("attend" in row.kernel for row in prediction.commands)


# BERT, ViT, a decoder's step, cross attention, windows, few heads, long sequences.
CHOICES = [
    *((1, 12, 128, 128, 64), (1, 12, 197, 197, 64), (1, 12, 1, 513, 64), (1, 8, 4096, 77, 40), (64, 3, 49, 49, 32)),
    *((1, 4, 8, 8, 16), (1, 8, 64, 64, 64), (1, 12, 1024, 1024, 64), (32, 16, 1024, 1024, 64), (256, 8, 32, 32, 32)),
]


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_120"])
def test_the_form_chosen_is_predicted_to_take_no_longer_than_apart(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [predict(architecture, sizes) for sizes in CHOICES]
    monkeypatch.setattr(dot_product_attention, "_is_fused_faster", lambda *_: False)
    for sizes, got in zip(CHOICES, chosen, strict=True):
        apart = predict(architecture, sizes)
        assert got.predicted_us <= 1.07 * apart.predicted_us, (sizes, got.predicted_us, apart.predicted_us)


def test_few_scores_and_many_on_a_gpu_of_little_bandwidth_stay_on_the_chip() -> None:
    assert is_fused(predict("sm_90", (1, 4, 8, 8, 16))) and is_fused(predict("sm_90", (1, 8, 64, 64, 64)))
    assert not is_fused(predict("sm_90", (1, 12, 128, 128, 64)))
    assert not is_fused(predict("sm_90", (1, 12, 1024, 1024, 64)))
    assert is_fused(predict("sm_89", (32, 16, 1024, 1024, 64)))

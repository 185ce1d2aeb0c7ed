"""Attention: by the reference, by a loop over rows, with a cache, and taken apart."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import gpuexec as gx
from gpuexec.command import Kernel, Slot
from gpuexec.errors import InputError
from gpuexec.graph import Graph, Node, Value, check
from gpuexec.operator import build
from gpuexec.ops.attention import Attention
from gpuexec.ops.attention_launch import FLOATS, MASK_TYPES
from gpuexec.passes.decompose import decompose
from gpuexec.spec import BFLOAT16, TensorSpec
from tests.ops.decomposed import Run, compute, run_kernels, run_nodes
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Array, Case, build_operator, compare, expect, run_case

ALL, SCORES = (True,) * 4, (True, False, False, True)
INF, NAN = np.inf, np.nan
HALVES = (np.dtype(np.float16), BFLOAT16)


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 7) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def attention(
    id: str,
    sizes: tuple[int, ...],
    dtype: Any = np.float32,
    *,
    mask: Array | None = None,
    past: int = 0,
    lengths: tuple[int, ...] | None = None,
    flat: bool = False,
    outputs: tuple[bool, ...] = (True,),
    opset: int = 24,
    **attributes: Any,
) -> Case:
    """A case of random Q, K, V; ``sizes`` are batch, heads of Q and of K, queries, keys, depth, and size of V."""
    batch, heads, of_keys, queries, keys, depth, values = sizes
    q, k = sample((batch, heads, queries, depth), dtype), sample((batch, of_keys, keys, depth), dtype, 8)
    v = sample((batch, of_keys, keys, values), dtype, 9)
    inputs: list[Array | None] = [q, k, v]
    if flat:
        inputs = [x.transpose(0, 2, 1, 3).reshape(*x.shape[::2], x.shape[1] * x.shape[3]) for x in (q, k, v)]
        attributes |= {"q_num_heads": heads, "kv_num_heads": of_keys}
    before = [sample((batch, of_keys, past, size), dtype, 10) if past else None for size in (depth, values)]
    given = None if lengths is None else np.array(lengths)
    inputs += [mask, *before, given]
    return Case(id, "Attention", tuple(inputs[: 7 if opset > 23 else 6]), attributes, outputs=outputs, opset=opset,
                terms=depth + keys + past)  # fmt: skip


def in_double(case: Case) -> Case:
    """The case with what the reference makes of it in double, rounded once: it rounds at each step."""
    types = [None if x is None else x.dtype for x in case.inputs]
    assert types[0] is not None
    wide = tuple(x if x is None or x.dtype.kind in "biu" else x.astype(np.float64) for x in case.inputs)
    attributes = {name: value for name, value in case.attributes.items() if name != "softmax_precision"}
    exact = expect(dataclasses.replace(case, inputs=wide, attributes=attributes))
    return dataclasses.replace(case, expected=tuple(y.astype(types[0]) for y in exact))


def by_rows(case: Case) -> Case:
    """The case with what a loop over rows gives: only keys that take part are looked at."""
    op, inputs = build_operator(case)
    assert isinstance(op, Attention)
    q, k, v, mask, past_key, past_value, lengths = (*inputs, *(None,) * 7)[:7]
    assert q is not None and k is not None and v is not None and q.ndim == 4
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    (batch, heads, queries, depth), keys = q.shape, k.shape[2]
    y, scores = np.zeros((batch, heads, queries, v.shape[3])), np.zeros((batch, heads, queries, keys))
    group = heads // max(k.shape[1], 1)
    scale = max(depth, 1) ** -0.5 if op.scale is None else op.scale
    for b, h, i in np.ndindex(batch, heads, queries):
        at = i + (past if lengths is None else float(lengths[b]) - queries)
        places = np.arange(keys)
        takes = (places <= at) | (not op.is_causal)
        takes &= places < (keys if lengths is None else lengths[b])
        takes &= (op.left_window_size < 0) | (at - places <= op.left_window_size)
        takes &= (op.right_window_size < 0) | (places - at <= op.right_window_size)
        bias = np.zeros(keys)
        if mask is not None:
            row = np.broadcast_to(mask, (batch, heads, queries, mask.shape[-1]))[b, h, i]
            bias[:] = -INF
            bias[: row.size] = np.where(row, 0, -INF) if row.dtype == np.bool_ else row.astype(q.dtype)
            takes &= bias != -INF
        score = scale * (k[b, h // group].astype(np.float64) @ q[b, h, i].astype(np.float64))
        kept = [score]
        score = np.tanh(score / op.softcap) * op.softcap if op.softcap > 0 else score
        kept.append(score)
        kept.append(np.where(takes, score + np.where(takes, bias, 0), -INF))
        part = kept[2][takes]
        weights = np.zeros(keys)
        if part.size and part.max() != -INF:
            with np.errstate(invalid="ignore"):
                weights[takes] = np.exp(part - part.max())
            weights /= weights.sum()
        kept.append(weights)
        scores[b, h, i] = kept[op.qk_matmul_output_mode]
        used = weights != 0
        y[b, h, i] = weights[used] @ v[b, h // group][used].astype(np.float64)
    results = (y, k, v, scores)[: len(case.outputs)]
    return dataclasses.replace(case, expected=tuple(result.astype(q.dtype) for result in results))


def sizes_cases() -> list[Case]:
    """Shapes: tiles that are partly filled, heads that share keys, and each way to divide the work."""
    rows = {
        "plain": (2, 3, 3, 4, 6, 8, 8),
        "shared-keys": (2, 4, 2, 3, 5, 8, 8),
        "one-head-of-keys": (1, 5, 1, 3, 7, 4, 6),
        "one-key": (1, 1, 1, 1, 1, 1, 1),
        "one-tile": (1, 1, 1, 64, 64, 32, 128),
        "beyond-one-tile": (1, 1, 1, 65, 65, 33, 129),
        "tile-across-heads": (1, 3, 1, 40, 20, 8, 8),
        "deep": (1, 2, 1, 3, 9, 300, 10),
        "wide": (1, 1, 1, 17, 9, 10, 300),
        "head-of-256": (1, 2, 2, 2, 40, 256, 256),
        "decoding": (1, 8, 2, 1, 600, 16, 20),
        "decoding-one-chunk": (2, 4, 4, 1, 256, 8, 8),
        "few-rows-beyond-one-chunk": (1, 1, 1, 16, 257, 8, 8),
        "many-rows-in-chunks": (1, 2, 1, 20, 300, 8, 130),
        "most-rows-in-chunks": (1, 1, 1, 64, 257, 4, 4),
        "too-many-rows-for-chunks": (1, 1, 1, 65, 300, 4, 4),
    }
    return [
        *(attention(id, sizes) for id, sizes in rows.items()),
        *(attention(f"{id}-double", sizes, np.float64) for id, sizes in rows.items() if id[0] in "bdmw"),
        *(in_double(attention(f"{id}-half", rows[id], np.float16)) for id in ("plain", "decoding", "beyond-one-tile")),
        attention("flat", rows["shared-keys"], flat=True),
        attention("flat-decoding", rows["decoding"], flat=True, outputs=SCORES),
    ]


def attribute_cases() -> list[Case]:
    sizes, tall = (2, 4, 2, 3, 5, 8, 6), (1, 2, 1, 70, 75, 4, 4)
    modes = [
        attention(
            f"mode{mode}-softcap{cap}", sizes, outputs=SCORES, qk_matmul_output_mode=mode, is_causal=1, softcap=cap
        )
        for mode in range(4)
        for cap in (0.0, 0.7)
    ]
    precisions = [
        in_double(attention(f"precision{code}-{t.name}", sizes, t, outputs=SCORES, softmax_precision=code))
        for code in (1, 10, 11, 16)
        for t in FLOATS
    ]
    windows = [
        attention(f"window-{left}-{right}-{causal}", tall, opset=25, left_window_size=left, right_window_size=right,
                  is_causal=causal)
        for left, right, causal in ((2, -1, 0), (-1, 3, 0), (0, 0, 0), (1, 2, 0), (4, 2, 1), (200, 200, 0))
    ]  # fmt: skip
    return [
        *(by_rows(case) for case in modes),
        *precisions,
        *windows,
        attention("causal", tall, is_causal=1),
        attention("causal-few-keys", (1, 2, 1, 9, 4, 4, 4), is_causal=1),
        attention("scaled", sizes, scale=0.3),
        attention("softcap", sizes, softcap=0.5),
        attention("heads-of-four-axes", sizes, opset=23, q_num_heads=4, kv_num_heads=2),
        by_rows(attention("score-beyond-half", (1, 1, 1, 2, 3, 64, 4), np.float16, outputs=SCORES, scale=1.0)),
    ]


def mask_cases() -> list[Case]:
    sizes = (2, 4, 2, 3, 6, 8, 8)
    random = np.random.default_rng(5)
    shapes = {"1d": (6,), "2d": (3, 6), "3d": (4, 1, 6), "4d": (2, 1, 3, 6), "per-head": (2, 4, 3, 6), "short": (3, 4)}
    masks = {f"bool-{id}": random.random(shape) > 0.3 for id, shape in shapes.items()}
    masks |= {f"float-{id}": sample(shape) for id, shape in shapes.items()}
    masks["infinite"] = np.where(masks["bool-2d"], sample((3, 6)), np.float32(-INF))
    masks["none-left"] = np.array([[True] * 6, [False] * 6, [False, True] * 3])
    masks["none-left-float"] = np.where(masks["none-left"], np.float32(0.5), np.float32(-INF))
    masks["short-by-all"] = np.zeros((3, 0), np.bool_)
    types = {f"type-{t.name}": (3 * sample((3, 6))).astype(t) for t in MASK_TYPES}
    signed = {id: mask for id, mask in types.items() if mask.dtype.kind not in "u"}
    signed |= {id: (mask % 5).astype(mask.dtype) for id, mask in types.items() if mask.dtype.kind == "u"}
    # A mask of one axis and no causality is what the reference takes; of none left it makes what we make.
    return [
        *(attention(id, sizes, mask=mask) for id, mask in masks.items() if id != "short-by-all"),
        by_rows(attention("rounded", sizes, np.float16, mask=np.float32([[2049, 2048, 2047, 0, 2048, 2049]]))),
        by_rows(attention("short-by-all", sizes, mask=masks["short-by-all"])),
        *(by_rows(attention(id, sizes, mask=mask)) for id, mask in signed.items()),
        *(by_rows(attention(f"{id}-scores", sizes, mask=masks[id], outputs=SCORES, qk_matmul_output_mode=mode,
                            is_causal=1)) for id in ("bool-short", "infinite", "none-left") for mode in (2, 3)),
        *(in_double(attention(f"{t.name}-mask", sizes, t, mask=sample((3, 6), t))) for t in HALVES),
        attention("half-decoding-mask", (1, 4, 2, 1, 600, 8, 8), mask=random.random((1, 600)) > 0.5),
    ]  # fmt: skip


def cache_cases() -> list[Case]:
    sizes, decoding = (2, 4, 2, 3, 3, 8, 6), (1, 4, 2, 1, 1, 8, 8)
    types = [attention(f"past-{t.name}", sizes, t, past=5, outputs=ALL) for t in FLOATS]
    lengths = [
        attention(f"lengths-{causal}", (3, 2, 1, 4, 7, 8, 8), lengths=(7, 4, 2), is_causal=causal) for causal in (0, 1)
    ]
    return [
        *(in_double(case) for case in types),
        attention("past-causal", sizes, past=5, outputs=ALL, is_causal=1),
        attention("past-flat", sizes, past=5, outputs=ALL, is_causal=1, flat=True),
        attention("past-opset23", sizes, past=2, outputs=ALL, opset=23),
        attention("past-window", sizes, past=5, outputs=ALL[:3], opset=25, left_window_size=3, is_causal=1),
        attention("past-decoding", decoding, past=700, outputs=ALL[:3], is_causal=1),
        attention("past-mask", sizes, past=4, outputs=ALL[:3], mask=np.tri(3, 7, 3, dtype=np.bool_)),
        attention("past-alone", sizes, past=4),
        attention("past-other-queries", (1, 2, 2, 5, 2, 4, 4), past=3, outputs=ALL[:3], is_causal=1),
        attention("present-without-past", sizes, outputs=ALL),
        attention("present-without-past-flat", sizes, outputs=ALL, flat=True),
        *lengths,
        attention("lengths-window", (2, 2, 2, 4, 9, 8, 8), lengths=(9, 5), opset=25, left_window_size=2),
        attention("lengths-mask", (2, 2, 2, 4, 9, 8, 8), lengths=(5, 6), mask=sample((2, 1, 4, 6))),
        by_rows(attention("lengths-out-of-range", (3, 2, 2, 2, 5, 4, 4), lengths=(-3, 9, 0), outputs=SCORES,
                          qk_matmul_output_mode=3)),
        by_rows(attention("lengths-extreme", (3, 2, 2, 2, 5, 4, 4), lengths=(2**63 - 1, -(2**63), 4), opset=25,
                          right_window_size=3)),
        by_rows(attention("lengths-decoding", (3, 2, 1, 1, 600, 4, 4), lengths=(1, 256, 300), is_causal=1)),
    ]  # fmt: skip


def special_cases() -> list[Case]:
    sizes = (1, 2, 1, 3, 6, 4, 4)
    empties = {
        "batches": (0, 2, 1, 3, 6, 4, 4),
        "heads": (1, 0, 0, 3, 6, 4, 4),
        "queries": (1, 2, 1, 0, 6, 4, 4),
        "keys": (1, 2, 1, 3, 0, 4, 4),
        "depth": (1, 2, 1, 3, 6, 0, 4),
        "values": (1, 2, 1, 3, 6, 4, 0),
    }
    cases = []
    triangle = np.tri(3, 6, dtype=np.bool_)
    masked = np.where(triangle, np.float32(0), np.float32(-INF))
    for place in (1, 2):
        for value in (NAN, INF, -INF):
            for mask in (triangle, masked.copy()):  # row 0 does not see what rows 1 and 2 see
                case = attention(f"{value}-in-{'QKV'[place]}-{mask.dtype}", sizes, mask=mask)
                x = np.array(case.inputs[place])
                x[0, 0, 1, 2] = value
                cases.append(dataclasses.replace(case, inputs=(*case.inputs[:place], x, *case.inputs[place + 1 :])))
    masked[1, 1] = INF
    masked[2, 0] = NAN
    tiny = attention("weight-of-nothing", sizes)
    q, k, v = (np.array(x) for x in tiny.inputs[:3])
    q[...], k[...] = 30, 0
    k[0, 0, 0], v[0, 0, 1:] = 30, INF
    return [
        *(by_rows(attention(f"no-{id}", row, outputs=SCORES)) for id, row in empties.items()),
        attention("no-keys-but-past", (1, 2, 1, 3, 0, 4, 4), past=2, outputs=ALL[:3]),
        *(by_rows(case) for case in cases),
        by_rows(attention("special-mask", sizes, mask=masked)),
        by_rows(dataclasses.replace(tiny, inputs=(q, k, v))),
    ]


CASES = [*sizes_cases(), *attribute_cases(), *mask_cases(), *cache_cases(), *special_cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_attention(case: Case) -> None:
    run_case(case)


def test_views() -> None:
    base = attention("views", (2, 4, 2, 5, 70, 8, 6))
    q, k, v = (x for x in base.inputs[:3] if x is not None)
    row = np.random.default_rng(3).random((2, 1, 1, 70)) > 0.4
    backwards = dataclasses.replace(base, inputs=(q[:, ::-1], k[..., ::-1], v[:, :, ::-1]))
    run_case(backwards)
    run_case(dataclasses.replace(base, inputs=(q, k, v, np.broadcast_to(row, (2, 4, 5, 70)))))
    across = (sample((2, 5, 8, 4)).transpose(0, 3, 1, 2), sample((2, 2, 8, 70)).swapaxes(2, 3), v)
    run_case(dataclasses.replace(base, inputs=across))
    shared = (q, np.broadcast_to(k[:1, :1], k.shape), np.broadcast_to(v[:, :1], v.shape))
    run_case(dataclasses.replace(base, inputs=shared))
    room, values = sample((2, 2, 100, 8)), sample((2, 2, 100, 6))
    run_case(dataclasses.replace(base, inputs=(q, room[:, :, :70], values[:, :, 5:75])))


WITH_CACHE = [case for case in cache_cases() if case.id.startswith("p")]


@pytest.mark.parametrize("case", WITH_CACHE, ids=lambda case: case.id)
def test_cache_is_taken_out(case: Case) -> None:
    op, inputs = build_operator(case)
    values = [None if x is None else Value(f"x{i}") for i, x in enumerate(inputs)]
    outputs = [Value(f"y{i}") if wanted else None for i, wanted in enumerate(case.outputs)]
    given, made = (tuple(value for value in row if value is not None) for row in (values, outputs))
    graph = decompose(Graph(given, made, (Node(op, tuple(values), tuple(outputs), "node"),), {}))
    check(graph)
    names = [node.operator.name for node in graph.nodes]
    assert names.count("Concat") == (2 if values[4:] and values[4] is not None else 0)
    assert names[-1] == "gpuexec.AttentionOverCache"
    attend = graph.nodes[-1]
    kept = {value: place for place, value in enumerate(outputs) if value is not None}
    assert all(
        kept.get(value, place) == place for place, value in enumerate(attend.inputs[1:3], 1) if value is not None
    )
    computed = op.compute(*inputs)
    arrays = {value: x for value, x in zip(values, inputs, strict=True) if value is not None and x is not None}
    runs: tuple[Run, ...] = (compute, run_kernels)
    for run in runs:
        content = run_nodes(graph, arrays, run)
        for index, value in enumerate(outputs):
            if value is not None:
                expected = computed[index]
                assert expected is not None
                compare(case, op, index, content[value], expected, inputs)


def test_attention_without_cache_stays_whole() -> None:
    q, k, v, y = (Value(name) for name in "qkvy")
    graph = Graph((q, k, v), (y,), (Node(Attention(), (q, k, v), (y,), "node"),), {})
    assert decompose(graph).nodes == graph.nodes


@pytest.mark.parametrize("is_shared", [True, False], ids=["the same bytes", "bytes of their own"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_heads_in_groups_are_so_many_heads(is_shared: bool, dtype: Any) -> None:
    shape = (2, 2, 3, 5, 4)
    keys, values = (sample(shape, dtype, seed) for seed in (1, 2))
    if is_shared:
        keys, values = (np.broadcast_to(each[:, :, :1], shape) for each in (keys, values))
    q, mask = sample((2, 6, 7, 4), dtype), sample((7, 5), dtype, 4)
    over_groups, whole = build("gpuexec.AttentionOverCache", {}), build("Attention", {})
    apart, joined = (q, keys, values, mask), (q, *(each.reshape(2, 6, 5, 4) for each in (keys, values)), mask)
    np.testing.assert_array_equal(over_groups.compute(*apart)[0], whole.compute(*joined)[0])
    np.testing.assert_array_equal(lower_and_run(over_groups, apart)[0], lower_and_run(whole, joined)[0])


def test_present_is_kept_where_concat_put_it() -> None:
    """A window of a larger buffer is read in place: no copy is launched."""
    op = build("gpuexec.AttentionOverCache", {})
    emit = DirectEmitter()
    room = [emit.slot(sample((1, 2, 100, 4), seed=seed)[:, :, :40]) for seed in (1, 2)]
    new, q = emit.slot(sample((1, 2, 1, 4))), emit.slot(sample((1, 4, 1, 4)))
    y = emit.fresh((1, 4, 1, 4), np.float32)
    assert op.lower is not None
    op.lower(emit, (q, *room, None, new), (y,))
    assert [kernel.expression for kernel, _ in emit.launches] == ["attend<float>", "attend_merge<float>"]
    assert all(
        not isinstance(x, type(q)) or x.buffer != new.buffer for _, arguments in emit.launches for x in arguments
    )


class MeasuringEmitter(DirectEmitter):
    """Notes the elements of each scratch and the blocks of each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch: list[int] = []
        self.blocks: list[int] = []

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *rest: Any, **more: Any) -> None:
        self.blocks.append(prod(grid))
        super().launch(kernel, grid, *rest, **more)

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        self.scratch.append(prod(shape))
        return super().temp(shape, dtype)


def lower(rows: int, keys: int) -> MeasuringEmitter:
    op, inputs = build_operator(attention("", (1, 2, 1, rows, keys, 8, 8)))
    emit = MeasuringEmitter()
    assert op.lower is not None
    slots = tuple(None if x is None else emit.slot(x) for x in inputs)
    op.lower(emit, slots, (emit.fresh((1, 2, rows, 8), np.float32),))
    return emit


def test_commands_are_the_same_for_all_extents_and_scratch_never_grows_as_they_shrink() -> None:
    largest = lower(100, 700)
    for rows, keys in ((1, 700), (32, 700), (33, 700), (100, 256), (1, 1)):
        emit = lower(rows, keys)
        assert [kernel for kernel, _ in emit.launches] == [kernel for kernel, _ in largest.launches]
        assert all(small <= large for small, large in zip(emit.scratch, largest.scratch, strict=True)), (rows, keys)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=str)
def test_cache_grows_within_few_plans(backend: gx.BackendType) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]>'
        "agraph (float[1, seq, 32] q, float[1, seq, 16] k, float[1, seq, 16] v, float[1, 2, past, 8] keys,"
        "float[1, 2, past, 8] values) => (float[1, seq, 32] y, float[1, 2, total, 8] a, float[1, 2, total, 8] b)"
        "{ y, a, b = Attention <is_causal = 1, q_num_heads = 4, kv_num_heads = 2> (q, k, v, , keys, values) }"
    )
    reference = ReferenceEvaluator(model)
    keys = values = np.zeros((1, 2, 0, 8), np.float32)
    with gx.Worker(gx.load(model), backend=backend) as worker:
        for step in range(10):
            new = 1 if step else 5
            feeds = {"q": sample((1, new, 32), seed=step), "keys": keys, "values": values}
            feeds |= {"k": sample((1, new, 16), seed=20 + step), "v": sample((1, new, 16), seed=40 + step)}
            y, keys, values = worker.run(feeds)
            expected: Any = reference.run(None, feeds)
            np.testing.assert_allclose(y, expected[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(keys, expected[1])
            np.testing.assert_array_equal(values, expected[2])
        report = worker.report()
    assert report.plans <= 3 and not report.host_syncs and not report.host_calls


def test_keys_are_dealt_out_to_several_blocks_where_rows_are_few() -> None:
    assert [lower(rows, 700).blocks[0] for rows in (1, 32, 33, 300)] == [3, 3, 2, 10]


def test_result_is_the_same_twice() -> None:
    op, inputs = build_operator(attention("", (1, 4, 2, 3, 600, 8, 8), np.float16))
    first, second = (lower_and_run(op, inputs)[0] for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_attributes_are_those_of_onnx() -> None:
    schema = onnx.defs.get_schema("Attention", 25)
    ours = {f.name: f.default for f in dataclasses.fields(Attention)}
    theirs = {
        name: onnx.helper.get_attribute_value(a.default_value) if a.default_value.name else None
        for name, a in schema.attributes.items()
    }
    assert ours == theirs


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


Q, KV, FLAT = spec(2, 4, 3, 8), spec(2, 2, 5, 8), spec(2, 3, 32)
LENGTHS = spec(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({}, (spec(2, 4, 3, 8, dtype=np.int32), KV, KV), "Q of type float32"),
        ({}, (Q, spec(2, 2, 5, 8, dtype=np.float16), KV), "K of type float32"),
        ({}, (Q, KV, spec(2, 2, 5, 8, dtype=np.float64)), "V of type float32"),
        ({}, (Q, KV, FLAT), "of one rank"),
        ({}, (FLAT, FLAT, FLAT), "number of heads of"),
        ({"q_num_heads": 4, "kv_num_heads": 5}, (FLAT, FLAT, FLAT), "divisor of the last, got 5"),
        ({}, (Q, spec(2, 2, 5, 7), KV), r"expects K \[2, 2, 5, 8\]"),
        ({}, (Q, KV, spec(2, 2, 6, 8)), r"V \[2, 2, 5, 8\]"),
        ({}, (Q, spec(1, 2, 5, 8), spec(1, 2, 5, 8)), r"expects K \[2, 2, 5, 8\]"),
        ({}, (Q, spec(2, 3, 5, 8), spec(2, 3, 5, 8)), "or a multiple, got 4 and 3"),
        ({}, (Q, KV, KV, spec(3, 6)), "attn_mask to broadcast"),
        ({}, (Q, KV, KV, spec(2, 5)), "attn_mask to broadcast"),
        ({}, (Q, KV, KV, spec()), "attn_mask to broadcast"),
        ({}, (Q, KV, KV, None, KV), "past_key and past_value together"),
        ({}, (Q, KV, KV, None, KV, KV, LENGTHS), "no nonpad_kv_seqlen"),
        ({}, (Q, KV, KV, None, KV, spec(2, 2, 5, 7)), r"past_value \[batch, heads, past, size\]"),
        ({}, (Q, KV, KV, None, KV, spec(2, 2, 4, 8)), r"V \[2, 2, 10, 8\]"),
        ({}, (Q, KV, KV, None, None, None, spec(3, dtype=np.int64)), r"nonpad_kv_seqlen of shape \[2\]"),
        ({}, (Q, KV, KV, None, None, None, spec(2, dtype=np.int32)), "nonpad_kv_seqlen of type int64"),
        ({"left_window_size": -2}, (Q, KV, KV), "left_window_size of -1 or more"),
        ({"qk_matmul_output_mode": 4}, (Q, KV, KV), "qk_matmul_output_mode 0 to 3"),
        ({"softmax_precision": 7}, (Q, KV, KV), "softmax_precision 1, 10, 11 or 16"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], specs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("Attention", attributes).infer(*specs)

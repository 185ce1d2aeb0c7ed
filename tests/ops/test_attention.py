"""Attention: by the reference, by a loop over rows, with a cache, and decomposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.graphs import Graph, Node, Value, check
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.attention import Attention
from gpuexec.ops.nn.attention_operands import FLOATS
from gpuexec.passes.decompose import decompose
from tests.ops.attention_cases import attribute_cases, cache_cases, mask_cases, sizes_cases, special_cases
from tests.ops.attention_oracle import attention, by_rows, in_double, sample
from tests.ops.decomposed import Run, compute, run_kernels, run_nodes
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Case, build_operator, compare, run_case

CASES = [*sizes_cases(), *attribute_cases(), *mask_cases(), *cache_cases(), *special_cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_attention(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_sinks_weigh_beside_keys(checks: str) -> None:
    """For rows that don't fill a tile too: a sink that is read beyond the last head is found in check mode."""
    q, k, v = (sample((1, 2, rows, 4), seed=rows).astype(np.float32) for rows in (3, 5, 6))
    v, sinks = v[:, :, :5], np.array([0.5, -1.0], np.float32)
    scores = (q.astype(np.float64) @ k.swapaxes(2, 3)) / 2
    powers = np.exp(scores)
    y = powers @ v / (powers.sum(3, keepdims=True) + np.exp(sinks.astype(np.float64))[:, None, None])
    inputs, expected = (q, k, v, None, None, None, sinks), (y.astype(np.float32), scores.astype(np.float32))
    run_case(
        Case("sinks", "gpuexec.AttentionOverCache", inputs, outputs=(True, False), expected=expected, terms=9), checks
    )


def test_views(checks: str) -> None:
    base = attention("views", (2, 4, 2, 5, 70, 8, 6))
    q, k, v = (x for x in base.inputs[:3] if x is not None)
    row = np.random.default_rng(3).random((2, 1, 1, 70)) > 0.4
    backwards = dataclasses.replace(base, inputs=(q[:, ::-1], k[..., ::-1], v[:, :, ::-1]))
    run_case(backwards, checks)
    run_case(dataclasses.replace(base, inputs=(q, k, v, np.broadcast_to(row, (2, 4, 5, 70)))), checks)
    across = (sample((2, 5, 8, 4)).transpose(0, 3, 1, 2), sample((2, 2, 8, 70)).swapaxes(2, 3), v)
    run_case(dataclasses.replace(base, inputs=across), checks)
    shared = (q, np.broadcast_to(k[:1, :1], k.shape), np.broadcast_to(v[:, :1], v.shape))
    run_case(dataclasses.replace(base, inputs=shared), checks)
    room, values = sample((2, 2, 100, 8)), sample((2, 2, 100, 6))
    run_case(dataclasses.replace(base, inputs=(q, room[:, :, :70], values[:, :, 5:75])), checks)


@pytest.mark.parametrize("of_values", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda t: t.__name__)
def test_values_of_another_type_are_converted_first(checks: str, dtype: Any, of_values: Any) -> None:
    case = attention("values", (2, 4, 2, 3, 5, 8, 6), dtype, past=2, outputs=(True, True, True))
    inputs = [x.astype(of_values) if i in (2, 5) and x is not None else x for i, x in enumerate(case.inputs)]
    values = [None if x is None else x.astype(dtype) for x in (inputs[2], inputs[5])]
    alike = dataclasses.replace(case, inputs=(*inputs[:2], values[0], *inputs[3:5], values[1], *inputs[6:]))
    y, keys, _ = in_double(alike).expected or ()
    assert inputs[2] is not None and inputs[5] is not None
    expected = (y, keys, np.concatenate((inputs[5], inputs[2]), axis=2))
    run_case(dataclasses.replace(case, inputs=tuple(inputs), expected=expected), checks)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_any_attention(checks: str, data: st.DataObject) -> None:
    """Any combination of attention's options agrees with the reference."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    of_keys = draw(1, 2)
    batch, queries, keys = draw(1, 2), draw(1, 20), draw(1, 20)
    sizes = (batch, of_keys * draw(1, 3), of_keys, queries, keys, draw(1, 9), draw(1, 9))
    past = data.draw(st.sampled_from([0, 0, 1, 7]))
    lengths = None if past else data.draw(st.none() | st.tuples(*[st.integers(0, keys)] * batch))
    mask: Any = None
    if data.draw(st.booleans()):
        columns = draw(1, keys + past)
        shape = (1 if draw(0, 1) else batch, 1 if draw(0, 1) else sizes[1], 1 if draw(0, 1) else queries, columns)
        mask = sample(shape[draw(0, 2) :])
        mask = mask > 0 if draw(0, 1) else mask
    chosen: dict[str, Any] = {
        "is_causal": draw(0, 1),
        "softcap": data.draw(st.sampled_from([0.0, 0.7])),
        "qk_matmul_output_mode": draw(0, 3),
        "left_window_size": draw(-1, 5),
        "right_window_size": draw(-1, 5),
    }
    dtype = data.draw(st.sampled_from(FLOATS))
    outputs = (True, past > 0, past > 0, True)
    run_case(by_rows(attention("any", sizes, dtype, mask=mask, past=past, lengths=lengths, outputs=outputs, opset=25,
                               **chosen)), checks)  # fmt: skip


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=str)
def test_flex_attention_is_attention_unless_a_graph_changes_scores(backend: gx.BackendType) -> None:
    """A body of ONNX's stands in for the node with a graph, in whose place nothing of attention is left."""
    text = (
        '<ir_version: 10, opset_import: ["": 24, "ai.onnx.preview": 1]>'
        "agraph (float[1, 4, 3, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 6] v) => (float[1, 4, 3, 6] y)"
        "{ y = ai.onnx.preview.FlexAttention <scale = 0.5%s> (q, k, v) }"
    )
    doubled = ", score_mod: graph = g (float[B, H, L, S] a) => (float[B, H, L, S] b) { b = Add (a, a) }"
    q, k, v = (sample(shape) for shape in ((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 6)))
    for graph, scale in (("", 0.5), (doubled, 1.0)):
        model = gx.load(onnx.parser.parse_model(text % graph))
        names = [node.operator.name for node in model.info.graph.nodes]
        assert ("Attention" in names) == (not graph)
        with gx.Worker(model, backend=backend) as worker:
            y = worker.run([q, k, v])[0]
            assert not worker.report().host_calls
        (expected,) = Attention(scale=scale).compute(q, k, v)[:1]
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]


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
    """A window of a larger buffer is read in place: no copy is launched; nothing is merged of so few keys."""
    op = build("gpuexec.AttentionOverCache", {})
    emit = DirectEmitter()
    room = [emit.slot(sample((1, 2, 100, 4), seed=seed)[:, :, :40]) for seed in (1, 2)]
    new, q = emit.slot(sample((1, 2, 1, 4))), emit.slot(sample((1, 4, 1, 4)))
    y = emit.fresh((1, 4, 1, 4), np.float32)
    assert op.lower is not None
    op.lower(emit, (q, *room, None, new), (y,))
    assert [kernel.expression for kernel, _ in emit.launches] == ["attend<float>"]
    assert all(
        not isinstance(x, type(q)) or x.buffer != new.buffer for _, arguments in emit.launches for x in arguments
    )


class MeasuringEmitter(DirectEmitter):
    """Notes the elements of each scratch and the blocks of each launch."""

    def __init__(self, choices: Sequence[int] | None = None) -> None:
        super().__init__(choices)
        self.scratch: list[int] = []
        self.blocks: list[int] = []

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *rest: Any, **more: Any) -> None:
        self.blocks.append(prod(grid))
        super().launch(kernel, grid, *rest, **more)

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        self.scratch.append(prod(shape))
        return super().temp(shape, dtype)


def lower(rows: int, keys: int, choices: Sequence[int] | None = None) -> MeasuringEmitter:
    op, inputs = build_operator(attention("", (1, 2, 1, rows, keys, 8, 8)))
    emit = MeasuringEmitter(choices)
    assert op.lower is not None
    slots = tuple(None if x is None else emit.slot(x) for x in inputs)
    op.lower(emit, slots, (emit.fresh((1, 2, rows, 8), np.float32),))
    return emit


def test_commands_are_the_same_for_all_extents_and_scratch_never_grows_as_they_shrink() -> None:
    """Whether keys are divided among blocks is decided at the upper end of a size class."""
    for upper in ((100, 700), (32, 700)):
        largest = lower(*upper)
        assert len(largest.launches) == (1 if upper[0] > 32 else 2)
        for rows, keys in ((1, 700), (32, 700), (100, 256), (1, 1)):
            if rows <= upper[0]:
                check_alike(lower(rows, keys, largest.choices), largest)


def check_alike(emit: MeasuringEmitter, largest: MeasuringEmitter) -> None:
    assert [kernel for kernel, _ in emit.launches] == [kernel for kernel, _ in largest.launches]
    assert all(small <= large for small, large in zip(emit.scratch, largest.scratch, strict=True))


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
        ({}, (Q, KV, spec(2, 2, 5, 8, dtype=np.int32)), "V of type float32, float16"),
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

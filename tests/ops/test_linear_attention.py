"""LinearAttention: by the reference, by steps worked out in double, and in two calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.nn.linear_attention import FLOATS, RULES
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Array, Case, build_operator, run_case


def sample(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def attend(
    id: str,
    sizes: tuple[int, int, int, int, int, int],
    rule: str = "gated_delta",
    dtype: Any = np.float32,
    *,
    past: Any = np.float32,
    is_per_row: bool = False,
    is_shared: bool = False,
    outputs: tuple[bool, ...] = (True, True),
    **attributes: Any,
) -> Case:
    """A case of ``[batch, steps, heads, group, rows, columns]``; ``past`` is the type of a past state, or None.

    ``is_per_row``: decay has a number for each row; ``is_shared``: heads share beta.
    """
    batch, steps, heads, group, rows, columns = sizes
    q, v = sample(batch, steps, heads * group * rows), sample(batch, steps, heads * columns, seed=3)
    k = sample(batch, steps, heads * rows, seed=2) / max(rows, 1) ** 0.5
    state = None if past is None else sample(batch, heads, rows, columns, seed=4).astype(past)
    takes_decay, takes_beta = RULES[rule]
    decay = -np.abs(sample(batch, steps, heads * (rows if is_per_row else 1), seed=5)) if takes_decay else None
    beta = 1 / (1 + np.exp(-sample(batch, steps, 1 if is_shared else heads, seed=6))) if takes_beta else None
    attributes |= {"q_num_heads": heads * group, "kv_num_heads": heads, "update_rule": rule}
    inputs = tuple(x if x is None or x is state else x.astype(dtype) for x in (q, k, v, state, decay, beta))
    return Case(
        id, "LinearAttention", inputs, attributes, outputs=outputs, opset=27, terms=(rows + 4) * max(steps, 1),
        expected=in_double(inputs, attributes),
    )  # fmt: skip


def in_double(inputs: tuple[Array | None, ...], attributes: dict[str, Any]) -> tuple[Array, ...]:
    """Return both outputs, one head of one batch at a time."""
    q, k, v, past, decay, beta = inputs
    assert q is not None and k is not None and v is not None
    heads = attributes["kv_num_heads"]
    group = attributes["q_num_heads"] // heads
    batch, steps, width = q.shape
    rows, columns = width // (heads * group), v.shape[2] // heads
    scale = attributes.get("scale") or (rows**-0.5 if rows else 1)
    y = np.zeros((batch, steps, heads * group, columns))
    states = np.zeros((batch, heads, rows, columns)) if past is None else past.astype(float)
    wide = [x if x is None else x.astype(float) for x in (q, k, v, decay, beta)]
    for b, h in np.ndindex(batch, heads):
        for t in range(steps):
            query, key, value, rate, part = (None if x is None else x[b, t] for x in wide)
            assert query is not None and key is not None and value is not None
            state, key = states[b, h], key[h * rows : (h + 1) * rows]
            new = value[h * columns : (h + 1) * columns]
            if rate is not None:
                per_head = rate.reshape(heads, rate.size // heads)[h]
                state = state * np.exp(per_head)[:, np.newaxis]
            if part is not None:
                new = part[h % part.size] * (new - key @ state)
            states[b, h] = state + np.outer(key, new)
            for member in range(h * group, (h + 1) * group):
                y[b, t, member] = scale * (query[member * rows : (member + 1) * rows] @ states[b, h])
    kind = q.dtype if past is None else past.dtype
    return y.reshape(batch, steps, heads * group * columns).astype(q.dtype), states.astype(kind)


SIZES = (2, 4, 2, 1, 8, 6)
CASES = [
    *(attend(f"{rule}-{dtype_row(t).name}", SIZES, rule, t) for rule in RULES for t in FLOATS),
    *(
        attend(f"state-{dtype_row(s).name}-of-{dtype_row(t).name}", SIZES, dtype=t, past=s)
        for s in FLOATS
        for t in FLOATS
    ),
    *(attend(f"no-past-{dtype_row(t).name}", SIZES, dtype=t, past=None) for t in FLOATS),
    *(attend(f"grouped-{rule}", (2, 3, 2, 3, 4, 5), rule) for rule in RULES),
    attend("one-head-of-keys", (2, 3, 1, 4, 4, 5)),
    attend("decay-per-row", SIZES, is_per_row=True),
    attend("gated-per-row", SIZES, "gated", is_per_row=True),
    attend("shared-beta", (2, 4, 3, 1, 8, 6), is_shared=True),
    attend("scaled", SIZES, scale=0.3),
    attend("chunked", SIZES, chunk_size=2),
    attend("one-step", (3, 1, 2, 2, 16, 16)),
    attend("rows-that-fill-no-lane", (1, 3, 1, 1, 37, 17)),
    attend("most-rows-in-registers", (1, 2, 1, 1, 256, 3)),
    attend("rows-in-memory", (1, 3, 1, 2, 257, 33), is_per_row=True),
    attend("rows-in-memory-of-halves", (1, 2, 2, 1, 300, 17), dtype=np.float16, past=BFLOAT16),
    attend("no-steps", (2, 0, 2, 1, 8, 6)),
    attend("no-batch", (0, 3, 2, 1, 8, 6)),
    attend("no-rows", (2, 3, 2, 1, 0, 6)),
    attend("no-columns", (2, 3, 2, 1, 8, 0)),
    attend("output-alone", SIZES, outputs=(True, False)),
    attend("state-alone", SIZES, outputs=(False, True)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cases(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_reference_agrees(checks: str, rule: str) -> None:
    run_case(dataclasses.replace(attend("reference", (2, 4, 2, 2, 8, 6), rule), expected=None), checks)


def test_parts_of_a_packed_product(checks: str) -> None:
    case = attend("packed", (2, 4, 2, 1, 8, 8))
    q, k, v, *rest = case.inputs
    assert q is not None and k is not None and v is not None
    packed = np.concatenate((q, k, v), axis=2)
    views = tuple(packed[:, :, i * 16 : (i + 1) * 16] for i in range(3))
    run_case(dataclasses.replace(case, inputs=(*views, *rest)), checks)


def test_numbers_that_are_none_stay_in_their_column(checks: str) -> None:
    case = attend("special", (1, 3, 2, 1, 4, 5), "gated")
    v = np.array(case.inputs[2])
    v[0, 1, 2], v[0, 1, 6] = np.nan, np.inf
    inputs = (*case.inputs[:2], v, *case.inputs[3:])
    with np.errstate(all="ignore"):
        expected = in_double(inputs, case.attributes)
    assert set(np.nonzero(np.isnan(expected[0]))[2].tolist()) == {2, 6}
    run_case(dataclasses.replace(case, inputs=inputs, expected=expected), checks)


def test_state_joins_two_calls() -> None:
    op, (q, k, v, past, decay, beta) = build_operator(attend("", (2, 5, 2, 2, 8, 6)))
    assert all(x is not None for x in (q, k, v, decay, beta))
    whole, last = op.compute(q, k, v, past, decay, beta)
    first, state = op.compute(*(x[:, :2] for x in (q, k, v)), past, decay[:, :2], beta[:, :2])  # type: ignore[index]
    second, after = op.compute(*(x[:, 2:] for x in (q, k, v)), state, decay[:, 2:], beta[:, 2:])  # type: ignore[index]
    np.testing.assert_array_equal(np.concatenate((first, second), 1), whole)  # type: ignore[arg-type]
    np.testing.assert_array_equal(after, last)


def test_each_output_may_be_absent() -> None:
    op, inputs = build_operator(attend("", SIZES))
    together = lower_and_run(op, inputs)
    for wanted, expected in zip(((True,), (False, True)), together, strict=True):
        (alone,) = lower_and_run(op, inputs, wanted=wanted)
        np.testing.assert_array_equal(alone, expected)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.tuples(*(st.integers(low, high) for low, high in ((1, 2), (1, 5), (1, 3), (1, 3), (1, 20), (1, 20)))),
    st.sampled_from(sorted(RULES)),
    st.sampled_from(FLOATS),
    st.sampled_from([None, *FLOATS]),
    st.booleans(),
    st.booleans(),
)
def test_any_sizes(
    checks: str,
    sizes: tuple[int, int, int, int, int, int],
    rule: str,
    dtype: Any,
    past: Any,
    is_per_row: bool,
    is_shared: bool,
) -> None:
    run_case(attend("any", sizes, rule, dtype, past=past, is_per_row=is_per_row, is_shared=is_shared), checks)


def test_scratch_is_for_states_beyond_registers() -> None:
    sizes = [(2, 4, 2, 1, rows, 6) for rows in (300, 256, 1)]
    scratch = []
    for size in sizes:
        op, inputs = build_operator(attend("", size))
        emit = DirectEmitter()
        slots = tuple(None if x is None else emit.slot(x) for x in inputs)
        outputs = tuple(emit.fresh(y.shape, y.dtype) for y in op.compute(*inputs) if y is not None)
        before = len(emit.arrays)
        assert op.lower is not None
        op.lower(emit, slots, outputs)
        scratch.append(emit.arrays[before].nbytes)
    assert scratch[0] - scratch[1] == 2 * 2 * 300 * 6 * 4 and scratch[1] == scratch[2]


def test_attributes_are_those_of_onnx() -> None:
    schema = onnx.defs.get_schema("LinearAttention", 27)
    op = build("LinearAttention", {"q_num_heads": 1, "kv_num_heads": 1})
    for name, attribute in schema.attributes.items():
        if not attribute.required:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            assert getattr(op, name) == (value.decode() if isinstance(value, bytes) else value)
    with pytest.raises(InputError, match="kv_num_heads"):
        build("LinearAttention", {"q_num_heads": 1})


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


Q, K, V, STATE, DECAY, BETA = (
    spec(2, 4, 32),
    spec(2, 4, 16),
    spec(2, 4, 12),
    spec(2, 2, 8, 6),
    spec(2, 4, 2),
    spec(2, 4, 1),
)


@pytest.mark.parametrize(
    ("specs", "attributes", "message"),
    [
        ((spec(2, 4, 32, dtype=np.float64), K, V, None, DECAY, BETA), {}, "query of type float32, float16, bfloat16"),
        ((Q, spec(2, 4, 16, dtype=np.float16), V, None, DECAY, BETA), {}, "key of type float32"),
        ((Q, K, V, None, DECAY, BETA), {"update_rule": "both"}, "update_rule linear, gated, delta, gated_delta"),
        ((Q, K, V, None, DECAY, BETA), {"q_num_heads": 3}, "a multiple of kv_num_heads"),
        ((Q, K, V, None, DECAY, BETA), {"kv_num_heads": 0}, "both 1 or more, got 4 and 0"),
        ((Q, K, V, None, None, BETA), {}, "'gated_delta' with decay, got None"),
        ((Q, K, V, None, DECAY, None), {}, "'gated_delta' with beta, got None"),
        ((Q, K, V, None, DECAY, None), {"update_rule": "linear"}, "'linear' without decay"),
        ((Q, K, V, None, None, BETA), {"update_rule": "linear"}, "'linear' without beta"),
        ((spec(2, 4, 30), K, V, None, DECAY, BETA), {}, "query .* with 4 heads"),
        ((Q, spec(2, 5, 16), V, None, DECAY, BETA), {}, "key .* with 2 heads"),
        ((Q, K, spec(2, 12), None, DECAY, BETA), {}, "value .* with 2 heads"),
        ((Q, spec(2, 4, 14), V, None, DECAY, BETA), {}, "keys of the size of queries, 8"),
        ((Q, K, V, spec(2, 2, 6, 8), DECAY, BETA), {}, r"past_state \[2, 2, 8, 6\]"),
        ((Q, K, V, STATE, spec(2, 4, 4), BETA), {}, r"decay \[2, 4, 2\] or \[2, 4, 16\]"),
        ((Q, K, V, STATE, DECAY, spec(2, 4, 4)), {}, r"beta \[2, 4, 2\] or \[2, 4, 1\]"),
    ],
)
def test_infer_refuses(specs: tuple[TensorSpec | None, ...], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("LinearAttention", {"q_num_heads": 4, "kv_num_heads": 2} | attributes).infer(*specs)

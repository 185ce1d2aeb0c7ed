"""Refusals of com.microsoft's attention: contradictory shapes, named with the node of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.importer.load import load_graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.planner.template import plan_graph
from tests.ops.microsoft.attention_cases import HEADS, grouped
from tests.ops.microsoft.composed import Array, Composed, feeds, make_model
from tests.ops.microsoft.samples import flags, ints, sample

Inputs = tuple[Array | None, ...]
X, WEIGHTS, BIAS = sample(2, 5, 6), sample(6, 24), sample(24)
Q, WIDE, ONE = sample(2, 5, 8), sample(2, 5, 12), sample(2, 1, 8)
ROWS, PLACES, SUMS = sample(4, 12), ints([0, 1, 4, 5], [2, 3, 6, 7]), ints(0, 2, 4)
PAST = (sample(2, 2, 3, 4),) * 2
BOTH, SHARED = sample(2, 2, 2, 3, 4), {**HEADS, "past_present_share_buffer": 1}
NUMBER = np.array(0.1, np.float32)
MHA, DECODER = "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"

WRONG: list[tuple[str, Inputs, dict[str, Any], str]] = [
    # A bias is as wide as queries, keys and values.
    (MHA, (WIDE, WIDE, WIDE, sample(24)), HEADS, r"a bias \[12 \+ 12 \+ 12\], got float32\[24\]"),
    (MHA, (sample(2, 5, 2, 3, 4), None, None, sample(20)), HEADS, r"a bias \[8 \+ 8 \+ 8\]"),
    ("PackedMultiHeadAttention", (ROWS, ROWS, ROWS, sample(24), PLACES, SUMS), HEADS, r"a bias \[12 \+ 12 \+ 12\]"),
    ("PackedAttention", (sample(4, 6), WEIGHTS, sample(1), PLACES, SUMS), HEADS, "a number for each of 24 columns"),
    ("Attention", (X, WEIGHTS, sample(5, 24)), HEADS, "a number for each of 24 columns"),
    # Weights have three parts.
    ("Attention", (X, sample(6, 26), sample(26)), HEADS, r"three parts of equal width, got float32\[6,26\]"),
    ("Attention", (X, sample(2, 6, 24), BIAS), HEADS, r"weights must be \[6, queries"),
    ("Attention", (X[None], WEIGHTS, BIAS), HEADS, "input 0 must have 3 axes"),
    ("Attention", (X, WEIGHTS, BIAS), {**HEADS, "qkv_hidden_sizes": [8, 8, 4]}, r"add up to 24.*got \[8, 8, 4\]"),
    ("Attention", (X, WEIGHTS, BIAS), {**HEADS, "qkv_hidden_sizes": [8, 12, 4]}, "equal for queries and keys"),
    (
        "QAttention",
        (flags(2, 5, 6).astype(np.uint8), flags(6, 26).astype(np.int8), sample(26), NUMBER, NUMBER),
        HEADS,
        r"three parts of equal width, got int8\[6,26\]",
    ),
    # Heads divide.
    ("Attention", (X, WEIGHTS, BIAS), {"num_heads": 3}, r"divide the widths \[8, 8, 8\].*got 3"),
    ("Attention", (X, WEIGHTS, BIAS), {"num_heads": 0}, "got 0"),
    (MHA, (WIDE, WIDE, WIDE), {"num_heads": 5}, "got 5 for shape"),
    # Packed inputs have their parts.
    (MHA, (sample(2, 5, 2, 4, 4), None, None), HEADS, "2 heads, 3 parts, size"),
    (MHA, (sample(2, 5, 24), None, None), HEADS, "2 heads, 3 parts, size"),
    (MHA, (Q, Q, None), HEADS, "2 heads, 2 parts, size"),
    (MHA, (sample(2, 5, 2, 3, 4), Q, Q), HEADS, r"\[batch, rows, heads \* size\]"),
    ("PackedMultiHeadAttention", (sample(4, 24), None, None, None, PLACES, SUMS), HEADS, "2 heads, 3 parts, size"),
    ("PackedMultiHeadAttention", (ROWS, ROWS[:3], ROWS[:3], None, PLACES, SUMS), HEADS, "as many rows as"),
    # Masks and biases are for the keys there are.
    (MHA, (Q, Q, Q, None, flags(2, 4)), HEADS, r"expects a mask.*got \[2, 4\]"),
    (MHA, (Q, Q, Q, None, np.zeros((2, 1, 1, 1, 5), np.int32)), HEADS, r"expects a mask.*got \[2, 1, 1, 1, 5\]"),
    (MHA, (Q, Q, Q, None, None, sample(1, 1, 5, 4)), HEADS, r"\[2, 2, 5\] and 5 keys, got \[1, 1, 5, 4\]"),
    (MHA, (Q, Q, Q, None, flags(2, 5), sample(1, 1, 5, 4)), HEADS, r"and 5 keys, got \[1, 1, 5, 4\]"),
    (MHA, (Q, Q, Q, None, None, sample(5, 5)), HEADS, r"\[batch, heads, rows, keys\], got float32\[5,5\]"),
    # Pasts go with what is new, and have room for it.
    (MHA, (Q, Q, Q, None, None, None, *(sample(2, 2, 3, 5),) * 2), HEADS, "agree beside axis 2"),
    (MHA, (Q, Q, Q, None, None, None, *PAST, ints(0)), HEADS, "room for the new rows.*got room for 3"),
    ("Attention", (X, WEIGHTS, BIAS, None, BOTH, None, ints(0)), SHARED, "room for the new rows.*got room for 3"),
    (DECODER, (sample(2, 2, 8),) * 3, HEADS, "one new row of each sequence"),
    ("DecoderMaskedSelfAttention", (X, WEIGHTS, BIAS, None, BOTH, None, ints(1)), HEADS, "one new row of each"),
    # Tables turn what they are said to.
    ("RotaryEmbedding", (Q, np.array([3]), *(sample(20, 3),) * 2), {}, "turn a divisor of 8 elements"),
    (
        "RotaryEmbedding",
        (Q, np.array([3]), *(sample(20, 2),) * 2),
        {**HEADS, "rotary_embedding_dim": 2},
        "turn 2 elements",
    ),
    (
        "GatedRelativePositionBias",
        (Q, sample(12), sample(1, 2, 5, 5), sample(4, 8), sample(8), sample(1, 2, 1, 1)),
        HEADS,
        r"query_bias must be \[8\]",
    ),
]

REFUSED_WHILE_LOADING: list[tuple[str, Inputs, dict[str, Any], str]] = [
    (MHA, (Q, Q, Q, *(None,) * 5, ints(2)), HEADS, "past_key and past_value with past_sequence_length"),
    (DECODER, (ONE, ONE, ONE, None, None, PAST[0]), HEADS, "past_key and past_value together"),
    (DECODER, (ONE, ONE, ONE, None, None, *PAST), SHARED, "past_sequence_length with a past"),
    ("Attention", (X, WEIGHTS, BIAS, None, BOTH), SHARED, "past and past_sequence_length"),
    ("PackedMultiHeadAttention", (ROWS, ROWS, None, None, PLACES, SUMS), HEADS, "key and value together"),
]

NEXT = grouped("", 1, 6, (6, 6), 7)
WRONG_GROUPS: list[tuple[int, Array, str]] = [
    (1, sample(2, 1, 48), r"key must be \[2, 1, 32\], got float32\[2,1,48\]"),
    (2, sample(2, 2, 32), r"value must be \[2, 1, 32\]"),
    (3, sample(2, 3, 6, 16), r"past_key must be \[2, 2, 6, 16\]"),
    (3, sample(2, 6, 32), r"past_key must be \[2, 2, rows, 16\]"),
    (4, sample(2, 2, 5, 16), r"past_value must be \[2, 2, 6, 16\]"),
    (5, ints(6), "a number for each of 2 sequences"),
    (6, np.array([7, 7], np.int32), "total_sequence_length to hold one number"),
    (10, sample(1, 6), "attention_bias must be"),
    (14, sample(1), r"q_norm_weight must be \[16\]"),
]


def plan(case: Composed) -> None:
    """Load and plan a case."""
    expected = tuple(sample(1) for wanted in case.outputs if wanted)
    graph = run_passes(load_graph(make_model(case, expected).SerializeToString()).graph, AT_LOAD)
    plan_graph(graph, {name: TensorSpec.of(x) for name, x in feeds(case).items()}, Target.named("cpu"))


@pytest.mark.parametrize(("name", "inputs", "attributes", "words"), [*WRONG, *REFUSED_WHILE_LOADING])
def test_inputs_that_contradict_each_other_are_refused(
    name: str, inputs: Inputs, attributes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=f"(?s)com.microsoft.{name} 'node'.*{words}"):
        plan(Composed("", name, inputs, attributes))


@pytest.mark.parametrize(("place", "given", "words"), WRONG_GROUPS)
def test_groups_that_contradict_each_other_are_refused(place: int, given: Array, words: str) -> None:
    inputs = [*NEXT.inputs, *(None,) * (16 - len(NEXT.inputs))]
    inputs[15] = sample(16) if place == 14 else None
    inputs[place] = given
    case = Composed("", NEXT.op, tuple(inputs), NEXT.attributes, NEXT.const)
    with pytest.raises(InputError, match=f"(?s)com.microsoft.GroupQueryAttention 'node'.*{words}"):
        plan(case)


@pytest.mark.parametrize(("heads", "of_keys"), [(4, 3), (3, 2), (4, 0), (0, 0), (4, -2)])
def test_heads_of_queries_are_a_multiple_of_those_of_keys(heads: int, of_keys: int) -> None:
    attributes = {**NEXT.attributes, "num_heads": heads, "kv_num_heads": of_keys}
    with pytest.raises(InputError, match=f"multiple of kv_num_heads, both from 1 on, got {heads} and {of_keys}"):
        plan(Composed("", NEXT.op, NEXT.inputs, attributes, NEXT.const))


def test_a_mask_may_be_shorter_than_a_buffer_with_room() -> None:
    room = (sample(2, 2, 9, 4),) * 2
    plan(Composed("", MHA, (ONE, ONE, ONE, None, flags(2, 4), None, *room, ints(3)), HEADS))
    plan(Composed("", MHA, (ONE, ONE, ONE, None, None, sample(1, 2, 1, 4), *room, ints(3)), HEADS))

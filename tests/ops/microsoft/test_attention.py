"""Attention of com.microsoft in all its forms: masks, pasts, buffers with room, grouped heads, packed sequences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import InputError, ModelError
from gpuexec.importer.load import load_graph
from gpuexec.passes import AT_LOAD, run_passes
from tests.ops.microsoft.attention_cases import (
    BATCH,
    HEADS,
    PAST,
    ROWS,
    grouped,
    grouped_cases,
    multi_head_cases,
    packing_cases,
    position_cases,
    projected_cases,
    rotary_cases,
)
from tests.ops.microsoft.composed import Array, Composed, compare, expect, make_model, run_composed
from tests.ops.microsoft.samples import flags, ints, sample

CASES = [
    *projected_cases(),
    *multi_head_cases(),
    *grouped_cases(),
    *rotary_cases(),
    *packing_cases(),
    *position_cases(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_attention(case: Composed) -> None:
    run_composed(case)


@pytest.mark.parametrize("past", [6, 12])
def test_sequences_of_different_lengths_agree_where_they_have_keys(past: int) -> None:
    case = grouped("", 1, past, (6, 3), 7, pairs=8)
    expected = expect(case)
    with gx.Worker(gx.load(make_model(case, expected).SerializeToString()), backend=gx.BackendType.SIMULATOR) as worker:
        given = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None and i not in case.const}
        outputs = worker.run(given)
    compare("", case, outputs[0], expected[0], 1)
    for got, wanted in zip(outputs[1:], expected[1:], strict=True):
        assert got.shape == wanted.shape
        for batch, last in enumerate((6, 3)):
            compare("", case, got[batch, :, : last + 1], wanted[batch, :, : last + 1], 1)


def test_rows_of_a_shorter_prompt_agree() -> None:
    case = grouped("", 5, 0, (4, 2), 5, outputs=(True,))
    expected = expect(case)[0]
    with gx.Worker(gx.load(make_model(case, (expected,)).SerializeToString())) as worker:
        got = worker.run([x for i, x in enumerate(case.inputs) if x is not None and i not in case.const])[0]
    compare("", case, got[0], expected[0], 1)
    compare("", case, got[1, :3], expected[1, :3], 1)


def test_heads_are_divided_by_their_root_mean_square_first() -> None:
    weights = (1 + sample(16, seed=7, scale=0.1), 1 + sample(16, seed=8, scale=0.1))
    plain = grouped("", 5, 0, (4, 4), 5, outputs=(True,))
    q, k, *rest = plain.inputs
    assert q is not None and k is not None
    divided = []
    for x, weight in zip((q, k), weights, strict=True):
        apart = x.reshape(*x.shape[:2], -1, 16)
        root = np.sqrt(np.square(apart).mean(-1, keepdims=True) + 1e-6)
        divided.append((apart / root * weight).reshape(x.shape))
    expected = expect(grouped_with(plain, (*divided, *rest)))
    more = (None,) * (14 - len(plain.inputs))
    run_composed(grouped_with(plain, (*plain.inputs, *more, *weights), expected))


def grouped_with(
    case: Composed, inputs: tuple[Array | None, ...], expected: tuple[Array, ...] | None = None
) -> Composed:
    """Return the case with other inputs."""
    return Composed(case.id, case.op, inputs, case.attributes, case.const, case.outputs, expected)


def test_masks_of_four_axes_count_from_the_past_on() -> None:
    x, weights, bias = sample(BATCH, ROWS, 6), sample(6, 24, seed=1), sample(24, seed=2)
    mask = np.tril(np.ones((12, 12), np.int32))[None, None].repeat(BATCH, 0)
    plain = Composed(
        "", "Attention", (x, weights, bias, None, PAST), {**HEADS, "unidirectional": 1}, outputs=(True, True)
    )
    given = (x, weights, bias, mask, PAST)
    run_composed(Composed("", "Attention", given, HEADS, outputs=(True, True), expected=expect(plain)))


def test_new_rows_go_into_a_shared_buffer() -> None:
    x, weights, bias = sample(BATCH, 1, 6), sample(6, 24, seed=1), sample(24, seed=2)
    room = sample(2, BATCH, 2, 9, 4)
    y, present = expect(
        Composed("", "Attention", (x, weights, bias, None, room[..., :5, :].copy()), HEADS, outputs=(True, True))
    )
    wanted = room.copy()
    wanted[..., :6, :] = present
    given = (x, weights, bias, None, room, None, ints(5))
    attributes = {**HEADS, "past_present_share_buffer": 1}
    run_composed(Composed("", "Attention", given, attributes, outputs=(True, True), expected=(y, wanted)))


def test_padding_is_removed_by_the_counts_of_a_run() -> None:
    x, counts = sample(3, 4, 6), ints(1, 4, 2)
    places = ints([0, 4, 5, 6], [7, 8, 9, 1], [2, 3, 10, 11])
    expected = (np.concatenate((x[0, :1], x[1], x[2, :2])), places, ints(0, 1, 5, 7), ints(4))
    case = Composed("", "RemovePadding", (x, counts), outputs=(True,) * 4)
    for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
        with gx.Worker(gx.load(make_model(case, expected).SerializeToString()), backend=backend) as worker:
            outputs = worker.run([x, counts])
        for got, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_cache_that_grows_is_a_concat() -> None:
    case = next(case for case in CASES if case.id == "heads-past")
    graph = run_passes(load_graph(make_model(case, expect(case)).SerializeToString()).graph, AT_LOAD)
    names = [node.operator.name for node in graph.nodes]
    assert names.count("Concat") == 2 and names[-1] == "gpuexec.AttentionOverCache"


def sizes_of(name: str) -> list[Composed]:
    """Return cases of one model that differ in sizes alone."""
    if name == "grouped":
        whole = [(rows, (rows - 1,) * batch) for rows, batch in ((5, 2), (9, 1), (3, 4))]
        return [grouped("", rows, 0, last, rows, pairs=8) for rows, last in whole]
    if name == "grouped, next":
        whole = [(past, (past,) * batch) for past, batch in ((6, 2), (7, 2), (50, 1))]
        return [grouped("", 1, past, last, past + 1, pairs=8) for past, last in whole]
    cases = []
    for batch, rows, past in ((2, 5, 3), (1, 9, 4), (3, 1, 70)):
        held = (sample(batch, 2, past, 4), sample(batch, 2, past, 4, seed=1))
        parts = tuple(sample(batch, rows, 8, seed=seed) for seed in (2, 3, 4))
        mask = flags(batch, rows + past)
        if name == "heads":
            given = (*parts, sample(24), mask, None, *held)
            cases.append(Composed("", "MultiHeadAttention", given, HEADS, outputs=(True,) * 3))
        else:
            given = (parts[0], sample(8, 24), sample(24), mask, np.stack(held))
            cases.append(Composed("", "Attention", given, {**HEADS, "unidirectional": 1}, outputs=(True,) * 2))
    return cases


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", ["heads", "projected", "grouped", "grouped, next"])
def test_sizes_may_change_from_run_to_run(name: str, backend: gx.BackendType) -> None:
    cases = sizes_of(name)
    model = make_model(dataclasses.replace(cases[0], const=()), expect(cases[0]))
    for given in model.graph.input:
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if any(case.inputs[int(given.name[1:])].shape[axis] != dim.dim_value for case in cases):  # type: ignore[union-attr]
                dim.dim_param = f"{given.name}_{axis}"
    with gx.Worker(gx.load(model.SerializeToString()), backend=backend) as worker:
        for case in cases:
            outputs = worker.run({f"x{i}": x for i, x in enumerate(case.inputs) if x is not None})
            for got, wanted in zip(outputs, expect(case), strict=True):
                compare("", case, got, wanted, 1)


Q = sample(1, 1, 8)
WRONG: list[tuple[str, tuple[Array | None, ...], dict[str, Any], str]] = [
    ("MultiHeadAttention", (Q, Q, Q, None, None, None, Q), HEADS, "past_key and past_value together"),
    ("MultiHeadAttention", (Q, None, Q), HEADS, "values without keys"),
    ("MultiHeadAttention", (Q, Q, Q, *(None,) * 6, ints([[0]])), HEADS, "no cache_indirection"),
    ("DecoderMaskedMultiHeadAttention", (Q, Q, Q, *(None,) * 6, ints([[0]])), HEADS, "no cache_indirection"),
    (
        "GroupQueryAttention",
        (Q, Q, None, None, None, ints(0), ints(1)),
        {"num_heads": 2, "kv_num_heads": 2},
        "together",
    ),
    ("GroupQueryAttention", (Q, Q, Q, None, None, None, ints(1)), {"num_heads": 2, "kv_num_heads": 2}, "seqlens_k"),
    (
        "GroupQueryAttention",
        (Q, Q, Q, None, None, ints(1), ints(1), *[None] * 9, ints(1)),
        {"num_heads": 2, "kv_num_heads": 2},
        "no query_seqlens",
    ),
    (
        "GroupQueryAttention",
        (Q, Q, Q, None, None, ints(0), ints(1)),
        {"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1},
        "cos_cache and sin_cache",
    ),
]


@pytest.mark.parametrize(("name", "inputs", "attributes", "words"), WRONG)
def test_wrong_inputs_are_refused_with_the_node(
    name: str, inputs: tuple[Array | None, ...], attributes: dict[str, Any], words: str
) -> None:
    model = make_model(Composed("", name, inputs, attributes), (Q,)).SerializeToString()
    with pytest.raises((InputError, ModelError), match=f"'node'.*{words}"):
        run_passes(load_graph(model).graph, AT_LOAD)

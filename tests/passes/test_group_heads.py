"""The pass group_heads: grouped-query attention without repeated keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ir.graphs import Array
from tests.model.small_models import CPU
from tests.passes.harness import operators

HEADS, GROUP, SIZE = 2, 3, 4
BACKENDS = (CPU, gx.BackendType.SIMULATOR)
ATTENTION = "y = Attention (q, k, v)"
CONSTANTS = (
    "int64[1] two = {2}, int64[5] stretch = {1, 1, 3, 1, 1}, int64[5] stretch_batch = {3, 1, 1, 1, 1}, "
    "int64[4] join = {0, 6, -1, 4}, int64[4] join_batch = {-1, 2, 5, 4}, int64[4] join_rows = {0, 2, -1, 4}"
)


def repeat(source: str, to: str, stretch: str = "stretch", join: str = "join") -> str:
    return f"{to}_apart = Unsqueeze ({source}, two) {to}_all = Expand ({to}_apart, {stretch}) {to} = Reshape ({to}_all, {join})"  # noqa: E501


def make(body: str, more: str = "", dtype: str = "float", disabled: Sequence[str] = ()) -> gx.Model:
    """Return a model with queries q, and keys and values of few heads, a and b."""
    text = (
        f'<ir_version: 10, opset_import: ["": 23]> agraph ({dtype}[batch, heads, queries, 4] q, '
        f"{dtype}[few, 2, rows, 4] a, {dtype}[few, 2, rows, 4] b) => "
        f"({dtype}[batch, heads, queries, 4] y{more}) <{CONSTANTS}> {{ {body} }}"
    )
    return gx.load(parser.parse_model(text), disabled_passes=disabled)


def feeds(batch: int, queries: int, rows: int, heads: int = 6, few: int | None = None, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(rows)
    shapes = {"q": (batch, heads, queries, SIZE)} | dict.fromkeys("ab", (few or batch, HEADS, rows, SIZE))
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def run(model: gx.Model, backend: gx.BackendType, given: Sequence[dict[str, Array]]) -> list[Any]:
    with gx.Worker(model, backend=backend) as worker:
        return [worker.run(each) for each in given]


REPEATED = f"{repeat('a', 'k')} {repeat('b', 'v')} {ATTENTION}"


def test_repeated_heads_are_read_where_they_are() -> None:
    model = make(REPEATED)
    assert operators(model.graph).count("gpuexec.GroupHeads") == 2
    assert not {"Reshape", "Attention"} & set(operators(model.graph))
    with gx.Worker(model, backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(feeds(2, 1, 7))
        (plan,) = worker.plans
        inputs = {buffer.id for buffer in plan.buffers if buffer.name in ("a", "b")}
        read = [slot for command in plan.segment.commands for slot in command.reads_from() if slot.buffer in inputs]
        assert [slot.shape[1] for slot in read] == [HEADS, HEADS]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.value)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_bits_are_those_of_heads_copied(backend: gx.BackendType, dtype: str) -> None:
    of = {"float": np.float32, "float16": np.float16}[dtype]
    sizes = ((1, 1, 7), (2, 1, 8), (3, 5, 9), (1, 20, 300), (2, 1, 1), (1, 3, 0))
    given = [feeds(*size, dtype=of) for size in sizes]
    expected = run(make(REPEATED, dtype=dtype, disabled=["group_heads"]), backend, given)
    for got, each in zip(run(make(REPEATED, dtype=dtype), backend, given), expected, strict=True):
        np.testing.assert_array_equal(got, each)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.value)
@pytest.mark.parametrize(
    ("stretch", "join", "given"),
    [
        ("stretch_batch", "join_batch", feeds(3, 2, 5, heads=4, few=1)),
        ("stretch", "join_rows", feeds(2, 2, 5, heads=4)),
    ],
    ids=["batch", "rows"],
)
def test_what_joins_no_heads_is_joined_as_asked(backend: gx.BackendType, stretch: str, join: str, given: Any) -> None:
    body = f"{repeat('a', 'k', stretch, join)} {repeat('b', 'v', stretch, join)} {ATTENTION}"
    (expected,) = run(make(body, disabled=["group_heads"]), backend, [given])
    (got,) = run(make(body), backend, [given])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.value)
def test_keys_that_are_an_output_are_made_too(backend: gx.BackendType) -> None:
    model, plain = (make(REPEATED, ", float[batch, 6, rows, 4] k", disabled=d) for d in ((), ("group_heads",)))
    assert operators(model.graph).count("Reshape") == 1
    given = [feeds(2, 1, 7)]
    for got, expected in zip(run(model, backend, given)[0], run(plain, backend, given)[0], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "body",
    [
        f"{repeat('a', 'k')} {repeat('b', 'w')} v = Neg (w) {ATTENTION}",
        f"{repeat('a', 'k')} {repeat('b', 'v')} y = Attention <q_num_heads = 6, kv_num_heads = 6> (q, k, v)",
    ],
    ids=["changed on the way", "with a number of heads"],
)
def test_other_attention_stays(body: str) -> None:
    assert "gpuexec.GroupHeads" not in operators(make(body).graph)


def test_wrong_number_of_heads_is_refused_as_without() -> None:
    for disabled in ((), ("group_heads",)):
        with pytest.raises(gx.InputError, match="as many heads of Q as of K or a multiple, got 4 and 6"):
            run(make(REPEATED, disabled=disabled), CPU, [feeds(1, 1, 3, heads=4)])

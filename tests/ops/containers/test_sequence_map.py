"""SequenceMap: the body of each element run on every device, or interpreted on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.containers import make_sequence, pack, read_sequence, unpack
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ops.containers.sequence_map import SequenceMap
from gpuexec.ops.control.interpret import compute_graph
from tests.model.objects import BACKENDS, are_equal, check_everywhere, parse, run_on

F32 = np.float32
A, B, C = np.arange(3, dtype=F32), np.ones((2, 2), F32), np.zeros((0, 2), F32)
WORDS = np.array(["a", "b"], object)

MODELS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "elements of any shape": (
        """(seq(float[]) s) => (seq(float[]) y) {
          y = SequenceMap (s) <body = f (float[] e) => (float[] r) { r = Add (e, e) }> }""",
        {"s": [A, B, C, F32(2).reshape(())]},
        [[A * 2, B * 2, C, np.array(4, F32)]],
    ),
    "no element": (
        """(seq(float[]) s) => (seq(float[]) y) {
          y = SequenceMap (s) <body = f (float[] e) => (float[] r) { r = Neg (e) }> }""",
        {"s": []},
        [[]],
    ),
    "elements of another rank than declared": (
        """(seq(float[]) s) => (seq(float[]) y) {
          y = SequenceMap (s) <body = f (float[n] e) => (float[n] r) { r = Add (e, e) }> }""",
        {"s": [F32(1).reshape(()), A]},
        [[np.array(2, F32), A * 2]],
    ),
    "two sequences and a tensor": (
        """(seq(float[]) s, seq(float[]) t, float[3] x) => (seq(float[]) y, seq(int64[]) z) {
          y, z = SequenceMap (s, t, x) <body = f (float[3] a, float[3] b, float[3] c) => (float[3] r, int64[k] q) {
            d = Mul (a, b) r = Add (d, c) q = Shape (d) }>
        }""",
        {"s": [A, A + 1], "t": [A, A], "x": A},
        [[A * A + A, (A + 1) * A + A], [np.array([3]), np.array([3])]],
    ),
    "a captured sequence": (
        """(seq(float[]) s, float[3] x) => (seq(float[]) y) <int64 last = {-1}> {
          y = SequenceMap (s) <body = f (float[3] a) => (float[3] r) {
            n = SequenceLength (s) m = CastLike (n, a) e = SequenceAt (s, last) f = Mul (e, m) g = Add (a, x)
            r = Add (f, g) }>
        }""",
        {"s": [A, A * 2], "x": np.ones(3, F32)},
        [[A + 1 + 4 * A, A * 2 + 1 + 4 * A]],
    ),
    "passed on": (
        """(seq(float[]) s, float[3] x) => (seq(float[]) y, seq(float[]) z, seq(float[]) w) {
          y, z, w = SequenceMap (s) <body = f (float[] a) => (float[] a, float[3] x, float[1] k) <float[1] k = {7}> { }>
        }""",
        {"s": [A, B], "x": A},
        [[A, B], [A, A], [np.array([7], F32)] * 2],
    ),
    "strings": (
        """(seq(string[]) s) => (seq(string[]) y, seq(int64[]) z) {
          y, z = SequenceMap (s) <body = f (string[k] a) => (string[m] r, int64[1] q) {
            r = Concat <axis = 0> (a, a) q = Shape (a) }>
        }""",
        {"s": [WORDS, WORDS[:1]]},
        [[np.tile(WORDS, 2), np.tile(WORDS[:1], 2)], [np.array([2]), np.array([1])]],
    ),
    "a loop within": (
        """(seq(float[]) s, int64 n) => (seq(float[]) y) {
          y = SequenceMap (s) <body = f (float[] a) => (float[] r) {
            r = Loop (n, , a) <body = b (int64 i, bool c, float[] v) => (bool d, float[] w) {
              d = Identity (c) w = Add (v, v) }> }>
        }""",
        {"s": [A, B], "n": np.int64(3)},
        [[A * 8, B * 8]],
    ),
    "within a loop": (
        """(seq(float[]) s, int64 n) => (seq(float[]) y) {
          y = Loop (n, , s) <body = b (int64 i, bool c, seq(float[]) v) => (bool d, seq(float[]) w) {
            d = Identity (c) w = SequenceMap (v) <body = f (float[] a) => (float[] r) { r = Add (a, a) }> }>
        }""",
        {"s": [A, B], "n": np.int64(2)},
        [[A * 4, B * 4]],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_sequence_map(name: str) -> None:
    text, inputs, expected = MODELS[name]
    check_everywhere(parse(text), inputs, expected)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "passed on"])
def test_interpreting_gives_the_same(name: str) -> None:
    text, inputs, expected = MODELS[name]
    assert are_equal(run_interpreted(parse(text), inputs), expected)


def run_interpreted(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Return what NumPy makes of a graph, node by node."""
    graph = gx.load(model).graph
    arrays = [pack(inputs[value.name], value.declared) for value in graph.inputs if value.declared is not None]
    return [unpack(array) for array in compute_graph(graph, arrays)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_run_on_the_device_and_only_what_they_make_is_read(backend: gx.BackendType) -> None:
    text, inputs, _ = MODELS["elements of any shape"]
    with gx.Worker(gx.load(parse(text)), backend=backend) as worker:
        worker.run(inputs)
        report = worker.report()
    assert report.host_calls == ()
    assert {(row.node, row.why) for row in report.host_reads} == {("SequenceMap_0", "elements")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_of_unequal_length_are_refused_by_name(backend: gx.BackendType) -> None:
    text, inputs, _ = MODELS["two sequences and a tensor"]
    with gx.Worker(gx.load(parse(text)), backend=backend) as worker:
        with pytest.raises(InputError, match=r"SequenceMap 'SequenceMap_0'.*equally long, got \[1, 2\]"):
            worker.run({**inputs, "s": [A]})
        worker.run(inputs)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), max_size=4), max_size=5), st.lists(st.integers(0, 3), max_size=3))
def test_any_lengths_agree_with_numpy(rows: list[list[int]], order: list[int]) -> None:
    items = [np.array(row, F32) for row in rows]
    model = parse(
        """(seq(float[]) s, float[1] x) => (seq(float[]) y) {
          y = SequenceMap (s, x) <body = f (float[k] e, float[1] v) => (float[k] r) {
            t = Mul (e, e) r = Sub (t, v) }> }"""
    )
    x = np.array([sum(order)], F32)
    for backend in BACKENDS:
        assert are_equal(run_on(backend, model, {"s": items, "x": x}), [[item * item - x for item in items]])


def test_every_element_draws_numbers_of_its_own_and_the_same_on_every_device() -> None:
    model = gx.load(
        parse(
            """(seq(float[]) s) => (seq(float[]) y) {
              y = SequenceMap (s) <body = f (float[] e) => (float[] r) { r = RandomUniformLike (e) }> }"""
        )
    )
    found = []
    for backend in BACKENDS:
        with gx.Worker(model, backend=backend, seed=3) as worker:
            found.append([worker.run({"s": [A, A]})[0], worker.run({"s": [A]})[0]])
    assert are_equal(found[0], found[1])
    drawn = [tuple(row) for run in found[0] for row in run]
    assert len(set(drawn)) == 3 and all(0 <= number < 1 for row in drawn for number in row)


def test_operator_takes_a_body_of_enough_inputs_and_a_sequence() -> None:
    value = Value("v")
    body = Graph((value,), (value,), (), {})
    with pytest.raises(InputError, match="at least the 2 given values"):
        SequenceMap(body, 2)
    with pytest.raises(InputError, match="at least the 0 given values"):
        SequenceMap(body, 0)
    operator = SequenceMap(body, 1)
    (made,) = operator.compute(make_sequence([A, B]))
    assert are_equal(read_sequence(made), [A, B])
    with pytest.raises(InputError, match=r"SequenceMap expects a sequence, got float32\[3\]"):
        operator.compute(A)

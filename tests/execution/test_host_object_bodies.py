"""Host objects in and out of loops, scans and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.objects import BACKENDS, ONE, TWO, WORDS, are_equal, check_everywhere, parse, run_on

# A graph, its inputs and outputs; onnx's evaluator takes an absent condition for false, so they are worked by hand.
LOOPS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "sequence carried": (
        """(int64 n, float[k] x) => (seq(float[k]) y) {
          e = SequenceEmpty ()
          y = Loop (n, , e) <body = b (int64 i, bool c, seq(float[k]) s) => (bool d, seq(float[k]) t) {
            d = Identity (c) f = CastLike (i, x) z = Add (x, f) t = SequenceInsert (s, z) }>
        }""",
        {"n": np.int64(3), "x": TWO},
        [[TWO, TWO + 1, TWO + 2]],
    ),
    "optional carried": (
        """(int64 n, optional(seq(float[])) o, float[k] x) => (seq(float[]) y) {
          y = Loop (n, , o) <body = b (int64 i, bool c, optional(seq(float[])) s) => (bool d, seq(float[]) t) {
            d = Identity (c)
            h = OptionalHasElement (s)
            u = If (h) <then_branch = g1 () => (seq(float[]) u1) { u1 = OptionalGetElement (s) },
                        else_branch = g2 () => (seq(float[]) u2) { u2 = SequenceConstruct (x) }>
            t = SequenceInsert (u, x) }>
        }""",
        {"n": np.int64(2), "o": None, "x": TWO},
        [[TWO, TWO, TWO]],
    ),
    "ends by a length": (
        """(seq(float[]) s) => (seq(float[]) y, float[r, 2] rows) {
          c = Constant <value = bool {1}> ()
          m = Constant <value = int64 {3}> ()
          y, rows = Loop ( , c, s) <body = b (int64 i, bool c1, seq(float[]) a)
            => (bool d, seq(float[]) t, float[2] row) <int64 z = {0}> {
            row = SequenceAt (a, z)
            t = SequenceInsert (a, row)
            l = SequenceLength (t)
            d = Less (l, m) }>
        }""",
        {"s": [ONE]},
        [[ONE, ONE, ONE], np.ones((2, 2), np.float32)],
    ),
    "strings stacked": (
        """(int64 n, string[k] x) => (string[r, k] y, string[k] z) {
          z, y = Loop (n, , x) <body = b (int64 i, bool c, string[k] s) => (bool d, string[k] t, string[k] u)
            <int64[1] back = {-1}, int64[1] end = {-9}, int64[1] axis = {0}> {
            d = Identity (c) t = Slice (s, back, end, axis, back) u = Identity (t) }>
        }""",
        {"n": np.int64(3), "x": WORDS},
        [np.stack([WORDS[::-1], WORDS, WORDS[::-1]]), WORDS[::-1]],
    ),
    "no trips": (
        """(int64 n, string[k] x) => (string[r, k] y, string[k] z) {
          z, y = Loop (n, , x) <body = b (int64 i, bool c, string[k] s) => (bool d, string[k] t, string[k] u) {
            d = Identity (c) t = Identity (s) u = Identity (s) }>
        }""",
        {"n": np.int64(0), "x": WORDS},
        [np.empty((0, 3), object), WORDS],
    ),
    # What a first trip would fail at is no error where there is none; rows are as declared then.
    "no trips over nothing": (
        """(int64 n, seq(float[]) s, optional(float[2]) o, float[k, 2] x) => (float[r, 2] y, float[2, q] z) {
          y = Loop (n, ) <body = b (int64 i, bool c) => (bool d, float[2] w) {
            d = Identity (c) e = SequenceAt (s, i) f = OptionalGetElement (o) w = Add (e, f) }>
          z = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = b2 (float[2] a) => (float[2] f2)
            <int64 p = {0}> { e2 = SequenceAt (s, p) f2 = Add (a, e2) }> (x)
        }""",
        {"n": np.int64(0), "s": [], "o": None, "x": np.empty((0, 2), np.float32)},
        [np.empty((0, 2), np.float32), np.empty((2, 0), np.float32)],
    ),
    "no slices": (
        """(seq(float[]) s, float[k, 2] x) => (float[r, 2] y) {
          y = Scan <num_scan_inputs = 1, body = b (float[2] a) => (float[?] f) <int64 p = {0}> {
            e = SequenceAt (s, p) f = Add (a, e) }> (x)
        }""",
        {"s": [ONE], "x": np.empty((0, 2), np.float32)},
        [np.empty((0, 2), np.float32)],
    ),
    "captured": (
        """(int64 n, seq(float[]) s, float[2] x) => (float[2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
            d = Identity (c) e = SequenceAt (s, i) w = Add (v, e) }>
        }""",
        {"n": np.int64(2), "s": [ONE, ONE * 3], "x": ONE},
        [ONE * 5],
    ),
    "nested": (
        """(int64 n, float[2] x) => (seq(float[2]) y) {
          e = SequenceEmpty ()
          y = Loop (n, , e) <body = b (int64 i, bool c, seq(float[2]) s) => (bool d, seq(float[2]) t) {
            d = Identity (c)
            t = Loop (n, , s) <body = b2 (int64 i2, bool c2, seq(float[2]) s2) => (bool d2, seq(float[2]) t2) {
              d2 = Identity (c2) k = Add (i, i2) f = CastLike (k, x) g = Mul (x, f) t2 = SequenceInsert (s2, g) }> }>
        }""",
        {"n": np.int64(2), "x": ONE},
        [[ONE * 0, ONE, ONE, ONE * 2]],
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_with_host_objects(name: str) -> None:
    text, inputs, expected = LOOPS[name]
    check_everywhere(parse(text), inputs, expected)


def test_scan_over_strings_in_either_direction() -> None:
    model = parse(
        """(string[2, k] x, string[2] s) => (string[2] t, string[2, k] y) {
          t, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], scan_input_directions = [1],
                       scan_output_directions = [1],
                       body = b (string[2] a, string[2] e) => (string[2] c, string[2] f) {
                         c = Identity (e) f = Identity (a) }> (s, x)
        }"""
    )
    x = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
    start = np.array(["u", "v"], object)
    # Walked from the back, each trip gives what the one before took; the last stands first.
    expected = [x[:, 0], np.array([["b", "c", "u"], ["e", "f", "v"]], object)]
    check_everywhere(model, {"x": x, "s": start}, expected)


@pytest.mark.parametrize("condition", [True, False])
def test_branches_give_host_objects(condition: bool) -> None:
    model = parse(
        """(bool c, seq(float[]) s, string[k] w) => (seq(float[]) y, string[k] v) {
          y, v = If (c) <then_branch = a () => (seq(float[]) y1, string[k] v1) { y1 = Identity (s) v1 = Identity (w) },
                         else_branch = b () => (seq(float[]) y2, string[1] v2) <string[1] n = {"none"}> {
                           y2 = SequenceErase (s) v2 = Identity (n) }>
        }"""
    )
    check_everywhere(model, {"c": np.array(condition), "s": [ONE, TWO], "w": WORDS})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "node",
    ["Shape (s)", "Size (s)", "Transpose (s)", "Squeeze (s)", "Dropout (s)", "Expand (s, n)", "Add (s, s)",
     "SequenceConstruct (s)", "Concat <axis = 0> (n, s)"],
)  # fmt: skip
def test_operators_of_tensors_refuse_containers(backend: gx.BackendType, node: str) -> None:
    model = parse(f"(seq(float[]) s, int64[1] n) => (float[] y) {{ y = {node} }}")
    name = node.split()[0]
    place = node.removesuffix(")").split("(")[1].split(", ").index("s")
    with pytest.raises(
        gx.InputError, match=f"{name} '{name}_0': {name} expects tensors, got a sequence as input {place}"
    ):
        run_on(backend, model, {"s": [ONE], "n": np.ones(1, np.int64)})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "given", "got"),
    [
        ("seq(float[])", [ONE], "sequence"),
        ("string", np.array("a", object), r"string\[\]"),
        ("float", np.float32(1), r"float32\[\]"),
        ("bool[n]", np.array([True, False]), r"bool\[2\]"),
        ("bool[n]", np.empty(0, bool), r"bool\[0\]"),
    ],
)
def test_an_if_takes_one_bool_alone(backend: gx.BackendType, kind: str, given: Any, got: str) -> None:
    model = parse(
        f"""({kind} c, float[n] x) => (float[n] y) {{
          y = If (c) <then_branch = a () => (float[n] y1) {{ y1 = Neg (x) }},
                      else_branch = b () => (float[n] y2) {{ y2 = Abs (x) }}>
        }}"""
    )
    inputs = {"c": given, "x": np.ones(len(given) if kind == "bool[n]" else 2, np.float32)}
    with pytest.raises(gx.InputError, match=f"If 'If_0': the condition must be one bool, got {got}"):
        run_on(backend, model, inputs)


def test_an_if_decided_by_an_optional_takes_its_branch_anew_each_run() -> None:
    model = gx.load(
        parse(
            """(optional(float[n]) o, float[n] x) => (float[n] y) {
              h = OptionalHasElement (o)
              y = If (h) <then_branch = a () => (float[n] y1) { e = OptionalGetElement (o) y1 = Add (e, x) },
                          else_branch = b () => (float[n] y2) { y2 = Neg (x) }>
            }"""
        )
    )
    for backend in BACKENDS:
        with gx.Worker(model, backend=backend) as worker:
            found = [worker.run({"o": each, "x": ONE})[0] for each in (None, ONE * 4, None, ONE * 2)]
        assert are_equal(found, [-ONE, ONE * 5, -ONE, ONE * 3])

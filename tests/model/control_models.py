"""Small models with If, Loop and Scan, in ONNX's text form, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import parser

Array = np.ndarray[Any, Any]
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@dataclass(frozen=True)
class ControlModel:
    """A model and several sets of inputs for it, in order."""

    text: str
    inputs: tuple[tuple[Array, ...], ...]
    opset: int = 18

    def parse(self) -> onnx.ModelProto:
        return parser.parse_model(f'<ir_version: 10, opset_import: ["": {self.opset}]> agraph {self.text}')

    def feeds(self) -> list[dict[str, Array]]:
        names = [info.name for info in self.parse().graph.input]
        return [dict(zip(names, arrays, strict=True)) for arrays in self.inputs]


def flag(value: bool) -> Array:
    return np.array(value)


def number(value: int) -> Array:
    return np.array(value, np.int64)


NESTED = """(float[n, k] x, float limit) => (float[k] total, float[n, k] rows)
<float scale = {0.5}, int64 three = {3}, int64[1] axis = {0}, bool yes = {1}> {
  start = ReduceMax <keepdims = 0> (x, axis)
  total, rows = Scan <num_scan_inputs = 1, body = walk (float[k] s, float[k] row) => (float[k] s_out, float[k] made) {
    size = ReduceSum <keepdims = 0> (row)
    is_small = Less (size, limit)
    made = If (is_small) <
      then_branch = repeat () => (float[k] grown) {
        grown = Loop (three, yes, row) <body = halve (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
          c_out = Identity (c)
          shrunk = Mul (v, scale)
          v_out = Add (shrunk, s)
        }>
      },
      else_branch = keep () => (float[k] kept) { kept = Neg (row) }>
    s_out = Add (s, made)
  }> (start, x)
}"""

MODELS = {
    "if": ControlModel(
        """(float[3, 4] x, bool c) => (float[3, n] y) {
          t = Neg (x)
          y = If (c) <then_branch = a () => (float[3, 4] p) { p = Abs (t) },
                      else_branch = b () => (float[3, 1] q) { q = ReduceMean <axes = [1]> (x) }>
        }""",
        ((X, flag(True)), (X, flag(False))),
        opset=13,
    ),
    "if_of_many_outputs": ControlModel(
        """(float[3, 4] x, bool[1] c) => (float[3, 4] y, float[3, 4] z) {
          y, z = If (c) <
            then_branch = a () => (float[3, 4] p, float[3, 4] q) { p = Abs (x) q = Identity (x) },
            else_branch = b () => (float[3, 4] p, float[3, 4] q) { q = Neg (x) p = Exp (q) }>
        }""",
        ((X, np.array([True])), (X, np.array([False]))),
    ),
    "loop_of_trips": ControlModel(
        """(float[3, 4] x, int64 n) => (float[3, 4] y) {
          y = Loop (n, "", x) <body = b (int64 i, bool c, float[3, 4] v) => (bool c_out, float[3, 4] v_out) {
            c_out = Identity (c)
            f = Cast <to = 1> (i)
            v_out = Add (v, f)
          }>
        }""",
        ((X, number(5)), (X, number(0)), (X, number(-2))),
    ),
    "loop_that_ends_early": ControlModel(
        """(float[3, 4] x, float limit) => (float[3, 4] y, float[t, 3, 4] all) <bool yes = {1}> {
          y, all = Loop ("", yes, x) <body = b (int64 i, bool c, float[3, 4] v) =>
            (bool c_out, float[3, 4] v_out, float[3, 4] row) {
              v_out = Add (v, v)
              size = ReduceMax <keepdims = 0> (v_out)
              c_out = Less (size, limit)
              row = Identity (v_out)
          }>
        }""",
        ((X, np.array(50, np.float32)), (X, np.array(-1, np.float32))),
    ),
    "loop_that_never_starts": ControlModel(
        """(float[3, 4] x, bool c) => (float[3, 4] y, float[t, 4, 3] rows) <int64 n = {4}> {
          y, rows = Loop (n, c, x) <body = b (int64 i, bool k, float[3, 4] v) =>
            (bool k_out, float[3, 4] v_out, float[4, 3] row) {
              k_out = Identity (k) v_out = Neg (v) row = Transpose (v)
          }>
        }""",
        ((X, flag(False)), (X, flag(True))),
    ),
    "loop_that_grows": ControlModel(
        """(float[n, 4] x, int64 times) => (float[m, 4] y, int64[t, 1] lengths) <bool yes = {1}> {
          y, lengths = Loop (times, yes, x) <body = b (int64 i, bool c, float[a, 4] v) =>
            (bool c_out, float[b, 4] v_out, int64[1] length) {
              c_out = Identity (c)
              v_out = Concat <axis = 0> (v, x)
              length = Shape <end = 1> (v_out)
          }>
        }""",
        ((X, number(3)), (X[:1], number(1))),
    ),
    "scan_along_axes_and_back": ControlModel(
        """(float[3, 4] a, float[4, 3] b, float[3] s) => (float[3] last, float[3, 4] y, float[4, 3] z) {
          last, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
                             scan_output_axes = [-1, 0], scan_output_directions = [1, 0],
            body = step (float[3] state, float[3] left, float[3] right) =>
              (float[3] out, float[3] p, float[3] q) {
                out = Add (state, left)
                p = Mul (out, right)
                q = Sub (left, right)
            }> (s, a, b)
        }""",
        ((X, X.T.copy() + 1, np.arange(3, dtype=np.float32)),),
    ),
    "scan_of_nothing": ControlModel(
        """(float[n, 4] x, float[4] s) => (float[4] last, float[4, n] y) {
          last, y = Scan <num_scan_inputs = 1, scan_output_axes = [1],
            body = step (float[4] state, float[4] row) => (float[4] out, float[4] p) {
              out = Add (state, row) p = Identity (out)
            }> (s, x)
        }""",
        ((X, X[0]), (X[:0], X[0])),
    ),
    "scan_of_batches": ControlModel(
        """(float[2, 1] s, float[2, 3, 1] x, float k) => (float[2, 1] last, float[2, 3, 1] y) {
          last, y = Scan <num_scan_inputs = 1, directions = [1],
            body = step (float[1] state, float[1] item) => (float[1] out, float[1] p) {
              t = Mul (item, k) out = Add (state, t) p = Identity (out)
            }> ("", s, x)
        }""",
        ((X[:2, :1], X[:2, :3, None], np.array(3, np.float32)),),
        opset=8,
    ),
    "loop_in_if_in_scan": ControlModel(
        NESTED, ((X, np.array(0, np.float32)), (X, np.array(9, np.float32)), (X, np.array(-9, np.float32)))
    ),
}

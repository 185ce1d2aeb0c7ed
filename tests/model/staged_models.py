"""Models that take several plans: data-dependent, or with host computation in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import parser

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel and Call)
from gpuexec.devices.backend import Backend

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
# Large enough that the host leaves the work to the device.
SIDE = 160


@dataclass(frozen=True)
class StagedModel:
    """A model in ONNX's text form, and what is known of it before it runs.

    ``shape`` and ``bound`` give the shape of the first output for an input, or the largest it can have, where that is
    known beforehand; ``reads`` are the values that the host reads in a run, and ``calls`` the nodes it computes, on a
    device with kernels. ``expected`` stands in for onnxruntime.
    """

    text: str
    shape: Callable[[Array], Shape] | None = None
    bound: Callable[[Array], Shape] | None = None
    reads: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    expected: Callable[[Array], Sequence[Array]] | None = None

    def is_whole(self, backend: Backend) -> bool:
        """Return whether a run is one plan."""
        return bool(self.calls) and not backend.device.target.has_kernels

    def parse(self) -> onnx.ModelProto:
        return parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {self.text}')

    def load(self) -> gx.Model:
        return gx.load(self.parse().SerializeToString())

    def expect(self, x: Array) -> list[Array]:
        """Return the outputs for an input."""
        if self.expected is not None:
            return list(self.expected(x))
        import onnxruntime

        session = onnxruntime.InferenceSession(self.parse().SerializeToString(), providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(None, {"x": x})]

    def check(self, x: Array, made: Sequence[Array]) -> None:
        """Check the outputs for an input."""
        for got, expected in zip(made, self.expect(x), strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def inputs(number: int) -> Array:
    """Return the input of a number: each with another share of zeros, another sum, another largest element."""
    random = np.random.default_rng(number)
    x = random.normal(size=(SIDE, SIDE)).astype(np.float32)
    x[random.random(x.shape) < (0.9, 0.5, 0.99)[number % 3]] = 0
    return (x + 0.02 * (-1) ** number * (x != 0)).astype(np.float32)


MODELS = {
    "read": StagedModel(
        "(float[n, k] x) => (int64[2, m] y) { a = Relu (x) y = NonZero (a) }",
        bound=lambda x: (2, x.size),
        reads=("_.count",),
    ),
    "computed k": StagedModel(
        """(float[n, k] x) => (float[n, j] y, int64[n, j] at) <int64[1] three = {3}, int64[1] two = {2}> {
          some = Sign (x)
          sum = ReduceSum <keepdims = 0> (some)
          whole = Cast <to = 7> (sum)
          rest = Mod (whole, three)
          k = Add (rest, two)
          y, at = TopK (x, k)
        }""",
        bound=lambda x: x.shape,
        reads=("sum",),
    ),
    "host call": StagedModel(
        """(float[n, k] x) => (float[n, k] y) <float one = {1}> {
          a = Relu (x) b = test.NoKernel (a) y = Add (b, one)
        }""",
        shape=lambda x: x.shape,
        reads=("a",),
        calls=("call",),
        expected=lambda x: [1 - np.maximum(x, 0)],
    ),
    "if": StagedModel(
        """(float[n, k] x) => (float[n, j] y) <float zero = {0}, int64[1] axis = {1}> {
          sum = ReduceSum <keepdims = 0> (x)
          c = Greater (sum, zero)
          y = If (c) <then_branch = a () => (float[n, k] p) { p = Neg (x) },
                      else_branch = b () => (float[n, l] q) { q = ReduceMax (x, axis) }>
        }""",
        reads=("sum",),
    ),
    "loop": StagedModel(
        """(float[n, k] x) => (float[n, k] y, float[t] sizes) <bool yes = {1}, float limit = {40}> {
          start = Abs (x)
          y, sizes = Loop ("", yes, start) <body = b (int64 i, bool c, float[n, k] v) =>
            (bool c_out, float[n, k] v_out, float size) {
              v_out = Add (v, v)
              size = ReduceMax <keepdims = 0> (v_out)
              c_out = Less (size, limit)
          }>
        }""",
        reads=("size",),
    ),
    "scan": StagedModel(
        """(float[n, k] x) => (float[k] y, float[n, k] rows) <int64[1] axis = {0}> {
          start = ReduceMax <keepdims = 0> (x, axis)
          y, rows = Scan <num_scan_inputs = 1, body = b (float[k] s, float[k] row) => (float[k] s_out, float[k] made) {
            s_out = Add (s, row) made = Neg (s_out)
          }> (start, x)
        }""",
        shape=lambda x: x.shape[1:],
    ),
    "many": StagedModel(
        """(float[n, k] x) => (float[t, m] y, int64[2, m] found)
        <bool yes = {1}, float limit = {300}, float zero = {0}, int64[1] flat = {-1}> {
          found = NonZero (x)
          by_row = Transpose <perm = [1, 0]> (found)
          values = GatherND (x, by_row)
          sum = ReduceSum <keepdims = 0> (values)
          is_more = Greater (sum, zero)
          start = If (is_more) <then_branch = a () => (float[m] p) { p = Abs (values) },
                                else_branch = b () => (float[m] q) { q = Neg (values) }>
          last, y = Loop ("", yes, start) <body = c (int64 i, bool c, float[m] v) =>
            (bool c_out, float[m] v_out, float[m] row) {
              v_out = Add (v, v)
              row = Neg (v_out)
              size = ReduceMax <keepdims = 0> (v_out)
              c_out = Less (size, limit)
          }>
        }""",
        reads=("found.count", "sum", "size"),
    ),
}

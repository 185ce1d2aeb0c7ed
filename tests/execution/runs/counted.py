"""A counted Loop, and loading of models with bodies."""

from __future__ import annotations

import numpy as np

import gpuexec as gx
from tests.model.control_models import ControlModel

LARGE = np.ones((100, 200), np.float32)
COUNTED = """(float[r, k] x, int64 n) => (float[r, k] y, float[t, r, k] rows) {
  y, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[r, k] v) =>
    (bool c_out, float[r, k] v_out, float[r, k] row) {
      c_out = Identity (c) v_out = Add (v, v) row = Neg (v)
  }>
}"""


def load(text: str, opset: int = 21) -> gx.Model:
    return gx.load(ControlModel(text, (), opset).parse().SerializeToString())

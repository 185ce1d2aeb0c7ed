"""Exporter script for ``models/onnxscript_nodes.onnx``: operators in Python with loop, branch and function.

Needs onnxscript: ``pip install onnxscript``. Run it as ``python examples/exporters/onnxscript_nodes.py``.
"""

from __future__ import annotations

import numpy as np
import onnx
from keeping import Array, keep
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

local = Opset("examples.local", 1)


@script(local, default_opset=op)
def normalize(x):  # type: ignore[no-untyped-def]
    """Divide rows by their lengths, and leave rows of zeros."""
    length = op.ReduceL2(x, op.Constant(value_ints=[-1]), keepdims=1)
    return x / op.Max(length, op.Constant(value_float=1e-6))


@script(default_opset=op)  # type: ignore[untyped-decorator]
def rank(links: FLOAT["n", "n"], steps: INT64) -> FLOAT["n"]:  # type: ignore[name-defined]  # noqa: F821, UP037
    """Rank nodes by links between them: so many steps of a walk; if it has not settled, half-way to equal."""
    size = op.Shape(links, start=0, end=1)
    count = op.CastLike(size, links)
    score = op.Expand(op.Constant(value_float=1.0), size) / count
    change = op.Constant(value_float=1.0)
    rows = normalize(links)
    for _ in range(steps):
        walked = op.MatMul(score, rows)
        total = op.ReduceSum(walked, keepdims=0)
        after = op.Constant(value_float=0.85) * walked / total + op.Constant(value_float=0.15) / count
        change = op.ReduceMax(op.Abs(after - score), keepdims=0)
        score = op.Identity(after)
    if change > op.Constant(value_float=0.01):
        result = (score + op.Constant(value_float=1.0) / count) * op.Constant(value_float=0.5)
    else:
        result = op.Identity(score)
    return result


def rank_here(links: Array, steps: Array) -> Array:
    """Do the same in NumPy."""
    size = np.float32(len(links))
    score, change = np.full(len(links), 1 / size, np.float32), np.float32(1)
    rows = links / np.maximum(np.sqrt(np.square(links).sum(-1, keepdims=True)), np.float32(1e-6))
    for _ in range(int(steps)):
        walked = score @ rows
        after = np.float32(0.85) * walked / walked.sum() + np.float32(0.15) / size
        score, change = after, np.abs(after - score).max()
    return np.asarray((score + 1 / size) * np.float32(0.5) if change > 0.01 else score, np.float32)


def main() -> None:
    """Write, and keep the model with what NumPy gives where the walk settles and where it does not."""
    model = rank.to_model_proto()
    onnx.checker.check_model(model)
    links = (np.random.default_rng(0).random((7, 7)) < 0.4).astype(np.float32) + np.eye(7, dtype=np.float32)
    cases = [[links, np.array(12)], [links[:4, :4].copy(), np.array(1)]]
    keep("onnxscript_nodes", model, cases, [[rank_here(*case)] for case in cases])


if __name__ == "__main__":
    main()

"""Models with strings, sequences and optionals, run on every device and compared with onnx's evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import parser
from onnx.reference import ReferenceEvaluator

import gpuexec as gx

BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR)
Array = np.ndarray[Any, Any]


def parse(text: str, opset: int = 18) -> onnx.ModelProto:
    """Return the model that a graph in onnx's textual form is."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two outputs are the same: kinds, dtypes, shapes and every element."""
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(are_equal, a, b))
    if a is None or b is None:
        return a is b
    first, second = np.asarray(a), np.asarray(b)
    is_text = first.dtype.kind in "OUT" and second.dtype.kind in "OUT"
    return (is_text or first.dtype == second.dtype) and first.shape == second.shape and bool((first == second).all())


def run_reference(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Return what onnx's evaluator gives."""
    results = ReferenceEvaluator(model).run(None, dict(inputs))
    assert isinstance(results, list)
    return results


def run_on(
    backend: gx.BackendType, model: onnx.ModelProto | gx.Model, inputs: Mapping[str, Any], times: int = 1
) -> list[Any]:
    """Return what a Worker gives, of the last of several runs."""
    loaded = model if isinstance(model, gx.Model) else gx.load(model)
    with gx.Worker(loaded, backend=backend) as worker:
        for _ in range(times):
            run = worker.schedule(dict(inputs))
            outputs = [tensor.readback_and_clone() for tensor in run.outputs.values()]
    return outputs


def check_everywhere(
    model: onnx.ModelProto, inputs: Mapping[str, Any], expected: Sequence[Any] | None = None, times: int = 2
) -> None:
    """Check that every backend gives what is expected, or else what onnx's evaluator gives; more than once."""
    wanted = run_reference(model, inputs) if expected is None else list(expected)
    for backend in BACKENDS:
        got = run_on(backend, model, inputs, times)
        assert are_equal(got, wanted), (backend, got, wanted)


ONE = np.ones(2, np.float32)
TWO = np.arange(3, dtype=np.float32)
WORDS = np.array(["a", "ü", ""], object)
# Some of everything, host and device by turns.
MIXED = parse(
    """(seq(float[]) s, float[n] x, string[k] w) => (seq(float[]) t, float[m] c, string[k] v, optional(float[n]) o)
    <string[1] more = {"more"}> {
      r = Relu (x)
      q = SequenceInsert (s, r)
      t = SequenceMap (q) <body = f (float[?] e) => (float[?] f) { f = Add (e, e) }>
      c = ConcatFromSequence <axis = 0> (t)
      v = Concat <axis = 0> (w, more)
      o = Optional (r)
    }"""
)
INPUTS = {"s": [ONE], "x": np.array([-1, 2, 3], np.float32), "w": WORDS}

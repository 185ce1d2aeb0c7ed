"""Pass harness: models in ONNX's text form as graphs, and a check that a pass keeps the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.ir.graphs import Array, Graph, check
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.program.rehearsing import rehearse


def load(text: str, opset: int = 18) -> Graph:
    return load_graph(parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')).graph


def operators(graph: Graph) -> list[str]:
    return [node.operator.name for node in graph.nodes]


def check_same(before: Graph, after: Graph, rtol: float = 0, **feeds: Array) -> None:
    """Check that another engine computes the same of both, and that inputs and outputs have stayed."""
    check(after)
    assert after.inputs == before.inputs
    assert [value.name for value in after.outputs] == [value.name for value in before.outputs]
    expected, got = run_oracle(to_model(before), feeds)[1], run_oracle(to_model(after), feeds)[1]
    assert list(got) == list(expected)
    _compare(expected, got, rtol)


def check_computed(before: Graph, after: Graph, rtol: float = 0, **feeds: Array) -> None:
    """Check that NumPy computes of one graph what another engine computes of the other, as `check_same` does.

    For passes that make operators of our own, which no other engine runs.
    """
    check(after)
    assert after.inputs == before.inputs
    assert [value.name for value in after.outputs] == [value.name for value in before.outputs]
    expected = run_oracle(to_model(before), feeds)[1]
    arrays = compute_graph(after, [feeds[value.name] for value in after.inputs])
    _compare(expected, dict(zip(expected, arrays, strict=True)), rtol)


def compile_together(models: Sequence[tuple[bytes, Mapping[str, Array]]], backend: gx.BackendType) -> None:
    """Compile the kernels of generated text of models for their inputs, all those of one file as one object."""
    device = open_backend(backend).device
    found = [rehearse(gx.load(data), device.target, [inputs]).kernels for data, inputs in models]
    device.load(list(dict.fromkeys(kernel for kernels in found for kernel in kernels if kernel.text)))


def _compare(expected: Mapping[str, Array], got: Mapping[str, Array], rtol: float) -> None:
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        wide = array.astype(np.float64)
        limit = rtol * float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0))
        np.testing.assert_allclose(got[name].astype(np.float64), wide, rtol=0, atol=limit, err_msg=name)

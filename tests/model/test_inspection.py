"""Inspection of models: without their weights, made in code, as text."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.devices.backend import Backend
from tests.devices.backends import is_tracer

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
COLUMNS = 1 << 20
LARGE = 64 * COLUMNS * 4


@pytest.mark.feature("B2")
def test_a_model_is_looked_at_without_reading_weights_that_lie_beside_it(tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[n,64] x) => (float[n,{COLUMNS}] y)
        <float[64,{COLUMNS}] w = ["location": "weights.bin"]> {{y = MatMul(x, w)}}"""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(LARGE)  # a hole, which takes no disk
    tracemalloc.start()
    try:
        loaded = gx.load(path)
        (array,) = loaded.graph.constants.values()
        assert (array.nbytes, array.dtype) == (LARGE, np.float32)
        assert tracemalloc.get_traced_memory()[1] < LARGE // 16
    finally:
        tracemalloc.stop()


@pytest.mark.feature("B8")
def test_a_model_is_built_in_code(backend: Backend) -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    built = gx.graph(lambda x: gx.fn.relu(x @ weight), {"x": ("float32", ("n", 3))})
    parsed = gx.load(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[n,3] x) => (float[n,3] y) {y = Relu(x)}'
        )
    )
    with gx.Worker(built, backend=backend) as one, gx.Worker(parsed, backend=backend) as other:
        got, also = one.run(x)[0], other.run(x)[0]
    if not is_tracer(backend):
        np.testing.assert_allclose(got, np.maximum(x @ weight, 0), rtol=1e-6)
        np.testing.assert_array_equal(also, np.maximum(x, 0))


@pytest.mark.feature("S78")
def test_the_graph_is_printed_as_text_and_drawn_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, page = gx.load(DIGITS), tmp_path / "arena.html"
    assert main(["info", str(DIGITS)]) == 0
    info = capsys.readouterr().out
    assert all(re.search(rf"\b{re.escape(node.operator.name)}\b", info) for node in model.graph.nodes)
    assert main(["explain", str(DIGITS), "--dims", "batch=2", "--backend", "cpu", "--memory", str(page)]) == 0
    rows = [line.partition("# ") for line in capsys.readouterr().out.splitlines() if "# " in line]
    lines = {name: line for line, _, names in rows for name in re.split(r" ?\+ ?", names.split("  ")[0])}
    for node in model.graph.nodes:
        if node.operator.name != "Flatten":  # a view: nothing runs for it
            # Its reads and writes with their shapes; names of nodes that run as one stand together.
            assert re.search(r"%\d+:float32\[2,[\d,]+\] = [\w.]+\(%\d+:float32", lines[node.name]), node.name
    assert page.read_text().count("<rect") >= 5

"""ONNX Runtime's quantization package over the look-alike: equal models and equal results."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[4]
# Run with the folder of the model, and whether the look-alike stands in.
PROGRAM = """
    import logging, os, sys
    import numpy as np
    logging.disable()
    folder, stands_in = sys.argv[1], sys.argv[2] == "True"
    if stands_in:
        import gpuexec.compat.onnxruntime as ours
        ours.stand_in()
    import onnxruntime as ort
    from onnxruntime.quantization import (
        CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static,
    )
    from onnxruntime.quantization.qdq_loss_debug import collect_activations, modify_model_output_intermediate_tensors
    assert stands_in == ("gpuexec" in ort.__file__)

    class Reader(CalibrationDataReader):
        def __init__(self):
            rng = np.random.default_rng(1)
            self.feeds = iter([{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(3)])

        def get_next(self):
            return next(self.feeds, None)

    source = os.path.join(folder, "model.onnx")
    x = np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype(np.float32)
    made = {}

    def keep(name):
        path = os.path.join(folder, f"{stands_in}-{name}.onnx")
        made[name] = path
        return path

    quantize_dynamic(source, keep("dynamic"), weight_type=QuantType.QInt8)
    for form in QuantFormat:
        for method in (CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile):
            quantize_static(source, keep(f"{form}-{method}"), Reader(), quant_format=form, calibrate_method=method)
    results = {}
    for name, path in made.items():
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        results[name] = session.run(None, {"x": x})[0]
    augmented = os.path.join(folder, f"{stands_in}-seen.onnx")
    modify_model_output_intermediate_tensors(source, augmented)
    for name, arrays in collect_activations(augmented, Reader()).items():
        results[f"seen {name}"] = np.concatenate(arrays)
    np.savez(os.path.join(folder, f"{stands_in}.npz"), **results)
"""


def make_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) * 0.2,
        "b": rng.standard_normal(4).astype(np.float32) * 0.1,
        "f": rng.standard_normal((4 * 4 * 4, 5)).astype(np.float32) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["l"], "flatten"),
        helper.make_node("MatMul", ["l", "f"], ["y"], "matmul"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("quantized")
    onnx.save(make_model(), folder / "model.onnx")
    for stands_in in (False, True):
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(stands_in)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return folder, np.load(folder / "False.npz"), np.load(folder / "True.npz")


def test_models_give_the_same(made: tuple[Path, Any, Any]) -> None:
    _, theirs, mine = made
    assert sorted(theirs) == sorted(mine) and len(mine) == 7 + 6
    for name in theirs:
        # Quantised values may differ by a step where a sum was rounded to the other side of a half.
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=2e-2, err_msg=name)


def test_models_are_the_same(made: tuple[Path, Any, Any]) -> None:
    folder = made[0]
    paths = sorted(folder.glob("False-*.onnx"))
    assert len(paths) == 8
    for path in paths:
        theirs, mine = (onnx.load(p) for p in (path, path.with_name(path.name.replace("False", "True", 1))))
        assert [node.op_type for node in theirs.graph.node] == [node.op_type for node in mine.graph.node]
        for one, other in zip(theirs.graph.initializer, mine.graph.initializer, strict=True):
            left, right = numpy_helper.to_array(one), numpy_helper.to_array(other)
            # Some are named by the time at which they were made.
            assert re.sub(r"\d+", "", one.name) == re.sub(r"\d+", "", other.name) and left.dtype == right.dtype
            tolerance = {"rtol": 1e-5} if left.dtype == np.float32 else {"rtol": 0, "atol": 1}
            np.testing.assert_allclose(right.astype(np.float64), left.astype(np.float64), err_msg=one.name, **tolerance)

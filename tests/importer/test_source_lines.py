"""Source lines of nodes: quoted in errors of every kind, and left out of files unless asked for."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.compat.onnxruntime import InferenceSession, SessionOptions
from gpuexec.errors import NodeName
from gpuexec.importer.source_lines import STACK_TRACE, read_source
from tests.model.small_models import CPU

TRACE = """File "/home/ann/train.py", line 90, in forward
    return self.net(x)
File "/home/ann/net.py", line 12, in forward
    return x @ self.weight
File "/venv/lib/python3.13/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
"""
FRAME = 'File "/home/ann/net.py", line 12, in forward'
QUOTED = f"\n  {FRAME}\n    return x @ self.weight"


def trace(node: onnx.NodeProto, text: str = TRACE) -> onnx.NodeProto:
    node.metadata_props.add(key="namespace", value=": Net/fc: Linear")
    node.metadata_props.add(key=STACK_TRACE, value=text)
    return node


def make(nodes: Sequence[onnx.NodeProto], shape: Sequence[Any] = ("n", 3), **constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def quoted(call: Callable[[], object]) -> gx.GpuexecError:
    """Return what a call raises, having checked that it quotes the line once, behind all else."""
    with pytest.raises(gx.GpuexecError) as caught:
        call()
    error = caught.value
    assert str(error).endswith(QUOTED) and str(error).count(FRAME) == 1, str(error)
    return error


def test_innermost_line_of_the_users_code_is_kept() -> None:
    assert read_source(trace(onnx.NodeProto())) == f"{FRAME}\n    return x @ self.weight"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('File "a.py", line 1, in f', 'File "a.py", line 1, in f'),
        (
            '  File "/x/site-packages/lib.py", line 3, in g\n    1/0',
            'File "/x/site-packages/lib.py", line 3, in g\n    1/0',
        ),
        ('File "a.py", line 1, in f\nFile "b.py", line 2, in g\n  h()', 'File "b.py", line 2, in g\n    h()'),
        (f'File "a.py", line 1, in f\n  {"x" * 500}', f'File "a.py", line 1, in f\n    {"x" * 200}...'),
        ('File "a\x1b[2J.py", line 1, in f', 'File "a[2J.py", line 1, in f'),
        ("no traceback at all", ""),
        ("", ""),
    ],
    ids=["no code", "library", "two", "long", "control characters", "other text", "empty"],
)
def test_odd_tracebacks_are_read_as_far_as_they_go(text: str, kept: str) -> None:
    assert read_source(trace(onnx.NodeProto(), text)) == kept


def test_contradiction_found_while_loading_quotes_the_line() -> None:
    bad = trace(helper.make_node("Softmax", ["x"], ["y"], name="soft", axis=1.5))
    assert quoted(lambda: gx.load(make([bad]))).node == "soft"
    lost = trace(helper.make_node("Relu", ["nothing"], ["y"], name="relu"))
    assert "is made by no node" in str(quoted(lambda: gx.load(make([lost]))))


def test_unsupported_operator_quotes_the_line_of_its_first_node() -> None:
    nodes = [trace(helper.make_node("Convv", ["x"], ["y"]))]
    with pytest.raises(gx.UnsupportedError) as caught:
        gx.load(make(nodes))
    lines = str(caught.value).splitlines()
    assert lines[1:4] == ["  operator Convv: 1 (Convv_0)", f"    {FRAME}", "        return x @ self.weight"]


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_plan_error_quotes_the_line(backend: gx.BackendType) -> None:
    model = gx.load(make([trace(helper.make_node("MatMul", ["x", "w"], ["y"], name="fc"))], w=np.ones((4, 2), "f4")))
    with gx.Worker(model, backend=backend) as worker:
        error = quoted(lambda: worker.run(np.ones((2, 3), np.float32)))
    assert error.node == "fc" and "MatMul 'fc'" in error.message
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.node == "fc"


def test_run_time_error_quotes_the_line() -> None:
    node = trace(helper.make_node("Gather", ["w", "i"], ["y"], name="rows"))
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    model = gx.load(make([cast, node], ("n",), w=np.ones((4, 2), np.float32)))
    with gx.Worker(model, backend=CPU) as worker:
        assert quoted(lambda: worker.run(np.float32([9]))).node == "rows"


def test_fused_and_decomposed_nodes_keep_the_line() -> None:
    nodes = [
        trace(helper.make_node("MatMul", ["x", "w"], ["a"], name="fc")),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    model = gx.load(make(nodes, w=np.ones((4, 2), np.float32)))
    with gx.Worker(model, backend=CPU) as worker:
        quoted(lambda: worker.run(np.ones((2, 3), np.float32)))
    part = trace(helper.make_node("MeanVarianceNormalization", ["x"], ["y"], name="norm", axes=[7]))
    with gx.Worker(gx.load(make([part])), backend=CPU) as worker:  # expanded from its ONNX body
        quoted(lambda: worker.run(np.ones((2, 3), np.float32)))


def test_saving_strips_lines_unless_asked(tmp_path: Path) -> None:
    node = trace(helper.make_node("MatMul", ["x", "w"], ["y"], name="fc"))
    path = tmp_path / "net.onnx"
    onnx.save(make([node], w=np.ones((4, 2), np.float32)), path)
    model = gx.load(path)
    saved, kept, optimized, program = (tmp_path / name for name in ("saved", "kept", "optimized", "program"))
    model.save(saved)
    model.save(kept, keep_sources=True)
    gx.Program.build({"forward": gx.load(make([node], (2, 4), w=np.ones((4, 2), np.float32)))}).save(program)
    options = SessionOptions()
    options.optimized_model_filepath = str(optimized)
    InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert b"/home/ann" in kept.read_bytes()
    for file in (saved, optimized, program):
        assert b"/home/ann" not in file.read_bytes(), file.name
    assert b"namespace" in saved.read_bytes()
    with gx.Worker(gx.load(kept), backend=CPU) as worker:
        quoted(lambda: worker.run(np.ones((2, 3), np.float32)))


def test_name_with_a_line_is_the_same_name() -> None:
    name = NodeName("fc", "File 'a.py'")
    assert name == "fc" and {name: 1}["fc"] == 1 and f"{name!r}" == "'fc'"
    again = pickle.loads(pickle.dumps(name))
    assert type(again) is NodeName and again.source == name.source

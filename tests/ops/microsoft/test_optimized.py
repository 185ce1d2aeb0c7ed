"""Models optimized by ONNX Runtime: every operator they use, and whole models, compared with onnxruntime."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import gpuexec as gx
from gpuexec.importer.expand import is_runnable
from tests.ops.microsoft.composed import DOMAIN, Array
from tests.ops.microsoft.emitted import EMITTED, EMITTED_IN_ONNX, FURTHER, LEFT_OUT
from tests.ops.microsoft.samples import ints, sample
from tests.system.models.folder import needs_models, path_of, read_case, read_manifest

BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR)
# Of both domains; the quantizers' tests have those.
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")


@pytest.mark.parametrize("name", [*EMITTED, *FURTHER])
def test_operator_is_run(name: str) -> None:
    assert is_runnable(name, DOMAIN, 1)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_operator_left_out_is_not_run(name: str) -> None:
    assert not is_runnable(name, DOMAIN, 1), "take it off the list"


@pytest.mark.parametrize("name", EMITTED_IN_ONNX)
def test_operator_of_onnx_is_run(name: str) -> None:
    assert is_runnable(name, "", 17)


def test_lists_hold_all_that_the_fusions_name() -> None:
    known = {schema.name for schema in runtime.get_all_operator_schema() if schema.domain == DOMAIN}
    named: set[str] = set()
    folder = Path(onnxruntime.__file__).parent / "transformers"
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
    assert len(named & known) > 20
    assert named & known <= {*EMITTED, *LEFT_OUT, *_QUANTIZED}
    assert {*EMITTED, *LEFT_OUT} <= known and not set(EMITTED) & set(LEFT_OUT)


class Builder:
    """Nodes and weights of a small model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 0.5) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(sample(*shape, seed=len(self.weights), scale=scale), name))
        return name

    def add(self, op: str, inputs: list[str], outputs: list[str], domain: str = DOMAIN, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))

    def make(self, inputs: dict[str, Array], outputs: list[str]) -> bytes:
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items()
        ]
        made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "optimized", given, made, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def encoder() -> tuple[bytes, dict[str, Array]]:
    """Return two layers of an encoder, fused as BERT is: embeddings, attention by a mask index, Gelu with its bias."""
    build, size, heads = Builder(), 16, 4
    words = ints([1, 5, 3, 7], [0, 2, 9, 0])
    inputs = {"words": words, "segments": ints([0, 0, 1, 1], [1, 0, 1, 0]), "mask": ints([1, 1, 1, 1], [1, 1, 1, 0])}
    tables = [build.weight(*shape) for shape in ((12, size), (8, size), (2, size), (size,), (size,))]
    build.add("EmbedLayerNormalization", ["words", "segments", *tables, "mask"], ["x0", "index"], epsilon=1e-12)
    for layer in range(2):
        x, attended, first, inner = (f"{name}{layer}" for name in ("x", "attended", "first", "inner"))
        qkv = [build.weight(size, 3 * size), build.weight(3 * size)]
        build.add("Attention", [x, *qkv, "index"], [attended], num_heads=heads)
        build.add("MatMul", [attended, build.weight(size, size)], [f"{first}m"], "")
        rest = [build.weight(size) for _ in range(3)]
        build.add("SkipLayerNormalization", [f"{first}m", x, *rest], [first], epsilon=1e-12)
        build.add("MatMul", [first, build.weight(size, 32)], [f"{inner}m"], "")
        build.add("BiasGelu", [f"{inner}m", build.weight(32)], [inner])
        build.add("MatMul", [inner, build.weight(32, size)], [f"{inner}o"], "")
        rest = [build.weight(size) for _ in range(3)]
        build.add("SkipLayerNormalization", [f"{inner}o", first, *rest], [f"x{layer + 1}"], epsilon=1e-12)
    return build.make(inputs, ["x2"]), inputs


def decoder() -> tuple[bytes, dict[str, Array]]:
    """Return two layers of a decoder with a past, fused as GPT-2 is; sums go on beside what is normalised."""
    build, size, heads = Builder(), 16, 4
    past = {f"past{layer}": sample(2, 2, heads, 3, size // heads, seed=layer) for layer in range(2)}
    inputs = {"x0": sample(2, 2, size), "mask": ints([1, 1, 1, 1, 1], [0, 1, 1, 1, 1]), **past}
    build.add("LayerNormalization", ["x0", build.weight(size), build.weight(size)], ["n0"], "")
    for layer in range(2):
        qkv = [build.weight(size, 3 * size), build.weight(3 * size)]
        outputs = [f"attended{layer}", f"present{layer}"]
        build.add("Attention", [f"n{layer}", *qkv, "mask", f"past{layer}"], outputs, num_heads=heads, unidirectional=1)
        skipped = [f"attended{layer}", f"x{layer}", build.weight(size), build.weight(size), build.weight(size)]
        build.add("SkipLayerNormalization", skipped, [f"m{layer}", "", "", f"y{layer}"])
        build.add("MatMul", [f"m{layer}", build.weight(size, 32)], [f"h{layer}"], "")
        build.add("FastGelu", [f"h{layer}", build.weight(32)], [f"g{layer}"])
        build.add("MatMul", [f"g{layer}", build.weight(32, size)], [f"o{layer}"], "")
        skipped = [f"o{layer}", f"y{layer}", build.weight(size), build.weight(size), build.weight(size)]
        build.add("SkipLayerNormalization", skipped, [f"n{layer + 1}", "", "", f"x{layer + 1}"])
    return build.make(inputs, ["n2", "x2", "present0", "present1"]), inputs


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("make", [encoder, decoder])
def test_fused_layers(make: Any, backend: gx.BackendType) -> None:
    model, inputs = make()
    check_model(model, [inputs], backend, 2e-5)


# By model, operators that onnxruntime writes into it.
SAVED = {
    "bert_sdpa__d20": {"FusedMatMul", "SkipLayerNormalization", "BiasGelu", "FusedGemm"},
    "gpt2_kv__d21": {"FusedMatMul", "FastGelu", "SkipLayerNormalization"},
    "t5_encoder__l14": {"FastGelu"},
    "clip__d18": {"FusedMatMul", "QuickGelu", "SkipLayerNormalization"},
}


@needs_models
@pytest.mark.parametrize("name", SAVED)
def test_model_saved_by_the_graph_optimizer(name: str, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(path_of(name)), options, providers=["CPUExecutionProvider"])
    model = onnx.load(options.optimized_model_filepath)
    check_optimized(name, model, SAVED[name])


# By model, its kind for the transformer optimizer and operators that it writes.
FUSED = {
    "bert__l11": ("bert", {"SkipLayerNormalization": 4, "BiasGelu": 2}),
    "gpt2_kv__d21": ("gpt2", {"SkipLayerNormalization": 4, "FastGelu": 2}),
}


@needs_models
@pytest.mark.parametrize("name", FUSED)
def test_model_fused_by_the_transformer_optimizer(name: str) -> None:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    kind, expected = FUSED[name]
    fusions = FusionOptions(kind)
    fusions.enable_shape_inference = False  # which needs SymPy
    model = optimize_model(
        str(path_of(name)), kind, num_heads=4, hidden_size=64, optimization_options=fusions, opt_level=0
    ).model
    counts = Counter(node.op_type for node in model.graph.node)
    assert all(counts[op] == count for op, count in expected.items()), counts
    check_optimized(name, model, set(expected))


@needs_models
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_model_of_fused_convolutions(backend: gx.BackendType) -> None:
    name = "openseeface_det"
    for case in read_manifest()[name]["cases"]:
        stored = read_case(case)
        with gx.Worker(gx.load(path_of(name)), backend=backend) as worker:
            outputs = worker.run(stored.inputs)
        compare(outputs, list(stored.outputs.values()), 1e-4)


def check_optimized(name: str, model: onnx.ModelProto, expected: set[str]) -> None:
    """Check that a model has operators of com.microsoft and runs as onnxruntime runs it, on both devices."""
    assert expected <= {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    cases = [read_case(case).inputs for case in read_manifest()[name]["cases"]]
    for backend in BACKENDS:
        check_model(model.SerializeToString(), cases, backend, 1e-4)


def check_model(model: bytes, cases: list[dict[str, Array]], backend: gx.BackendType, allowed: float) -> None:
    """Check a model beside onnxruntime, one case after another; ``allowed`` is a share of an output's largest value."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    with gx.Worker(gx.load(model), backend=backend) as worker:
        for inputs in cases:
            given = {name: inputs[name] for name in names}
            compare(worker.run(given), session.run(None, given), allowed)


def compare(outputs: gx.Outputs, expected: list[Array], allowed: float) -> None:
    """Compare what a run gave with arrays."""
    for got, wanted in zip(outputs, expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=allowed * max(1e-3, float(np.abs(wanted).max(initial=0))))

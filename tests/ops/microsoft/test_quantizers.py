"""Models that onnxruntime's quantizers make of small ones: all operators are ours, and answers are onnxruntime's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.capi import _pybind_state as native
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

import gpuexec as gx
import gpuexec.ops
from gpuexec.importer.expand import is_runnable
from gpuexec.operator import find_operator
from tests.ops.harness import Array

MICROSOFT = "com.microsoft"
# What the quantizers of onnxruntime 1.31 (`onnxruntime/quantization`: the registry's operators, the dynamic, n-bit and
# bitsandbytes quantizers) and its optimizer for quantised models write, by domain.
EMITTED = {
    "": (
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        *("ConvInteger", "MatMulInteger", "Cast", "Mul", "Add", "Gather", "LayerNormalization"),
    ),
    MICROSOFT: (
        *("QuantizeLinear", "DequantizeLinear", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"),
        *("QLinearSoftmax", "QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearConcat", "QLinearWhere"),
        *("QLinearReduceMean", "QLinearConv", "QGemm", "QAttention", "QEmbedLayerNormalization"),
        *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM", "Gelu"),
        *("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"),
    ),
}


@pytest.mark.parametrize(("domain", "name"), [(domain, name) for domain, names in EMITTED.items() for name in names])
def test_what_quantizers_write_is_registered(domain: str, name: str) -> None:
    assert is_runnable(name, domain, 1 if domain else 21)


@pytest.mark.parametrize("name", [name for name in EMITTED[MICROSOFT] if find_operator(f"{MICROSOFT}.{name}")])
def test_attributes_are_those_of_the_schema(name: str) -> None:
    (schema,) = [s for s in native.get_all_operator_schema() if (s.domain, s.name) == (MICROSOFT, name)]
    operator = find_operator(f"{MICROSOFT}.{name}")
    fields = {field.name: field.default for field in dataclasses.fields(operator)}  # type: ignore[arg-type]
    assert set(fields) == set(schema.attributes)
    for key, attribute in schema.attributes.items():
        given = onnx.AttributeProto.FromString(attribute._default_value)
        default = helper.get_attribute_value(given) if given.type else None
        if default is not None:
            got = np.float32(fields[key]) if isinstance(default, float) else fields[key]
            assert got == (default.decode() if isinstance(default, bytes) else default), key
        assert (fields[key] is dataclasses.MISSING) == attribute.required, key


@dataclass(frozen=True)
class Sample:
    """A model, its inputs, and what quantises it: from one path to another."""

    id: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    quantize: Callable[[Path, Path, Sample], None]
    expected: tuple[str, ...]  # operators that the result must have
    # Far below one step of a byte: what is quantised is the same everywhere. Between quantising and dequantising
    # nodes floats are summed, each in its order, and may come to neighbouring bytes: a step of the answer's scale.
    atol: float = 1e-5


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Gives the quantizer a few inputs like those of the sample."""

    def __init__(self, inputs: dict[str, Array]) -> None:
        rng = np.random.default_rng(5)
        self._rows: Iterator[dict[str, Array]] = iter(
            [{k: rng.normal(0, 1, x.shape).astype(x.dtype) for k, x in inputs.items()} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Array] | None:
        """Return the next row."""
        return next(self._rows, None)


def make_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Array], weights: dict[str, Array], opset: int = 17
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(x, n) for n, x in weights.items()]
    graph = helper.make_graph(nodes, "sample", infos, [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


RNG = np.random.default_rng(20)


def floats(*shape: int, spread: float = 1.0) -> Array:
    return RNG.normal(0, spread, shape).astype(np.float32)


def images() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Convolutions, activations, pools, a residual, a concatenation, and a classifier."""
    weights = {
        "w1": floats(8, 3, 3, 3, spread=0.3),
        "b1": floats(8, spread=0.1),
        "w2": floats(8, 8, 3, 3, spread=0.2),
        "w3": floats(8, 1, 3, 3, spread=0.3),
        "wc": floats(16, 10, spread=0.3),
        "bc": floats(10, spread=0.1),
        "shape": np.array([0, -1], np.int64),
        "half": np.array([0.5], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c2"], ["l2"], "leaky", alpha=0.1),
        helper.make_node("Add", ["l2", "r1"], ["a2"], "add"),
        helper.make_node("Conv", ["a2", "w3"], ["c3"], "conv3", group=8, strides=[2, 2]),
        helper.make_node("Sigmoid", ["c3"], ["s3"], "sigmoid"),
        helper.make_node("Mul", ["c3", "s3"], ["m3"], "mul"),
        helper.make_node("AveragePool", ["m3"], ["p3"], "pool", kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["m3"], ["q3"], "maxpool", kernel_shape=[2, 2]),
        helper.make_node("Concat", ["p3", "q3"], ["k3"], "concat", axis=1),
        helper.make_node("GlobalAveragePool", ["k3"], ["g3"], "global"),
        helper.make_node("Reshape", ["g3", "shape"], ["f3"], "flat"),
        helper.make_node("Gemm", ["f3", "wc", "bc"], ["z"], "classify"),
        helper.make_node("Softmax", ["z"], ["y"], "softmax", axis=-1),
    ]
    inputs = {"x": floats(2, 3, 12, 12)}
    return make_model(nodes, inputs, weights), inputs


def layers() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Products of matrices with constants and with each other, and a choice."""
    weights = {
        "w1": floats(32, 24, spread=0.2),
        "w2": floats(24, 40, spread=0.2),
        "mask": RNG.integers(0, 2, (6, 1)).astype(np.bool_),
        "low": floats(1, spread=0.5),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Transpose", ["m1"], ["t1"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["m1", "t1"], ["s1"], "scores"),
        helper.make_node("Where", ["mask", "s1", "low"], ["v1"], "choose"),
        helper.make_node("MatMul", ["v1", "m1"], ["h1"], "attend"),
        helper.make_node("MatMul", ["h1", "w2"], ["y"], "second"),
    ]
    inputs = {"x": floats(2, 6, 32)}
    return make_model(nodes, inputs, weights), inputs


def recurrent() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """An LSTM of both directions."""
    weights = {
        "w": floats(2, 24, 8, spread=0.3),
        "r": floats(2, 24, 6, spread=0.3),
        "b": floats(2, 48, spread=0.1),
    }
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], "lstm", hidden_size=6, direction="bidirectional")]
    inputs = {"x": floats(9, 1, 8)}
    return make_model(nodes, inputs, weights, 11), inputs


def static(**options: Any) -> Callable[[Path, Path, Sample], None]:
    def quantize(source: Path, target: Path, sample: Sample) -> None:
        quantization.quantize_static(source, target, Reader(sample.inputs), **options)

    return quantize


def dynamic(**options: Any) -> Callable[[Path, Path, Sample], None]:
    def quantize(source: Path, target: Path, sample: Sample) -> None:
        quantization.quantize_dynamic(source, target, **options)

    return quantize


def n_bits(bits: int, is_symmetric: bool) -> Callable[[Path, Path, Sample], None]:
    """Do what MatMulNBitsQuantizer does, by the function that it calls (the module wants a package of its own)."""

    def quantize(source: Path, target: Path, sample: Sample) -> None:
        model = onnx.load(source)
        weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "MatMul" and node.input[1] in weights:
                _pack(model, node, weights[node.input[1]], bits, is_symmetric)
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        onnx.save(model, target)

    return quantize


def _pack(model: onnx.ModelProto, node: onnx.NodeProto, weight: Array, bits: int, is_symmetric: bool) -> None:
    block, (k, n) = 16, weight.shape
    blocks = -(-k // block)
    padded = np.pad(weight, ((0, blocks * block - k), (0, 0)))
    packed, scales = np.zeros((n, blocks, block * bits // 8), np.uint8), np.zeros((n, blocks), np.float32)
    zeros = np.zeros((n, -(-blocks * bits // 8)), np.uint8)
    function = getattr(native, f"quantize_matmul_{bits}bits")
    function(packed, padded, scales, zeros, block, n, k, is_symmetric)
    parts = {"packed": packed, "scales": scales} | ({} if is_symmetric else {"zeros": zeros})
    names = [f"{node.name}.{name}" for name in parts]
    model.graph.initializer.extend(
        numpy_helper.from_array(part, name) for part, name in zip(parts.values(), names, strict=True)
    )
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    inputs = [node.input[0], *names]
    node.CopyFrom(helper.make_node("MatMulNBits", inputs, node.output, node.name, domain=MICROSOFT, **attributes))


def bnb4(kind: int) -> Callable[[Path, Path, Sample], None]:
    def quantize(source: Path, target: Path, sample: Sample) -> None:
        quantizer = MatMulBnb4Quantizer(onnx.load(source), kind, 16)
        quantizer.process()
        onnx.save(quantizer.model.model, target)

    return quantize


Q, T = quantization.QuantFormat, quantization.QuantType
STEP = 1.01 / 255  # of an answer in [0, 1]
U8S8 = {"activation_type": T.QUInt8, "weight_type": T.QInt8}
S8S8 = {"activation_type": T.QInt8, "weight_type": T.QInt8}
SAMPLES = [
    Sample(
        "operators",
        *images(),
        static(quant_format=Q.QOperator, **U8S8),
        (
            *("QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool"),
            *("QLinearConcat", "QLinearGlobalAveragePool", "QGemm", "QLinearSoftmax"),
        ),
    ),
    Sample(
        "operators_channels", *images(), static(quant_format=Q.QOperator, per_channel=True, **S8S8), ("QLinearConv",)
    ),
    Sample("qdq", *images(), static(quant_format=Q.QDQ, **U8S8), ("QuantizeLinear", "DequantizeLinear"), STEP),
    Sample(
        "qdq_channels", *images(), static(quant_format=Q.QDQ, per_channel=True, **S8S8), ("DequantizeLinear",), STEP
    ),
    Sample(
        "qdq_of_com_microsoft",
        *images(),
        static(
            quant_format=Q.QDQ,
            activation_type=T.QUInt16,
            weight_type=T.QInt8,
            extra_options={"UseQDQContribOps": True},
        ),
        ("DequantizeLinear",),
    ),
    Sample(
        "products",
        *layers(),
        static(quant_format=Q.QOperator, extra_options={"ForceQuantizeNoInputCheck": True}, **U8S8),
        ("QLinearMatMul", "QLinearWhere"),
    ),
    Sample("dynamic_products", *layers(), dynamic(weight_type=T.QInt8), ("MatMulInteger", "DynamicQuantizeLinear")),
    Sample("dynamic_channels", *layers(), dynamic(weight_type=T.QUInt8, per_channel=True), ("MatMulInteger",)),
    Sample("dynamic_images", *images(), dynamic(weight_type=T.QUInt8, op_types_to_quantize=["Conv"]), ("ConvInteger",)),
    Sample("dynamic_lstm", *recurrent(), dynamic(weight_type=T.QInt8), ("DynamicQuantizeLSTM",)),
    *(
        Sample(f"{bits}bits_{kind}", *layers(), n_bits(bits, kind == "symmetric"), ("MatMulNBits",))
        for bits in (2, 4, 8)
        for kind in ("symmetric", "asymmetric")
    ),
    *(Sample(f"bnb4_{kind}", *layers(), bnb4(kind), ("MatMulBnb4",)) for kind in (0, 1)),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_quantized_models_answer_as_onnxruntime_does(sample: Sample, tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(sample.model, source)
    sample.quantize(source, target, sample)
    model = onnx.load(target)
    made = {node.op_type for node in model.graph.node}
    assert made >= set(sample.expected), made
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, sample.inputs)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, expected.shape))
    for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
        with gx.Worker(gx.load(model), backend=backend) as worker:
            got = worker.run(sample.inputs)
            assert not worker.report().host_calls
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=sample.atol, err_msg=f"{sample.id} on {backend}")

"""Models quantized by onnxruntime: supported operators, and onnxruntime's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
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
from gpuexec.ir.operator import find_operator
from tests.ops.harness import Array
from tests.ops.microsoft.quantizable import images, layers, make_model, moved, recurrent
from tests.ops.microsoft.samples import sample

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
        *("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QLinearMatMul"),
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
    fields.pop("precision", None)  # of ours: no file has it
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
    Sample("bytes_moved", *moved(), static(quant_format=Q.QOperator, **U8S8), ("MaxPool", "Pad", "Resize", "Split")),
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
            got = worker.run(sample.inputs)[0]
            assert not worker.report().host_calls
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=sample.atol, err_msg=f"{sample.id} on {backend}")


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda backend: backend.name)
def test_products_of_8_bit_floats_as_the_quantizer_writes_them(backend: gx.BackendType, tmp_path: Path) -> None:
    weights = {"v": sample(8, 16), "w": sample(16, 4)}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "last"),
    ]
    x = sample(3, 8)
    onnx.save(make_model(nodes, {"x": x}, weights, opset=19), tmp_path / "floats.onnx")
    kind = quantization.QuantType.QFLOAT8E4M3FN
    quantization.quantize_static(
        str(tmp_path / "floats.onnx"),
        str(tmp_path / "quantized.onnx"),
        Reader({"x": x}),
        quantization.QuantFormat.QOperator,
        activation_type=kind,
        weight_type=kind,
        calibrate_method=quantization.CalibrationMethod.Distribution,
    )
    model = onnx.load(tmp_path / "quantized.onnx")
    assert [node.domain for node in model.graph.node if node.op_type == "QLinearMatMul"] == [MICROSOFT] * 2
    with gx.Worker(gx.load(model.SerializeToString()), backend=backend) as worker:
        (y,) = worker.run({"x": x})
    expected = _follow_float8(model, x)
    np.testing.assert_array_equal(y, expected)
    assert np.unique(expected).size > 4


def _follow_float8(model: onnx.ModelProto, x: Array) -> Array:
    """Return what a chain of quantised products gives, node by node in NumPy; a product is of floats, rounded once."""
    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer} | {"x": x}
    for node in model.graph.node:
        given = [values[name] for name in node.input]
        if node.op_type == "QuantizeLinear":
            made = _round_float8(given[0] / given[1])
        elif node.op_type == "DequantizeLinear":
            made = given[0].astype(np.float32) * given[1]
        else:
            a, a_scale, _, b, b_scale, _, y_scale, _ = given
            made = _round_float8((a.astype(np.float32) * a_scale) @ (b.astype(np.float32) * b_scale) / y_scale)
        values[node.output[0]] = made
    return values[model.graph.output[0].name]


def _round_float8(x: Array) -> Array:
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)

"""What the makers of published architectures put their nodes and weights into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.bench.models import Array, BenchModel

_IR_VERSION = 10
_LARGE = 1 << 14  # elements


class ArchitectureBuilder:
    """Collects nodes and named weights; methods return the names of the values they made."""

    def __init__(self, seed: int, has_weights: bool, opset: int = 18) -> None:
        self.random = np.random.default_rng(seed)
        self.weights: dict[str, Array] = {}
        self._has_weights, self._opset = has_weights, opset
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a small constant, once for each content."""
        array = np.asarray(value, dtype)
        name = f"{array.dtype}.{array.tolist()}"
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def parameter(self, name: str, *shape: int, mean: float = 0.0, scale: float | None = None) -> str:
        """Add random weights; without ``scale`` such that products keep the variance of what enters."""
        if prod(shape) >= _LARGE and not self._has_weights:
            array = np.zeros(shape, np.float32)
            array.flat[0] = 1 + len(self.weights)
        else:
            fan_in = prod(shape[1:]) if len(shape) > 2 else shape[0]
            array = self.random.standard_normal(shape, np.float32)
            array *= np.float32(fan_in**-0.5 if scale is None else scale)
            array += np.float32(mean)
        self.weights[name] = array
        return name

    def nodes(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of several outputs."""
        name = f"{operator}_{len(self._nodes)}"
        names = [f"{name}.{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, name=name, **attributes))
        return names

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def linear(self, x: str, name: str, ins: int, outs: int) -> str:
        """Add a dense layer of three axes: MatMul by ``[ins, outs]``, then Add."""
        product = self.node("MatMul", x, self.parameter(f"{name}.weight", ins, outs))
        return self.node("Add", product, self.parameter(f"{name}.bias", outs, scale=0.02))

    def multiply_codes(self, x: str, name: str, ins: int, outs: int, bits: int, block: int = 32) -> str:
        """Add a product with codes: MatMulNBits of com.microsoft, zero points in the middle."""
        self.weights[f"{name}.codes"] = codes = np.zeros((outs, ins // block, block * bits // 8), np.uint8)
        if self._has_weights:
            codes[...] = self.random.integers(0, 256, codes.shape, np.uint8)
        else:
            codes.flat[0] = 1 + len(self.weights) % 255
        self.parameter(f"{name}.scales", outs, ins // block, mean=ins**-0.5 / 2 ** (bits - 2), scale=0.0)
        attributes = {"K": ins, "N": outs, "bits": bits, "block_size": block}
        return self.node("MatMulNBits", x, f"{name}.codes", f"{name}.scales", domain="com.microsoft", **attributes)

    def gemm(self, x: str, name: str, ins: int, outs: int, transposed: int = 1) -> str:
        """Add a dense layer of two axes: Gemm by ``[outs, ins]`` transposed, or by ``[ins, outs]``."""
        shape = (outs, ins) if transposed else (ins, outs)
        w = self.parameter(f"{name}.weight", *shape, scale=ins**-0.5)
        return self.node("Gemm", x, w, self.parameter(f"{name}.bias", outs, scale=0.02), transB=transposed)

    def normalize(self, x: str, name: str, width: int, epsilon: float) -> str:
        """Add a LayerNormalization over the last axis."""
        scale = self.parameter(f"{name}.weight", width, mean=1.0, scale=0.1)
        return self.node(
            "LayerNormalization", x, scale, self.parameter(f"{name}.bias", width, scale=0.02), epsilon=epsilon
        )

    def gelu(self, x: str) -> str:
        """Add the GELU of Erf, spelled out."""
        erf = self.node("Erf", self.node("Div", x, self.constant(sqrt(2))))
        half = self.node("Mul", self.constant(0.5), self.node("Add", erf, self.constant(1.0)))
        return self.node("Mul", x, half)

    def convolve(
        self, x: str, name: str, ins: int, outs: int, taps: int, stride: int = 1, group: int = 1, gain: float = sqrt(2)
    ) -> str:
        """Add a Conv with the bias that a folded BatchNormalization leaves."""
        w = self.parameter(
            f"{name}.weight", outs, ins // group, taps, taps, scale=gain * (ins // group * taps**2) ** -0.5
        )
        bias = self.parameter(f"{name}.bias", outs, scale=0.1)
        attributes = {"kernel_shape": [taps] * 2, "strides": [stride] * 2, "pads": [taps // 2] * 4, "group": group}
        return self.node("Conv", x, w, bias, **attributes)

    def reshape(self, x: str, *shape: int) -> str:
        """Add a Reshape."""
        return self.node("Reshape", x, self.constant(shape, np.int64))

    def unsqueeze(self, x: str, axis: int) -> str:
        """Add an Unsqueeze."""
        return self.node("Unsqueeze", x, self.constant([axis], np.int64))

    def remember(
        self, cache: dict[str, Array], state: dict[str, str], name: str, new: Sequence[str], shape: Sequence[int]
    ) -> list[str]:
        """Add random keys and values of that shape as inputs, and return them with new rows, their next values."""
        held = []
        for part, rows in zip(("key", "value"), new, strict=True):
            cache[f"{name}.{part}"] = self.random.standard_normal(shape, np.float32)
            held.append(self.node("Concat", f"{name}.{part}", rows, axis=-2))
            state[held[-1]] = f"{name}.{part}"
        return held

    def finish(
        self,
        name: str,
        inputs: dict[str, Array],
        outputs: Mapping[str, Sequence[int | str]],
        *,
        free: Mapping[str, Sequence[int | str]] | None = None,
        state: dict[str, str] | None = None,
        capacity: int | None = None,
        **config: Any,
    ) -> BenchModel:
        """Return the model, its outputs float32; ``free``: shapes of inputs with dimensions that have names."""
        dtype_of, shapes = helper.np_dtype_to_tensor_dtype, {key: array.shape for key, array in inputs.items()}
        shapes.update(free or {})
        takes = [helper.make_tensor_value_info(key, dtype_of(a.dtype), shapes[key]) for key, a in inputs.items()]
        gives = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in outputs.items()]
        beside = [_describe_external(key, array) for key, array in self.weights.items()]
        graph = helper.make_graph(self._nodes, name, takes, gives, [*self._constants.values(), *beside])
        imports = [helper.make_opsetid("", self._opset)]
        imports += [helper.make_opsetid(name, 1) for name in sorted({node.domain for node in self._nodes} - {""})]
        model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
        return BenchModel(name, model.SerializeToString(), inputs, self.weights, state or {}, capacity, config)


def _describe_external(name: str, array: Array) -> TensorProto:
    """Return an initializer without its content."""
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    return tensor

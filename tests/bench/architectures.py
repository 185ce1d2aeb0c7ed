"""Published architectures at full size as ONNX models: exporters' operators, random weights, float32, fixed shapes.

Attention and the GELU of Erf are spelled out and BatchNormalization is folded into Conv, as PyTorch's exporter leaves
them at opset 18; that of Tanh is one operator, as at opset 20. Weights lie beside the message. Where only a plan is
wanted, ``has_weights=False`` leaves the large ones zero, which takes no memory; each still differs from the others, so
that no two nodes become one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.bench.models import Array, BenchModel, make_unet_small

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
        model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
        return BenchModel(name, model.SerializeToString(), inputs, self.weights, state or {}, capacity, config)


def make_bert(
    batch: int = 1,
    length: int = 128,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    vocabulary: int = 30522,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """BERT-base (Devlin et al., 2018) with a head for two classes."""
    build, depth, hidden = ArchitectureBuilder(11, has_weights), width // heads, 4 * width
    words = build.node("Gather", build.parameter("words", vocabulary, width, scale=0.02), "input_ids")
    types = build.node("Gather", build.parameter("types", 2, width, scale=0.02), "token_type_ids")
    positions = build.parameter("positions", 512, width, scale=0.02)
    rows = build.constant(np.arange(length)[None], np.int64)
    x = build.node("Add", build.node("Add", words, types), build.node("Gather", positions, rows))
    x = build.normalize(x, "norm", width, 1e-12)
    mask = build.node(
        "Unsqueeze",
        build.node("Unsqueeze", "attention_mask", build.constant([1], np.int64)),
        build.constant([2], np.int64),
    )
    absent = build.node("Sub", build.constant(1.0), build.node("Cast", mask, to=TensorProto.FLOAT))
    bias = build.node("Mul", absent, build.constant(np.finfo(np.float32).min))

    def attend(x: str, name: str) -> str:
        query, key, value = (
            build.node(
                "Transpose",
                build.reshape(build.linear(x, f"{name}.{part}", width, width), batch, length, heads, depth),
                perm=axes,
            )
            for part, axes in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = build.node("Div", build.node("MatMul", query, key), build.constant(sqrt(depth)))
        weights = build.node("Softmax", build.node("Add", scores, bias), axis=-1)
        mixed = build.node("Transpose", build.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        return build.linear(build.reshape(mixed, batch, length, width), f"{name}.out", width, width)

    for layer in range(layers):
        name = f"layer.{layer}"
        x = build.normalize(build.node("Add", attend(x, name), x), f"{name}.norm1", width, 1e-12)
        up = _add_erf_gelu(build, build.linear(x, f"{name}.up", width, hidden))
        down = build.linear(up, f"{name}.down", hidden, width)
        x = build.normalize(build.node("Add", down, x), f"{name}.norm2", width, 1e-12)
    first = build.node("Gather", x, build.constant(0, np.int64), axis=1)
    pooled = build.node("Tanh", build.gemm(first, "pooler", width, width))
    logits = build.gemm(pooled, "classifier", width, 2)
    inputs: dict[str, Array] = {
        "input_ids": build.random.integers(0, vocabulary, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
        "token_type_ids": np.zeros((batch, length), np.int64),
    }
    return build.finish("bert_base", inputs, {logits: (batch, 2)}, heads=heads)


def make_vit(
    batch: int = 1,
    extent: int = 224,
    patch: int = 16,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    classes: int = 1000,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """ViT-B/16 (Dosovitskiy et al., 2020)."""
    build, depth, hidden = ArchitectureBuilder(12, has_weights), width // heads, 4 * width
    length = (extent // patch) ** 2 + 1
    w = build.parameter("patches.weight", width, 3, patch, patch)
    bias = build.parameter("patches.bias", width, scale=0.02)
    x = build.node("Conv", "pixel_values", w, bias, kernel_shape=[patch] * 2, strides=[patch] * 2)
    x = build.node("Transpose", build.reshape(x, batch, width, length - 1), perm=[0, 2, 1])
    token = build.parameter("token", 1, 1, width, scale=0.02)
    first = build.node("Expand", token, build.constant([batch, 1, width], np.int64))
    x = build.node("Concat", first, x, axis=1)
    x = build.node("Add", x, build.parameter("positions", 1, length, width, scale=0.02))

    def attend(x: str, name: str) -> str:
        query, key, value = (
            build.node(
                "Transpose",
                build.reshape(build.linear(x, f"{name}.{part}", width, width), batch, length, heads, depth),
                perm=axes,
            )
            for part, axes in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = build.node("Mul", build.node("MatMul", query, key), build.constant(depth**-0.5))
        mixed = build.node("MatMul", build.node("Softmax", scores, axis=-1), value)
        joined = build.reshape(build.node("Transpose", mixed, perm=[0, 2, 1, 3]), batch, length, width)
        return build.linear(joined, f"{name}.out", width, width)

    for layer in range(layers):
        name = f"layer.{layer}"
        x = build.node("Add", attend(build.normalize(x, f"{name}.norm1", width, 1e-12), name), x)
        normal = build.normalize(x, f"{name}.norm2", width, 1e-12)
        up = _add_erf_gelu(build, build.linear(normal, f"{name}.up", width, hidden))
        x = build.node("Add", build.linear(up, f"{name}.down", hidden, width), x)
    x = build.normalize(x, "norm", width, 1e-12)
    first = build.node("Gather", x, build.constant(0, np.int64), axis=1)
    logits = build.gemm(first, "classifier", width, classes)
    inputs = {"pixel_values": build.random.standard_normal((batch, 3, extent, extent), np.float32)}
    return build.finish("vit_b16", inputs, {logits: (batch, classes)}, heads=heads)


def make_resnet50(
    batch: int = 1,
    extent: int = 224,
    channels: int = 64,
    blocks: Sequence[int] = (3, 4, 6, 3),
    classes: int = 1000,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """ResNet-50 (He et al., 2015) as torchvision has it: the stride is that of the 3x3 convolution."""
    build, ins = ArchitectureBuilder(13, has_weights), channels
    x = build.node("Relu", build.convolve("pixel_values", "stem", 3, channels, 7, 2))
    x = build.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, count in enumerate(blocks):
        inner = channels << stage
        for block in range(count):
            name, stride = f"stage.{stage}.{block}", 2 if stage and not block else 1
            y = build.node("Relu", build.convolve(x, f"{name}.reduce", ins, inner, 1))
            y = build.node("Relu", build.convolve(y, f"{name}.middle", inner, inner, 3, stride))
            y = build.convolve(y, f"{name}.expand", inner, 4 * inner, 1, gain=0.5)
            if not block:
                x = build.convolve(x, f"{name}.shortcut", ins, 4 * inner, 1, stride, gain=1.0)
            x, ins = build.node("Relu", build.node("Add", y, x)), 4 * inner
    x = build.node("Flatten", build.node("GlobalAveragePool", x))
    logits = build.gemm(x, "classifier", ins, classes)
    inputs = {"pixel_values": build.random.standard_normal((batch, 3, extent, extent), np.float32)}
    return build.finish(f"resnet50_b{batch}", inputs, {logits: (batch, classes)})


# Of each stage: factor of expansion, channels, blocks, first stride.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def make_mobilenet_v2(
    batch: int = 1,
    extent: int = 224,
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_STAGES,
    last: int = 1280,
    classes: int = 1000,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """MobileNetV2 (Sandler et al., 2018): 1x1 and depthwise convolutions with ReLU6."""
    build, ins = ArchitectureBuilder(14, has_weights), 32

    def bound(x: str) -> str:
        return build.node("Clip", x, build.constant(0.0), build.constant(6.0))

    x = bound(build.convolve("pixel_values", "stem", 3, ins, 3, 2))
    for stage, (factor, outs, count, first_stride) in enumerate(stages):
        for block in range(count):
            name, stride, inner = f"stage.{stage}.{block}", 1 if block else first_stride, factor * ins
            y = x if factor == 1 else bound(build.convolve(x, f"{name}.expand", ins, inner, 1))
            y = bound(build.convolve(y, f"{name}.depthwise", inner, inner, 3, stride, group=inner))
            y = build.convolve(y, f"{name}.project", inner, outs, 1, gain=1.0)
            x, ins = build.node("Add", x, y) if stride == 1 and ins == outs else y, outs
    x = bound(build.convolve(x, "last", ins, last, 1))
    x = build.node("Flatten", build.node("GlobalAveragePool", x))
    logits = build.gemm(x, "classifier", last, classes)
    inputs = {"pixel_values": build.random.standard_normal((batch, 3, extent, extent), np.float32)}
    return build.finish("mobilenet_v2", inputs, {logits: (batch, classes)}, stages=stages)


def make_gpt2(
    batch: int = 1,
    past: int = 512,
    capacity: int = 1024,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    vocabulary: int = 50257,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """GPT-2 of 124 million weights (Radford et al., 2019): one token; keys and values of those before are state."""
    build, depth, hidden = ArchitectureBuilder(15, has_weights, opset=20), width // heads, 4 * width
    table = build.parameter("words", vocabulary, width, scale=0.02)
    places = build.node("Gather", build.parameter("positions", capacity, width, scale=0.02), "position_ids")
    x = build.node("Add", build.node("Gather", table, "input_ids"), places)
    cache: dict[str, Array] = {}
    state: dict[str, str] = {}

    def project(x: str, name: str, ins: int, outs: int) -> str:
        flat = build.gemm(build.reshape(x, -1, ins), name, ins, outs, transposed=0)
        return build.reshape(flat, batch, 1, outs)

    def attend(x: str, layer: int) -> str:
        qkv = build.nodes("Split", 3, project(x, f"layer.{layer}.qkv", width, 3 * width), axis=2, num_outputs=3)
        query, *new = (
            build.node("Transpose", build.reshape(part, batch, 1, heads, depth), perm=[0, 2, 1, 3]) for part in qkv
        )
        held = []
        for part, one in zip(("key", "value"), new, strict=True):
            name = f"past.{layer}.{part}"
            cache[name] = build.random.standard_normal((batch, heads, past, depth), np.float32)
            held.append(build.node("Concat", name, one, axis=-2))
            state[held[-1]] = name
        scores = build.node("MatMul", query, build.node("Transpose", held[0], perm=[0, 1, 3, 2]))
        scores = build.node("Div", scores, build.constant(sqrt(depth)))
        mixed = build.node("MatMul", build.node("Softmax", scores, axis=-1), held[1])
        joined = build.reshape(build.node("Transpose", mixed, perm=[0, 2, 1, 3]), batch, 1, width)
        return project(joined, f"layer.{layer}.out", width, width)

    for layer in range(layers):
        name = f"layer.{layer}"
        x = build.node("Add", attend(build.normalize(x, f"{name}.norm1", width, 1e-5), layer), x)
        up = project(build.normalize(x, f"{name}.norm2", width, 1e-5), f"{name}.up", width, hidden)
        bent = build.node("Gelu", up, approximate="tanh")
        x = build.node("Add", x, project(bent, f"{name}.down", hidden, width))
    x = build.normalize(x, "norm", width, 1e-5)
    logits = build.node("MatMul", x, build.node("Transpose", table, perm=[1, 0]))
    tokens = build.random.integers(0, vocabulary, (batch, 1))
    inputs = {"input_ids": tokens, "position_ids": np.full((batch, 1), past, np.int64), **cache}
    outputs = {logits: (batch, 1, vocabulary), **dict.fromkeys(state, (batch, heads, "total", depth))}
    free = dict.fromkeys(cache, (batch, heads, "past", depth))
    return build.finish("gpt2_decode", inputs, outputs, free=free, state=state, capacity=capacity)


def make_unet(batch: int = 1, channels: int = 64, extent: int = 512, *, has_weights: bool = True) -> BenchModel:
    """The U-net of `tests.bench.models` at the size of images that are segmented; its few weights are always there."""
    made = make_unet_small(batch, channels, extent)
    return BenchModel("unet_512", made.data, made.inputs)


# By name: makers that take ``has_weights``.
ARCHITECTURES: dict[str, Callable[..., BenchModel]] = {
    "bert_base": make_bert,
    "vit_b16": make_vit,
    "resnet50_b1": make_resnet50,
    "resnet50_b32": lambda **options: make_resnet50(32, **options),
    "mobilenet_v2": make_mobilenet_v2,
    "unet_512": make_unet,
    "gpt2_decode": make_gpt2,
}
# The same, so small that the simulator runs them.
SMALL_ARCHITECTURES: dict[str, Callable[..., BenchModel]] = {
    "bert_base": lambda **options: make_bert(1, 6, 16, 2, 1, 20, **options),
    "vit_b16": lambda **options: make_vit(1, 8, 4, 16, 2, 1, 5, **options),
    "resnet50_b1": lambda **options: make_resnet50(1, 32, 4, (1, 1), 5, **options),
    "resnet50_b32": lambda **options: replace(make_resnet50(2, 32, 4, (1, 1), 5, **options), name="resnet50_b32"),
    "mobilenet_v2": lambda **options: make_mobilenet_v2(1, 16, ((1, 4, 1, 1), (2, 6, 2, 2)), 16, 5, **options),
    "unet_512": lambda **options: make_unet(1, 2, 8, **options),
    "gpt2_decode": lambda **options: make_gpt2(1, 5, 32, 16, 2, 1, 20, **options),
}


def _add_erf_gelu(build: ArchitectureBuilder, x: str) -> str:
    erf = build.node("Erf", build.node("Div", x, build.constant(sqrt(2))))
    half = build.node("Mul", build.constant(0.5), build.node("Add", erf, build.constant(1.0)))
    return build.node("Mul", x, half)


def _describe_external(name: str, array: Array) -> TensorProto:
    """Return an initializer without its content."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    return tensor

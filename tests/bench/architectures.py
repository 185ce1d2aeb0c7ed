"""Published architectures at full size as ONNX models: exporters' operators, random weights, float32, fixed shapes.

Attention and the GELU of Erf are spelled out and BatchNormalization is folded into Conv, as PyTorch's exporter leaves
them at opset 18; that of Tanh is one operator, as at opset 20. Weights lie beside the message. Where only a plan is
wanted, ``has_weights=False`` leaves the large ones zero, which takes no memory; each still differs from the others, so
that no two nodes become one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from onnx import TensorProto

from tests.bench.architecture_builder import ArchitectureBuilder
from tests.bench.decoders import make_gpt2, make_llama, make_whisper
from tests.bench.models import Array, BenchModel, make_unet_small


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
        up = build.gelu(build.linear(x, f"{name}.up", width, hidden))
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
        up = build.gelu(build.linear(normal, f"{name}.up", width, hidden))
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


def make_yolox(
    extent: int = 416,
    channels: int = 16,
    blocks: Sequence[int] = (1, 3, 3, 1),
    classes: int = 80,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """YOLOX-nano (Ge et al., 2021) up to the boxes of all cells: depthwise convolutions, SiLU spelled out."""
    build, c = ArchitectureBuilder(18, has_weights), channels

    def convolve(x: str, name: str, ins: int, outs: int, taps: int = 1, stride: int = 1, group: int = 1) -> str:
        y = build.convolve(x, name, ins, outs, taps, stride, group)
        return build.node("Mul", y, build.node("Sigmoid", y))

    def separate(x: str, name: str, ins: int, outs: int, stride: int = 1) -> str:
        return convolve(convolve(x, f"{name}.depthwise", ins, ins, 3, stride, ins), f"{name}.pointwise", ins, outs)

    def split(x: str, name: str, ins: int, outs: int, count: int, adds: bool) -> str:
        y, other = (convolve(x, f"{name}.{part}", ins, outs // 2) for part in ("main", "side"))
        for block in range(count):
            z = convolve(y, f"{name}.{block}.reduce", outs // 2, outs // 2)
            z = separate(z, f"{name}.{block}", outs // 2, outs // 2)
            y = build.node("Add", z, y) if adds else z
        return convolve(build.node("Concat", y, other, axis=1), f"{name}.join", outs, outs)

    def pool(x: str, name: str, width: int) -> str:
        x = convolve(x, f"{name}.reduce", width, width // 2)
        grown = (
            build.node("MaxPool", x, kernel_shape=[taps] * 2, strides=[1, 1], pads=[taps // 2] * 4)
            for taps in (5, 9, 13)
        )
        return convolve(build.node("Concat", x, *grown, axis=1), f"{name}.expand", 2 * width, width)

    def grow(x: str, beside: str) -> str:
        scales = build.constant([1.0, 1.0, 2.0, 2.0])
        options = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return build.node("Concat", build.node("Resize", x, "", scales, **options), beside, axis=1)

    def take(x: str, row: int, column: int) -> str:
        last, step = (build.constant([number], np.int64) for number in (np.iinfo(np.int64).max, 2))
        for axis, first in ((2, row), (3, column)):
            x = build.node("Slice", x, build.constant([first], np.int64), last, build.constant([axis], np.int64), step)
        return x

    def detect(x: str, name: str, ins: int) -> str:
        x = convolve(x, f"{name}.stem", ins, 4 * c)
        ways = []
        for way in ("class", "box"):
            y = separate(separate(x, f"{name}.{way}.0", 4 * c, 4 * c), f"{name}.{way}.1", 4 * c, 4 * c)
            ways.append(y)
        scores = build.convolve(ways[0], f"{name}.scores", 4 * c, classes, 1, gain=1.0)
        box = build.convolve(ways[1], f"{name}.boxes", 4 * c, 4, 1, gain=1.0)
        there = build.convolve(ways[1], f"{name}.there", 4 * c, 1, 1, gain=1.0)
        found = build.node("Concat", box, build.node("Sigmoid", there), build.node("Sigmoid", scores), axis=1)
        return build.reshape(found, 1, classes + 5, -1)

    x = build.node("Concat", *(take("images", row, column) for column in (0, 1) for row in (0, 1)), axis=1)
    x, levels = convolve(x, "stem", 12, c, 3), []
    for stage, count in enumerate(blocks):
        name, ins, outs = f"stage.{stage}", c << stage, 2 * c << stage
        x = separate(x, f"{name}.down", ins, outs, 2)
        is_last = stage == len(blocks) - 1
        x = split(pool(x, f"{name}.pool", outs) if is_last else x, name, outs, outs, count, not is_last)
        levels.append(x)
    top = convolve(levels[3], "lateral", 16 * c, 8 * c)
    middle = split(grow(top, levels[2]), "up.0", 16 * c, 8 * c, 1, False)
    side = convolve(middle, "reduce", 8 * c, 4 * c)
    low = split(grow(side, levels[1]), "up.1", 8 * c, 4 * c, 1, False)
    down = build.node("Concat", separate(low, "down.0", 4 * c, 4 * c, 2), side, axis=1)
    middle = split(down, "down.0.split", 8 * c, 8 * c, 1, False)
    down = build.node("Concat", separate(middle, "down.1", 8 * c, 8 * c, 2), top, axis=1)
    high = split(down, "down.1.split", 16 * c, 16 * c, 1, False)
    parts = [detect(x, f"head.{n}", 4 * c << n) for n, x in enumerate((low, middle, high))]
    found = build.node("Transpose", build.node("Concat", *parts, axis=2), perm=[0, 2, 1])
    inputs = {"images": build.random.standard_normal((1, 3, extent, extent), np.float32)}
    cells = sum((extent // stride) ** 2 for stride in (8, 16, 32))
    return build.finish("yolox_nano", inputs, {found: (1, cells, classes + 5)}, blocks=blocks)


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
    "llama_1b_decode": make_llama,
    "yolox_nano": make_yolox,
    "whisper_tiny_step": make_whisper,
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
    "llama_1b_decode": lambda **options: make_llama(5, 32, 16, 4, 2, 24, 1, 20, **options),
    "yolox_nano": lambda **options: make_yolox(32, 2, (1, 1, 1, 1), 3, **options),
    "whisper_tiny_step": lambda **options: make_whisper(5, 7, 32, 16, 2, 1, 20, **options),
}

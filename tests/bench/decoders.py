"""Steps of published decoders as ONNX models: one token, with keys and values of those before as state.

They are spelled as `tests.bench.architectures` says.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from onnx import TensorProto

from tests.bench.architecture_builder import ArchitectureBuilder
from tests.bench.models import Array, BenchModel


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
        held = build.remember(cache, state, f"past.{layer}", new, (batch, heads, past, depth))
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
    return build.finish("gpt2_decode", inputs, outputs, free=free, state=state, capacity=capacity, heads=heads)


def make_llama(
    past: int = 512,
    capacity: int = 1024,
    width: int = 2048,
    heads: int = 32,
    key_heads: int = 8,
    hidden: int = 8192,
    layers: int = 16,
    vocabulary: int = 128256,
    *,
    bits: int = 0,
    has_weights: bool = True,
) -> BenchModel:
    """Llama 3.2 of 1.2 billion weights (Dubey et al., 2024) with a matrix of its own for the logits: one token.

    RMSNormalization, SiLU and the rotation of queries and keys are spelled out, and heads of keys and values are
    repeated by Expand. With ``bits`` its matrices are codes, in blocks of 32.
    """
    build, depth = ArchitectureBuilder(16, has_weights), width // heads
    places = build.node("Cast", build.unsqueeze("position_ids", 2), to=TensorProto.FLOAT)
    rates = 500000.0 ** (-np.arange(0, depth, 2) / depth)
    angles = build.node("Mul", places, build.constant(rates))
    angles = build.node("Concat", angles, angles, axis=-1)
    cosine, sine = (build.unsqueeze(build.node(function, angles), 1) for function in ("Cos", "Sin"))
    cache: dict[str, Array] = {}
    state: dict[str, str] = {}

    def multiply(x: str, name: str, ins: int, outs: int) -> str:
        if bits:
            return build.multiply_codes(x, name, ins, outs, bits)
        return build.node("MatMul", x, build.parameter(f"{name}.weight", ins, outs))

    def normalize(x: str, name: str) -> str:
        mean = build.node("ReduceMean", build.node("Pow", x, build.constant(2.0)), build.constant([-1], np.int64))
        root = build.node("Sqrt", build.node("Add", mean, build.constant(1e-5)))
        normal = build.node("Mul", x, build.node("Div", build.constant(1.0), root))
        return build.node("Mul", build.parameter(f"{name}.weight", width, mean=1.0, scale=0.1), normal)

    def rotate(x: str) -> str:
        axis, half = build.constant([3], np.int64), build.constant([depth // 2], np.int64)
        first = build.node("Slice", x, build.constant([0], np.int64), half, axis)
        second = build.node("Slice", x, half, build.constant([np.iinfo(np.int64).max], np.int64), axis)
        turned = build.node("Concat", build.node("Neg", second), first, axis=-1)
        return build.node("Add", build.node("Mul", x, cosine), build.node("Mul", turned, sine))

    def repeat(x: str) -> str:
        counts = [build.constant([count], np.int64) for count in (1, key_heads, heads // key_heads, depth)]
        shape = build.node("Concat", *counts[:3], build.node("Shape", x, start=2, end=3), counts[3], axis=0)
        return build.reshape(build.node("Expand", build.unsqueeze(x, 2), shape), 1, heads, -1, depth)

    def attend(x: str, layer: int) -> str:
        name = f"layer.{layer}"
        query, *new = (
            build.node(
                "Transpose",
                build.reshape(multiply(x, f"{name}.{part}", width, count * depth), 1, 1, count, depth),
                perm=[0, 2, 1, 3],
            )
            for part, count in (("query", heads), ("key", key_heads), ("value", key_heads))
        )
        query, new[0] = rotate(query), rotate(new[0])
        held = build.remember(cache, state, f"past.{layer}", new, (1, key_heads, past, depth))
        keys, values = map(repeat, held)
        scores = build.node("MatMul", query, build.node("Transpose", keys, perm=[0, 1, 3, 2]))
        weights = build.node("Softmax", build.node("Mul", scores, build.constant(depth**-0.5)), axis=-1)
        mixed = build.node("Transpose", build.node("MatMul", weights, values), perm=[0, 2, 1, 3])
        return multiply(build.reshape(mixed, 1, 1, width), f"{name}.out", width, width)

    x = build.node("Gather", build.parameter("words", vocabulary, width, scale=0.02), "input_ids")
    for layer in range(layers):
        name = f"layer.{layer}"
        x = build.node("Add", x, attend(normalize(x, f"{name}.norm1"), layer))
        normal = normalize(x, f"{name}.norm2")
        gate = multiply(normal, f"{name}.gate", width, hidden)
        bent = build.node("Mul", gate, build.node("Sigmoid", gate))
        up = build.node("Mul", bent, multiply(normal, f"{name}.up", width, hidden))
        x = build.node("Add", x, multiply(up, f"{name}.down", hidden, width))
    logits = multiply(normalize(x, "norm"), "logits", width, vocabulary)
    tokens = build.random.integers(0, vocabulary, (1, 1))
    inputs = {"input_ids": tokens, "position_ids": np.full((1, 1), past, np.int64), **cache}
    outputs = {logits: (1, 1, vocabulary), **dict.fromkeys(state, (1, key_heads, "total", depth))}
    free = dict.fromkeys(cache, (1, key_heads, "past", depth))
    name = f"llama_1b_int{bits}_decode" if bits else "llama_1b_decode"
    return build.finish(name, inputs, outputs, free=free, state=state, capacity=capacity, heads=heads)


def make_whisper(
    past: int = 64,
    frames: int = 1500,
    capacity: int = 448,
    width: int = 384,
    heads: int = 6,
    layers: int = 4,
    vocabulary: int = 51865,
    *,
    has_weights: bool = True,
) -> BenchModel:
    """The decoder of Whisper-tiny (Radford et al., 2022): one token; keys and values of the sound are inputs."""
    build, depth, hidden = ArchitectureBuilder(17, has_weights), width // heads, 4 * width
    table = build.parameter("words", vocabulary, width, scale=0.02)
    cache: dict[str, Array] = {}
    state: dict[str, str] = {}
    sound: dict[str, Array] = {}

    def split(x: str) -> str:
        return build.node("Transpose", build.reshape(x, 1, 1, heads, depth), perm=[0, 2, 1, 3])

    def find_query(x: str, name: str) -> str:
        return split(build.node("Mul", build.linear(x, f"{name}.query", width, width), build.constant(depth**-0.5)))

    def mix(query: str, keys: str, values: str, name: str) -> str:
        scores = build.node("MatMul", query, build.node("Transpose", keys, perm=[0, 1, 3, 2]))
        mixed = build.node("MatMul", build.node("Softmax", scores, axis=-1), values)
        joined = build.reshape(build.node("Transpose", mixed, perm=[0, 2, 1, 3]), 1, 1, width)
        return build.linear(joined, f"{name}.out", width, width)

    def attend(x: str, layer: int) -> str:
        name = f"layer.{layer}.own"
        key = build.node("MatMul", x, build.parameter(f"{name}.key.weight", width, width))
        new = [split(key), split(build.linear(x, f"{name}.value", width, width))]
        held = build.remember(cache, state, f"past.{layer}", new, (1, heads, past, depth))
        return mix(find_query(x, name), *held, name)

    def listen(x: str, layer: int) -> str:
        name, parts = f"layer.{layer}.sound", [f"sound.{layer}.{part}" for part in ("key", "value")]
        sound.update({part: build.random.standard_normal((1, heads, frames, depth), np.float32) for part in parts})
        return mix(find_query(x, name), *parts, name)

    place = build.node("Shape", "past.0.key", start=2, end=3)
    places = build.node("Gather", build.parameter("positions", 448, width, scale=0.02), build.unsqueeze(place, 0))
    x = build.node("Add", build.node("Gather", table, "input_ids"), places)
    for layer in range(layers):
        name = f"layer.{layer}"
        x = build.node("Add", x, attend(build.normalize(x, f"{name}.norm1", width, 1e-5), layer))
        x = build.node("Add", x, listen(build.normalize(x, f"{name}.norm2", width, 1e-5), layer))
        normal = build.normalize(x, f"{name}.norm3", width, 1e-5)
        bent = build.gelu(build.linear(normal, f"{name}.up", width, hidden))
        x = build.node("Add", x, build.linear(bent, f"{name}.down", hidden, width))
    logits = build.node("MatMul", build.normalize(x, "norm", width, 1e-5), build.node("Transpose", table, perm=[1, 0]))
    inputs = {"input_ids": build.random.integers(0, vocabulary, (1, 1)), **cache, **sound}
    outputs = {logits: (1, 1, vocabulary), **dict.fromkeys(state, (1, heads, "total", depth))}
    free = dict.fromkeys(cache, (1, heads, "past", depth))
    return build.finish("whisper_tiny_step", inputs, outputs, free=free, state=state, capacity=capacity, heads=heads)

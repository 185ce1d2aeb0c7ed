"""Small networks of the examples: a policy with an LSTM, a detector with a memory, a decoder, GPT-2, speech to text.

Their weights are drawn at random, so what they say means nothing; how state passes from run to run is what matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import gpuexec as gx

OBSERVATIONS, HIDDEN, ACTIONS = 8, 32, 4
VOCABULARY, WIDTH, HEADS, HEAD = 64, 32, 4, 8
# Of speech: bands and frames of a sound, and the names that keys and values of both sides have in exported decoders.
BANDS, SOUND_FRAMES, LAYERS, MOST_TOKENS = 16, 100, 2, 24
CACHES = [f"{layer}.{{}}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
_FLOAT = TensorProto.FLOAT
_OPSETS = [helper.make_opsetid("", 21)]


def build_policy() -> ModelProto:
    """Return ``observation`` [1, batch, 8] -> ``action`` [batch, 4]; the LSTM's state is neither input nor output."""
    rng = np.random.default_rng(7)
    weights = [
        _weight("W", rng.normal(0, 0.5, (1, 4 * HIDDEN, OBSERVATIONS))),
        _weight("R", rng.normal(0, 0.3, (1, 4 * HIDDEN, HIDDEN))),
        _weight("head", rng.normal(0, 0.5, (HIDDEN, ACTIONS))),
        numpy_helper.from_array(np.array([0], np.int64), "first"),
    ]
    nodes = [
        helper.make_node("LSTM", ["observation", "W", "R"], ["", "last"], "lstm", hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["last", "first"], ["features"], "squeeze"),
        helper.make_node("MatMul", ["features", "head"], ["action"], "head"),
    ]
    inputs = [helper.make_tensor_value_info("observation", _FLOAT, [1, "batch", OBSERVATIONS])]
    outputs = [helper.make_tensor_value_info("action", _FLOAT, ["batch", ACTIONS])]
    return _model("policy", nodes, inputs, outputs, weights)


def build_detector() -> ModelProto:
    """Return ``block`` [1, 64], ``level`` [1, 1] -> ``alarm`` [1, 1], ``level_out`` [1, 1].

    The level follows the loudness of the blocks slowly; the alarm is how far a block stands above it.
    """
    weights = [_weight("keep", np.array(0.95)), _weight("take", np.array(0.05))]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [
        helper.make_node("ReduceL2", ["block", "axis"], ["loudness"], "loudness"),
        helper.make_node("Sub", ["loudness", "level"], ["excess"], "excess"),
        helper.make_node("Relu", ["excess"], ["alarm"], "alarm"),
        helper.make_node("Mul", ["level", "keep"], ["kept"], "keep"),
        helper.make_node("Mul", ["loudness", "take"], ["taken"], "take"),
        helper.make_node("Add", ["kept", "taken"], ["level_out"], "level"),
    ]
    inputs = [helper.make_tensor_value_info("block", _FLOAT, [1, 64])]
    inputs.append(helper.make_tensor_value_info("level", _FLOAT, [1, 1]))
    outputs = [helper.make_tensor_value_info(name, _FLOAT, [1, 1]) for name in ("alarm", "level_out")]
    return _model("detector", nodes, inputs, outputs, [*weights, axis])


def build_decoder() -> ModelProto:
    """Return one attention layer over a cache.

    ``token`` [1, new] and ``past_k``, ``past_v`` [1, 4, past, 8] -> ``logits`` [1, new, 64] and ``present_k``,
    ``present_v`` [1, 4, past + new, 8]. Give the prompt one token at a time: nothing masks later ones.
    """
    rng = np.random.default_rng(11)
    weights = [_weight("embedding", rng.normal(0, 1, (VOCABULARY, WIDTH)))]
    weights += [_weight(name, rng.normal(0, 0.4, (WIDTH, WIDTH))) for name in ("wq", "wk", "wv")]
    weights += [_weight("unembed", rng.normal(0, 0.6, (WIDTH, VOCABULARY))), _weight("scale", np.array(HEAD**-0.5))]
    weights += [
        numpy_helper.from_array(np.array([0, 0, HEADS, HEAD], np.int64), "split"),
        numpy_helper.from_array(np.array([0, 0, WIDTH], np.int64), "join"),
    ]
    nodes = [helper.make_node("Gather", ["embedding", "token"], ["x"], "embed")]
    for part in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}.flat"], f"{part}.project"),
            helper.make_node("Reshape", [f"{part}.flat", "split"], [f"{part}.split"], f"{part}.split"),
            helper.make_node("Transpose", [f"{part}.split"], [part], f"{part}.heads", perm=[0, 2, 1, 3]),
        ]
    for part in "kv":
        nodes.append(helper.make_node("Concat", [f"past_{part}", part], [f"present_{part}"], f"{part}.cache", axis=2))
    nodes += [
        helper.make_node("Transpose", ["present_k"], ["k.turned"], "k.turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "k.turned"], ["scores"], "scores"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], "scale"),
        helper.make_node("Softmax", ["scaled"], ["shares"], "softmax", axis=-1),
        helper.make_node("MatMul", ["shares", "present_v"], ["mixed"], "mix"),
        helper.make_node("Transpose", ["mixed"], ["mixed.turned"], "mix.turn", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["mixed.turned", "join"], ["joined"], "join"),
        helper.make_node("Add", ["joined", "x"], ["y"], "residual"),
        helper.make_node("MatMul", ["y", "unembed"], ["logits"], "unembed"),
    ]
    cache = [helper.make_tensor_value_info(f"past_{part}", _FLOAT, [1, HEADS, "past", HEAD]) for part in "kv"]
    inputs = [helper.make_tensor_value_info("token", TensorProto.INT64, [1, "new"]), *cache]
    outputs = [helper.make_tensor_value_info("logits", _FLOAT, [1, "new", VOCABULARY])]
    outputs += [helper.make_tensor_value_info(f"present_{p}", _FLOAT, [1, HEADS, "total", HEAD]) for p in "kv"]
    return _model("decoder", nodes, inputs, outputs, weights)


def trace_gpt2(layers: int, bias: np.ndarray[Any, Any]) -> gx.Model:
    """Return GPT-2 of some layers, with the inputs and outputs that exporters give it; of fewer, its first ones.

    A bias of its own on the logits, [vocabulary], says which tokens are common.

    ``input_ids``, ``position_ids`` [batch, new] and a cache, keys and values of each layer [batch, 4, past, 8] ->
    ``logits`` [batch, new, vocabulary] and the longer cache.
    """
    fn, rng, vocabulary = gx.fn, np.random.default_rng(13), len(bias)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
        return rng.normal(0, scale * shape[0] ** -0.5, shape).astype(np.float32)

    words, places = draw(vocabulary, WIDTH, scale=vocabulary**0.5), draw(256, WIDTH)
    unembed = draw(WIDTH, vocabulary, scale=3)
    shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    weights = [[draw(*shape, scale=0.5) for shape in shapes] for _ in range(layers)]

    def split(x: Any) -> Any:
        return x.reshape(x.shape[0], -1, HEADS, HEAD).transpose(0, 2, 1, 3)

    def gpt2(ids: Any, positions: Any, *past: Any) -> dict[str, Any]:
        columns = fn.arange(past[0].shape[2] + ids.shape[1])
        hidden = fn.where(columns <= positions[:, None, :, None], np.float32(0), np.float32(-1e9))
        x, cache = fn.take(words, ids, 0) + fn.take(places, positions, 0), dict[str, Any]()
        for layer, (attend, join, up, down) in enumerate(weights):
            query, *new = (split(part) for part in fn.split(fn.layer_norm(x) @ attend, 3, -1))
            keys, values = (fn.concatenate([past[2 * layer + i], new[i]], 2) for i in range(2))
            shares = fn.softmax(query @ keys.transpose(0, 1, 3, 2) * np.float32(HEAD**-0.5) + hidden)
            x = x + (shares @ values).transpose(0, 2, 1, 3).reshape(ids.shape[0], -1, WIDTH) @ join
            x = x + fn.gelu(fn.layer_norm(x) @ up, "tanh") @ down
            cache |= {f"present.{layer}.key": keys, f"present.{layer}.value": values}
        return {"logits": fn.layer_norm(x) @ unembed + bias.astype(np.float32), **cache}

    specs: dict[str, Any] = dict.fromkeys(("input_ids", "position_ids"), ("int64", ("batch", "new")))
    held = ("float32", ("batch", HEADS, "past", HEAD))
    specs |= {f"past_key_values.{n}.{part}": held for n in range(layers) for part in ("key", "value")}
    return gx.graph(gpt2, specs)


def trace_speech_encoder() -> gx.Model:
    """Return ``sound`` [1, 16, 100] -> keys and values of the sound for each layer of the decoder, [1, 4, 50, 8]."""
    fn, draw = gx.fn, _drawing(19)
    kernel, mixing = draw(3 * BANDS, WIDTH).T.reshape(WIDTH, BANDS, 3), draw(3, WIDTH, WIDTH)
    up, down, cross = draw(WIDTH, 4 * WIDTH), draw(4 * WIDTH, WIDTH), draw(len(CACHES), WIDTH, WIDTH)

    def encode(sound: gx.SymbolicArray) -> dict[str, Any]:
        x = fn.gelu(fn.conv(sound, kernel, stride=2, padding=1)).transpose(0, 2, 1)
        x = x + _attend(*(_split_heads(fn.layer_norm(x) @ weight) for weight in mixing))
        x = x + fn.gelu(fn.layer_norm(x) @ up) @ down
        return {f"present.{name.format('encoder')}": _split_heads(x @ cross[n]) for n, name in enumerate(CACHES)}

    return gx.graph(encode, {"sound": ("float32", (1, BANDS, SOUND_FRAMES))})


def trace_speech_decoder() -> gx.Model:
    """Return a step of a decoder of two layers, with the inputs and outputs that exporters give Whisper's.

    ``token`` [1, 1], keys and values of the sound [1, 4, 50, 8] and those of the tokens before [1, 4, past, 8] ->
    ``logits`` [1, 1, 64] and the longer ones of the tokens.
    """
    fn, draw = gx.fn, _drawing(29)
    words, places, unembed = draw(VOCABULARY, 1, WIDTH)[:, 0], draw(MOST_TOKENS, WIDTH), draw(WIDTH, VOCABULARY)
    own, cross = draw(LAYERS, 3, WIDTH, WIDTH), draw(LAYERS, WIDTH, WIDTH)

    def decode(token: Any, *caches: Any) -> dict[str, Any]:
        heard, past, present = caches[: len(CACHES)], caches[len(CACHES) :], dict[str, Any]()
        x = fn.take(words, token, 0) + fn.take(places, past[0].shape[2], 0)
        for layer in range(LAYERS):
            query, *new = (_split_heads(fn.layer_norm(x) @ weight) for weight in own[layer])
            held = [fn.concatenate([past[2 * layer + n], new[n]], 2) for n in range(2)]
            present |= {f"present.{CACHES[2 * layer + n].format('decoder')}": held[n] for n in range(2)}
            x = x + _attend(query, *held)
            x = x + _attend(_split_heads(fn.layer_norm(x) @ cross[layer]), *heard[2 * layer : 2 * layer + 2])
        return {"logits": fn.layer_norm(x) @ unembed, **present}

    specs: dict[str, Any] = {"token": ("int64", (1, 1))}
    for side, extent in (("encoder", SOUND_FRAMES // 2), ("decoder", "past")):
        shape = ("float32", (1, HEADS, extent, HEAD))
        specs |= {f"past_key_values.{name.format(side)}": shape for name in CACHES}
    return gx.graph(decode, specs)


def _drawing(seed: int) -> Callable[..., np.ndarray[Any, Any]]:
    """Return what draws weights: as large as keeps the variance of what products over the axis before the last give."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.normal(0, shape[-2] ** -0.5, shape).astype(np.float32)


def _split_heads(x: Any) -> Any:
    """Return heads ``[1, 4, n, 8]`` of ``[1, n, 32]``."""
    return x.reshape(1, -1, HEADS, HEAD).transpose(0, 2, 1, 3)


def _attend(query: Any, keys: Any, values: Any) -> Any:
    """Mix values ``[1, 4, n, 8]`` for queries ``[1, 4, m, 8]``; returns ``[1, m, 32]``."""
    shares = gx.fn.softmax(query @ keys.transpose(0, 1, 3, 2) * np.float32(HEAD**-0.5))
    return (shares @ values).transpose(0, 2, 1, 3).reshape(1, -1, WIDTH)


def _weight(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    return numpy_helper.from_array(array.astype(np.float32), name)


def _model(
    name: str,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: list[TensorProto],
) -> ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=_OPSETS)
    model.ir_version = 10
    return model

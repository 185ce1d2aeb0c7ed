"""Published architectures in PyTorch, written as for PyTorch: what `tests.bench.architectures` are compared with.

They have the weights of the ONNX models, so that both must give the same numbers. Modules hold them by the name they
have there, with "_" for "."; torch is an argument, so that a stand-in will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpuexec.ir.precision import STORED
from tests.bench.models import Array, BenchModel

Forward = Callable[..., Any]


def make_network(torch: Any, bench: BenchModel, device: str) -> tuple[Any, list[Any]]:
    """Return a module with a model's weights on a device, and the tensors to call it with, stored in its precision.

    Raises:
        KeyError: The model is none of these architectures.
    """
    function = FORWARDS[bench.name]
    arrays = read_weights(bench)
    rows = {name: bench.inputs[name].shape[2] for name in bench.memories}
    for name, array in bench.memories.items():
        arrays[name] = np.concatenate([array, np.zeros_like(array[:, :, :1])], axis=2)

    element = getattr(torch, STORED.get(bench.precision, "float32"))

    def put(array: Array) -> Any:
        tensor = torch.from_numpy(array).to(device)
        return tensor.to(element) if array.dtype == np.float32 else tensor

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.names = frozenset(arrays)
            self.config = {**bench.config, "rows": max(rows.values(), default=0)}
            for name, array in arrays.items():
                self.register_buffer(name.replace(".", "_"), put(array))

        def get(self, name: str) -> Any:
            return getattr(self, name.replace(".", "_"))

        def forward(self, *inputs: Any) -> Any:
            return function(torch, self, *inputs)

    return Network().eval(), [put(array) for array in bench.feeds.values()]


def read_weights(bench: BenchModel) -> dict[str, Array]:
    """Return a model's weights by name, those of dense layers as ``[outs, ins]``."""
    graph = onnx.load_from_string(bench.data).graph
    arrays = {each.name: numpy_helper.to_array(each).copy() for each in graph.initializer if not each.external_data}
    arrays.update(bench.weights)
    for node in graph.node:
        is_plain = node.op_type == "Gemm" and all(each.name != "transB" or not each.i for each in node.attribute)
        if (is_plain or node.op_type == "MatMul") and node.input[1] in bench.weights:
            arrays[node.input[1]] = np.ascontiguousarray(bench.weights[node.input[1]].T)
    return {name: array for name, array in arrays.items() if array.dtype == np.float32}


def _dense(torch: Any, net: Any, name: str, x: Any) -> Any:
    bias = net.get(f"{name}.bias") if f"{name}.bias" in net.names else None
    return torch.nn.functional.linear(x, net.get(f"{name}.weight"), bias)


def _normalize(torch: Any, net: Any, name: str, x: Any, epsilon: float) -> Any:
    functional = torch.nn.functional
    return functional.layer_norm(x, x.shape[-1:], net.get(f"{name}.weight"), net.get(f"{name}.bias"), epsilon)


def _attend(torch: Any, net: Any, name: str, x: Any, mask: Any) -> Any:
    functional = torch.nn.functional
    batch, length, width = x.shape
    query, key, value = (
        _dense(torch, net, f"{name}.{part}", x).reshape(batch, length, net.config["heads"], -1).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return _dense(torch, net, f"{name}.out", mixed.transpose(1, 2).reshape(batch, length, width))


def _run_bert(torch: Any, net: Any, words: Any, mask: Any, types: Any) -> Any:
    functional = torch.nn.functional
    x = functional.embedding(words, net.get("words")) + functional.embedding(types, net.get("types"))
    x = _normalize(torch, net, "norm", x + net.get("positions")[: words.shape[1]], 1e-12)
    allowed, layer = mask[:, None, None].bool(), 0
    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        x = _normalize(torch, net, f"{name}.norm1", x + _attend(torch, net, name, x, allowed), 1e-12)
        hidden = functional.gelu(_dense(torch, net, f"{name}.up", x))
        x = _normalize(torch, net, f"{name}.norm2", x + _dense(torch, net, f"{name}.down", hidden), 1e-12)
        layer += 1
    return _dense(torch, net, "classifier", _dense(torch, net, "pooler", x[:, 0]).tanh())


def _run_vit(torch: Any, net: Any, pixels: Any) -> Any:
    functional = torch.nn.functional
    w, layer = net.get("patches.weight"), 0
    x = functional.conv2d(pixels, w, net.get("patches.bias"), stride=w.shape[-1]).flatten(2).transpose(1, 2)
    x = torch.cat([net.get("token").expand(x.shape[0], -1, -1), x], 1) + net.get("positions")
    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        x = x + _attend(torch, net, name, _normalize(torch, net, f"{name}.norm1", x, 1e-12), None)
        hidden = _dense(torch, net, f"{name}.up", _normalize(torch, net, f"{name}.norm2", x, 1e-12))
        x = x + _dense(torch, net, f"{name}.down", functional.gelu(hidden))
        layer += 1
    return _dense(torch, net, "classifier", _normalize(torch, net, "norm", x, 1e-12)[:, 0])


def _convolve(torch: Any, net: Any, name: str, x: Any, stride: int = 1) -> Any:
    functional = torch.nn.functional
    w = net.get(f"{name}.weight")
    groups = x.shape[1] // w.shape[1]
    return functional.conv2d(x, w, net.get(f"{name}.bias"), stride=stride, padding=w.shape[-1] // 2, groups=groups)


def _run_resnet(torch: Any, net: Any, pixels: Any) -> Any:
    functional = torch.nn.functional
    x = functional.max_pool2d(functional.relu(_convolve(torch, net, "stem", pixels, 2)), 3, 2, 1)
    for stage in range(4):
        block = 0
        while f"stage.{stage}.{block}.reduce.weight" in net.names:
            name, stride = f"stage.{stage}.{block}", 2 if stage and not block else 1
            y = functional.relu(_convolve(torch, net, f"{name}.reduce", x))
            y = functional.relu(_convolve(torch, net, f"{name}.middle", y, stride))
            y = _convolve(torch, net, f"{name}.expand", y)
            shortcut = x if block else _convolve(torch, net, f"{name}.shortcut", x, stride)
            x = functional.relu(y + shortcut)
            block += 1
    return _dense(torch, net, "classifier", functional.adaptive_avg_pool2d(x, 1).flatten(1))


def _run_mobilenet(torch: Any, net: Any, pixels: Any) -> Any:
    functional = torch.nn.functional
    x = functional.relu6(_convolve(torch, net, "stem", pixels, 2))
    for stage, (factor, _, count, first_stride) in enumerate(net.config["stages"]):
        for block in range(count):
            name, stride = f"stage.{stage}.{block}", 1 if block else first_stride
            y = x if factor == 1 else functional.relu6(_convolve(torch, net, f"{name}.expand", x))
            y = functional.relu6(_convolve(torch, net, f"{name}.depthwise", y, stride))
            y = _convolve(torch, net, f"{name}.project", y)
            x = x + y if x.shape == y.shape else y
    x = functional.relu6(_convolve(torch, net, "last", x))
    return _dense(torch, net, "classifier", functional.adaptive_avg_pool2d(x, 1).flatten(1))


def _run_unet(torch: Any, net: Any, pixels: Any) -> Any:
    functional = torch.nn.functional

    def convolve(x: Any, first: int, stride: int = 1) -> Any:
        """Convolve with the initializers from ``first`` on, in the order of the file."""
        w, bias, scale, shift = (net.get(f"c{first + i}") for i in range(4))
        x = functional.conv2d(x, w, bias, stride=stride, padding=1)
        return functional.leaky_relu(functional.instance_norm(x, weight=scale, bias=shift, eps=1e-5), 0.1)

    whole = convolve(pixels, 0)
    half = convolve(convolve(whole, 4, 2), 8)
    quarter = convolve(convolve(half, 12, 2), 16)
    grown = functional.interpolate(quarter, scale_factor=2, mode="bilinear", align_corners=False)
    half = convolve(torch.cat([grown, half], 1), 21)
    grown = functional.conv_transpose2d(half, net.get("c25"), stride=2)
    whole = convolve(torch.cat([grown, whole], 1), 26)
    return functional.conv2d(whole, net.get("c30")).sigmoid()


def _run_gpt2(torch: Any, net: Any, words: Any, places: Any) -> Any:
    functional = torch.nn.functional
    x = functional.embedding(words, net.get("words")) + functional.embedding(places, net.get("positions"))
    layer = 0
    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        qkv = _dense(torch, net, f"{name}.qkv", _normalize(torch, net, f"{name}.norm1", x, 1e-5))
        batch, _, width = x.shape
        query, key, value = (_split_heads(part, net.config["heads"]) for part in qkv.split(width, 2))
        keys, values = _remember(net, layer, key, value)
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        x = x + _dense(torch, net, f"{name}.out", mixed.transpose(1, 2).reshape(batch, 1, width))
        hidden = _dense(torch, net, f"{name}.up", _normalize(torch, net, f"{name}.norm2", x, 1e-5))
        x = x + _dense(torch, net, f"{name}.down", functional.gelu(hidden, approximate="tanh"))
        layer += 1
    return functional.linear(_normalize(torch, net, "norm", x, 1e-5), net.get("words"))


def _split_heads(x: Any, heads: int) -> Any:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _remember(net: Any, layer: int, key: Any, value: Any) -> tuple[Any, Any]:
    """Return the keys and values of a layer with new rows behind those that it had."""
    keys, values, rows = net.get(f"past.{layer}.key"), net.get(f"past.{layer}.value"), net.config["rows"]
    keys[:, :, rows:] = key
    values[:, :, rows:] = value
    return keys, values


def _run_llama(torch: Any, net: Any, words: Any, places: Any) -> Any:
    functional = torch.nn.functional
    heads, x, layer = net.config["heads"], functional.embedding(words, net.get("words")), 0
    depth = x.shape[2] // heads
    rates = 500000.0 ** (-torch.arange(0, depth, 2, device=x.device) / depth)
    angles = places[..., None].float() * rates
    angles = torch.cat([angles, angles], -1)[:, None]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def normalize(x: Any, name: str) -> Any:
        return functional.rms_norm(x, x.shape[-1:], net.get(f"{name}.weight"), 1e-5)

    def rotate(x: Any) -> Any:
        first, second = x.split(depth // 2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        normal, few = normalize(x, f"{name}.norm1"), net.get(f"past.{layer}.key").shape[1]
        query = _split_heads(_dense(torch, net, f"{name}.query", normal), heads)
        key, value = (_split_heads(_dense(torch, net, f"{name}.{part}", normal), few) for part in ("key", "value"))
        keys, values = _remember(net, layer, rotate(key), value)
        mixed = functional.scaled_dot_product_attention(rotate(query), keys, values, enable_gqa=True)
        x = x + _dense(torch, net, f"{name}.out", mixed.transpose(1, 2).reshape(x.shape))
        normal = normalize(x, f"{name}.norm2")
        gate = functional.silu(_dense(torch, net, f"{name}.gate", normal))
        x = x + _dense(torch, net, f"{name}.down", gate * _dense(torch, net, f"{name}.up", normal))
        layer += 1
    return _dense(torch, net, "logits", normalize(x, "norm"))


def _run_whisper(torch: Any, net: Any, words: Any, *given: Any) -> Any:
    functional = torch.nn.functional
    heads, rows, sound = net.config["heads"], net.config["rows"], given
    x, layer = functional.embedding(words, net.get("words")) + net.get("positions")[rows], 0

    def attend(name: str, normal: Any, keys: Any, values: Any) -> Any:
        query = _split_heads(_dense(torch, net, f"{name}.query", normal), heads)
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        return _dense(torch, net, f"{name}.out", mixed.transpose(1, 2).reshape(normal.shape))

    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        normal = _normalize(torch, net, f"{name}.norm1", x, 1e-5)
        new = [_split_heads(_dense(torch, net, f"{name}.own.{part}", normal), heads) for part in ("key", "value")]
        x = x + attend(f"{name}.own", normal, *_remember(net, layer, *new))
        normal = _normalize(torch, net, f"{name}.norm2", x, 1e-5)
        x = x + attend(f"{name}.sound", normal, *sound[2 * layer : 2 * layer + 2])
        hidden = functional.gelu(_dense(torch, net, f"{name}.up", _normalize(torch, net, f"{name}.norm3", x, 1e-5)))
        x = x + _dense(torch, net, f"{name}.down", hidden)
        layer += 1
    return functional.linear(_normalize(torch, net, "norm", x, 1e-5), net.get("words"))


def _run_yolox(torch: Any, net: Any, pixels: Any) -> Any:
    functional = torch.nn.functional

    def convolve(x: Any, name: str, stride: int = 1) -> Any:
        return functional.silu(_convolve(torch, net, name, x, stride))

    def separate(x: Any, name: str, stride: int = 1) -> Any:
        return convolve(convolve(x, f"{name}.depthwise", stride), f"{name}.pointwise")

    def split(x: Any, name: str, adds: bool = False) -> Any:
        y, other, block = convolve(x, f"{name}.main"), convolve(x, f"{name}.side"), 0
        while f"{name}.{block}.reduce.weight" in net.names:
            z = separate(convolve(y, f"{name}.{block}.reduce"), f"{name}.{block}")
            y, block = z + y if adds else z, block + 1
        return convolve(torch.cat([y, other], 1), f"{name}.join")

    def pool(x: Any, name: str) -> Any:
        x = convolve(x, f"{name}.reduce")
        grown = [functional.max_pool2d(x, taps, 1, taps // 2) for taps in (5, 9, 13)]
        return convolve(torch.cat([x, *grown], 1), f"{name}.expand")

    def grow(x: Any, beside: Any) -> Any:
        return torch.cat([functional.interpolate(x, scale_factor=2, mode="nearest"), beside], 1)

    def detect(x: Any, name: str) -> Any:
        x = convolve(x, f"{name}.stem")
        classes, box = (separate(separate(x, f"{name}.{way}.0"), f"{name}.{way}.1") for way in ("class", "box"))
        scores, there = (
            _convolve(torch, net, f"{name}.{part}", y).sigmoid() for part, y in (("scores", classes), ("there", box))
        )
        return torch.cat([_convolve(torch, net, f"{name}.boxes", box), there, scores], 1).flatten(2)

    corners = [pixels[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)]
    x, levels, last = convolve(torch.cat(corners, 1), "stem"), [], len(net.config["blocks"]) - 1
    for stage in range(last + 1):
        name = f"stage.{stage}"
        x = separate(x, f"{name}.down", 2)
        x = split(pool(x, f"{name}.pool"), name) if stage == last else split(x, name, adds=True)
        levels.append(x)
    top = convolve(levels[3], "lateral")
    side = convolve(split(grow(top, levels[2]), "up.0"), "reduce")
    low = split(grow(side, levels[1]), "up.1")
    middle = split(torch.cat([separate(low, "down.0", 2), side], 1), "down.0.split")
    high = split(torch.cat([separate(middle, "down.1", 2), top], 1), "down.1.split")
    found = torch.cat([detect(x, f"head.{n}") for n, x in enumerate((low, middle, high))], 2)
    return found.transpose(1, 2)


# By the name of the model.
FORWARDS: dict[str, Forward] = {
    "bert_base": _run_bert,
    "vit_b16": _run_vit,
    "resnet50_b1": _run_resnet,
    "resnet50_b32": _run_resnet,
    "mobilenet_v2": _run_mobilenet,
    "unet_512": _run_unet,
    "gpt2_decode": _run_gpt2,
    "llama_1b_decode": _run_llama,
    "yolox_nano": _run_yolox,
    "whisper_tiny_step": _run_whisper,
}

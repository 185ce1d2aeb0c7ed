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

from tests.bench.models import Array, BenchModel

Forward = Callable[..., Any]


def make_network(torch: Any, bench: BenchModel, device: str) -> tuple[Any, list[Any]]:
    """Return a module with a model's weights on a device, and the tensors to call it with.

    Raises:
        KeyError: The model is none of these architectures.
    """
    function = FORWARDS[bench.name]
    arrays = read_weights(bench)
    rows = {name: bench.inputs[name].shape[2] for name in bench.memories}
    for name, array in bench.memories.items():
        arrays[name] = np.concatenate([array, np.zeros_like(array[:, :, :1])], axis=2)

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.names = frozenset(arrays)
            self.config = {**bench.config, "rows": max(rows.values(), default=0)}
            for name, array in arrays.items():
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(array).to(device))

        def get(self, name: str) -> Any:
            return getattr(self, name.replace(".", "_"))

        def forward(self, *inputs: Any) -> Any:
            return function(torch, self, *inputs)

    return Network().eval(), [torch.from_numpy(array).to(device) for array in bench.feeds.values()]


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
    functional = torch.nn.functional
    return functional.linear(x, net.get(f"{name}.weight"), net.get(f"{name}.bias"))


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
    layer, rows = 0, net.config["rows"]
    while f"layer.{layer}.up.weight" in net.names:
        name = f"layer.{layer}"
        keys, values = net.get(f"past.{layer}.key"), net.get(f"past.{layer}.value")
        qkv = _dense(torch, net, f"{name}.qkv", _normalize(torch, net, f"{name}.norm1", x, 1e-5))
        batch, _, width = x.shape
        query, key, value = (part.reshape(batch, 1, keys.shape[1], -1).transpose(1, 2) for part in qkv.split(width, 2))
        keys[:, :, rows:] = key
        values[:, :, rows:] = value
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        x = x + _dense(torch, net, f"{name}.out", mixed.transpose(1, 2).reshape(batch, 1, width))
        hidden = _dense(torch, net, f"{name}.up", _normalize(torch, net, f"{name}.norm2", x, 1e-5))
        x = x + _dense(torch, net, f"{name}.down", functional.gelu(hidden, approximate="tanh"))
        layer += 1
    return functional.linear(_normalize(torch, net, "norm", x, 1e-5), net.get("words"))


# By the name of the model.
FORWARDS: dict[str, Forward] = {
    "bert_base": _run_bert,
    "vit_b16": _run_vit,
    "resnet50_b1": _run_resnet,
    "resnet50_b32": _run_resnet,
    "mobilenet_v2": _run_mobilenet,
    "unet_512": _run_unet,
    "gpt2_decode": _run_gpt2,
}

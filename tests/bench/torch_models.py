"""Benchmark models in eager PyTorch, for comparison on a GPU.

Shapes and operations are those of `tests.bench.models`, weights are random, float32 without TF32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]


def open_torch(device: str = "cuda") -> dict[str, Callable[[], Call]]:
    """Return makers of calls by model; empty where torch or its device is missing."""
    try:
        import torch
    except ImportError:
        return {}
    if device == "cuda" and not torch.cuda.is_available():
        return {}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    models = {"mlp": _make_mlp, "resnet18": _make_resnet18, "encoder": _make_encoder}
    return {name: lambda make=make: make(torch, device) for name, make in models.items()}  # type: ignore[misc]


def _make_mlp(torch: Any, device: str) -> Call:
    layers = [(torch.randn(1024, n, device=device) / 32, torch.randn(n, device=device)) for n in (*[1024] * 4, 1000)]
    x = torch.randn(64, 1024, device=device)

    def call() -> Any:
        y = x
        for w, bias in layers[:-1]:
            y = torch.relu(torch.addmm(bias, y, w))
        return torch.softmax(torch.addmm(layers[-1][1], y, layers[-1][0]), -1)

    return call


def _make_resnet18(torch: Any, device: str) -> Call:
    nn = torch.nn

    def convolve(ins: int, outs: int, taps: int, stride: int) -> Any:
        return nn.Sequential(nn.Conv2d(ins, outs, taps, stride, taps // 2, bias=False), nn.BatchNorm2d(outs))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, ins: int, outs: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = convolve(ins, outs, 3, stride), convolve(outs, outs, 3, 1)
            self.shortcut = convolve(ins, outs, 1, stride) if ins != outs else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.shortcut(x) + self.second(torch.relu(self.first(x))))

    blocks = [
        Block(ins if i == 0 else outs, outs, stride if i == 0 else 1)
        for ins, outs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for i in range(2)
    ]
    stem = [convolve(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    net = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval().to(device)
    x = torch.randn(1, 3, 224, 224, device=device)
    return lambda: net(x)


def _make_encoder(torch: Any, device: str) -> Call:
    width, heads, hidden, length, count = 256, 8, 1024, 128, 6
    functional = torch.nn.functional

    def make_weights(ins: int, outs: int) -> tuple[Any, Any]:
        return torch.randn(outs, ins, device=device) * ins**-0.5, torch.randn(outs, device=device)

    blocks = [
        [*[make_weights(width, width) for _ in range(4)], make_weights(width, hidden), make_weights(hidden, width)]
        for _ in range(count)
    ]
    x = torch.randn(1, length, width, device=device)

    def split(y: Any) -> Any:
        return y.reshape(1, length, heads, width // heads).transpose(1, 2)

    def call() -> Any:
        y = x
        for q, k, v, out, up, down in blocks:
            normal = functional.layer_norm(y, (width,))
            query, key, value = (split(functional.linear(normal, *weights)) for weights in (q, k, v))
            scores = torch.softmax(query @ key.transpose(2, 3) * (width // heads) ** -0.5, -1)
            y = y + functional.linear((scores @ value).transpose(1, 2).reshape(1, length, width), *out)
            bent = functional.gelu(functional.linear(functional.layer_norm(y, (width,)), *up))
            y = y + functional.linear(bent, *down)
        return functional.layer_norm(y, (width,))

    return call

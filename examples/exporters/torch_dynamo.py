"""Exporter script for ``models/torch_dynamo.onnx``: an encoder block with attention, by torch.export.

Needs torch and onnxscript: ``pip install torch onnxscript``. Run it as ``python examples/exporters/torch_dynamo.py``.
"""

from __future__ import annotations

import torch
from keeping import keep
from torch import nn


class Block(nn.Module):  # type: ignore[misc]
    """Tokens -> embeddings -> self-attention -> a small net -> scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 12)
        self.norms = nn.ModuleList([nn.LayerNorm(12), nn.LayerNorm(12)])
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores [batch, 5] and the mean embedding [batch, 12]."""
        x = self.embedding(tokens)
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, rows, 3, 2, 6).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, width))
        x = x + self.net(self.norms[1](x))
        mean = x.mean(1)
        return torch.softmax(self.head(mean), -1), mean


def main() -> None:
    """Export, and keep the model with what torch gives for two sizes."""
    torch.manual_seed(0)
    block = Block().eval()
    tokens = torch.arange(14).reshape(2, 7) % 16
    sizes = {"tokens": {0: torch.export.Dim("batch"), 1: torch.export.Dim("rows")}}
    program = torch.onnx.export(
        block, (tokens,), dynamo=True, dynamic_shapes=sizes, input_names=["tokens"], output_names=["scores", "mean"]
    )
    assert program is not None
    cases = [tokens, torch.arange(15).reshape(3, 5) * 7 % 16]
    with torch.no_grad():
        results = [[each.numpy() for each in block(case)] for case in cases]
    keep("torch_dynamo", program.model_proto, [[case.numpy()] for case in cases], results)


if __name__ == "__main__":
    main()

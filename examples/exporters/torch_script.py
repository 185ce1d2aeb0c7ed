"""Exporter script for ``models/torch_script.onnx``: a small convolutional net, by torch.onnx's TorchScript.

Needs torch: ``pip install torch``. Run it as ``python examples/exporters/torch_script.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import torch
from keeping import keep
from torch import nn


class Net(nn.Module):  # type: ignore[misc]
    """A residual block, a step down, a step up again, and a mask of where the image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU())
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=3), nn.PReLU(6), nn.Conv2d(6, 6, 1))
        self.down, self.up = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Conv2d(10, 2, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return maps [batch, 2, height, width] and how many pixels of each are above their mean."""
        x = self.stem(image)
        x = x + self.block(x)
        y = self.up(torch.relu(self.down(x)))
        y = nn.functional.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)
        maps = self.head(torch.cat([x, y], 1))
        return maps, (maps > maps.mean((2, 3), keepdim=True)).sum((2, 3))


def main() -> None:
    """Export, and keep the model with what torch gives for two sizes."""
    torch.manual_seed(0)
    net = Net().eval()
    cases = [torch.rand(1, 3, 12, 16), torch.rand(2, 3, 9, 10)]
    axes = {0: "batch", 2: "height", 3: "width"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        torch.onnx.export(
            net, (cases[0],), str(path), dynamo=False, opset_version=17, input_names=["image"],
            output_names=["maps", "counts"], dynamic_axes={"image": axes, "maps": axes, "counts": {0: "batch"}},
        )  # fmt: skip
        model = onnx.load(path)
    with torch.no_grad():
        results = [[each.numpy() for each in net(case)] for case in cases]
    keep("torch_script", model, [[case.numpy()] for case in cases], results)


if __name__ == "__main__":
    main()

"""QuantizeLinear, DequantizeLinear and QLinearConv of com.microsoft, which ONNX has too.

They are older than ONNX's: they took 16-bit and 4-bit types, and channels that stand last, before ONNX did.
"""

from __future__ import annotations

from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import upgrade
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.renamed import EVERY_VERSION, rename

NAMES = ("QuantizeLinear", "DequantizeLinear", "QLinearConv")


def _take_from_onnx(node: RawNode) -> RawNode:
    return rename(node, node.op_type)


for _name in NAMES:
    upgrade(f"{DOMAIN}.{_name}", below=EVERY_VERSION)(_take_from_onnx)

"""Short text form of specs."""

from __future__ import annotations

from gpuexec.ir.spec import TensorSpec, dtype_row


def parse_spec(text: str) -> TensorSpec:
    """Return the spec that prints as ``text``: ``"float32[2,3]"``."""
    name, _, dims = text.partition("[")
    return TensorSpec(tuple(int(each) for each in dims.rstrip("]").split(",") if each), dtype_row(name).numpy)

"""Array programs written in Python: functions traced into models.

    import gpuexec as gx

    def normalize(x, weight):
        y = x - x.mean(-1, keepdims=True)
        return gx.fn.relu(y / y.std(-1, keepdims=True)) @ weight

    model = gx.graph(normalize, {"x": ("float32", ("n", 16)), "weight": ("float32", (16, 4))})

`program.graph` runs the function on `SymbolicArray`s; `tracer.Tracer` records its operations.
"""

from __future__ import annotations

from gpuexec.model.tracing import fn
from gpuexec.model.tracing.array_program import graph
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["SymbolicArray", "fn", "graph"]

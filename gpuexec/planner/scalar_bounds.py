"""Scalar inputs that count only above a bound, at the upper end of a size class.

Such a number, like the rows that a cache must have room for, grows with the extents that it is compared with; an upper
end with larger extents and the number of a smaller size would have no room for the last size of its class.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.analyse import Analyser


def raise_scalar_bounds(
    graph: Graph, inputs: Mapping[str, TensorSpec], ends: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec] | None:
    """Return an upper end whose scalars are raised by as much as their lower bounds were.

    Args:
        graph: Whose inputs they are.
        inputs: Specs at hand, by name, with content where it is on the host.
        ends: Specs at an upper end.

    Returns:
        The specs; None where there is nothing to raise, or the graph refuses that upper end.
    """
    if not any(map(_may_count, inputs.values())):
        return None
    try:
        before = _find_bounds(graph, inputs)
        after = _find_bounds(graph, ends) if before else {}
    except GpuexecError:
        return None
    steps: dict[str, int] = {}
    for key in before.keys() & after.keys():
        steps[key[0]] = max(steps.get(key[0], 0), after[key] - before[key])
    raised = dict(ends)
    for name, step in steps.items():
        spec = ends[name]
        if step > 0 and spec.value is not None:
            number = min(int(spec.value.array.reshape(())) + step, np.iinfo(spec.dtype).max)
            raised[name] = spec.with_value(np.full(spec.shape, number, spec.dtype))
    return raised if any(raised[name] is not ends[name] for name in raised) else None


def _may_count(spec: TensorSpec) -> bool:
    return spec.value is not None and spec.size == 1 and spec.dtype.kind in "iu"


def _find_bounds(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[tuple[str, str], int]:
    """Return the bounds that scalars are compared with, by input and the node that reads it."""
    reads = Analyser(graph).run(specs).reads
    return {(read.input, read.node): read.least for read in reads if read.least is not None}

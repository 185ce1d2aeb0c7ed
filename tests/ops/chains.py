"""Chains of steps behind a producer, each of which reads what the one before it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuexec.ops.elementwise.region_steps import write_number

# In place of an input of a step: what the last step made, or what the producer did. Others are positions of inputs, or
# numbers as text.
VALUE, MADE = -1, -2


def chain(steps: Iterable[Any], dtype: Any = np.float32) -> dict[str, Any]:
    """Return the attributes of a fused operator whose one result is that of the last step.

    Args:
        steps: Rows of name, attributes and inputs.
        dtype: Of numbers.
    """
    rows = []
    for place, (name, attributes, inputs) in enumerate(steps):
        given: list[Any] = []
        for source in inputs:
            if isinstance(source, str):
                given.append(write_number(np.array(float(source), dtype)))
            else:
                given.append({VALUE: -1 - place, MADE: -1}.get(source, source))
        rows.append((name, attributes, tuple(given)))
    return {"steps": tuple(rows), "results": (len(rows),)}

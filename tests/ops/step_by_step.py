"""Steps of regions, computed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array, build
from gpuexec.ops.elementwise.region_steps import read_number

Steps = tuple[tuple[str, tuple[tuple[str, Any], ...], tuple[int | str | None, ...]], ...]


def pick(
    given: Sequence[int | str | None], inputs: Sequence[Array | None], made: Sequence[Array]
) -> list[Array | None]:
    """Return the inputs of a step."""
    return [
        None if g is None else read_number(g) if isinstance(g, str) else inputs[g] if g >= 0 else made[-1 - g]
        for g in given
    ]


def apply_steps(steps: Steps, inputs: Sequence[Array | None]) -> list[Array]:
    """Return what each step makes, one after the other, in dense memory."""
    made: list[Array] = []
    for name, attributes, given in steps:
        result, *_ = build(name, dict(attributes)).compute(*pick(given, inputs, made))
        made.append(np.asarray(result, order="C"))
    return made

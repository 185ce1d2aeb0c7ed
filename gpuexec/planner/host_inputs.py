"""Content that a node needs on the host, gathered for one wait."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

import numpy as np

from gpuexec.errors import GpuexecError, NeedsHostValue
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.content_key import HOST_VALUE_LIMIT


def list_host_inputs(node: Node, specs: Mapping[Value, TensorSpec], need: NeedsHostValue) -> dict[int, str]:
    """Return the positions of all inputs whose content a node needs, with its purpose.

    An operator asks for one after the other, so it is shown ones in place of content that is not known.

    Args:
        node: Which.
        specs: Of its inputs.
        need: The first content it asked for.
    """
    roles = {need.index: need.role}
    shown: list[TensorSpec | None] = []
    for position, value in enumerate(node.inputs):
        spec = None if value is None else specs[value]
        if spec is not None and spec.value is None and spec.nbytes <= HOST_VALUE_LIMIT:
            spec = spec.with_value(np.ones(spec.shape, spec.dtype), partial(_note_role, roles, position))
        shown.append(spec)
    with contextlib.suppress(GpuexecError):
        infer_specs(node.operator, shown)
    return roles


def _note_role(roles: dict[int, str], position: int, role: str, _minimum: int | None) -> None:
    roles.setdefault(position, role)

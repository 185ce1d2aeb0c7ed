"""Which nodes a target has no kernel for: they run on the host, or are refused."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.graph import Node, Value
from gpuexec.plan import Role
from gpuexec.planner.draft import Draft, DraftBuffer, dense
from gpuexec.planner.emitter import NodeEmitter
from gpuexec.spec import TensorSpec
from gpuexec.target import Target


def lacks_kernel(node: Node, specs: Mapping[Value, TensorSpec], target: Target) -> bool:
    """Return whether a target has kernels, but none for this node.

    On a target with textures that depends on what ``lower`` launches, by dtypes, ranks and attributes, so it is asked.

    Args:
        node: Which.
        specs: Of its inputs and outputs.
        target: What it is to run on.
    """
    if not target.has_kernels:
        return False
    if node.operator.lower is None:
        return True
    return target.has_textures and not _can_draw(node, specs, target)


def _can_draw(node: Node, specs: Mapping[Value, TensorSpec], target: Target) -> bool:
    draft = Draft()
    inputs = tuple(
        [
            None
            if value is None
            else dense(draft.new_buffer(DraftBuffer(Role.INPUT, specs[value].nbytes)), specs[value])
            for value in node.inputs
        ]
    )
    wanted = [None if value is None else specs[value] for value in node.outputs]
    try:
        NodeEmitter(target, draft).lower(node, inputs, wanted)
    except UnsupportedError:
        return False
    except GpuexecError:
        return True  # what is wrong with the node is told when it is lowered in earnest
    return True

"""Host fallback: nodes without a kernel on the target, and nodes on host objects."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.emitter import NodeEmitter
from gpuexec.planner.unpacked_plan import UnpackedBuffer, UnpackedPlan, dense


def touches_objects(node: Node, specs: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node takes or gives strings or containers, which no device holds, as far as specs are known."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value in specs and specs[value].dtype.hasobject:
            return True
    return False


def is_of_host(node: Node, specs: Mapping[Value, TensorSpec]) -> bool:
    """Return whether the host computes a node on any target: its result has its shape, and no plan reads it."""
    is_without = node.operator.lower is None and node.operator.host_reason != ""
    return is_without or touches_objects(node, specs)


def explain_call(node: Node, specs: Mapping[Value, TensorSpec]) -> str:
    """Return why the host computes a node that is no light one."""
    inputs = [None if value is None else specs.get(value) for value in node.inputs]
    if node.operator.host_reason and not node.operator.is_lowered(inputs):
        return node.operator.host_reason
    return "host object" if touches_objects(node, specs) else "no lowering for this device"


def lacks_kernel(node: Node, specs: Mapping[Value, TensorSpec], target: Target) -> bool:
    """Return whether a target has kernels but none for this node, or the node is one of host objects.

    On a target with textures that depends on what ``lower`` launches, by dtypes, ranks and attributes, so it is asked.

    Args:
        node: Which.
        specs: Of its inputs and outputs.
        target: The device's target.
    """
    if touches_objects(node, specs):
        return True
    if not target.has_kernels:
        return False
    if not node.operator.is_lowered([None if value is None else specs[value] for value in node.inputs]):
        return True
    return target.has_textures and not _can_draw(node, specs, target)


def _can_draw(node: Node, specs: Mapping[Value, TensorSpec], target: Target) -> bool:
    unpacked = UnpackedPlan()
    inputs = tuple(
        [
            None
            if value is None
            else dense(unpacked.new_buffer(UnpackedBuffer(Role.INPUT, specs[value].nbytes)), specs[value])
            for value in node.inputs
        ]
    )
    wanted = [None if value is None else specs[value] for value in node.outputs]
    try:
        NodeEmitter(target, unpacked).lower(node, inputs, wanted)
    except UnsupportedError:
        return False
    except GpuexecError:
        return True  # errors in the node are raised when it is lowered for its plan
    return True

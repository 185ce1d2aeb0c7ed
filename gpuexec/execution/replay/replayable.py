"""Replayable runs: one plan for one set of sizes, without host reads or host nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import ImplicitSyncError, InputError, StateError
from gpuexec.execution.runs.inputs import GivenInput, HostArray
from gpuexec.execution.runs.plan_cache import CompiledPlan, PlannedVariant
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.command import Command
from gpuexec.ir.plan import Plan, Read
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model
from gpuexec.planner.partition import Partition


@dataclass(frozen=True, slots=True, eq=False)
class Replayable:
    """A plan with the commands of one size, and the specs of its inputs and outputs.

    Attributes:
        fixed: Content that planning read, by input: the run does what follows from it.
        reads: What of it was read.
        input_buffers: None where the device never touches the input.
        output_bytes: What memory of the caller's must hold at least.
    """

    compiled: CompiledPlan
    commands: tuple[Command, ...]
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    fixed: Mapping[str, np.ndarray[Any, Any]]
    reads: tuple[Read, ...]
    input_buffers: Mapping[str, int | None]
    output_buffers: Mapping[str, int]
    output_bytes: Mapping[str, int]

    @property
    def plan(self) -> Plan:
        """The plan at the upper end of its class."""
        return self.compiled.plan

    def check_input(self, name: str, item: GivenInput) -> None:
        """Check an input against what was recorded.

        Raises:
            InputError: Its shape is another, or content differs that planning read.
        """
        expected = self.inputs[name]
        if item.spec.shape != expected.shape:
            raise InputError(
                f"Input {name!r} was recorded as {expected}, got {item.spec}; record another replay for that size.",
                value=name,
            )
        fixed = self.fixed.get(name)
        if fixed is None:
            return
        content = item.array if isinstance(item, HostArray) else None
        reads = [read for read in self.reads if read.input == name]
        if content is None or any(read.extract(content) != read.extract(fixed) for read in reads):
            got = "content on a device" if content is None else np.array2string(content, threshold=8)
            raise InputError(
                f"Input {name!r} was recorded as {np.array2string(fixed, threshold=8)}, which the plan follows from,"
                f" got {got}; record another replay for that.",
                value=name,
            )

    def check_output(self, name: str, item: object) -> TensorSpec:
        """Return the spec of an output, having checked what is given for it against that.

        Raises:
            InputError: There is no such output, or dtype or shape differ.
        """
        spec = self.outputs.get(name)
        if spec is None:
            raise InputError(f"There is no output {name!r}; the model has {', '.join(self.outputs)}.", value=name)
        shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
        # torch spells its dtypes torch.float32.
        is_like = shape is None or tuple(shape) == spec.shape
        if not is_like or (dtype is not None and str(dtype).rpartition(".")[2] != spec.dtype.name):
            raise InputError(f"Output {name!r} is {spec}, got {dtype} of shape {shape} for it.", value=name)
        return spec


def make_replayable(
    model: Model, stage: Stage, planned: PlannedVariant | None, given: Mapping[str, GivenInput]
) -> Replayable:
    """Return the replayable plan of a run that begins with a stage.

    Args:
        model: Whose run.
        stage: How it begins.
        planned: The plan for that.
        given: The inputs it was chosen for.

    Raises:
        ImplicitSyncError: The host has to read or compute in the middle of the run; names the nodes.
        StateError: What it takes or gives is not all the model's.
    """
    reasons = _list_host_work(stage.partition)
    if reasons:
        raise ImplicitSyncError(
            f"A replay runs without the host; in {model.graph.name!r}, {'; '.join(reasons)}. Use schedule()."
        )
    partition = stage.partition
    if planned is None or partition.ready is None or partition.rest is not None:
        raise StateError(f"{model.graph.name!r} does not begin and end on the device; use schedule().")
    plan, variant = planned.compiled.plan, planned.variant
    reads = (*variant.reads, *(Read(value.name, "", "condition") for value, _ in stage.conditions))
    outputs = dict(zip([value.name for value in partition.ready.outputs], variant.outputs, strict=True))
    wanted = [value.name for value in model.graph.outputs]
    strange = sorted({port.name for port in plan.inputs} - given.keys()) + sorted(set(wanted) ^ outputs.keys())
    if strange:
        raise StateError(f"A replay takes the model's inputs and gives its outputs, not {', '.join(strange)}.")
    buffers, needed = {}, {}
    for port in plan.outputs:
        assert port.buffer is not None
        held = plan.buffers[port.buffer].nbytes
        buffers[port.name] = port.buffer
        # A buffer that holds more than the output at the upper end of the class holds something else for a time.
        needed[port.name] = outputs[port.name].nbytes if held == port.spec.nbytes else held
    return Replayable(
        planned.compiled,
        variant.commands,
        {name: given[name].spec for name in given},
        {name: outputs[name] for name in wanted},
        {read.input: _copy_content(given[read.input]) for read in reads},
        reads,
        {name: next((port.buffer for port in plan.inputs if port.name == name), None) for name in given},
        buffers,
        needed,
    )


def _list_host_work(partition: Partition) -> list[str]:
    """Describe the host work after the plan of a partition."""
    rows = [f"{read.value.name!r} is read for {read.reader} ({read.role})" for read in partition.reads]
    rows += [f"{node} is computed on the host" for node in partition.host_nodes]
    return rows + ([f"{partition.repeat} is driven by the host"] if partition.repeat is not None else [])


def _copy_content(item: GivenInput) -> np.ndarray[Any, Any]:
    assert isinstance(item, HostArray) and item.array is not None
    return item.array.copy()

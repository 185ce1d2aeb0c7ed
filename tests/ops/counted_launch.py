"""Launches beside what count mode counts of them: the work that a closed form says, and what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

import gpuexec as gx
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.execution.profiling.complexity import count_work
from gpuexec.ir.command import Kernel, Launch
from gpuexec.ir.graphs import Graph
from gpuexec.ir.precision import STRICT
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, find_form
from gpuexec.model.model import choose_precision
from gpuexec.passes import run_passes
from gpuexec.planner.launch_work import list_operands
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of

Array = np.ndarray[Any, Any]
F32 = np.float32


@dataclass(frozen=True)
class CountedCase:
    """A node over inputs and weights of random numbers of a type, and the kernel whose first launch is compared.

    ``turned`` has the ``perm`` of a Transpose that stands before an input; passes run on a model with one.
    """

    operator: str
    kernel: str
    inputs: Mapping[str, Sequence[int]]
    weights: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtype: type = F32
    opset: int = 23
    target: str = "sm_90"
    precision: str = STRICT
    turned: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = [*self.inputs.values(), *(np.shape(each) for each in self.weights.values())]
        return "-".join([self.kernel, *("x".join(map(str, shape)) for shape in shapes)])


@dataclass(frozen=True)
class Compared:
    """A launch's work beside what count mode counted of it, and the operations of its node."""

    work: Work
    counts: LaunchCounts
    operand_nbytes: int
    flops: int | None


def floats(*shape: int, dtype: type = F32) -> Array:
    return np.random.default_rng(len(shape)).random(shape, F32).astype(dtype)


def make_model(case: CountedCase) -> gx.Model:
    """Return a model of a case's node."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(case.dtype))
    ports = [helper.make_tensor_value_info(name, code, shape) for name, shape in case.inputs.items()]
    constants = [onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in case.weights.items()]
    views = [helper.make_node("Transpose", [name], [f"{name}_turned"], perm=perm) for name, perm in case.turned.items()]
    given = [f"{name}_turned" if name in case.turned else name for name in (*case.inputs, *case.weights)]
    node = helper.make_node(case.operator, given, ["y"], **case.attributes)
    graph = helper.make_graph([*views, node], "g", ports, [onnx.ValueInfoProto(name="y")], constants)
    versions = {"": case.opset, "com.microsoft": 1, "gpuexec": 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return choose_precision(gx.load(helper.make_model(graph, opset_imports=imports, ir_version=11)), case.precision)


def find_graph(case: CountedCase, model: gx.Model, arrays: Mapping[str, Array]) -> Graph:
    """Return the graph that is planned for a case."""
    if not case.turned:
        return model.graph
    return run_passes(model.graph, model._plan_passes, model.disabled_passes, specs_of(arrays))


def compare(case: CountedCase, together: Sequence[Kernel] = ()) -> Compared:
    """Run the plan of a case on a device in count mode.

    Args:
        together: Kernels of the cases of a test, which are compiled as one object: that is sooner than one by one.
    """
    arrays = {name: floats(*shape, dtype=case.dtype) for name, shape in case.inputs.items()}
    model = make_model(case)
    graph = find_graph(case, model, arrays)
    template = plan_graph(graph, specs_of(arrays), Target.named(case.target))
    launches = [each for each in template.plan.segment.commands if isinstance(each, Launch)]
    kernels = [*template.plan.kernels(), *together]
    device = SimulatorDevice(lambda source: [k.expression for k in kernels if k.source == source], count_kernels=True)
    try:
        device.load(together)
        run_template(template, graph, arrays, device)
        counts = list(device.counts)
    finally:
        device.close()
    index, *_ = [i for i, each in enumerate(launches) if each.kernel.expression.partition("<")[0] == case.kernel]
    form = find_form(launches[index].kernel)
    assert form is not None
    work = form(launches[index])
    operand_nbytes = sum(nbytes for _, _, nbytes in list_operands(launches[index], work))
    # A precision puts others in front of the node, which do less.
    rows = count_work(model, arrays)
    flops = rows[0].flops if case.precision == STRICT else max(row.flops or 0 for row in rows)
    return Compared(work, counts[index], operand_nbytes, flops)


def count_wavefronts(counts: LaunchCounts, floats_read_together: int) -> float:
    """Return wavefronts of shared memory, with as many floats to a read."""
    shared = [line for line in counts.lines if line.space == "shared"]
    read = sum(line.counts.transactions for line in shared if line.access == "read")
    return read / floats_read_together + sum(line.counts.transactions for line in shared if line.access == "write")

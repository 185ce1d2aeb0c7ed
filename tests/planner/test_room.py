"""Plans too large for a device: refused when they are made, with node, bytes and limit."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.host import host_memory_bytes
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import DeviceError, GpuexecError, KernelError, OutOfMemoryError
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.model.small_models import CPU, make_model
from tests.ops.operators import Scale, Slots

F32 = np.dtype(np.float32)


def expand(*shape: int) -> gx.Model:
    """Return a model that stretches x ``[1]`` and then adds to what came of it."""
    nodes = [helper.make_node("Expand", ["x", "shape"], ["t"]), helper.make_node("Exp", ["t"], ["y"], name="exp")]
    return make_model(nodes, {"x": [1]}, {"y": list(shape)}, shape=np.array(shape, np.int64))


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_tensor_larger_than_the_device_is_refused_by_name(target: str) -> None:
    limit = Target.named(target).with_memory(1 << 20)
    specs = {"x": TensorSpec((1,), F32)}
    assert plan_graph(expand(1 << 16).graph, specs, limit).plan.target == limit.name
    with pytest.raises(OutOfMemoryError, match=rf"takes 2097152 bytes; {limit.name} has 1048576 bytes") as caught:
        plan_graph(expand(1 << 19).graph, specs, limit)
    assert caught.value.node is not None


def test_plan_larger_than_the_device_is_refused_by_its_largest_buffer() -> None:
    count = 8
    nodes = [helper.make_node("Exp", ["x"], [f"t{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Concat", [f"t{i}" for i in range(count)], ["y"], axis=0))
    model = make_model(nodes, {"x": [1 << 16]}, {"y": [count << 16]})
    target = Target.named("sm_90").with_memory((count + 1) << 18)
    specs = {"x": TensorSpec((1 << 16,), F32)}
    plan_graph(model.graph, specs, target)
    with pytest.raises(OutOfMemoryError, match=r"%y .*takes 2097152; sm_90 has 2097153 bytes") as caught:
        plan_graph(model.graph, specs, target.with_memory((count << 18) + 1))
    assert caught.value.value == "y"


@dataclass(frozen=True, slots=True)
class Clumsy(Scale):
    """Fails when it is lowered; ``of`` names how."""

    of: str = ""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        if self.of == "pack":
            struct.pack("<i", 1 << 40)
        elif self.of == "convert":
            np.int32(1 << 40)
        raise ZeroDivisionError("no extent")


@pytest.mark.parametrize(
    ("of", "kind", "message"),
    [
        ("pack", KernelError, r"'bad' \(float32\[2\]\): an extent, stride or attribute is too large for the kernel"),
        ("convert", KernelError, "too large for the kernel, which counts in 32 bits"),
        ("else", DeviceError, "'bad': lowering failed on the host: ZeroDivisionError: no extent"),
    ],
)
def test_error_of_a_lowering_names_its_node(of: str, kind: type[Exception], message: str) -> None:
    build = GraphBuilder()
    graph = build.graph(build.node(Clumsy(of=of), build.input("x", 2), name="bad"))
    with pytest.raises(kind, match=message) as caught:
        plan_graph(graph, {"x": TensorSpec((2,), F32)}, Target.named("sm_90"))
    assert isinstance(caught.value, GpuexecError) and caught.value.node == "bad"


def test_worker_refuses_and_goes_on() -> None:
    nodes = [helper.make_node("Expand", ["x", "s"], ["t"]), helper.make_node("Exp", ["t"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("s", 7, [1])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
    )
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    with gx.Worker(model, backend=CPU) as worker:
        x = np.zeros(1, np.float32)
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match=f"cpu has {host_memory_bytes()} bytes"):
                worker.run({"x": x, "s": np.array([1 << 50])})
            np.testing.assert_array_equal(worker.run({"x": x, "s": np.array([3])})[0], np.ones(3, np.float32))


def test_targets_of_devices_know_what_there_is() -> None:
    assert CpuDevice().target.memory_bytes == host_memory_bytes()
    assert SimulatorDevice(lambda _: ()).target.memory_bytes == host_memory_bytes()
    assert SimulatorDevice(lambda _: (), memory_bytes=4096).target.memory_bytes == 4096
    assert CpuDevice().target == Target.named("cpu"), "memory makes no other target"


def test_host_memory_is_the_least_of_all_limits(tmp_path: Path) -> None:
    physical = host_memory_bytes(())
    for name, text, expected in [("v2", "max\n", physical), ("v1", "4096\n", 4096), ("absent", None, physical)]:
        if text is not None:
            (tmp_path / name).write_text(text)
        assert host_memory_bytes((tmp_path / name,)) == expected
    code = (
        "import resource; from gpuexec.devices.host import host_memory_bytes;"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, -1)); print(host_memory_bytes(()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1 << 31


def test_copy_to_an_output_that_no_grid_holds_names_the_output() -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"])]
    model = make_model(nodes, {"x": [1 << 40, 3]}, {"y": [3, 1 << 40]})
    with pytest.raises(KernelError, match=r"Output %y: copy.cu:.* grid"):
        plan_graph(model.graph, {"x": TensorSpec((1 << 40, 3), F32)}, Target.named("sm_90"))

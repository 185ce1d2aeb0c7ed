"""Regions in a run: planned as one node, and operator by operator where no compiler makes their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import DeviceNotFoundError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiations

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n, 6] x) => (float[n, 6] y) <float two = {2}> { a = Mul (x, two) b = Sigmoid (a) y = Sub (a, b) }"""
X = np.random.default_rng(5).normal(size=(4, 6)).astype(np.float32)


class WithoutCompiler(SimulatorDevice):
    """Has the kernels of files, and no compiler for generated ones."""

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Refuse kernels with text."""
        if any(kernel.text for kernel in kernels):
            raise DeviceNotFoundError("there is no compiler")
        super().load(kernels, code)


def run(device: SimulatorDevice, *sizes: int) -> tuple[list[int], list[np.ndarray]]:
    """Return the commands of each plan that was made, and the results."""
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    with gx.Worker(gx.load(parser.parse_model(TEXT)), backend=backend) as worker:
        made = [worker.run(X[:size])[0] for size in sizes]
        return [len(plan.segment.commands) for plan in worker.plans], made


def test_without_a_compiler_operators_run_one_by_one_to_the_same_bits() -> None:
    counts, made = run(SimulatorDevice(instantiations, "sm_90"), 4, 3, 1)
    apart, others = run(WithoutCompiler(instantiations, "sm_90"), 4, 3, 1)
    assert set(counts) == {1} and set(apart) == {3}
    for got, expected in zip(others, made, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_another_error_of_the_device_is_not_taken_for_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SimulatorDevice, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        raise gx.KernelError("it does not compile")

    monkeypatch.setattr(SimulatorDevice, "load", refuse)
    with pytest.raises(gx.KernelError, match="it does not compile"):
        run(SimulatorDevice(instantiations, "sm_90"), 4)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_a_region_is_one_layer_with_the_names_of_its_nodes(backend: gx.BackendType) -> None:
    model = gx.load(parser.parse_model(TEXT))
    with gx.Worker(model, backend=backend) as worker:
        steps = list(worker.schedule_iterable(X))
        (origin,) = worker.plans[0].segment.origins
        assert len(steps) == 1 and origin == "+".join(node.name for node in model.graph.nodes)
    exposed = gx.load(parser.parse_model(TEXT), outputs=["y", "b"])
    with gx.Worker(exposed, backend=backend) as worker:
        y, b = worker.run(X)
        assert [len(plan.segment.commands) for plan in worker.plans] == [1]
    np.testing.assert_allclose(b, 1 / (1 + np.exp(-2 * X)), rtol=1e-6)
    np.testing.assert_allclose(y, 2 * X - b, rtol=1e-5, atol=1e-6)

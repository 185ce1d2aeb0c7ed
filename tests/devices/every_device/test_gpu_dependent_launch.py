"""Dependent launches on a GPU: random programs give the same bits with and without them, in both forms."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.devices.dependent_launch import takes_dependent_launches
from gpuexec.devices.recording import record_graph, record_launches
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import plan_graph
from tests.devices.every_device.programs import make_input, make_program
from tests.devices.execute import LoadedPlan
from tests.devices.opening import open_device
from tests.ir.graph_builder import compute_graph

pytestmark = pytest.mark.gpu

ROWS = 4096
TIMES = 20


@pytest.mark.parametrize("seed", range(30))
def test_results_are_the_same_with_and_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("gpu")
    if not takes_dependent_launches(device.target):
        pytest.skip("GPUs before sm_90 have no dependent launches.")
    graph = make_program(seed, nodes=40)
    plan = plan_graph(graph, {"x": TensorSpec((ROWS, 8), np.dtype(np.float32))}, device.target).plan
    constants = {value.name: array for value, array in graph.constants.items()}
    for number in range(2):
        arrays = make_input(number, ROWS)
        expected = [array.tobytes() for array in compute_graph(graph, arrays)]
        for record in (record_launches, record_graph):
            for value in ("1", "0"):
                monkeypatch.setenv("GPUEXEC_DEPENDENT_LAUNCH", value)
                with LoadedPlan(plan, constants, device, record) as loaded:
                    for _ in range(TIMES):
                        assert [array.tobytes() for array in loaded.run(arrays)] == expected

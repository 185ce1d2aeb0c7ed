"""Real models as blits over textures: near the reference, each layer on the device."""

from __future__ import annotations

import pytest

import gpuexec as gx
from tests.system.models.folder import load_model, measure, needs_models, read_case, read_manifest

MODELS = ("winml_mnist", "ultraface_rfb320", "mobilenet_v2__d18")
NOTHING = {"cases": ["no folder of models"]}
CASES = [(model, case) for model in MODELS for case in read_manifest().get(model, NOTHING)["cases"][:2]]
BACKENDS = [gx.BackendType.SIMULATOR_PIXEL, pytest.param(gx.BackendType.GPU_PIXEL, marks=pytest.mark.gpu)]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize(("model", "case"), CASES)
def test_model_gives_what_the_reference_gave(model: str, case: str, backend: gx.BackendType) -> None:
    given = read_case(case)
    with gx.Worker(load_model(model), backend=backend, strict=True) as worker:
        run = worker.schedule(given.inputs)
        for name, expected in given.outputs.items():
            distance = measure(f"{case} {backend.name}", run.outputs[name].readback_and_clone(), expected)
            assert distance <= 1, f"{name} is {distance:.3g} times further off than allowed"
        report = worker.report()
        assert (report.plans, report.host_calls, report.host_reads, report.graphs) == (1, (), (), 0)

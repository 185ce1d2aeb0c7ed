"""Arenas of real models beside their lower bound, whatever the model is planned in parts."""

from __future__ import annotations

import pytest

import gpuexec as gx
from gpuexec.runtime.backend import Backend
from tests.models.folder import load_model, needs_models, read_case, read_manifest
from tests.small_models import CPU, make_tracer

MOST = 1.02
MODELS = sorted(read_manifest()) or ["no folder of models"]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("model", MODELS)
def test_arenas_are_near_their_lower_bound(model: str, target: str) -> None:
    try:
        loaded = load_model(model)
    except gx.UnsupportedError as error:
        pytest.skip(f"The model does not load: {error}")
    for case in read_manifest()[model]["cases"]:
        backend: Backend | gx.BackendType = CPU if target == "cpu" else make_tracer()
        with gx.Worker(loaded, backend=backend) as worker:
            worker.run(read_case(case).inputs)
            for plan in worker.plans:
                assert plan.target == target
                assert plan.layout.nbytes <= MOST * plan.layout.lower_bound

"""Model suite, every case: near the reference, with only unavoidable nodes on the host."""

from __future__ import annotations

import pytest

from tests.system.models.folder import needs_models, read_manifest
from tests.system.models.judge import judge_model

DEVICES = ["cpu", "simulator", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", sorted(read_manifest()) or ["no folder"])
def test_every_case_is_near_its_reference(model: str, device: str) -> None:
    result = judge_model(model, device)
    assert not result.problem, result.problem
    assert result.cases == len(read_manifest()[model]["cases"]) and result.calls == ()

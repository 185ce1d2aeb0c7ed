"""Sample rate on a device that chooses a model's branches: read back once, with the results of one on the host."""

from __future__ import annotations

from typing import Any

import pytest

import gpuexec as gx
from tests.model.host_value_cases import put_on_device
from tests.system.models.folder import measure, needs_models, path_of, read_case, read_manifest
from tests.system.models.judge import BACKENDS
from tests.system.models.test_every_model import DEVICES

MODEL = "silero_vad_v6"


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("device", DEVICES)
def test_rate_on_a_device_is_read_for_the_branches_that_depend_on_it(device: str) -> None:
    model, backend = gx.load(path_of(MODEL)), BACKENDS[device]
    for case in read_manifest()[MODEL]["cases"]:
        given = read_case(case)
        inputs: dict[str, Any] = {**given.inputs, "sr": put_on_device(given.inputs["sr"], backend)}
        with gx.Worker(model, backend=backend) as worker:
            run = worker.schedule(inputs)
            for name, expected in given.outputs.items():
                assert measure(f"{case} {device}", run.outputs[name].readback_and_clone(), expected) <= 1
            rows = [(row.value, row.nbytes, row.times) for row in worker.report().host_reads]
        assert ("sr", given.inputs["sr"].nbytes, 1) in rows

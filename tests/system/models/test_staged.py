"""Real models with several plans, loops or much shape arithmetic: results, and host reads."""

from __future__ import annotations

from typing import Any

import pytest

import gpuexec as gx
from tests.model.host_value_cases import put_on_device
from tests.system.models.folder import load_model, measure, needs_models, read_case, read_manifest
from tests.system.models.test_models import BACKENDS, NOTHING

pytestmark = [pytest.mark.models, needs_models]

# Models, and what runs of each read from the device where there is a kernel for all.
READS: dict[str, set[str]] = {
    "lstm_bidir_tagger__l17": set(),
    "dtln_1": set(),
    "gtcrn_simple": set(),
    "silero_vad_v6": set(),
    "hand_nms_topk": {"NonMaxSuppression_1.count"},
    "hand_if_loop_scan": {"v"},
    "det_head_nonzero__d18": {"node_NonZero_98.count"},
    "pinto_nms_yolov7_N": {"main01_nonmaxsuppression11.count"},
    "onnxscript_greedy_decode_loop": {"lg"},
    "t5_decoder_kv__d18": set(),
    "segformer__l17": set(),
    "detr__l17": set(),
}
# So small, and given by NumPy, that the host counts what is kept by itself.
UNREAD = {"arch/hand_nms_topk.case0.npz"}
# A run of these takes seconds on the simulator: one will do.
SLOW = {"pinto_nms_yolov7_N"}
CASES = [(model, case) for model in READS for case in read_manifest().get(model, NOTHING)["cases"]]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize(("model", "case"), CASES)
def test_model_gives_what_the_reference_gave(model: str, case: str, backend: gx.BackendType) -> None:
    given = read_case(case)
    with gx.Worker(load_model(model), backend=backend) as worker:
        for _ in range(1 if model in SLOW else 2):
            run = worker.schedule(given.inputs)
            for name, expected in given.outputs.items():
                distance = measure(f"{case} {backend.name}", run.outputs[name].readback_and_clone(), expected)
                assert distance <= 1, f"{name} is {distance:.3g} times further off than allowed"
        report = worker.report()
    assert report.host_calls == ()
    assert {row.value for row in report.host_reads} == (set() if case in UNREAD else READS[model])
    assert report.host_syncs == ()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_rate_on_a_device_is_read_for_the_branches_that_depend_on_it(backend: gx.BackendType) -> None:
    for case in read_manifest()["silero_vad_v6"]["cases"]:
        given = read_case(case)
        inputs: dict[str, Any] = {**given.inputs, "sr": put_on_device(given.inputs["sr"], backend)}
        with gx.Worker(load_model("silero_vad_v6"), backend=backend) as worker:
            run = worker.schedule(inputs)
            for name, expected in given.outputs.items():
                assert measure(f"{case} {backend.name}", run.outputs[name].readback_and_clone(), expected) <= 1
            rows = [(row.value, row.nbytes, row.times) for row in worker.report().host_reads]
        assert ("sr", given.inputs["sr"].nbytes, 1) in rows

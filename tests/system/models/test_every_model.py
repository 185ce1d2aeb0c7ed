"""Model suite, every case: near the reference, only unavoidable nodes and reads on the host, regions change no bit.

The simulator runs every fourth model here but the longest, those of the lists below, and their first case:
``make models`` runs all.

Whatever needs the outputs of a model as it is stands here, so that each model runs once on each device.
"""

from __future__ import annotations

import pytest

from tests.system.models.folder import TRAINED, needs_models, read_manifest
from tests.system.models.judge import BACKENDS, judge_model

DEVICES = ["cpu", "simulator", pytest.param("cuda", marks=pytest.mark.gpu)]
# Models with several plans, loops or much shape arithmetic, and what runs of each read from the device. Those of
# TRAINED have one plan and read nothing.
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
# Of these two lists each case runs twice, to find plan and memory as they were left; but what takes seconds, once. On
# the CPU all run three times: a third run is of prepared calls, in the call where it is short.
SLOW = {"pinto_nms_yolov7_N"}
TWICE = {*TRAINED, *READS} - SLOW
# What takes the simulator a minute: test_style gives it a smaller image.
SHRUNK = ("winml_style_candy",)
# And what takes it several seconds without a layer that others lack.
LONG = (*SHRUNK, "arnet_b64_hdn", "onnx_light_densenet121", "nanodet_m_320")
# Regions on the simulator, of each kind: a transformer with a cache in half, experts, speech, recurrence, convolutions
# with norms. On the host they are compared for all models.
SIMULATED = ("llama_gqa_kv_half__d20", "mixtral_kv__l17", "gtcrn_simple", "silero_vad_v6", "unet_diffusion__l17")


# Models that the simulator runs here whatever their number.
ALWAYS = {*TRAINED, *READS, *SIMULATED}
ROWS = [
    pytest.param(model, device, marks=[pytest.mark.gpu] if device == "cuda" else [])
    for number, model in enumerate(sorted(read_manifest()) or ["no folder"])
    for device in BACKENDS
    if device != "simulator" or (model not in LONG and (number % 4 == 0 or model in ALWAYS))
]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize(("model", "device"), ROWS)
def test_every_case_is_near_its_reference_and_has_the_bits_of_single_operators(model: str, device: str) -> None:
    most = 1 if device == "simulator" else None
    cases, is_simulated = read_manifest()[model]["cases"][:most], device == "simulator" and model in SIMULATED
    times = 1 if model in SLOW else 3 if device == "cpu" else 2 if model in TWICE else 1
    result = judge_model(model, device, times=times, has_bits=device == "cpu" or is_simulated, most=most)
    assert not result.problem, result.problem
    assert result.cases == len(cases) and (result.calls, result.syncs) == ((), 0)
    if model in TRAINED:
        assert result.plans == (1,) * len(cases)
        assert not any(result.reads)
    if model in READS:
        assert result.reads == tuple(set() if case in UNREAD else READS[model] for case in cases)
    if is_simulated:
        assert result.regions > 0

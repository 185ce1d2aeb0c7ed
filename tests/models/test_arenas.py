"""Arenas of real models beside their lower bound, whatever the model is planned in parts."""

from __future__ import annotations

import pytest

import gpuexec as gx
from gpuexec.runtime.backend import Backend
from tests.models.folder import load_model, needs_models, read_case, read_manifest
from tests.small_models import CPU, make_tracer

MOST = 1.02
# Models that do not load yet, by what they lack: one thing of each, which the refusal must name.
LACKING = {
    "ConvInteger": ("nnsplit_en_dynquant",),
    "Einsum": ("jax_attn_mlp", "jax_scan_rnn", "moe_dense__l14", "op_kitchen_sink__d21", "sam_encoder__d18"),
    "FusedConv": ("openseeface_det",),
    "MatMulInteger": ("bert_dynquant", "magika_v3_3_dynquant"),
    "QLinearConv": ("resnet_int8_qop", "tract_qlstm", "yunet_n_320_int8_qop"),
    "STFT": ("stft_mel_frontend__l17",),
    "int4": ("llama_int4_qdq",),
}
MODELS = sorted(set(read_manifest()) - {model for models in LACKING.values() for model in models}) or ["no folder"]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("model", MODELS)
def test_arenas_are_near_their_lower_bound(model: str, target: str) -> None:
    loaded = load_model(model)
    for case in read_manifest()[model]["cases"]:
        backend: Backend | gx.BackendType = CPU if target == "cpu" else make_tracer()
        with gx.Worker(loaded, backend=backend) as worker:
            worker.run(read_case(case).inputs)
            for plan in worker.plans:
                assert plan.target == target
                assert plan.layout.nbytes <= MOST * plan.layout.lower_bound


@pytest.mark.models
@needs_models
@pytest.mark.parametrize(("lacking", "model"), [(k, model) for k, models in LACKING.items() for model in models])
def test_models_left_out_are_refused_by_what_they_lack(lacking: str, model: str) -> None:
    # What loads from now on belongs to the models above.
    if model in read_manifest():
        with pytest.raises(gx.UnsupportedError, match=lacking):
            load_model(model)

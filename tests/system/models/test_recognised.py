"""Operators that models of the folder spell out, and how many of each are recognised."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes import AT_PLAN, run_passes
from tests.system.models.folder import FOLDER, needs_models

PASSES = ("recognise_activations", "recognise_normalizations")
# An InstanceNormalization between two Reshapes is part of a GroupNormalization.
FOUND = {
    "albert__d18": {"Gelu": 3},
    "bert__l11": {"Gelu": 2, "LayerNormalization": 5},
    "convnext__l17": {"Gelu": 5},
    "dtln_2": {"LayerNormalization": 1},
    "efficientnet__d19": {"Swish": 31},
    "gtcrn_simple": {"LayerNormalization": 4},
    "halfexport_cnn__d18": {"GroupNormalization": 1, "InstanceNormalization": -1},
    "llama_gqa_eager_kv__l14": {"Swish": 2, "RMSNormalization": 5},
    "llama_gqa_kv_half__d20": {"RMSNormalization": 5},
    "magika_v3_3": {"Gelu": 1, "Softmax": 1},
    "mamba__d18": {"Swish": 4, "RMSNormalization": 3},
    "qwen3_kv__d22": {"Swish": 2, "RMSNormalization": 9},
    "t5_decoder_kv__d18": {"Gelu": 2, "RMSNormalization": 7},
    "unet_diffusion__l17": {"Swish": 11, "GroupNormalization": 9, "InstanceNormalization": -9},
    "vespa_transformer": {"LayerNormalization": 4},
    "whisper_encoder__d18": {"Gelu": 4},
    "vit_fp16_keepio": {},
}


@needs_models
@pytest.mark.parametrize("name", FOUND)
def test_spelled_out_operators_are_recognised(name: str) -> None:
    assert FOLDER is not None
    entry = json.loads((FOLDER / "manifest.json").read_text())[name]
    with np.load(FOLDER / entry["cases"][0]) as case:
        specs = {str(key): TensorSpec.of(case[f"in_{i}"]) for i, key in enumerate(case["input_names"])}
    counts = []
    for disabled in ((), PASSES):
        graph = gx.load(FOLDER / entry["file"], disabled_passes=disabled).graph
        after = run_passes(graph, [each for each in AT_PLAN if each.name == PASSES[1]], disabled, specs)
        counts.append(Counter(node.operator.name for node in after.nodes))
    found, before = counts
    made = {operator: found[operator] - before[operator] for operator in FOUND[name]}
    assert made == FOUND[name]
    assert found.total() < before.total() or not FOUND[name]

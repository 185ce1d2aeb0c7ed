"""Trained models: all operators are known, and another engine gets the recorded outputs from what the passes leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec import knobs
from gpuexec.graph import Graph
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes
from gpuexec.spec import TensorSpec

FOLDER = knobs.models_dir()
MODELS = (
    "winml_mnist",
    "mobilenet_v2__d18",
    "resnet__d18",
    "ultraface_rfb320",
    "yunet_n_dynamic",
    "magika_v3_3",
    "vit__d18",
    "bert__l11",
    "gpt2_kv__d21",
)

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(FOLDER is None, reason="GPUEXEC_MODELS names no folder of models"),
]


@pytest.mark.parametrize("name", MODELS)
def test_imported_graph_gives_the_recorded_outputs(name: str) -> None:
    check_cases(name, load(name))


@pytest.mark.parametrize("name", MODELS)
def test_graph_after_the_load_passes_gives_the_recorded_outputs(name: str) -> None:
    before = load(name)
    after = run_passes(before, AT_LOAD)
    assert len(after.nodes) <= len(before.nodes)
    assert not {"BatchNormalization", "Dropout", "Identity"} & {node.operator.name for node in after.nodes}
    check_cases(name, after)


@pytest.mark.parametrize("name", [name for name in MODELS if name in ("winml_mnist", "ultraface_rfb320", "vit__d18")])
def test_graph_after_all_passes_gives_the_recorded_outputs(name: str) -> None:
    graph = run_passes(load(name), AT_LOAD)
    for inputs, outputs in cases(name):
        specs = {key: TensorSpec(array.shape, array.dtype) for key, array in inputs.items()}
        compare(run_passes(graph, AT_PLAN, specs=specs), inputs, outputs)


def load(name: str) -> Graph:
    return load_graph(folder() / manifest()[name]["file"]).graph


def check_cases(name: str, graph: Graph) -> None:
    for inputs, outputs in cases(name):
        compare(graph, inputs, outputs)


def compare(graph: Graph, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    _, got = run_oracle(to_model(graph), inputs, "onnxruntime")
    assert set(got) == set(outputs)
    for name, expected in outputs.items():
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape)
        atol = max(1e-5 * float(np.max(np.abs(expected.astype(np.float64)), initial=0)), 5e-7)
        np.testing.assert_allclose(got[name], expected, rtol=1e-3, atol=atol, err_msg=name)


def cases(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return inputs and recorded outputs, by name, of every case of a model."""
    rows = []
    for path in manifest()[name]["cases"]:
        with np.load(folder() / path) as case:
            inputs = {str(key): case[f"in_{i}"] for i, key in enumerate(case["input_names"])}
            rows.append((inputs, {str(key): case[f"out_{i}"] for i, key in enumerate(case["output_names"])}))
    return rows


def manifest() -> dict[str, Any]:
    return dict(json.loads((folder() / "manifest.json").read_text()))


def folder() -> Path:
    assert FOLDER is not None
    return FOLDER

"""Import of trained models: known operators, and passes that keep another engine's recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.ir.graphs import Array, Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.passes import AT_LOAD, AT_PLAN, GENERATING, run_passes
from tests.system.models.folder import TRAINED, ModelCase, needs_models, path_of, read_case, read_manifest

CONTROL = ("hand_if_loop_scan", "silero_vad_v6", "onnxscript_greedy_decode_loop", "jax_cond", "torch_cond__d18")

pytestmark = [pytest.mark.models, needs_models]


@pytest.mark.parametrize("name", TRAINED)
def test_imported_graph_gives_the_recorded_outputs(name: str) -> None:
    check_cases(name, load(name))


@pytest.mark.parametrize("name", TRAINED)
def test_graph_after_the_load_passes_gives_the_recorded_outputs(name: str) -> None:
    before = load(name)
    after = run_passes(before, AT_LOAD)
    assert len(after.nodes) <= len(before.nodes)
    assert not {"BatchNormalization", "Dropout", "Identity"} & {node.operator.name for node in after.nodes}
    check_cases(name, after)


@pytest.mark.parametrize("name", ["winml_mnist", "ultraface_rfb320", "vit__d18"])
def test_graph_after_all_passes_gives_the_recorded_outputs(name: str) -> None:
    graph = run_passes(load(name), AT_LOAD)
    for case in cases(name):
        specs = {key: TensorSpec(array.shape, array.dtype) for key, array in case.inputs.items()}
        # Attention that is recognised and operators with an epilogue are our own: no other engine runs them.
        compare(
            run_passes(graph, AT_PLAN, frozenset({"recognise_attention", *GENERATING}), specs),
            case,
        )
        check_computed(run_passes(graph, AT_PLAN, specs=specs), case)


@pytest.mark.parametrize("name", CONTROL)
def test_model_with_bodies_gives_the_recorded_outputs(name: str) -> None:
    before = load(name)
    for graph in (before, run_passes(before, AT_LOAD)):
        for case in cases(name):
            compare(graph, case)
            check_computed(graph, case)


def check_computed(graph: Graph, case: ModelCase) -> None:
    arrays = compute_graph(graph, [case.inputs[value.name] for value in graph.inputs])
    compare_outputs(dict(zip([value.name for value in graph.outputs], arrays, strict=True)), case)


def load(name: str) -> Graph:
    return load_graph(path_of(name)).graph


def check_cases(name: str, graph: Graph) -> None:
    for case in cases(name):
        compare(graph, case)


def compare(graph: Graph, case: ModelCase) -> None:
    compare_outputs(run_oracle(to_model(graph), case.inputs, "onnxruntime")[1], case)


def compare_outputs(got: Mapping[str, Array], case: ModelCase) -> None:
    assert set(got) == set(case.outputs)
    for name, expected in case.outputs.items():
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape)
        atol = max(1e-5 * float(np.max(np.abs(expected.astype(np.float64)), initial=0)), 5e-7)
        np.testing.assert_allclose(got[name], expected, rtol=1e-3, atol=atol, err_msg=name)


def cases(name: str) -> list[ModelCase]:
    return [read_case(path) for path in read_manifest()[name]["cases"]]

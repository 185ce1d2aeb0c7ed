"""Pass pipeline: lists, switches, and errors of passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes import AT_LOAD, AT_PLAN, Pass, run_passes
from tests.passes.harness import check_same, load, operators

TEXT = (
    "agraph (float[2, 3] x) => (float[2, 3] y) <float[3] a = {1, 2, 3}> "
    "{ b = Neg (a) c = Identity (x) d = Add (c, b) e = Add (c, b) f = Exp (x) y = Mul (d, e) }"
)


def test_lists_hold_passes_by_name_with_a_summary() -> None:
    assert [each.name for each in AT_LOAD] == [
        "differentiate",
        "decompose",
        "narrow_weights",
        "pack_weights",
        "fold_constants",
        "inline_branches",
        "remove_noops",
        "slice_gathers",
        "recognise_activations",
        "group_heads",
        "fuse_conv_batchnorm",
        "merge_common",
        "merge_products",
        "remove_dead",
    ]
    assert [each.name for each in AT_PLAN] == [
        "fold_shapes",
        "recognise_normalizations",
        "recognise_attention",
        "fuse_rows",
        "fuse_epilogues",
        "fuse_separable",
        "fuse_normalized",
        "fuse_regions",
        "fuse_prologues",
        "remove_dead",
    ]
    assert all(each.summary.endswith(".") for each in (*AT_LOAD, *AT_PLAN))


def test_all_together_compute_the_same() -> None:
    graph = load(TEXT)
    after = run_passes(graph, AT_LOAD)
    assert operators(after) == ["Add", "Mul"]
    check_same(graph, after, x=np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    ("name", "kept"),
    [("fold_constants", "Neg"), ("remove_noops", "Identity"), ("remove_dead", "Exp"), ("merge_common", "Add Add")],
)
def test_disabled_pass_does_not_run(name: str, kept: str) -> None:
    assert kept in " ".join(operators(run_passes(load(TEXT), AT_LOAD, disabled={name})))


def test_name_of_the_other_list_may_be_disabled() -> None:
    run_passes(load(TEXT), AT_LOAD, disabled={"fold_shapes"})
    graph = load("agraph (float[2, 3] x) => (int64[2] y) { y = Shape (x) }")
    specs = {"x": TensorSpec((2, 3), np.dtype(np.float32))}
    assert operators(run_passes(graph, AT_PLAN, disabled={"fold_shapes"}, specs=specs)) == ["Shape"]
    assert operators(run_passes(graph, AT_PLAN, specs=specs)) == []


def test_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="There is no pass fold_it; there are decompose, "):
        run_passes(load(TEXT), AT_LOAD, disabled={"fold_it"})


def test_pass_that_breaks_the_graph_is_named() -> None:
    def lose_nodes(graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[1:])

    with pytest.raises(AssertionError, match="pass lose_nodes broke the graph"):
        run_passes(load(TEXT), [Pass("lose_nodes", lose_nodes)])


@pytest.mark.parametrize("each", [each for each in (*AT_LOAD, *AT_PLAN) if each.operators is not None])
def test_pass_without_its_operators_changes_nothing(each: Pass) -> None:
    graph = load(TEXT)
    assert each.operators is not None and each.operators.isdisjoint(operators(graph))
    specs = {"x": TensorSpec((2, 3), np.dtype(np.float32))}
    after = each.function(graph, specs) if each.needs_specs else each.function(graph)
    assert after.nodes == graph.nodes and after.constants.keys() == graph.constants.keys()


def test_operators_of_a_pass_are_looked_for_in_bodies_too() -> None:
    graph = load(
        "agraph (bool c, float[2] x) => (float[2] y) { y = If (c) <"
        "then_branch = g () => (float[2] t) { t = Neg (x) }, else_branch = h () => (float[2] e) { e = Exp (x) }> }"
    )
    met: list[list[str]] = []

    def note(inner: Graph) -> Graph:
        met.append(operators(inner))
        return inner

    run_passes(graph, [Pass("note", note, operators={"Neg"}), Pass("skipped", note, operators={"Abs"})])
    assert met == [["If"], ["Neg"], ["Exp"]]

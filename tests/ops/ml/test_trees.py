"""TreeEnsemble."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference.ops.aionnxml._common_classifier import probit

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.ml.scores import Transform, transform_scores
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import ml
from tests.ops.ml.growing import MODES, Branch, Leaf, Tree, grow, modern, score

FLOATS = (np.float32, np.float64, np.float16)
AGGREGATES = ["AVERAGE", "SUM", "MIN", "MAX"]


def forest(seed: int, trees: int = 5, depth: int = 4, kinds: int = 3, modes: Any = None) -> list[Tree]:
    rng = np.random.default_rng(seed)
    grown: list[Tree] = []
    while len(grown) < trees:
        tree = grow(rng, depth, 4, kinds, modes=modes)
        grown += [tree] if isinstance(tree, Branch) else []
    return grown


def rows(seed: int, count: int, dtype: Any = np.float32) -> Array:
    """Return rows of halves with NaN and infinities among them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-5, 6, (count, 4)) / 2
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    return x.astype(dtype)


def ensemble(
    id: str, x: Array, trees: list[Tree], kinds: int = 3, aggregate: str = "SUM", transform: int = 0, **more: Any
) -> Case:
    dtype = more.pop("dtype", x.dtype)
    if "expected" not in more and "oracle" not in more:
        y = score(trees, np.atleast_2d(x), kinds, aggregate)
        with np.errstate(all="ignore"):
            more["expected"] = (transform_scores(y, Transform(transform)).astype(x.dtype),)
    attributes = {"aggregate_function": AGGREGATES.index(aggregate), "post_transform": transform, "n_targets": kinds}
    return ml(id, "TreeEnsemble", x, opset=5, terms=8, **attributes, **modern(trees, dtype), **more)


STUMP = Branch("BRANCH_LEQ", 3, 0.5, (), False, Leaf(((0, 0.25),)), Leaf(((0, 0.75),)))
ALONE = Leaf(((1, 0.5),))
DEGENERATE = Branch("BRANCH_LEQ", 0, 0.0, (), False, ALONE, ALONE)
CASES = [
    *(ensemble(f"input_{t.__name__}", rows(1, 40, t), forest(1, modes=MODES)) for t in FLOATS),
    *(
        ensemble(f"{aggregate}_{t.__name__}", rows(2, 20, t), forest(2), aggregate=aggregate)
        for aggregate in AGGREGATES
        for t in FLOATS
    ),
    *(ensemble(f"only_{mode}", rows(3, 60), forest(4, modes=[mode])) for mode in MODES),
    *(
        ensemble(f"{Transform(n).name}_{t.__name__}", rows(5, 20, t), forest(5), transform=n)
        for n in range(4)
        for t in FLOATS
    ),
    ensemble(
        "PROBIT",
        rows(6, 20),
        [STUMP],
        1,
        transform=4,
        expected=(probit(score([STUMP], rows(6, 20), 1)).astype(np.float32),),
    ),
    ensemble("reference", np.nan_to_num(rows(7, 20), posinf=9.0), forest(7), oracle="reference"),
    ensemble("onnxruntime", np.nan_to_num(rows(7, 20), posinf=9.0), forest(7), oracle="onnxruntime"),
    ensemble("splits_of_doubles", rows(9, 20), forest(9), dtype=np.float64),
    ensemble("doubles_for_half", rows(9, 20, np.float16), forest(9), dtype=np.float64),
    ensemble("splits_of_floats", rows(9, 20, np.float64), forest(9), dtype=np.float32),
    ensemble("tree_of_one_leaf", rows(10, 5), [DEGENERATE, *forest(10)]),
    ensemble("vector", rows(11, 1)[0], forest(11)),
    ensemble("strided", np.repeat(rows(12, 20), 2, 1)[::-1, ::2], forest(12)),
    ensemble("more_features_than_used", np.concatenate((rows(13, 9), rows(14, 9)), 1), forest(13)),
    ensemble("empty", rows(1, 0), forest(1)),
    ensemble("no_vote_for_some", rows(15, 9), [STUMP], 3, "MIN"),
    ensemble("many", rows(16, 700), forest(16, trees=20, depth=7)),
    ensemble("one_target", rows(17, 30), forest(17, kinds=1), 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_tree_ensemble(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.integers(1, 9), st.sampled_from(AGGREGATES))
def test_any_trees(checks: str, seed: int, trees: int, depth: int, kinds: int, aggregate: str) -> None:
    run_case(ensemble("random", rows(seed, 25), forest(seed, trees, depth, kinds, MODES), kinds, aggregate), checks)


def attributes(**change: Any) -> dict[str, Any]:
    return modern(forest(1, trees=1, depth=2, modes=MODES[6:]), np.float32) | change


def test_an_unpickled_operator_is_equal_and_works() -> None:
    op = build("ai.onnx.ml.TreeEnsemble", modern(forest(1), np.float32))
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    np.testing.assert_array_equal(again.compute(rows(1, 9))[0], op.compute(rows(1, 9))[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_featureids": [1]}, "expected columns of 1 nodes"),
        ({"nodes_modes": np.full(len(attributes()["nodes_modes"]), 9, np.uint8)}, "nodes_modes expects 0 to 6, got"),
        ({"nodes_featureids": [-1] * len(attributes()["nodes_modes"])}, "nodes_featureids expects 0 to"),
        (
            {"membership_values": np.array([1.0, np.nan], np.float32)},
            "membership_values expects . sets, one by node, got 1",
        ),
        ({"leaf_targetids": [7] * len(attributes()["leaf_weights"]), "n_targets": 3}, "a target from 0 to 2"),
        ({"leaf_targetids": [2**40] * len(attributes()["leaf_weights"]), "n_targets": 3}, "a target from 0 to 2"),
        ({"n_targets": 0}, "n_targets expects 1 or more, got 0"),
        ({"leaf_weights": np.array(["a"], object)}, r"leaf_weights expects floats, got string\[1\]"),
        ({"nodes_modes": np.array(["a"], object)}, r"nodes_modes expects uint8, got string\[1\]"),
        ({"tree_roots": [2**40]}, "children of nodes expect nodes below"),
        ({"tree_roots": [-1]}, "tree_roots expects nodes, got -1"),
        ({"tree_roots": [99]}, "children of nodes expect nodes below"),
        ({"aggregate_function": 4}, "aggregate_function expects 0 to 3"),
        ({"post_transform": 5}, "post_transform 0 to 4, got 1 and 5"),
        ({"nodes_truenodeids": [-3] * len(attributes()["nodes_modes"])}, "numbers of 0 or more"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("ai.onnx.ml.TreeEnsemble", attributes(**change))


def test_a_cycle_is_refused_before_anything_follows_it() -> None:
    given = attributes()
    count = len(given["nodes_modes"])
    change = {"nodes_falseleafs": [0] * count, "nodes_falsenodeids": [0] * count}
    with pytest.raises(InputError, match="a node is among its own descendants"):
        build("ai.onnx.ml.TreeEnsemble", given | change)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec((5, 2), np.dtype(np.float32)), r"looks at 4 features, got float32\[5,2\]"),
        (TensorSpec((5, 4, 1), np.dtype(np.float32)), "expects an input"),
        (TensorSpec((5, 4), np.dtype(np.int64)), "expects input of type float32, float64, float16"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(spec: TensorSpec, message: str) -> None:
    op = build("ai.onnx.ml.TreeEnsemble", modern(forest(1, modes=MODES), np.float32))
    with pytest.raises(InputError, match=message):
        op.infer(spec)

"""TreeEnsembleClassifier and TreeEnsembleRegressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.ml.scores import Transform, transform_scores
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import INPUTS, make_model, ml, run_model
from tests.ops.ml.growing import Branch, Leaf, Tree, grow, legacy, score
from tests.ops.ml.test_trees import AGGREGATES, rows

LABELS = [10, -20, 30]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def forest(seed: int, trees: int = 5, kinds: int = 3, votes: int = 2, low: float = -1.0, depth: int = 4) -> list[Tree]:
    rng = np.random.default_rng(seed)
    return [grow(rng, depth, 4, kinds, votes, low=low) for _ in range(trees)]


def transformed(y: Array, transform: str) -> Array:
    with np.errstate(all="ignore"):
        return transform_scores(y, Transform[transform]).astype(np.float32)


def regressor(
    id: str, x: Array, trees: list[Tree], kinds: int = 3, aggregate: str = "SUM", transform: str = "NONE", **more: Any
) -> Case:
    given = {"aggregate_function": aggregate, "post_transform": transform, "n_targets": kinds} | legacy(trees, "target")
    if "oracle" not in more:
        base = more.get("base_values", more.get("base_values_as_tensor"))
        more["expected"] = (transformed(score(trees, x, kinds, aggregate, base), transform),)
    return ml(id, "TreeEnsembleRegressor", x, terms=8, **{"opset": 3, **given, **more})


def classifier(
    id: str, x: Array, trees: list[Tree], labels: list[int] | None = None, transform: str = "NONE", **more: Any
) -> Case:
    labels = LABELS if labels is None else labels
    given = {"post_transform": transform, "classlabels_int64s": labels} | legacy(trees, "class")
    if "oracle" not in more and "expected" not in more:
        y = score(trees, np.atleast_2d(x), len(labels), base=more.get("base_values", more.get("base_values_as_tensor")))
        more["expected"] = (np.array(labels)[y.argmax(1)], transformed(y, transform))
    return ml(id, "TreeEnsembleClassifier", x, outputs=2, terms=8, **{"opset": 3, **given, **more})


def stump(low: float, high: float, kind: int = 0) -> list[Tree]:
    """Return a tree whose only votes are for one class."""
    return [Branch("BRANCH_LEQ", 0, 0.0, (), False, Leaf(((kind, low),)), Leaf(((kind, high),)))]


def as_doubles(trees: list[Tree], votes: str) -> dict[str, Any]:
    given = legacy(trees, votes)
    names = ("nodes_values", f"{votes}_weights")
    plain = {f"{name}_as_tensor": np.array(given[name]) + 2.0**-40 for name in names}
    return plain | dict.fromkeys(names, None)


def pairs(id: str, labels: list[int], scores: list[list[float]], trees: list[Tree], **more: Any) -> Case:
    x = np.array([[-1.0], [1.0]], np.float32)
    expected = (np.array(labels), np.array(scores, np.float32))
    return classifier(id, x, trees, [10, 20], expected=expected, **more)


def logistic(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def softmax(s: float) -> list[float]:
    return [logistic(-2 * s), logistic(2 * s)]


MANY = forest(30, trees=20, kinds=7, votes=5, depth=6)
TWICE: list[Tree] = [
    *forest(9),
    Branch("BRANCH_GT", 1, 0.5, (), True, Leaf(((0, 0.5), (1, 2.0), (0, -0.25))), Leaf(())),
]
CLEAN = np.nan_to_num(rows(20, 20), posinf=9.0)
TWO = [[0.75, 0.25], [0.25, 0.75]]
CASES = [
    *(regressor(f"regressor_{t.__name__}", (CLEAN * 2).astype(t), forest(1)) for t in INPUTS),
    *(regressor(f"regressor_{aggregate}", rows(2, 20), forest(2), aggregate=aggregate) for aggregate in AGGREGATES),
    *(regressor(f"regressor_{transform}", rows(3, 20), forest(3), transform=transform) for transform in TRANSFORMS),
    regressor("regressor_base", rows(4, 9), forest(4), base_values=[0.5, -1.0, 2.0]),
    regressor("regressor_one_base", rows(4, 9), forest(4, kinds=1, votes=1), 1, "AVERAGE", base_values=[0.5]),
    regressor("regressor_base_of_doubles", rows(4, 9), forest(4), base_values_as_tensor=np.array([0.5, -1.0, 2.0])),
    regressor("regressor_first_opset", rows(5, 9), forest(5), opset=1),
    regressor("regressor_reference", CLEAN, forest(6, votes=3), oracle="reference"),
    *(
        regressor(f"regressor_onnxruntime_{a}", CLEAN, forest(6, votes=3), aggregate=a, oracle="onnxruntime")
        for a in AGGREGATES
    ),
    regressor("regressor_onnxruntime_SOFTMAX", CLEAN, forest(7), transform="SOFTMAX", oracle="onnxruntime"),
    regressor("regressor_of_leaves", rows(8, 9), [Leaf(((0, 0.5), (2, 0.25))), *forest(8)]),
    *(regressor(f"regressor_two_votes_for_one_{a}", rows(9, 9), TWICE, aggregate=a) for a in AGGREGATES),
    regressor("regressor_empty", rows(8, 0), forest(8)),
    *(classifier(f"classifier_{t.__name__}", (CLEAN * 2).astype(t), forest(11)) for t in INPUTS),
    *(classifier(f"classifier_{transform}", rows(12, 20), forest(12), transform=transform) for transform in TRANSFORMS),
    classifier("classifier_base", rows(13, 9), forest(13), base_values=[0.5, -1.0, 2.0]),
    classifier("classifier_base_of_doubles", rows(13, 9), forest(13), base_values_as_tensor=np.array([0.5, -1.0, 2.0])),
    classifier("classifier_first_opset", rows(14, 9), forest(14), opset=1),
    *(
        classifier(f"classifier_reference_{p}", CLEAN, forest(15), transform=p, oracle="reference")
        for p in ("NONE", "SOFTMAX", "LOGISTIC")
    ),
    *(
        classifier(f"classifier_onnxruntime_{p}", CLEAN, forest(16, votes=3), transform=p, oracle="onnxruntime")
        for p in TRANSFORMS
    ),
    classifier("classifier_two_classes", rows(17, 20), forest(17, kinds=2), [10, 20]),
    classifier("classifier_two_bases", rows(17, 20), forest(17, kinds=1, votes=1), [10, 20], base_values=[0.5, 0.75]),
    classifier("classifier_many", rows(18, 300), MANY, list(range(7))),
    classifier("classifier_strided", np.repeat(rows(19, 9), 2, 1)[::-1, ::2], forest(19)),
    classifier("classifier_vector", rows(19, 1)[0], forest(19)),
    classifier("classifier_empty", rows(19, 0), forest(19)),
    pairs("probability", [10, 20], TWO, stump(0.25, 0.75)),
    pairs("score", [10, 20], [[0.5, -0.5], [-0.75, 0.75]], stump(-0.5, 0.75)),
    pairs(
        "score_LOGISTIC",
        [10, 20],
        [[logistic(0.5), logistic(-0.5)], [logistic(-0.75), logistic(0.75)]],
        stump(-0.5, 0.75),
        transform="LOGISTIC",
    ),
    pairs("score_SOFTMAX", [10, 20], [softmax(-0.5), softmax(0.75)], stump(-0.5, 0.75), transform="SOFTMAX"),
    pairs("score_with_base", [20, 20], [[-0.5, 0.5], [-1.75, 1.75]], stump(-0.5, 0.75), base_values=[1.0]),
    pairs("second_class", [10, 20], [[0, 0.25], [0, 0.75]], stump(0.25, 0.75, 1)),
    pairs("second_class_score", [10, 20], [[0, -0.5], [0, 0.25]], stump(-0.5, 0.25, 1)),
    *(
        classifier(
            f"{id}_onnxruntime_{p}",
            np.array([[-1.0], [1.0]], np.float32),
            stump(*votes),
            [10, 20],
            p,
            oracle="onnxruntime",
        )
        for id, votes in (("probability", (0.25, 0.75)), ("score", (-0.5, 0.75)), ("second", (0.25, 0.75, 1)))
        for p in ("NONE", "LOGISTIC")
    ),
    classifier(
        "one_class",
        np.array([[-1.0], [1.0]], np.float32),
        stump(-0.5, 0.75),
        [5],
        expected=(np.array([0, 5]), np.array([[-0.5], [0.75]], np.float32)),
    ),
]
_CUT = [Branch("BRANCH_LT", 0, 0.5, (), False, Leaf(((0, 0.25),)), Leaf(((1, 0.75), (2, 0.5))))]
for _dtype in (np.float32, np.float64, np.int64):  # thresholds a little above 0.5 that only doubles tell
    _x = np.array([[0], [0.5], [0.5 + 2**-41], [1]]).astype(_dtype)
    _is_low = (_x[:, 0].astype(np.float64) < 0.5 + 2.0**-40)[:, None]
    _y = np.where(_is_low, [0.25, 0, 0], [0, 0.75, 0.5]).astype(np.float32)
    _doubles = as_doubles(_CUT, "class"), as_doubles(_CUT, "target")
    _plain = {key: value for key, value in _doubles[0].items() if value is not None}
    _given = {key: value for key, value in legacy(_CUT, "class").items() if key not in _doubles[0]}
    CASES.append(
        ml(
            f"classifier_doubles_{_dtype.__name__}",
            "TreeEnsembleClassifier",
            _x,
            opset=3,
            outputs=2,
            terms=4,
            classlabels_int64s=LABELS,
            expected=(np.array(LABELS)[_y.argmax(1)], _y),
            **_given,
            **_plain,
        )
    )
    _plain = {key: value for key, value in _doubles[1].items() if value is not None}
    _given = {key: value for key, value in legacy(_CUT, "target").items() if key not in _doubles[1]}
    CASES.append(
        ml(
            f"regressor_doubles_{_dtype.__name__}",
            "TreeEnsembleRegressor",
            _x,
            opset=3,
            terms=4,
            n_targets=3,
            expected=(_y,),
            **_given,
            **_plain,
        )
    )


CASES += [
    replace(classifier(f"wants_{what}", rows(22, 9), forest(22), transform=p), outputs=outputs)
    for what, p, outputs in (
        ("labels", "NONE", (True, False)),
        ("scores", "NONE", (False, True)),
        ("transformed_scores", "SOFTMAX", (False, True)),
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_legacy_trees(checks: str, case: Case) -> None:
    run_case(case, checks)


def chain(rng: Any, depth: int, kinds: int) -> Tree:
    """Return a tree of whose nodes one child is a leaf."""
    tree: Tree = Leaf(((0, 1.0),))
    for level in range(depth):
        leaf = Leaf(((level % kinds, float(rng.random())),))
        sides = (leaf, tree) if rng.random() < 0.5 else (tree, leaf)
        tree = Branch("BRANCH_LEQ", int(rng.integers(4)), float(rng.normal()) * 2, (), bool(rng.integers(2)), *sides)
    return tree


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("trees", [1, 70])
def test_rows_leave_deep_trees_at_any_level_and_each_is_by_itself(kinds: int, trees: int) -> None:
    rng = np.random.default_rng(trees)
    grown: list[Tree] = [chain(rng, int(rng.integers(1, 30)), kinds) for _ in range(trees)]
    x = rows(trees, 900)
    op = build("ai.onnx.ml.TreeEnsembleRegressor", legacy(grown, "target") | {"n_targets": kinds})
    (y,) = op.compute(x)
    assert y is not None
    np.testing.assert_allclose(y[::9], score(grown, x[::9], kinds), rtol=1e-5)
    for number in (0, 1, 898):
        np.testing.assert_array_equal(op.compute(x[number : number + 1])[0], y[number : number + 1])


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(2, 9), st.integers(1, 9), st.integers(0, 6))
def test_any_legacy_trees(checks: str, seed: int, trees: int, kinds: int, votes: int, depth: int) -> None:
    grown = forest(seed, trees, kinds, min(votes, kinds), depth=depth)
    run_case(regressor("random", rows(seed, 15), grown, kinds), checks)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_labels_that_are_strings_are_looked_up_on_the_host_alone(backend: gx.BackendType) -> None:
    trees, x = forest(21), rows(21, 9)
    attributes = legacy(trees, "class") | {"classlabels_strings": ["u", "v", "w"]}
    (labels, scores), host = run_model(backend, make_model("TreeEnsembleClassifier", x, 2, 3, **attributes), x)
    expected = score(trees, x, 3)
    assert labels.tolist() == [["u", "v", "w"][place] for place in expected.argmax(1)]
    np.testing.assert_array_equal(scores, expected.astype(np.float32))
    assert host == ["ai.onnx.ml.LabelEncoder"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_values": [1.0]}, "attributes nodes_.* expect 3 entries each"),
        ({"nodes_modes": ["BRANCH_MEMBER", "LEAF", "LEAF"]}, "comparisons or LEAF, got BRANCH_MEMBER"),
        ({"nodes_modes": ["LESS", "LEAF", "LEAF"]}, "comparisons or LEAF, got LESS"),
        ({"nodes_nodeids": [0, 1, 1]}, "each node of a tree once"),
        ({"nodes_truenodeids": [7, 0, 0]}, "node 0 of tree 0 has no child 7"),
        ({"nodes_truenodeids": [0, 0, 0]}, "among its own descendants"),
        ({"target_nodeids": [0, 2]}, "target_nodeids expects leaves, got node 0 of tree 0"),
        ({"target_ids": [0, 5]}, "target_ids expects 0 to 2, got"),
        ({"n_targets": -1}, "n_targets expects 1 or more, got -1"),
        ({"base_values_as_tensor": np.array(["a"], object)}, r"base_values_as_tensor expects floats, got string\[1\]"),
        ({"target_weights": [1.0]}, "attributes target_.* expect as many numbers each"),
        ({"target_weights_as_tensor": np.zeros(2)}, "expected target_weights or target_weights_as_tensor, got both"),
        ({"base_values": [1.0, 2.0]}, "base_values expects 1 or 3 numbers, got 2"),
        ({"aggregate_function": "MEDIAN"}, "aggregate_function expects AVERAGE, SUM, MIN, MAX, got 'MEDIAN'"),
        ({"post_transform": "EXP"}, "post_transform expects"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    attributes = legacy(stump(0.25, 0.75), "target") | {"n_targets": 3}
    with pytest.raises(InputError, match=message):
        build("ai.onnx.ml.TreeEnsembleRegressor", attributes | change)


def test_inputs_that_do_not_fit_are_refused() -> None:
    op = build("ai.onnx.ml.TreeEnsembleRegressor", legacy(forest(1), "target"))
    with pytest.raises(InputError, match=r"looks at 4 features, got int32\[5,2\]"):
        op.infer(TensorSpec((5, 2), np.dtype(np.int32)))
    with pytest.raises(InputError, match="expects input of type"):
        op.infer(TensorSpec((5, 4), np.dtype(np.float16)))

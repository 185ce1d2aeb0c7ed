"""Row counts of ai.onnx.ml models: one Worker serves any number, by plans of the same commands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.operator import build
from tests.ops.ml.cases import DOMAIN, make_model
from tests.ops.ml.growing import legacy
from tests.ops.ml.test_svm import machine, regression
from tests.ops.ml.test_trees import rows
from tests.ops.ml.test_trees_legacy import LABELS, forest

LINEAR: dict[str, Any] = {"coefficients": [0.5] * 12, "intercepts": [0.0, 1.0, 2.0]}
MODELS: dict[str, dict[str, Any]] = {
    "TreeEnsembleClassifier": legacy(forest(3), "class") | {"classlabels_int64s": LABELS, "post_transform": "SOFTMAX"},
    "TreeEnsembleRegressor": legacy(forest(3), "target") | {"n_targets": 3},
    "SVMClassifier": machine([2, 3, 1], prob=True),
    "SVMRegressor": regression(),
    "LinearClassifier": LINEAR | {"classlabels_ints": [7, 8, 9]},
    "LinearRegressor": LINEAR | {"targets": 3},
    "Normalizer": {"norm": "L2"},
    "Scaler": {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [2.0]},
}


@pytest.mark.parametrize("op", MODELS)
def test_a_worker_serves_any_number_of_rows(op: str) -> None:
    outputs = 2 if "Classifier" in op else 1
    opset = 3 if op.startswith("Tree") else 1
    model = make_model(op, rows(1, 2), outputs, opset, **MODELS[op])
    if outputs == 1:
        model.graph.output[0].type.tensor_type.elem_type = 1
    made = build(f"{DOMAIN}.{op}", MODELS[op])
    with gx.Worker(gx.load(model), backend=gx.BackendType.SIMULATOR, strict=True) as worker:
        for count in (5, 1, 60, 3, 300):
            x = np.nan_to_num(rows(count, count), posinf=5.0)
            got = [y.readback_and_clone() for y in worker.schedule(x).outputs.values()]
            for y, expected in zip(got, made.compute(x), strict=True):
                assert expected is not None
                np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5, err_msg=f"{count} rows")

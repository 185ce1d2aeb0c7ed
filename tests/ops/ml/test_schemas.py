"""Attributes of ai.onnx.ml operators and their defaults, against the standard's schemas."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from gpuexec.ir.operator import build
from tests.ops.ml.cases import DOMAIN
from tests.ops.ml.growing import Branch, Leaf, legacy, modern

_STUMP = [Branch("BRANCH_LEQ", 0, 0.5, (), False, Leaf(((0, 0.25),)), Leaf(((0, 0.75),)))]
# What an operator can't be made without, though the standard does not always say so.
REQUIRED: dict[str, dict[str, Any]] = {
    "ArrayFeatureExtractor": {},
    "Binarizer": {},
    "CastMap": {},
    "CategoryMapper": {},
    "DictVectorizer": {"string_vocabulary": ("a",)},
    "FeatureVectorizer": {},
    "Imputer": {},
    "LabelEncoder": {"keys_int64s": (1,), "values_int64s": (2,)},
    "LinearClassifier": {"coefficients": (1.0,), "classlabels_ints": (1,)},
    "LinearRegressor": {"coefficients": (1.0,)},
    "Normalizer": {},
    "OneHotEncoder": {"cats_int64s": (1,)},
    "SVMClassifier": {"coefficients": (1.0,), "rho": (0.0,), "classlabels_ints": (1,)},
    "SVMRegressor": {"coefficients": (1.0,), "rho": (0.0,)},
    "Scaler": {},
    "TreeEnsemble": modern(_STUMP, "float32"),
    "TreeEnsembleClassifier": {"classlabels_int64s": (1, 2), **legacy(_STUMP, "class")},
    "TreeEnsembleRegressor": legacy(_STUMP, "target"),
    "ZipMap": {"classlabels_int64s": (1,)},
}
# Attributes of opsets before the newest, which what is given says how to read.
KEPT = {"LabelEncoder": {"classes_strings"}}
VERSIONS = {"TreeEnsembleClassifier": 3, "TreeEnsembleRegressor": 3}


@pytest.mark.parametrize("op", REQUIRED)
def test_attributes_and_defaults_are_those_of_the_standard(op: str) -> None:
    schema = onnx.defs.get_schema(op, VERSIONS.get(op, 5), DOMAIN)
    made: Any = build(f"{DOMAIN}.{op}", REQUIRED[op])
    assert set(schema.attributes) == set(type(made).__dataclass_fields__) - KEPT.get(op, set())
    for name, attribute in schema.attributes.items():
        if name not in REQUIRED[op]:
            has_default = bool(attribute.default_value.name)
            default = onnx.helper.get_attribute_value(attribute.default_value) if has_default else None
            assert getattr(made, name) == (default.decode() if isinstance(default, bytes) else default), name

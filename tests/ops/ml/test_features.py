"""Scaler, Imputer, Binarizer, Normalizer, FeatureVectorizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import INPUTS, ml

RNG = np.random.default_rng(5)
X = (RNG.normal(size=(5, 3)) * 4).astype(np.float32)
OFFSET, SCALE = [0.5, -1.25, 3.0], [2.0, -0.75, 0.1]
EXTREMES = np.array([[np.iinfo(np.int64).min, -1, 0], [2**53 + 1, np.iinfo(np.int64).max, 7]])
SPECIAL = np.array([[np.nan, np.inf, -np.inf], [-0.0, 1e-45, 3e38]], np.float32)


def scaled(x: Array, offset: Any, scale: Any) -> tuple[Array, ...]:
    wide = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        y = (x.astype(wide) - np.float32(offset).astype(wide)) * np.float32(scale).astype(wide)
        return (y.astype(np.float32),)


def scaler(id: str, x: Array, offset: Any = OFFSET, scale: Any = SCALE) -> Case:
    return ml(id, "Scaler", x, offset=offset, scale=scale, expected=scaled(x, offset, scale))


def normalized(x: Array, norm: str) -> tuple[Array, ...]:
    """Return what the standard's formulas give; the sign of L2 is that of x, sums are of magnitudes."""
    wide = x.astype(np.float64)
    rows = {"MAX": lambda: wide.max(-1), "L1": lambda: np.abs(wide).sum(-1), "L2": lambda: np.sqrt((wide**2).sum(-1))}
    with np.errstate(all="ignore"):
        divisor = rows[norm]()[..., None]
        return (np.where(divisor == 0, wide, wide / divisor).astype(np.float32),)


WIDE = RNG.normal(size=(4, 8))[::2, ::-2]
ROWS = np.array([[3, 1, -2, 5], [0, 0, 0, 0], [-1, -2, -3, -4], [7, 0, 0, 1]])
VECTORS = (np.array([[1, 2], [3, 4]]), np.array([[5, 6, 7], [8, 9, 10]]))
VECTORIZED = np.array([[1, 2, 0, 5, 6], [3, 4, 0, 8, 9]], np.float32)
FEATURES = np.arange(12, dtype=np.float32)


def lay_features(rows: int, taken: int) -> Array:
    """Return rows of FEATURES, as many of each as are taken, and the first two once more."""
    flat = FEATURES.reshape(rows, -1)
    padded = np.pad(flat, ((0, 0), (0, taken)))[:, :taken]
    return np.concatenate((padded, flat[:, :2]), 1)


CASES = [
    *(scaler(f"scaler_{t.__name__}", X.astype(t)) for t in INPUTS),
    scaler("scaler_one_for_all", X, [0.5], [3.0]),
    scaler("scaler_one_offset", X, [0.5], SCALE),
    scaler("scaler_one_scale", X, OFFSET, [3.0]),
    scaler("scaler_vector", X[0]),
    scaler("scaler_rank8", RNG.normal(size=(1, 2, 1, 2, 1, 2, 2, 3))),
    scaler("scaler_strided", RNG.normal(size=(6, 6)).astype(np.float32)[::-2, ::2]),
    scaler("scaler_empty", X[:0]),
    scaler("scaler_special", SPECIAL),
    scaler("scaler_extremes", EXTREMES),
    ml("scaler_reference", "Scaler", X, offset=OFFSET, scale=SCALE),
    ml("scaler_defaults", "Scaler", X, expected=(X,)),
    *(
        ml(f"imputer_{t.__name__}", "Imputer", X.astype(t), **{f"imputed_value_{kind}": values}, **replaced)
        for t, kind, values, replaced in (
            (np.float32, "floats", [1.5, 2.5, -3.0], {"replaced_value_float": float(X[1, 1])}),
            (np.float64, "floats", [9.0], {"replaced_value_float": 0.0}),
            (np.int64, "int64s", [7, 8, 9], {"replaced_value_int64": int(X[2, 2])}),
            (np.int32, "int64s", [-7], {"replaced_value_int64": int(X[0, 0])}),
        )
    ),
    ml("imputer_nan", "Imputer", SPECIAL, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan")),
    ml("imputer_inf", "Imputer", SPECIAL, imputed_value_floats=[1.0], replaced_value_float=float("-inf")),
    ml("imputer_both_zeros", "Imputer", SPECIAL, imputed_value_floats=[5.0], replaced_value_float=0.0),
    ml("imputer_extremes", "Imputer", EXTREMES, imputed_value_int64s=[2**62], replaced_value_int64=2**53 + 1),
    ml(
        "imputer_of_no_int32",
        "Imputer",
        ROWS.astype(np.int32),
        imputed_value_int64s=[1],
        replaced_value_int64=2**32,
        expected=(ROWS.astype(np.int32),),
    ),
    ml(
        "imputer_vector",
        "Imputer",
        np.array([0.0, 1.0]),
        imputed_value_floats=[4.0, 5.0],
        expected=(np.array([4.0, 1.0]),),
    ),
    ml(
        "imputer_rank3_strided",
        "Imputer",
        np.zeros((2, 4, 6), np.int32)[:, ::2, ::-2],
        imputed_value_int64s=[1, 2, 3],
        expected=(np.broadcast_to(np.array([1, 2, 3], np.int32), (2, 2, 3)).copy(),),
    ),
    ml("imputer_empty", "Imputer", X[:, :0], imputed_value_floats=[1.0]),
    *(ml(f"binarizer_{t.__name__}", "Binarizer", X.astype(t), threshold=1.0) for t in INPUTS),
    ml("binarizer_default", "Binarizer", X),
    ml("binarizer_special", "Binarizer", SPECIAL, threshold=-3.5),
    ml("binarizer_nan", "Binarizer", EXTREMES, threshold=float("nan"), expected=(np.zeros_like(EXTREMES),)),
    ml("binarizer_below_all", "Binarizer", EXTREMES, threshold=-1e30, expected=(np.ones_like(EXTREMES),)),
    ml("binarizer_above_all", "Binarizer", EXTREMES, threshold=1e30, expected=(np.zeros_like(EXTREMES),)),
    ml("binarizer_fraction", "Binarizer", ROWS, threshold=-1.5, expected=((ROWS > -1.5).astype(ROWS.dtype),)),
    ml("binarizer_least", "Binarizer", EXTREMES, threshold=-(2.0**63), expected=(np.array([[0, 1, 1], [1, 1, 1]]),)),
    ml("binarizer_scalar", "Binarizer", np.array(2.0), threshold=1.0),
    ml("binarizer_rank8", "Binarizer", RNG.normal(size=(2, 1, 2, 1, 2, 1, 2, 3))[::-1]),
    ml("binarizer_empty", "Binarizer", X[:0]),
    *(
        ml(
            f"normalizer_{norm}_{t.__name__}",
            "Normalizer",
            ROWS.astype(t),
            norm=norm,
            expected=normalized(ROWS, norm),
            terms=8,
        )
        for norm in ("MAX", "L1", "L2")
        for t in INPUTS
    ),
    *(ml(f"normalizer_reference_{norm}", "Normalizer", np.abs(X), norm=norm, terms=3) for norm in ("MAX", "L1", "L2")),
    *(
        ml(f"normalizer_onnxruntime_{norm}", "Normalizer", X, norm=norm, terms=3, oracle="onnxruntime")
        for norm in ("MAX", "L1", "L2")
    ),
    ml("normalizer_default", "Normalizer", X, expected=normalized(X, "MAX"), terms=3),
    ml("normalizer_vector", "Normalizer", X[0], norm="L1", expected=normalized(X[0], "L1"), terms=3),
    ml("normalizer_long", "Normalizer", np.full((2, 3000), 2, np.float32), norm="L2", terms=3000),
    ml("normalizer_strided", "Normalizer", WIDE, norm="L1", terms=8, expected=normalized(WIDE, "L1")),
    ml("normalizer_no_columns", "Normalizer", X[:, :0], norm="L1"),
    ml("normalizer_no_rows", "Normalizer", X[:0], norm="MAX", expected=(X[:0],)),
    *(
        ml(
            f"vectorizer_{t.__name__}",
            "FeatureVectorizer",
            *(x.astype(t) for x in VECTORS),
            inputdimensions=[3, 2],
            expected=(VECTORIZED,),
        )
        for t in INPUTS
    ),
    ml("vectorizer_one", "FeatureVectorizer", X, inputdimensions=[3]),
    ml("vectorizer_reference", "FeatureVectorizer", X, X[:, :2].copy(), inputdimensions=[2, 4]),
    ml(
        "vectorizer_rows",
        "FeatureVectorizer",
        X[0],
        X[1:2],
        inputdimensions=[3, 2],
        expected=(np.concatenate((X[0], X[1, :2]))[None],),
    ),
    ml("vectorizer_no_dimensions", "FeatureVectorizer", X, X, expected=(np.concatenate((X, X), 1),)),
    *(
        ml(
            f"vectorizer_{'_'.join(map(str, shape))}_as_{taken}",
            "FeatureVectorizer",
            FEATURES.reshape(shape),
            FEATURES.reshape(shape[0], -1)[:, :2].copy(),
            inputdimensions=[taken, 2],
            expected=(lay_features(shape[0], taken),),
        )
        for shape in ((1, 1, 12), (1, 12, 1), (1, 1, 3, 4), (2, 1, 6), (3, 2, 2))
        for taken in (3, 4, 14)
    ),
    ml(
        "vectorizer_leading_strided",
        "FeatureVectorizer",
        FEATURES.reshape(2, 2, 3)[:, ::-1].transpose(0, 2, 1),
        expected=(np.array([[3, 0, 4, 1, 5, 2], [9, 6, 10, 7, 11, 8]], np.float32),),
    ),
    ml("vectorizer_strided", "FeatureVectorizer", X[::-1], X.T[:, ::-1].T, inputdimensions=[3, 1]),
    ml("vectorizer_nothing_of_one", "FeatureVectorizer", X, X, inputdimensions=[0, 3]),
    ml("vectorizer_no_rows", "FeatureVectorizer", X[:0], X[:0], inputdimensions=[3, 1]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_features(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(INPUTS))
def test_scaler_of_any_size(checks: str, rows: int, columns: int, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(rows, columns)) * 50).astype(dtype)
    run_case(scaler("random", x, rng.normal(size=columns).tolist(), rng.normal(size=columns).tolist()), checks)


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "message"),
    [
        ("Scaler", {"offset": [1.0, 2.0]}, [TensorSpec((2, 3), X.dtype)], "offset to have 1 number or one for each"),
        ("Scaler", {}, [TensorSpec((2, 3), np.dtype(np.float16))], "expects input of type"),
        ("Imputer", {"imputed_value_floats": [1.0]}, [TensorSpec((2,), np.dtype(np.int64))], "imputed_value_int64s"),
        ("Imputer", {"imputed_value_int64s": [2**40]}, [TensorSpec((2,), np.dtype(np.int32))], "int32 holds"),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, [TensorSpec((3,), X.dtype)], "values to have 1 number"),
        ("Binarizer", {}, [TensorSpec((2,), np.dtype(np.bool_))], "expects input of type"),
        ("Normalizer", {}, [TensorSpec((2, 3, 4), X.dtype)], "expects an input"),
        ("FeatureVectorizer", {"inputdimensions": [1]}, [TensorSpec((2, 3), X.dtype)] * 2, "for 2 inputs"),
        (
            "FeatureVectorizer",
            {},
            [TensorSpec((2, 3), X.dtype), TensorSpec((3, 3), X.dtype)],
            "one type and number of rows",
        ),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], inputs: list[TensorSpec], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"ai.onnx.ml.{op}", attributes).infer(*inputs)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(InputError, match="norm expects MAX, L1, L2, got 'L3'"):
        build("ai.onnx.ml.Normalizer", {"norm": "L3"})

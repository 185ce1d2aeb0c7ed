"""Internal operators that com.microsoft's are composed of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Case, run_case
from tests.ops.microsoft.part_cases import PART_CASES


@pytest.mark.parametrize("case", PART_CASES, ids=lambda case: f"{case.op}-{case.id}")
def test_part(checks: str, case: Case) -> None:
    run_case(case, checks)


X = TensorSpec((2, 4, 6), np.dtype(np.float32))
KEYS = TensorSpec((2, 3, 5, 2), np.dtype(np.float32))
INT = np.dtype(np.int32)
LONG = np.dtype(np.int64)
MASK_WORDS = r"expects a mask \[2\], \[4\], \[8\], \[2, 5\]"
WRONG: list[tuple[str, dict[str, Any], tuple[TensorSpec | None, ...], str]] = [
    ("gpuexec.MaskBias", {"filter": 0.0}, (X, KEYS, TensorSpec((3,), INT)), MASK_WORDS),
    ("gpuexec.MaskBias", {"filter": 0.0}, (X, KEYS, TensorSpec((), INT)), MASK_WORDS),
    ("gpuexec.MaskBias", {"filter": 0.0}, (X, KEYS, TensorSpec((2, 3, 5), INT)), MASK_WORDS),
    ("gpuexec.MaskBias", {"filter": 0.0}, (X, KEYS, TensorSpec((2, 1, 4, 4), INT)), MASK_WORDS),
    ("gpuexec.MaskBias", {"filter": 0.0}, (X, KEYS, TensorSpec((2,), LONG)), "mask of type int32"),
    (
        "gpuexec.MaskBias",
        {"filter": 0.0},
        (X, KEYS, None, TensorSpec((2, 3, 3, 5), X.dtype)),
        "attention_bias must broadcast",
    ),
    ("gpuexec.ProjectedHeads", {"heads": 5, "part": 0}, (X,), "number of heads"),
    ("gpuexec.ProjectedHeads", {"heads": 2, "part": 0}, (KEYS,), "2 heads as the second"),
    ("gpuexec.ProjectedHeads", {"heads": 3, "part": 1}, (X, TensorSpec((7,), X.dtype)), "expects a bias"),
    ("gpuexec.ProjectedHeads", {"heads": 3, "part": 2}, (X, TensorSpec((5,), X.dtype)), "expects a bias"),
    ("gpuexec.CachePlaces", {}, (TensorSpec((3,), INT), X), "a count for each sequence"),
    ("gpuexec.CachePlaces", {}, (TensorSpec((2,), INT), X, TensorSpec((2,), INT)), "one number"),
    ("gpuexec.PlaceRows", {}, (KEYS, TensorSpec((2, 3, 1, 4), X.dtype), TensorSpec((2,), LONG)), "the past to go with"),
    (
        "gpuexec.RotateHeads",
        {},
        (X, TensorSpec((2,), LONG), *(TensorSpec((9, 1), X.dtype),) * 2),
        r"position_ids \[1\]",
    ),
    ("gpuexec.RestoreRows", {}, (TensorSpec((7, 2), X.dtype), TensorSpec((2, 3), INT)), "a place for each"),
    ("gpuexec.OrderTokens", {}, (X, TensorSpec((3,), INT)), "number of tokens for each"),
    ("gpuexec.FirstRows", {}, (TensorSpec((3, 2), X.dtype), X), "a row for each"),
    ("gpuexec.SpreadOverSpace", {}, (X,), r"\[batch, channels\]"),
    ("gpuexec.ChannelsFirst", {}, (TensorSpec((3,), INT),), "expects a batch"),
    ("gpuexec.RelativeBuckets", {"max_distance": 9}, (TensorSpec((1, 2), X.dtype), X, X), "at least 2 buckets"),
    ("gpuexec.RelativeBuckets", {"max_distance": 3}, (TensorSpec((8, 2), X.dtype), X, X), "max_distance beyond 4"),
    (
        "com.microsoft.SkipLayerNormalization",
        {},
        (X, TensorSpec((3, 6), X.dtype), TensorSpec((6,), X.dtype)),
        "last axes",
    ),
    ("com.microsoft.SkipLayerNormalization", {}, (X, X, TensorSpec((4,), X.dtype)), r"gamma \[6\]"),
    ("com.microsoft.SkipLayerNormalization", {}, (X, X), "lacks its gamma"),
    ("com.microsoft.FusedMatMul", {"transBatchA": 1}, (TensorSpec((2, 2), X.dtype),) * 2, "three axes or more"),
    ("com.microsoft.FusedMatMul", {}, (X, X), "as many columns"),
]


@pytest.mark.parametrize(("name", "fields", "specs", "words"), WRONG)
def test_what_does_not_fit_is_refused(
    name: str, fields: dict[str, Any], specs: tuple[TensorSpec | None, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        build(name, fields).infer(*specs)


def test_lengths_that_shapes_depend_on_must_be_known() -> None:
    one = TensorSpec((), LONG)
    with pytest.raises(NeedsHostValue, match="query_length"):
        build("gpuexec.RelativeBuckets", {"max_distance": 9}).infer(TensorSpec((4, 2), X.dtype), one, one)
    rows, starts = TensorSpec((2, 3, 1, 2), X.dtype), TensorSpec((2,), LONG)
    with pytest.raises(NeedsHostValue, match="total_sequence_length"):
        build("gpuexec.PlaceRows", {}).infer(KEYS, rows, starts, one)


def test_a_composite_asks_for_content_by_its_own_inputs() -> None:
    group, last = TensorSpec((2, 1, 8), X.dtype), TensorSpec((2,), INT)
    op = build("com.microsoft.GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 2})
    with pytest.raises(NeedsHostValue) as caught:
        op.infer(group, group, group, None, None, last, TensorSpec((), INT))
    assert (caught.value.index, caught.value.role) == (6, "total_sequence_length")

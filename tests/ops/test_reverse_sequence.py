"""ReverseSequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.tensor.reverse_sequence import ReverseSequence
from tests.ops.harness import Array, Case, run_case

TIME_FIRST, BATCH_FIRST = {"time_axis": 0, "batch_axis": 1}, {"time_axis": 1, "batch_axis": 0}


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def reverse(id: str, x: Array, lengths: Any, attributes: dict[str, int] = TIME_FIRST, **more: Any) -> Case:
    return Case(id, "ReverseSequence", (x, np.array(lengths, np.int64)), attributes, **more)


CASES = [
    *(reverse(row.name, arange(4, 3, 2, dtype=row.numpy), [4, 1, 3]) for row in COMPUTED),
    reverse("time_first", arange(4, 4), [4, 3, 2, 1]),
    reverse("batch_first", arange(4, 4), [1, 2, 3, 4], BATCH_FIRST),
    reverse("batch_first_deep", arange(3, 5, 2, 2), [5, 2, 1], BATCH_FIRST),
    reverse("length_zero", arange(4, 3), [0, 2, 4]),
    reverse("strided", arange(6, 8, 4)[::-2, ::3].transpose(1, 0, 2), [2, 3, 0]),
    reverse("strided_lengths", arange(4, 3), np.arange(6)[1::2]),
    reverse("no_steps", arange(0, 3), [0, 0, 0]),
    reverse("no_batches", arange(3, 0, 2), []),
    reverse("empty_steps", arange(3, 2, 0), [1, 2]),
    reverse(
        "defaults",
        arange(4, 3),
        [3, 1, 2],
        {},
        expected=(arange(4, 3)[[[2, 0, 1], [1, 1, 0], [0, 2, 2], [3] * 3], [0, 1, 2]],),
    ),
    reverse("out_of_range", arange(3, 2), [9, -1], expected=(arange(3, 2)[[[2, 0], [1, 1], [0, 2]], [0, 1]],)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reverse_sequence(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("ReverseSequence").attributes
    assert ReverseSequence(**{name: each.default_value.i for name, each in attributes.items()}) == ReverseSequence()


@pytest.mark.parametrize(
    ("attributes", "x", "lengths", "message"),
    [
        ({"time_axis": 1, "batch_axis": 1}, arange(3, 2), np.zeros(2, np.int64), "to be 0 and 1 or 1 and 0"),
        ({"time_axis": 2, "batch_axis": 0}, arange(3, 2, 2), np.zeros(3, np.int64), "got batch_axis 0, time_axis 2"),
        (TIME_FIRST, arange(3), np.zeros(3, np.int64), "an input of rank 2 or more"),
        (TIME_FIRST, arange(3, 2), np.zeros(3, np.int64), "a length per entry of axis 1"),
        (BATCH_FIRST, arange(3, 2), np.zeros((3, 1), np.int64), "a length per entry of axis 0"),
        (TIME_FIRST, arange(3, 2), np.zeros(2, np.int32), "expects sequence_lens of type int64"),
    ],
)
def test_infer_refuses(attributes: dict[str, int], x: Array, lengths: Array, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReverseSequence(**attributes).infer(TensorSpec.of(x), TensorSpec.of(lengths))

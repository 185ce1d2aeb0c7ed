"""Multinomial: the same classes in every kernel, drawn as often as their probabilities say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.random.multinomial import Multinomial, exp_below
from gpuexec.ops.random.philox import Draw
from gpuexec.ops.random.random import FLOATS
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
KEY = np.array([3, 1 << 40], np.uint64)


def check(checks: str, x: Array, **attributes: Any) -> Array:
    """Run a case that ``compute`` is the oracle of; see `test_classes_are_drawn_as_often_as_they_should` for that."""
    expected = Multinomial(**attributes).compute(x, KEY)
    run_case(Case("case", "Multinomial", (x, KEY), attributes, oracle="expected", expected=expected), checks)
    return np.asarray(expected[0])


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(8).standard_normal(shape) * 3).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernel_draws_the_same_classes(checks: str, dtype: np.dtype[Any], index: Any) -> None:
    made = check(checks, sample(3, 7, dtype=dtype), sample_size=9, dtype=dtype_row(index).code, stream=2)
    assert made.dtype == index and made.shape == (3, 9) and made.min() >= 0 and made.max() < 7


@pytest.mark.parametrize(("classes", "samples"), [(1, 3), (255, 5), (256, 5), (257, 600), (1000, 2)])
def test_rows_of_any_length_are_summed_alike(checks: str, classes: int, samples: int) -> None:
    made = check(checks, sample(2, classes), sample_size=samples)
    assert made.max() < classes and len(np.unique(made)) > (1 if classes > 1 else 0)


def test_classes_without_weight_are_never_drawn(checks: str) -> None:
    x = np.full((1, 300), -np.inf, np.float32)
    x[0, [5, 299]] = 1000.0
    x[0, [1, 7]] = np.nan
    made = check(checks, x, sample_size=200)
    assert set(np.unique(made)) == {5, 299}


def weigh_evenly(drawn: float) -> float:
    """Return the logarithm of a weight that is ``drawn`` of the sum of itself and 1, to the bit."""
    near = math.log(drawn / (1 - drawn))
    logs = near + np.arange(-64, 65) * np.spacing(near)
    weights = exp_below(logs)
    return float(logs[weights == drawn * (weights + 1.0)][0])


@pytest.mark.parametrize("each", [1, 2])  # classes of a part
def test_number_that_is_a_running_sum_draws_the_next_class(checks: str, each: int) -> None:
    drawn = Draw.of(None, None).uniform(KEY, 6, np.dtype(np.float64)).reshape(-1)[5]
    x = np.full((1, 256 * each), -np.inf)
    x[0, :2] = weigh_evenly(drawn), 0.0
    assert check(checks, x, sample_size=6)[0, 5] == 1


@pytest.mark.parametrize("value", [-np.inf, np.nan, np.inf])
def test_row_without_any_weight_gives_its_last_class(checks: str, value: float) -> None:
    np.testing.assert_array_equal(check(checks, np.full((1, 4), value, np.float32), sample_size=3), [[3, 3, 3]])


def test_nothing_is_drawn_of_no_rows_and_no_samples(checks: str) -> None:
    assert check(checks, sample(0, 4), sample_size=2).shape == (0, 2)
    assert check(checks, sample(2, 4), sample_size=0).shape == (2, 0)


def test_seed_of_the_node_stands_for_that_of_the_key() -> None:
    x = sample(1, 50)
    first = Multinomial(sample_size=40, seed=2.0, stream=1).compute(x, KEY)[0]
    again = Multinomial(sample_size=40, seed=2.0, stream=9).compute(x, np.array([77, KEY[1]], np.uint64))[0]
    other = Multinomial(sample_size=40, seed=3.0).compute(x, KEY)[0]
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_classes_are_drawn_as_often_as_they_should() -> None:
    """Each count lies within six deviations of what its probability says, which chance breaks once in 10**9 times."""
    logs, count = np.array([[0.0, 1.0, -2.0, 2.5, 0.5]], np.float32), 20000
    chances = np.exp(logs[0].astype(np.float64))
    chances /= chances.sum()
    made = Multinomial(sample_size=count, stream=3).compute(logs, KEY)[0]
    for each, chance in enumerate(chances):
        assert abs(np.mean(made == each) - chance) < 6 * math.sqrt(chance * (1 - chance) / count)


def test_exponential_is_the_function() -> None:
    x = np.concatenate([np.linspace(-700, 0, 5001), -(2.0 ** -np.arange(60))])
    np.testing.assert_allclose(exp_below(x), np.exp(x), rtol=5e-16)
    np.testing.assert_array_equal(exp_below(np.array([-708.0, -1e300, -np.inf, np.nan])), 0)


def test_attributes_are_those_of_onnx() -> None:
    schema = onnx.defs.get_schema("Multinomial")
    assert set(Multinomial.__slots__) - set(schema.attributes) == {"stream"}
    for name in ("dtype", "sample_size"):
        default = onnx.helper.get_attribute_value(schema.attributes[name].default_value)
        assert getattr(Multinomial(), name) == default


@pytest.mark.parametrize(
    ("op", "spec", "words"),
    [
        (Multinomial(), TensorSpec((4,), np.dtype(np.float32)), r"expects \[batch, classes\]"),
        (Multinomial(), TensorSpec((2, 0), np.dtype(np.float32)), "at least one class"),
        (Multinomial(), TensorSpec((2, 3), np.dtype(np.int32)), "expects input of type float32"),
        (Multinomial(dtype=1), TensorSpec((2, 3), np.dtype(np.float32)), "int32 or int64 .* got float32"),
        (Multinomial(sample_size=-1), TensorSpec((2, 3), np.dtype(np.float32)), "0 or more, got int32 and -1"),
    ],
    ids=str,
)
def test_bad_input_is_refused(op: Multinomial, spec: TensorSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        op.infer(spec)

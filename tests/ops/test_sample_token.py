"""SampleToken: the same token in every kernel, of the classes that are kept, as often as it should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.random.sample_token import SampleToken, weigh
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
KEY = np.array([3, 1 << 40], np.uint64)
INF, NAN = np.inf, np.nan
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


def logits(*shape: int, scale: float = 3.0, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(8).standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def settings(
    temperature: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    tokens: Any = None,
    penalty: Any = None,
    places: Any = None,
) -> tuple[Array | None, ...]:
    """Return the inputs behind the logits; numbers become arrays of the type there."""
    pairs = ((temperature, np.float32), (top_k, np.int64), (top_p, np.float32))
    pairs += ((tokens, np.int64), (penalty, np.float32), (places, np.int64))
    return (*(None if x is None else np.asarray(x, dtype) for x, dtype in pairs), KEY)


def case(label: str, x: Array, *, stream: int = 2, **given: Any) -> Case:
    """Return a case that ``compute`` is the oracle of; the other tests say what that should be."""
    inputs = (x, *settings(**given))
    expected = SampleToken(stream=stream).compute(*inputs)
    attributes = {"stream": stream}
    return Case(label, "SampleToken", inputs, attributes, oracle="expected", expected=expected, domain="gpuexec")


def draw_many(x: Array, count: int, **given: Any) -> Array:
    """Return so many draws of one row of logits, one for each place."""
    rows = np.broadcast_to(x, (1, count, x.size))
    return SampleToken(stream=2).compute(rows, *settings(places=np.arange(count)[None], **given))[0][0]


def find_octave() -> np.float32:
    """Return a temperature at which a unit of logits is an octave to the bit."""
    near = np.float32(1.44269504) + np.arange(-4, 5, dtype=np.float32) * np.float32(2**-23)
    return np.float32(near[np.float32(1) / near * np.float32(1.44269504) == 1][0])


def find_kept(x: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> tuple[Array, Array]:
    """Return the classes that are kept and their probabilities, by sorting, in double."""
    scaled = x.astype(np.float64) / temperature
    if top_k:
        scaled[scaled < np.sort(scaled)[-top_k]] = -np.inf
    chances = np.exp(scaled - scaled.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(chances[order]), top_p) + 1)] if top_p < 1 else np.flatnonzero(chances)
    return kept, chances[kept] / chances[kept].sum()


TOKENS = np.array([[5, -1, 5, 69, 2**40, 7], [1, 2, 3, 32, 9, 9], [0, 0, 0, 0, 0, 0]])
MANY = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "tokens": TOKENS, "penalty": 1.3}
OWN = {
    "temperature": [0.7, 1.5, 0],
    "top_k": [0, 3, 5],
    "top_p": [0.5, 1, 0.9],
    "tokens": TOKENS,
    "penalty": [1, 2, 1.1],
}
HEAVY = np.repeat(np.array([[0, -0.7]], np.float32), 4500, 1).repeat(8, 0)
# 40 classes that the first digit of a distance does not tell apart, below one that it does; and neighbours.
BELOW = np.append(2, np.arange(40) * -(2.0**-19)).astype(np.float32)[None].repeat(30, 0)
ADJACENT = (np.arange(40) * (-math.log(2) * 2.0**-27)).astype(np.float32)[None].repeat(30, 0)
TIED = np.append(0, np.full(10, -1)).astype(np.float32)[None].repeat(8, 0)
NEAR = np.arange(40, dtype=np.float32)[None] * np.float32(-(2.0**-26))  # alike but for the last digit of a distance
CASES = (
    *(case(f"all-{dtype}", logits(3, 70, dtype=dtype), **MANY) for dtype in FLOATS),
    case("each-its-own", logits(3, 70), **OWN),
    case("rows-of-sequences", logits(2, 3, 33), **{**MANY, "tokens": TOKENS[:2]}),
    case("rows-of-sequences-with-their-own", logits(3, 2, 70), **OWN),
    case("more-rows-than-tokens", logits(1, 4, 20), tokens=[[3, 4]], penalty=0.1),
    case("places", logits(2, 3, 33), places=[[7, 8, 9], [-7, 2**32, 2**31]]),
    case("strided", logits(3, 140)[:, ::2], temperature=[0.5], top_p=[0.8]),
    case("empty", logits(0, 70), top_k=3),
    case("no-rows", logits(2, 0, 70), tokens=TOKENS[:2], penalty=2),
    case("no-tokens", logits(2, 70), tokens=TOKENS[:2, :0], penalty=2),
    case("nearest-3", NEAR, top_k=3),
    case("nearest-tenth", NEAR, top_p=0.1),
    case(
        "more-classes-than-bits",
        logits(9, 200000),
        tokens=9 * [[196607, 196608, 199999, 3]],
        penalty=-1e30,
        temperature=0,
    ),
    case("below-3", BELOW, top_k=3),
    case("below-a-tenth", BELOW, top_p=0.8),
    case("adjacent-3", ADJACENT, top_k=3),
    case("tied-3", TIED, top_k=3, top_p=0.99),
    case("first-of-equals", np.zeros((1, 3000), np.float32), temperature=0),
    case("as-far-as-it-gets", np.array([[0, -32]], np.float32).repeat(8, 0), temperature=find_octave()),
    case("zero-by-zero", np.array([[0, -1]], np.float32), tokens=[[0]], penalty=0, temperature=0),
    case(
        "rows-see-what-is-before",
        np.array([4 * [[6, 4, -1, -3]]], np.float32),
        tokens=[[0, 0, 1, 2]],
        penalty=2,
        temperature=0,
    ),
    case("equal", np.zeros((1, 3000), np.float32), top_p=0.5),  # their weights exceed 32 bits
    # Rows that several blocks share.
    case("shared", logits(2, 3, 5000), **{**MANY, "tokens": 61 * TOKENS[:2]}),
    case("shared-each-its-own", logits(3, 5000), **OWN),
    case("shared-heavy", HEAVY, top_p=0.6),
    case("shared-apart", logits(2, 5000) + np.array([[0], [1000]], np.float32)),
    case("shared-equal", np.zeros((1, 9000), np.float32), top_k=3, top_p=0.5),
    case("shared-nan", np.full((2, 5000), NAN, np.float32), top_k=3, top_p=0.5),
    case("shared-nearest", np.tile(NEAR, 120), top_k=3000, top_p=0.3),
    case("many-rows", logits(9, 4100), top_k=9),
    case("few-near", np.linspace(0, -300, 100, dtype=np.float32)[None], top_k=60),
    case("nan", np.array([[NAN, 1, NAN, 0.5]], np.float32), top_k=2),
    *(case(f"all-{x}", np.full((1, 70), x, np.float32), top_p=0.7) for x in (NAN, -INF, INF)),
    case("infinite-among-others", np.array([[0, INF, 5, -INF, INF, NAN]], np.float32)),
    *(case(f"temperature-{x}", logits(4, 70), temperature=x) for x in (0, -1, NAN, 1e-30, 1e-45, 1e30, INF)),
    *(case(f"top-p-{x}", logits(4, 70), top_p=x) for x in (-1, 0, 1e-30, 1 - 2.0**-24, 1, 2, NAN)),
    *(case(f"top-k-{x}", logits(4, 70), top_k=x) for x in (-1, 0, 1, 69, 70, 2**40)),
    *(case(f"penalty-{x}", logits(2, 70), tokens=TOKENS[:2], penalty=x) for x in (0, NAN, INF, -2)),
    *(
        case(f"{classes}-classes-{name}", logits(1, classes), **given)
        for classes in (1, 2, 31, 64, 65, 1023, 1024, 4097, 9000)
        for name, given in (
            ("all", {}),
            ("top-k", {"top_k": 7}),
            ("top-p", {"top_p": 0.7}),
            ("first", {"temperature": 0}),
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel_draws_the_same_tokens(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_weights_are_exponentials() -> None:
    values = -np.linspace(0, 30, 30001, dtype=np.float32)
    places, weights = weigh(values, 1.0)
    np.testing.assert_allclose(weights * 2.0**-31, np.exp(values.astype(np.float64)), rtol=4e-6, atol=2.0**-31)
    near = values > -32 * math.log(2)
    assert np.all(np.diff(places[near]) > 0) and np.all(places[~near] == 2**32) and not weights[~near].any()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"top_k": 6, "top_p": 0.75, "temperature": 1.7},
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_should(given: dict[str, Any]) -> None:
    """The sum of squared deviations is below what chance exceeds once in 10**6 times (Wilson and Hilferty, 1931)."""
    x, count = logits(12, scale=1.5), 4000
    kept, chances = find_kept(x, **given)
    drawn = draw_many(x, count, **given)
    assert set(np.unique(drawn)) <= set(kept)
    found = np.array([np.count_nonzero(drawn == each) for each in kept])
    likely = chances * count >= 5
    assert np.count_nonzero(likely) >= 3
    squares = np.sum((found - chances * count)[likely] ** 2 / (chances * count)[likely])
    freedom = np.count_nonzero(likely)
    assert squares < freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("given", [{"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_classes_as_likely_as_the_last_one_kept_stay(given: dict[str, Any]) -> None:
    x = np.log(np.array([0.1, 0.3, 0.3, 0.3], np.float32))
    assert set(np.unique(draw_many(x, 200, **given))) == {1, 2, 3}


def test_temperature_of_nothing_takes_the_first_of_the_largest() -> None:
    x = np.array([[1, 3, 3, 2], [NAN, -5, -INF, -5]], np.float32)
    assert SampleToken().compute(x, *settings(temperature=0))[0].tolist() == [1, 1]
    assert SampleToken().compute(x, *settings(temperature=0, tokens=[[1], [1]], penalty=2))[0].tolist() == [2, 3]


def test_a_token_is_penalised_once_and_by_the_rows_behind_it() -> None:
    x = np.broadcast_to(np.array([6, 4, -1, -3], np.float32), (1, 4, 4))
    rows = SampleToken().compute(x, *settings(temperature=0, tokens=[[0, 0, 1, 2]], penalty=2))[0]
    assert rows.tolist() == [[1, 1, 0, 0]]
    more = SampleToken().compute(x, *settings(temperature=0, tokens=[[0, 1, 0, 1]], penalty=-1))[0]
    assert more.tolist() == [[1, 2, 2, 2]]


def test_settings_of_each_sequence_are_those_of_it_alone() -> None:
    x = logits(3, 70)
    together = SampleToken().compute(x, *settings(places=[5, 5, 5], **OWN))[0]
    for index, one in enumerate(together):
        own = {name: np.asarray(value)[[index]] for name, value in OWN.items()}
        padded = np.repeat(x[[index]], index + 1, 0)  # the number depends on the sequence
        spread = {name: np.repeat(value, index + 1, 0) for name, value in own.items()}
        assert SampleToken().compute(padded, *settings(places=[5] * (index + 1), **spread))[0][index] == one


def test_numbers_follow_from_seed_sequence_and_place_whatever_the_run() -> None:
    x = np.zeros((2, 3, 5000), np.float32)

    def draw(places: Any, run: int, seed: int = 9) -> list[list[int]]:
        key = np.array([seed, run], np.uint64)
        drawn: list[list[int]] = SampleToken().compute(x, *settings(places=places)[:-1], key)[0].tolist()
        return drawn

    first, second = draw([[4, 5, 6], [4, 5, 6]], 1)
    assert draw([[6, 4, 5], [5, 5, 4]], 2) == [
        [first[2], first[0], first[1]],
        [second[1], second[1], second[0]],
    ]
    assert len({*first, *second}) == 6
    assert not {*first, *second} & {each for row in draw([[4, 5, 6], [4, 5, 6]], 1, seed=10) for each in row}
    unplaced = [draw(None, run) for run in (1, 2)]
    assert len({each for drawn in unplaced for row in drawn for each in row}) == 12


def test_a_seed_of_the_node_stands_for_that_of_the_key() -> None:
    x = np.zeros((1, 5000), np.float32)
    drawn = [
        SampleToken(seed=2.0, stream=n).compute(x, *settings()[:-1], KEY + np.uint64(n) * np.uint64([1, 0]))[0][0]
        for n in (1, 2)
    ]
    assert drawn[0] == drawn[1] != SampleToken(seed=3.0).compute(x, *settings())[0][0]


SPEC, LONG = TensorSpec((2, 3), np.dtype(np.float32)), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ((TensorSpec((3,), SPEC.dtype),), r"expects logits \[sequences, classes\]"),
        ((TensorSpec((2, 0), SPEC.dtype),), "at least one class"),
        ((TensorSpec((2, 3), np.dtype(np.float64)),), "logits of type float32, float16, bfloat16"),
        ((SPEC, TensorSpec((3,), SPEC.dtype)), r"one temperature, or one for each of 2, got float32\[3\]"),
        ((SPEC, None, TensorSpec((), SPEC.dtype)), "top_k of type int64"),
        ((SPEC, None, None, None, TensorSpec((2, 4), LONG)), "tokens and their penalty together"),
        ((SPEC, None, None, None, TensorSpec((1, 4), LONG), TensorSpec((), SPEC.dtype)), r"tokens int64\[2,count\]"),
        ((SPEC, None, None, None, None, None, TensorSpec((2, 1), LONG)), r"places as the tokens it gives, int64\[2\]"),
        ((SPEC, None, None, None, None, None, None, TensorSpec((2,), LONG)), r"a key is uint64\[2\]"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_bad_input_is_refused(specs: tuple[TensorSpec | None, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SampleToken().infer(*specs)  # type: ignore[arg-type]

"""Random operators: known answers, the same bits in every kernel, and distributions within bounds.

A fair generator breaks the bounds once in some 10**9 times, for the one sample that the seeds here give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.devices.simulator.module import load_file
from gpuexec.errors import InputError
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import BFLOAT16, COMPUTED, TensorSpec, accumulator, dtype_row
from gpuexec.ops.random import philox as philox_module
from gpuexec.ops.random.philox import Draw, log_unit, philox, turn
from gpuexec.ops.random.random import FLOATS, Bernoulli, RandomNormal, RandomUniform
from gpuexec.ops.random.random_key import NextKey
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
KEY = np.array([0x0123456789ABCDEF, (7 << 32) + 5], np.uint64)
COUNT = 20000
SERIES = """
#include "philox.cuh"
template <class F>
__global__ void run_series(const F* x, F* logarithm, F* cosine, F* sine, i32 count) {
  for (int i = 0; i < count; ++i) {
    logarithm[i] = log_unit(x[i]);
    turn(x[i], cosine[i], sine[i]);
  }
}
"""


def check(checks: str, name: str, attributes: dict[str, Any], *inputs: Array | None) -> Array:
    """Run a case that ``compute`` is the oracle of: what is compared are its bits with those of the kernel."""
    expected = build(name, attributes).compute(*inputs)
    run_case(Case(name, name, inputs, attributes, oracle="expected", expected=expected), checks)  # type: ignore[arg-type]
    return np.asarray(expected[0])


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_words_are_those_of_the_paper(counter: tuple[int, ...], key: tuple[int, int], words: str) -> None:
    blocks = np.array([counter[0] | counter[1] << 32], np.uint64)
    (row,) = philox(blocks, counter[2], counter[3], key[0] | key[1] << 32)
    assert " ".join(f"{int(word):08x}" for word in row) == words


def test_few_blocks_have_the_words_of_many() -> None:
    blocks = np.random.default_rng(5).integers(0, 2**64, 100, np.uint64)
    words = philox(blocks, 2**32 - 5, 7, 2**63 + 11)
    for count in (0, 1, 3, 16, 17):
        few = philox(blocks[:count], 2**32 - 5, 7, 2**63 + 11)
        assert few.dtype == words.dtype
        np.testing.assert_array_equal(few, words[:count])


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_series_are_the_functions(dtype: np.dtype[Any]) -> None:
    """Within 4 ulp of the largest term; logarithm and sine keep their relative precision near 0."""
    ulp = np.finfo(dtype).eps
    x = np.concatenate([np.linspace(2.0**-24, 1, 4097), 2.0 ** -np.arange(24), 1 - 2.0 ** -np.arange(1, 24)])
    x = x.astype(dtype)
    expected = np.log(x.astype(np.longdouble))
    assert np.all(np.abs(log_unit(x) - expected) <= 4 * ulp * np.abs(expected))
    y = np.concatenate([np.arange(4096) / 4096, 2.0 ** -np.arange(1, 24)]).astype(dtype)
    cosine, sine = turn(y)
    angle = y.astype(np.longdouble) * 2 * np.longdouble("3.14159265358979323846")
    assert np.max(np.abs(cosine - np.cos(angle))) <= 2 * ulp and np.max(np.abs(sine - np.sin(angle))) <= 2 * ulp
    small = y < 0.125
    assert np.all(np.abs(sine - np.sin(angle))[small] <= 2 * ulp * np.abs(np.sin(angle))[small])


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_series_of_kernels_have_the_same_bits(dtype: np.dtype[Any], tmp_path: Path) -> None:
    """Also at numbers where a series goes over to another part of its function, which draws hardly ever meet."""
    (tmp_path / "series.cu").write_text(SERIES)
    run = load_file(tmp_path / "series.cu", [f"run_series<{dtype_row(dtype).cuda}>"]).popitem()[1]
    bounds = np.array([math.sqrt(0.5), math.sqrt(0.125), 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875], dtype)
    x = (bounds[:, None] + np.spacing(bounds)[:, None] * np.arange(-3, 4)).astype(dtype).reshape(-1)
    logarithm, cosine, sine = (np.empty_like(x) for _ in range(3))
    run.launch_arrays(1, 1, x, logarithm, cosine, sine, np.int32(x.size))
    for got, expected in zip((logarithm, cosine, sine), (log_unit(x), *turn(x)), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["RandomUniform", "RandomNormal"])
def test_kernel_draws_the_same_bits(checks: str, name: str, dtype: np.dtype[Any]) -> None:
    scaled = {"low": -2.5, "high": 3.0} if name == "RandomUniform" else {"mean": -1.5, "scale": 0.75}
    for shape in ((3, 5, 70), (1,), (), (0, 4)):
        attributes = {"shape": shape, "dtype": dtype_row(dtype).code, "stream": 3, **scaled}
        assert check(checks, name, attributes, KEY).shape == shape


# Runs found by search, in whose first block a last bit hangs on a detail of the series.
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(86733, id="half-a-quarter-turn"),
        pytest.param(4856, id="last-term-of-the-logarithm"),
        pytest.param(1328, id="no-further-term-of-cosine-and-sine"),
    ],
)
def test_kernel_draws_the_same_bits_where_one_hangs_on_a_detail(checks: str, run: int) -> None:
    key = np.array([0, run], np.uint64)
    check(checks, "RandomNormal", {"shape": (4,), "dtype": onnx.TensorProto.FLOAT, "stream": 3}, key)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["RandomUniformLike", "RandomNormalLike"])
def test_like_takes_shape_and_type_of_its_input(checks: str, name: str, dtype: np.dtype[Any]) -> None:
    x = np.zeros((7, 3), dtype)
    alone = build(name.removesuffix("Like"), {"shape": (7, 3), "dtype": dtype_row(dtype).code, "stream": 3})
    np.testing.assert_array_equal(check(checks, name, {"stream": 3}, x, KEY), alone.compute(KEY)[0])
    assert check(checks, name, {"dtype": dtype_row(dtype).code}, np.zeros((4, 2), np.int32), KEY).dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("target", [row.numpy for row in COMPUTED], ids=str)
def test_bernoulli_gives_ones_and_zeros_of_every_type(checks: str, dtype: np.dtype[Any], target: np.dtype[Any]) -> None:
    x = np.linspace(-0.25, 1.25, 42).reshape(6, 7).astype(dtype)
    made = check(checks, "Bernoulli", {"dtype": dtype_row(target).code, "stream": 1}, x, KEY)
    assert made.dtype == target and set(np.unique(made.astype(float))) == {0.0, 1.0}
    wide = x.astype(np.float64)
    assert np.all(made[wide <= 0].astype(float) == 0) and np.all(made[wide >= 1].astype(float) == 1)


def test_bernoulli_keeps_the_type_of_its_input_and_takes_nan_as_never(checks: str) -> None:
    made = check(checks, "Bernoulli", {}, np.array([np.nan, 1.0, 0.0, np.inf], np.float32), KEY)
    np.testing.assert_array_equal(made, np.array([0, 1, 0, 1], np.float32))


def test_bernoulli_never_draws_what_is_as_likely_as_its_number(checks: str) -> None:
    drawn = RandomUniform(shape=(41,), stream=2).compute(KEY)[0]
    assert not check(checks, "Bernoulli", {"stream": 2}, drawn, KEY).any()
    assert check(checks, "Bernoulli", {"stream": 2}, np.nextafter(drawn, np.float32(2)), KEY).all()


@pytest.mark.parametrize("seed", [0.0, -3.5, 1e30])
def test_seed_of_the_node_stands_for_that_of_the_key(checks: str, seed: float) -> None:
    attributes = {"shape": (9,), "seed": seed, "stream": 4}
    made = check(checks, "RandomUniform", attributes, KEY)
    other = check(checks, "RandomUniform", {**attributes, "stream": 5}, np.array([1, KEY[1]], np.uint64))
    np.testing.assert_array_equal(made, other)
    later = check(checks, "RandomUniform", attributes, np.array([KEY[0], KEY[1] + np.uint64(1)], np.uint64))
    assert not np.any(made == later)


def test_without_a_key_it_is_zeros() -> None:
    first = RandomUniform(shape=(4,)).compute()[0]
    np.testing.assert_array_equal(first, RandomUniform(shape=(4,)).compute(np.zeros(2, np.uint64))[0])
    words = philox(np.zeros(1, np.uint64), 0, 0, 0)[0]
    np.testing.assert_array_equal(first, (words >> np.uint64(8)).astype(np.float32) / np.float32(2**24))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("draw", [Draw.uniform, Draw.normal], ids=lambda draw: draw.__name__)
def test_pieces_are_one_sequence(monkeypatch: pytest.MonkeyPatch, draw: Any, dtype: Any) -> None:
    """Numbers don't depend on the pieces in which cores draw them."""
    whole = draw(Draw(None, 5), KEY, 1003, np.dtype(dtype))
    monkeypatch.setattr(philox_module, "_PIECE", 16)
    np.testing.assert_array_equal(draw(Draw(None, 5), KEY, 1003, np.dtype(dtype)), whole)
    assert len(np.unique(whole)) > 990


def test_seed_run_stream_and_place_all_count() -> None:
    def draw(seed: int, run: int, stream: int) -> bytes:
        return RandomUniform(shape=(64,), stream=stream).compute(np.array([seed, run], np.uint64))[0].tobytes()

    tried = [(1, 2, 3), (2, 2, 3), (1 << 32, 2, 3), (1, 3, 3), (1, 2 | 1 << 32, 3), (1, 2, 4)]
    assert len({draw(*each) for each in tried}) == len(tried)
    assert len(np.unique(RandomUniform(shape=(64,)).compute(KEY)[0])) == 64


@pytest.mark.parametrize("index", [None, np.array(0), np.array([7]), np.array(2**40)], ids=str)
def test_next_key_is_the_same_in_the_kernel(checks: str, index: Array | None) -> None:
    given = () if index is None else (index.astype(np.int64),)
    made = check(checks, "gpuexec.NextKey", {}, KEY, *given)
    assert made[0] == KEY[0] and made[1] != KEY[1]
    if index is None:
        assert made[1] == KEY[1] + np.uint64(1)


def test_next_keys_of_indices_differ() -> None:
    made = {int(NextKey().compute(KEY, np.array(index))[0][1]) for index in range(100)}
    assert len(made) == 100


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_seeded_bernoulli_draws_from_numpys_generator(dtype: np.dtype[Any]) -> None:
    x = np.linspace(0, 1, 42).reshape(6, 7).astype(dtype)
    wanted = np.random.RandomState(7).binomial(1, x.astype(np.float64))
    for key in (None, KEY):
        made = Bernoulli(dtype_row(np.int32).code, seed=7.5, stream=3).compute(x, key)[0]
        assert made.dtype == np.int32
        np.testing.assert_array_equal(made, wanted)


def test_seeded_bernoulli_takes_chances_beyond_0_and_1() -> None:
    x = np.array([np.nan, -1, 0, 1, 2, np.inf, -np.inf], np.float32)
    for seed in (3.0, -3.0, 1e30, np.inf):
        assert Bernoulli(seed=seed).compute(x)[0].tolist() == [0, 0, 0, 1, 1, 1, 0]


def test_a_seed_that_is_no_number_is_none() -> None:
    x = np.full(50, 0.5, np.float32)
    np.testing.assert_array_equal(Bernoulli(seed=np.nan).compute(x, KEY)[0], Bernoulli().compute(x, KEY)[0])
    assert Bernoulli(seed=np.nan).is_lowered([]) and not Bernoulli(seed=1.0).is_lowered([])


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
def test_seeded_bernoulli_is_a_host_call_with_its_reason(backend: gx.BackendType) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Bernoulli", ["x"], ["y"], seed=2.0), onnx.helper.make_node("Exp", ["y"], ["z"])],
        "chances",
        [onnx.helper.make_tensor_value_info("x", 1, ["n"])],
        [onnx.helper.make_tensor_value_info("z", 1, ["n"])],
    )
    x = np.linspace(0, 1, 30, dtype=np.float32)
    model = gx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10))
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            np.testing.assert_allclose(worker.run(x)[0], np.exp(np.random.RandomState(2).binomial(1, x)), rtol=1e-6)
        calls = [(row.operator, row.why) for row in worker.report().host_calls]
    own = [("Bernoulli", "with a seed it draws from NumPy's own generator")]
    assert calls == (own if backend is gx.BackendType.SIMULATOR else [])


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_uniform_numbers_are_spread_evenly(dtype: np.dtype[Any]) -> None:
    made = RandomUniform(dtype_row(dtype).code, shape=(COUNT,), stream=2).compute(KEY)[0].astype(np.float64)
    assert made.min() >= 0 and made.max() < 1
    assert abs(made.mean() - 0.5) < 6 * math.sqrt(1 / 12 / COUNT)
    assert abs(made.var() - 1 / 12) < 6 * math.sqrt(1 / 180 / COUNT)
    assert find_kolmogorov(made, lambda x: x) < bound_kolmogorov(1e-9)
    assert abs(np.corrcoef(made[:-1], made[1:])[0, 1]) < 6 / math.sqrt(COUNT)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_normal_numbers_are_normal(dtype: np.dtype[Any]) -> None:
    op = RandomNormal(dtype_row(dtype).code, mean=2.0, scale=3.0, shape=(COUNT,), stream=2)
    made = (op.compute(KEY)[0].astype(np.float64) - 2) / 3
    assert abs(made.mean()) < 6 / math.sqrt(COUNT)
    assert abs(made.var() - 1) < 6 * math.sqrt(2 / COUNT)
    assert find_kolmogorov(made, lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2)))) < bound_kolmogorov(1e-9)
    assert abs(np.corrcoef(made[::2], made[1::2])[0, 1]) < 6 / math.sqrt(COUNT / 2)  # the two of a pair


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.875])
def test_bernoulli_is_as_likely_as_it_says(chance: float) -> None:
    made = Bernoulli(stream=2).compute(np.full(COUNT, chance, np.float32), KEY)[0]
    assert abs(made.mean() - chance) < 6 * math.sqrt(chance * (1 - chance) / COUNT)


def find_kolmogorov(sample: Array, cumulative: Callable[[float], float]) -> float:
    """Return the largest distance of the sample's distribution from the one it should have."""
    expected = np.array([cumulative(float(x)) for x in np.sort(sample)])
    steps = np.arange(sample.size + 1) / sample.size
    return float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))


def bound_kolmogorov(chance: float) -> float:
    """Return what a true sample of COUNT exceeds so often at most (Dvoretzky, Kiefer, Wolfowitz, Massart)."""
    return math.sqrt(math.log(2 / chance) / (2 * COUNT))


@pytest.mark.parametrize(
    "name", ["RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Bernoulli"]
)
def test_attributes_are_those_of_onnx(name: str) -> None:
    op = build(name, {"shape": (2,)} if name in ("RandomUniform", "RandomNormal") else {})
    schema = onnx.defs.get_schema(name)
    assert {field.name for field in dataclasses.fields(op)} - set(schema.attributes) == {"stream"}  # type: ignore[arg-type]
    for key, attribute in schema.attributes.items():
        if attribute.default_value.type:
            assert getattr(type(op)(), key) == onnx.helper.get_attribute_value(attribute.default_value)


@pytest.mark.parametrize(
    ("op", "specs", "words"),
    [
        (RandomUniform(dtype=6, shape=(2,)), (), "RandomUniform gives float32, float16, .* got dtype int32"),
        (RandomNormal(shape=(2, -1)), (), r"extents of 0 or more, got \[2, -1\]"),
        (RandomNormal(shape=(2,)), (TensorSpec((2,), np.dtype(np.int64)),), r"a key is uint64\[2\].* got int64\[2\]"),
        (build("RandomUniformLike", {}), (TensorSpec((2,), np.dtype(np.int8)),), "got dtype int8"),
        (Bernoulli(), (TensorSpec((2,), np.dtype(np.int32)),), "Bernoulli expects input of type float32"),
        (NextKey(), (TensorSpec((2,), KEY.dtype), TensorSpec((2,), np.dtype(np.int64))), "an index of one int64"),
    ],
    ids=str,
)
def test_bad_input_is_refused(op: Operator, specs: tuple[TensorSpec, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        op.infer(*specs)


def test_types_are_wide_inside() -> None:
    """Half and bfloat16 are float's numbers, rounded once."""
    for dtype in (np.dtype(np.float16), BFLOAT16):
        assert accumulator(dtype) == np.float32
        narrow = RandomNormal(dtype_row(dtype).code, shape=(50,), stream=9).compute(KEY)[0]
        wide = RandomNormal(shape=(50,), stream=9).compute(KEY)[0]
        np.testing.assert_array_equal(narrow, wide.astype(dtype))
    assert Draw.of(None, None) == Draw(None, 0)

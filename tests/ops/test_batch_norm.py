"""BatchNormalization against NumPy in double, and against onnx.reference and onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops.nn.batch_norm  # noqa: F401  (registers the operator)
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, build_operator, run_case

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float32, np.float64, np.float16, BF16)


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 5) -> Array:
    return np.random.default_rng([*shape, seed]).normal(0.5, 1.5, shape).astype(dtype)


def parameters(shape: tuple[int, ...], affine: Any = np.float32, statistics: Any = None) -> tuple[Array, ...]:
    """Return scale, bias, mean and a variance that is not negative."""
    statistics = affine if statistics is None else statistics
    scale, bias, mean = (sample(shape, affine, 6), sample(shape, affine, 7), sample(shape, statistics, 8))
    return scale, bias, mean, (np.abs(sample(shape, np.float32, 9)) + 0.1).astype(statistics)


def case(id: str, x: Array, given: tuple[Array, ...], opset: int = 15, **attributes: Any) -> Case:
    """Return a case worked out in double; training where the attributes say so."""
    channels = x.shape[1] if x.ndim > 1 else 1
    spread = (1, *x.shape[1:]) if given[0].ndim > 1 else (channels, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (1,)
    wide = x.astype(np.float64)
    scale, bias, mean, variance = (p.astype(np.float64).reshape(spread) for p in given)
    outputs: tuple[Array, ...] = ()
    if attributes.get("training_mode"):
        axes = tuple(a for a in range(x.ndim) if a != 1 or x.ndim == 1)
        momentum = attributes.get("momentum", 0.9)
        batch = wide.mean(axes).reshape(spread), wide.var(axes).reshape(spread)
        outputs = tuple(
            (old * momentum + new * (1 - momentum)).reshape(like.shape).astype(like.dtype)
            for old, new, like in zip((mean, variance), batch, given[2:], strict=True)
        )
        mean, variance = batch
    y = scale * (wide - mean) / np.sqrt(variance + attributes.get("epsilon", 1e-5)) + bias
    # A small variance multiplies what rounding does to x - mean.
    terms = 4 * max(1, x.size // channels)
    return Case(id, "BatchNormalization", (x, *given), attributes, opset=opset, terms=terms,
                expected=(y.astype(x.dtype), *outputs), outputs=(True,) * (1 + len(outputs)))  # fmt: skip


def cases() -> list[Case]:
    x = sample((2, 3, 4, 5))
    three = parameters((3,))
    rows = [case(np.dtype(t).name, x.astype(t), parameters((3,), t)) for t in FLOATS]
    rows += [case(f"training-{np.dtype(t).name}", x.astype(t), parameters((3,), t), training_mode=1) for t in FLOATS]
    mixtures = ((np.float16, np.float32, np.float32), (BF16, BF16, np.float32), (np.float16, np.float16, np.float64),
                (np.float32, np.float16, np.float32), (np.float64, np.float32, BF16), (np.float64, np.float16, BF16),
                (np.float32, BF16, BF16), (BF16, np.float32, np.float32),
                (np.float16, np.float16, np.float32))  # fmt: skip
    for t, affine, statistics in mixtures:
        name = "-".join(np.dtype(each).name for each in (t, affine, statistics))
        rows.append(case(name, x.astype(t), parameters((3,), affine, statistics)))
        if statistics != np.float64:  # the statistics of a half batch are float
            rows.append(case(f"training-{name}", x.astype(t), parameters((3,), affine, statistics), training_mode=1))
    # Eighths, of which mean and variance are exact in float: so statistics in double can be those worked out in double.
    eighths = [np.round(8 * p.astype(np.float32)) / 8 for p in (sample((2, 3, 4)), *parameters((3,)))]
    for t in FLOATS:
        for statistics in FLOATS:
            given = [p.astype(kind) for p, kind in zip(eighths, (t, t, t, statistics, statistics), strict=True)]
            name = f"training-exact-{np.dtype(t).name}-{np.dtype(statistics).name}"
            rows.append(case(name, given[0], tuple(given[1:]), training_mode=1, momentum=0.5))
    rows += [
        case("epsilon", x, three, epsilon=0.25),
        case("rank2", sample((6, 3)), three),
        case("rank3", sample((2, 3, 7)), three),
        case("rank5", sample((1, 3, 2, 2, 2)), three),
        case("vector", sample((6,)), parameters((1,))),
        case("large", sample((1, 3, 40, 40)), three),
        case("training-momentum", x, three, training_mode=1, momentum=0.5, epsilon=0.01),
        case("training-rank2", sample((6, 3)), three, training_mode=1),
        case("training-vector", sample((6,)), parameters((1,)), training_mode=1),
        case("training-large", sample((3, 3, 20, 20)), three, training_mode=1),
        case("opset7", x, three, opset=7),
        case("opset7-per-activation", sample((2, 3, 4)), parameters((3, 4)), opset=7),
        case("opset9", x, three, opset=9),
        case("opset14", x, three, opset=14),
        Case("no-batch", "BatchNormalization", (x[:0], *three), expected=(x[:0],)),
        Case("reference", "BatchNormalization", (x, *three), terms=4),
        Case("reference-training", "BatchNormalization", (x, *three), {"training_mode": 1}, outputs=(True,) * 3,
             terms=40),
        Case("onnxruntime-opset9", "BatchNormalization", (x, *three), oracle="onnxruntime", opset=9, terms=4),
        Case("unchanged-statistics", "BatchNormalization", (x, *three), outputs=(True,) * 3, terms=4,
             expected=(*case("", x, three).expected, *three[2:])),
    ]  # fmt: skip
    spatial = next(i for i, row in enumerate(rows) if row.id == "opset7-per-activation")
    rows[spatial].attributes["spatial"] = 0
    return rows


ALL = cases()


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_batch_normalization(checks: str, each: Case) -> None:
    run_case(each, checks)


@pytest.mark.parametrize("training_mode", [0, 1])
def test_views(checks: str, training_mode: int) -> None:
    x = sample((4, 3, 5))
    given = tuple(p[::-1] for p in parameters((3,)))
    for view in (x[:, ::-1, ::2], np.broadcast_to(x[:1], (6, 3, 5))):
        run_case(Case("view", "BatchNormalization", (view, *given), {"training_mode": training_mode}, terms=30), checks)


def test_upgrade_sees_training_when_statistics_are_outputs() -> None:
    old = Case(
        "old", "BatchNormalization", (sample((2, 3)), *parameters((3,))), {"spatial": 1}, outputs=(True,) * 3, opset=8
    )
    op, _ = build_operator(old)
    assert op == build("BatchNormalization", {"training_mode": 1})


def test_upgrade_refuses_saved_statistics() -> None:
    old = Case("old", "BatchNormalization", (sample((2, 3)), *parameters((3,))), outputs=(True,) * 5, opset=9)
    with pytest.raises(InputError, match="saved_mean"):
        build_operator(old)


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((spec(2, 3), spec(4), spec(3), spec(3), spec(3)), r"scale of shape \[3\]"),
        ((spec(2, 3), spec(3), spec(3), spec(3), spec(1, 3)), r"input_var of shape \[3\]"),
        ((spec(2, 3), spec(3), spec(3, dtype=np.float16), spec(3), spec(3)), "of one type"),
        ((spec(2, 3, dtype=np.int32), spec(3), spec(3), spec(3), spec(3)), "input of type"),
        ((spec(), spec(1), spec(1), spec(1), spec(1)), "rank 1 or more"),
    ],
)
def test_infer_refuses(specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("BatchNormalization", {}).infer(*specs)

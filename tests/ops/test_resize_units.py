"""Resize by eight neighbours: the bits of the kernels of single elements, epilogues, requests of memory."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import BFLOAT16, dtype_row
from tests.ops.chains import chain
from tests.ops.test_conv_depthwise_last import turn
from tests.ops.test_conv_simt import CheckingEmitter

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
DTYPES = (FLOAT, HALF, BFLOAT16)


def make(pick: random.Random, dtype: Any) -> tuple[dict[str, Any], tuple[Array | None, ...]]:
    """Return attributes and inputs of images of a rank from 3 to 5."""
    rng, rank = np.random.default_rng(pick.getrandbits(32)), pick.choice([1, 2, 2, 3])
    x = rng.standard_normal((pick.choice([1, 2]), pick.choice([8, 24]), *(pick.randrange(2, 7) for _ in range(rank))))
    scales = [1.0, 1.0, *(pick.choice([0.6, 1.5, 2.0]) for _ in range(rank))]
    attributes: dict[str, Any] = {"mode": pick.choice(["nearest", "linear", "linear", "cubic"])}
    roi = None
    if pick.random() < 0.3:
        attributes |= {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.1}
        roi = np.array([0, 0, *[-0.2] * rank, 1, 1, *[1.3] * rank], np.float32)
    elif attributes["mode"] != "nearest" and pick.random() < 0.3:
        attributes["antialias"] = 1
    return attributes, (x.astype(dtype), roi, np.array(scales, np.float32))


def run(emit: CheckingEmitter, op: Operator, given: tuple[Array | None, ...], *, is_last: bool) -> Array:
    """Return what the kernels make of images row-major or channels last; planning knows roi and scales."""
    lay = turn if is_last else np.ascontiguousarray
    slots = [
        None if each is None else emit.slot(each if place else lay(each), known=place in (1, 2))
        for place, each in enumerate(given)
    ]
    (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
    y = emit.slot(lay(np.full(spec.shape, np.nan, spec.dtype)))
    assert op.lower is not None
    op.lower(emit, tuple(slots), (y,))
    return emit.read(y).copy()


def check(op: Operator, given: tuple[Array | None, ...], mode: str, single: str) -> None:
    row_major, last = CheckingEmitter(3, mode="plain"), CheckingEmitter(4, mode=mode)
    expected, got = run(row_major, op, given, is_last=False), run(last, op, given, is_last=True)
    np.testing.assert_array_equal(*(np.ascontiguousarray(each).view(np.uint8) for each in (got, expected)))
    assert last.names == ["resize_units"] and row_major.names[0] == single


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_bits_are_those_of_single_elements(seed: int, dtype: Any, mode: str) -> None:
    attributes, given = make(random.Random(seed), dtype)
    single = "resize_nearest" if attributes["mode"] == "nearest" else "resize_blend"
    check(build("Resize", attributes), given, mode, single)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_moves_every_bit(dtype: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (1, 8, 9, 7 * dtype.itemsize), np.uint8)
    check(build("Resize", {}), (bits.view(dtype), None, np.array([1, 1, 2, 2], np.float32)), "plain", "resize_nearest")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_epilogues(dtype: Any, mode: str) -> None:
    rng = np.random.default_rng(1)
    steps: tuple[Any, ...] = (("LeakyRelu", (("alpha", 0.1),), (-1,)), ("Mul", (), (-1, 3)))
    if dtype == FLOAT:
        steps += (("Cast", (("to", dtype_row(HALF).code),), (-1,)),)
    x, factor = rng.standard_normal((2, 16, 3, 5)).astype(dtype), rng.random((16, 1, 1)).astype(dtype)
    op = build("gpuexec.FusedResize", {"mode": mode, **chain(steps)})
    given = (x, None, np.array([1, 1, 2, 2], np.float32), factor)
    check(op, given, "check", f"resize_{'nearest' if mode == 'nearest' else 'blend'}")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_axis_in_front_of_neighbours_that_stay(mode: str) -> None:
    """Row-major images of which heights alone change."""
    op, x = build("Resize", {"mode": mode}), np.random.default_rng(2).standard_normal((2, 3, 5, 16)).astype(FLOAT)
    emit, scales = CheckingEmitter(mode="check"), np.array([1, 1, 2, 1], np.float32)
    np.testing.assert_array_equal(run(emit, op, (x, None, scales), is_last=False), op.compute(x, None, scales)[0])
    assert emit.names == ["resize_units"]


@pytest.mark.parametrize(
    ("shape", "scales"),
    [((1, 12, 4, 4), [1, 1, 2, 2]), ((1, 8, 4, 4), [1, 2, 2, 2]), ((1, 8, 4, 3, 4), [1, 1, 2, 1, 2])],
    ids=["odd channels", "channels change", "an axis between stays"],
)
def test_others_take_single_elements(shape: tuple[int, ...], scales: list[float]) -> None:
    emit, op = CheckingEmitter(mode="plain"), build("Resize", {"mode": "linear"})
    x, factors = np.random.default_rng(3).standard_normal(shape).astype(FLOAT), np.array(scales, np.float32)
    got = run(emit, op, (x, None, factors), is_last=True)
    np.testing.assert_array_equal(got, op.compute(x, None, factors)[0])
    assert emit.names == ["resize_blend"]


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_images_are_written_by_whole_sectors(dtype: Any) -> None:
    emit, op = CheckingEmitter(mode="count"), build("Resize", {"mode": "linear"})
    x = np.random.default_rng(4).standard_normal((1, 64, 8, 8)).astype(dtype)
    run(emit, op, (x, None, np.array([1, 1, 2, 2], np.float32)), is_last=True)
    (launch,) = emit.counts
    lines = [line for line in launch.lines if line.space == "global" and line.counts.nbytes >= x.nbytes]
    assert lines and all(line.counts.ratio == 1.0 for line in lines)

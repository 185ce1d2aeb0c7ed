"""Lists as inputs: several inputs, or one array from nested lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.execution.debugging.observing import name_inputs
from tests.model.small_models import CPU, Array, affine, expect_affine, make_model, ramp, two_inputs

ROWS = [[1, 2, 3], [4, 5, 6]]


def double(dtype: int, shape: tuple[int | str, ...] = ("n",)) -> gx.Model:
    return make_model([helper.make_node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape}, dtype)


def run_program(given: object) -> Array:
    with gx.Program.build({"forward": affine((2, 3))}, backend=CPU).load_method("forward") as method:
        method.set_inputs(given)
        method.execute()
        return method.get_outputs()[0].readback_and_clone()


def run_module(given: object) -> Array:
    with gx.Module(gx.Program.build({"forward": affine((2, 3))}, backend=CPU)) as module:
        return module.execute("forward", given)[0]


def run_replay(given: object) -> Array:
    with gx.Worker(affine(), backend=CPU) as worker, worker.record((2, 3)) as replay:
        return replay.submit(given)["y"].readback_and_clone()


def run_worker(given: object) -> Array:
    with gx.Worker(affine(), backend=CPU) as worker:
        return worker.run(given)[0]


RUNNERS = [run_worker, run_program, run_module, run_replay]


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(
    "given",
    [ROWS, tuple(map(tuple, ROWS)), [ROWS], [np.array(ROWS, np.float32)], {"x": ROWS}, [[1.0, 2, 3], range(4, 7)]],
    ids=["list", "tuple", "list in a list", "list of an array", "by name", "mixed"],
)
def test_nested_list_is_the_array_of_a_model_with_one_input(run: Callable[[object], Array], given: object) -> None:
    np.testing.assert_array_equal(run(given), expect_affine(np.array(ROWS, np.float32)))


def test_arguments_of_forward_are_inputs_each() -> None:
    shapes = {"forward": {"left": [2, 3], "right": [2, 3]}}
    with gx.Module(gx.Program.build({"forward": two_inputs()}, shapes=shapes), backend=CPU) as module:
        total, _ = module.forward(ROWS, ROWS)
        np.testing.assert_array_equal(total, np.float32(ROWS) * 2)


def test_list_of_numbers_has_as_many_axes_as_numpy_gives_it() -> None:
    with gx.Worker(affine(("n",)), backend=CPU) as worker:
        np.testing.assert_array_equal(worker.run([1, -2])[0], expect_affine(np.float32([1, -2])))
        np.testing.assert_array_equal(worker.run([3])[0], expect_affine(np.float32([3])))
        with pytest.raises(gx.InputError, match=r"'x' expects float32\[n\], got float32\[2,3\]"):
            worker.run(ROWS)
    with gx.Worker(affine(()), backend=CPU) as worker:
        assert worker.run([3])[0] == expect_affine(np.float32(3))  # one input of no axes, in a list


def test_lists_of_several_inputs_come_in_order() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        total, difference = worker.run([ROWS, ramp(2, 3)])
        np.testing.assert_array_equal(total, np.float32(ROWS) + ramp(2, 3))
        np.testing.assert_array_equal(difference, np.float32(ROWS) - ramp(2, 3))


def test_list_of_arrays_is_inputs_and_the_message_says_how_it_is_one_array() -> None:
    with (
        gx.Worker(affine(), backend=CPU) as worker,
        pytest.raises(gx.InputError, match=r"has 1 input, got 2; .*np\.stack"),
    ):
        worker.run([np.float32([1, 2, 3]), np.float32([4, 5, 6])])


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (TensorProto.FLOAT16, [0.1, 2], np.float16([0.1, 2])),
        (TensorProto.BFLOAT16, [0.1, 2], np.array([0.1, 2], ml_dtypes.bfloat16)),
        (TensorProto.DOUBLE, [1, 2], np.float64([1, 2])),
        (TensorProto.INT8, [1, -128], np.int8([1, -128])),
        (TensorProto.UINT64, [2**63, 1], np.uint64([2**63, 1])),
        (TensorProto.BOOL, [True, False], np.array([True, False])),
        (TensorProto.INT32, [np.int32(1), np.int32(2)], np.int32([1, 2])),
        (TensorProto.INT64, [[]], np.zeros(0, np.int64)),
    ],
    ids=["half", "bfloat16", "double", "int8", "uint64", "bool", "scalars of NumPy", "empty"],
)
def test_list_becomes_the_dtype_of_the_input(dtype: int, given: list[Any], expected: Array) -> None:
    with gx.Worker(double(dtype), backend=CPU) as worker:
        (y,) = worker.run(given)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("dtype", "given", "reported"),
    [
        (TensorProto.INT64, [1, 2.5], "a list of float64 is no int64"),
        (TensorProto.BOOL, [0, 1], "a list of int64 is no bool"),
        (TensorProto.FLOAT, [True], "a list of bool is no float32"),
        (TensorProto.UINT8, [1, 256], "expected uint8, got 256, which is beyond that"),
        (TensorProto.FLOAT16, [1.0, 1e6], "expected float16, got 1000000.0, which is beyond that"),
        (TensorProto.FLOAT, [1.0, None], "Python objects"),
        (TensorProto.INT64, [1, 2**64], "expected int64, got 18446744073709551616, which is beyond that"),
        (TensorProto.FLOAT, [np.float64(1)], r"expects float32, got float64; cast it"),
        (TensorProto.INT64, [[1, 2], [3]], r"ragged: element \[0\] is 2 long, \[1\] is 1 long"),
        (TensorProto.INT64, [[1, 2], 3], r"ragged: element \[0\] is 2 long, \[1\] is a number"),
        (TensorProto.INT64, [[[1], [2]], [[3], [4, 5]]], r"ragged: element \[0\]\[0\] is 1 long, \[1\]\[1\] is 2 long"),
    ],
)
def test_list_that_would_lose_something_or_is_ragged_is_refused(dtype: int, given: list[Any], reported: str) -> None:
    with gx.Worker(double(dtype), backend=CPU) as worker, pytest.raises(gx.InputError, match=f"'x'.*{reported}"):
        worker.run(given)


def test_strings_in_a_list_are_one_input() -> None:
    with gx.Worker(double(TensorProto.STRING), backend=CPU) as worker:
        assert worker.run(["a", "b"])[0].tolist() == worker.run([["a", "b"]])[0].tolist() == ["a", "b"]


def test_shapes_in_a_list_stay_shapes() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        for given in ([(2, 3)], (2, 3), ROWS):
            with worker.record(given) as replay:
                assert replay.submit(ROWS)["y"].shape == (2, 3)


def test_models_held_against_each_other_take_the_same_lists() -> None:
    for given in (ROWS, {"x": ROWS}):
        taken = name_inputs(affine(), given)["x"]
        assert taken.dtype == np.float32 and taken.tolist() == ROWS

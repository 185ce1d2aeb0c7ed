"""Operator calls: errors converted to the package's own, and impossible specs refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import DeviceError, InputError, NeedsHostValue, OutOfMemoryError
from gpuexec.ir.apply import compute_arrays, host_failure, infer_specs
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import MAX_AXES, TensorSpec, check_size

F32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Odd(Operator):
    """Gives a shape, or raises."""

    name = "Odd"
    shape: tuple[int, ...] = ()
    error: Exception | None = None

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        if self.error is not None:
            raise self.error
        return (TensorSpec(self.shape, F32),)

    def compute(self, *inputs: Any, out: Any = None) -> tuple[Any, ...]:
        if self.error is not None:
            raise self.error
        return inputs


def test_infer_gives_what_the_operator_says() -> None:
    assert infer_specs(Odd((2, 3)), []) == (TensorSpec((2, 3), F32),)


@pytest.mark.parametrize("error", [KeyError("k"), TypeError("t"), ZeroDivisionError("z"), RecursionError("deep")])
def test_raw_error_of_infer_is_ours_and_keeps_its_cause(error: Exception) -> None:
    with pytest.raises(InputError, match=f"Odd can't infer its outputs: {type(error).__name__}") as caught:
        infer_specs(Odd(error=error), [])
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("count", [1, 4])
def test_a_wrong_number_of_inputs_is_said_with_their_names(count: int) -> None:
    x = TensorSpec((3,), F32)
    with pytest.raises(InputError, match=re.escape(f"expects inputs x, scale, [zero], got {count}.")) as caught:
        infer_specs(build("DequantizeLinear", {}), [x] * count)
    assert caught.value.__cause__ is None


def test_errors_of_ours_pass_as_they_are() -> None:
    error = InputError("no")
    for apply in (infer_specs, compute_arrays):
        with pytest.raises(InputError) as caught:
            apply(Odd(error=error), [])
        assert caught.value is error
    with pytest.raises(NeedsHostValue):
        require_const(TensorSpec((1,), F32), "axes", 1)


@pytest.mark.parametrize(("error", "kind"), [(ValueError("v"), DeviceError), (MemoryError("full"), OutOfMemoryError)])
def test_raw_error_of_compute_is_ours_and_keeps_its_cause(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"Odd failed on the host: {type(error).__name__}: {error}") as caught:
        compute_arrays(Odd(error=error), [np.zeros(1)])
    assert caught.value.__cause__ is error
    assert type(host_failure("here", error)) is kind


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1,) * (MAX_AXES + 1), "65 axes can't exist: expected at most 64"),
        ((2**61,), r"float32\[2305843009213693952\] can't exist"),
        ((2**31, 2**31), "can't exist"),
        ((0, 2**62), "can't exist"),
        ((3, -1), r"float32\[3,-1\] can't exist"),
    ],
)
def test_shape_that_can_not_exist_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer_specs(Odd(shape), [])


@pytest.mark.parametrize("shape", [(), (0,), (1,) * MAX_AXES, (2**60,), (0, 2**60)])
def test_shape_that_can_exist_passes(shape: tuple[int, ...]) -> None:
    check_size(shape, F32)
    if np.prod(shape, dtype=object) == 0:
        assert np.empty(shape, F32).shape == shape

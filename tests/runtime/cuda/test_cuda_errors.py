"""CUDA's statuses in our words."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gpuexec.command import Kernel
from gpuexec.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError
from gpuexec.runtime.cuda_errors import FAULTS, CallContext


class Failure(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Current:
    """A device that counts who made it current, and can refuse to be left."""

    def __init__(self) -> None:
        self.depth = 0
        self.refuses: int | None = None

    def __enter__(self) -> Current:
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.refuses is not None:
            raise Failure(self.refuses)


def make_context() -> tuple[CallContext, Current]:
    current = Current()
    return CallContext(current, "GPU", (Failure, MemoryError)), current


@pytest.mark.parametrize(
    ("raised", "kernel", "expected"),
    [
        (Failure(2), None, OutOfMemoryError),
        (MemoryError("pool"), None, OutOfMemoryError),
        (Failure(1), None, DeviceError),
        (Failure(1), Kernel("norm.cu", "softmax<float>"), KernelError),
        *((Failure(status), None, DeviceLostError) for status in sorted(FAULTS)),
    ],
)
def test_calling_translates_what_cuda_raises(
    raised: Exception, kernel: Kernel | None, expected: type[Exception]
) -> None:
    context, current = make_context()
    with pytest.raises(expected) as caught, context.calling("launching", kernel):
        raise raised
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised and current.depth == 0
    assert str(caught.value).startswith(f"GPU: launching{' norm.cu:softmax<float>' if kernel else ''} failed: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_calling_refuses_everything_after_a_fault_and_names_the_first() -> None:
    context, current = make_context()
    with pytest.raises(DeviceLostError, match="copying"), context.calling("copying"):
        raise Failure(700)
    with pytest.raises(DeviceLostError, match="copying"), context.calling("launching"):
        pytest.fail("a call was made after the fault")
    assert current.depth == 0


def test_calling_goes_on_after_an_error_that_is_no_fault() -> None:
    context, _ = make_context()
    with pytest.raises(OutOfMemoryError), context.calling("allocating"):
        raise Failure(2)
    with context.calling("allocating"):
        assert context.lost is None


def test_calling_keeps_the_fault_when_leaving_the_device_fails_too() -> None:
    context, current = make_context()
    current.refuses = 999
    with pytest.raises(DeviceLostError, match="cudaError 719"), context.calling("waiting"):
        raise Failure(719)


def test_calling_reports_a_fault_that_only_leaving_the_device_shows() -> None:
    context, current = make_context()
    current.refuses = 719
    with pytest.raises(DeviceLostError, match="cudaError 719"), context.calling("waiting"):
        pass


def test_calling_leaves_other_errors_alone() -> None:
    context, current = make_context()
    error: Any = ValueError("not CUDA's")
    with pytest.raises(ValueError, match="not CUDA's"), context.calling("launching"):
        raise error
    assert current.depth == 0

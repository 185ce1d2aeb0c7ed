"""The CUDA context: the GPU made current around calls, and error translation."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpuexec.devices.cuda.cuda_context import FAULTS, CudaContext
from gpuexec.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError
from gpuexec.ir.command import Kernel

KERNEL = Kernel("a.cu", "k")


class Failure(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


# The exception types that CUDA's libraries raise.
CUPY = SimpleNamespace(
    cuda=SimpleNamespace(
        runtime=SimpleNamespace(CUDARuntimeError=Failure),
        driver=SimpleNamespace(CUDADriverError=Failure),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )
)


class Current:
    """A device that counts who made it current, and can refuse to be left."""

    def __init__(self) -> None:
        self.depth = self.entered = 0
        self.refuses: int | None = None

    def __enter__(self) -> Current:
        self.depth += 1
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.refuses is not None:
            raise Failure(self.refuses)


def make_context() -> tuple[CudaContext, Current]:
    current = Current()
    return CudaContext(CUPY, None, current, "GPU"), current


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


def test_call_within_a_call_makes_the_gpu_current_once() -> None:
    context, current = make_context()
    with context.calling("submitting"):
        assert context.is_current()
        with context.calling("launching"):
            assert (current.depth, current.entered) == (1, 1)
        with pytest.raises(KernelError, match=r"launching a\.cu:k failed"), context.calling("launching", KERNEL):
            raise Failure(1)
        assert context.is_current() and current.depth == 1
    assert not context.is_current() and current.depth == 0


def test_call_of_another_gpu_in_between_makes_each_current_in_turn() -> None:
    (first, one), (second, two) = make_context(), make_context()
    with first.calling("submitting"), second.calling("copying"):
        assert second.is_current() and not first.is_current()
        with first.calling("launching"):
            assert first.is_current() and (one.entered, two.entered) == (2, 1)
        assert second.is_current() and (one.depth, two.depth) == (1, 1)
    assert not first.is_current() and (one.depth, two.depth) == (0, 0)


def test_a_thread_is_not_within_the_call_of_another() -> None:
    context, current = make_context()
    seen = []

    def call() -> None:
        with context.calling("launching"):
            seen.append(current.entered)

    with context.calling("submitting"):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert seen == [2] and current.depth == 0

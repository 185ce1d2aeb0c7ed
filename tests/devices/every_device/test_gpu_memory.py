"""Reuse of GPU memory still used by foreign kernels: freed to CuPy's pool, or an exported output released."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.devices.backend import BackendType

pytestmark = pytest.mark.gpu

COUNT = 1 << 24
# Writes -1 to all elements after some two seconds.
SLOW = r"""extern "C" __global__ void slow(float* p, long long n) {
    const long long start = clock64();
    while (clock64() - start < 3000000000ll) {}
    for (long long i = threadIdx.x; i < n; i += blockDim.x) p[i] = -1;
}"""


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed.")


def make_model() -> bytes:
    """Return y = x + w over float32, w being ones [COUNT]."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1]), ("y", [COUNT]))
    ]
    weight = numpy_helper.from_array(np.ones(COUNT, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "add", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def test_block_freed_while_a_kernel_writes_it_is_not_taken(cupy: Any) -> None:
    slow = cupy.RawKernel(SLOW, "slow")
    x, block = np.zeros(1, np.float32), cupy.empty(COUNT, cupy.float32)
    slow((1,), (256,), (block, np.int64(COUNT)))
    del block  # in CuPy's pool again, and the kernel runs on the default stream
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE) as worker:
        worker.schedule(x)
        cupy.cuda.runtime.deviceSynchronize()
        output = worker.schedule(x).peek_output()
        assert output is not None and output.readback_and_clone().min() == 1


@pytest.mark.parametrize("is_blocking", [False, True])
def test_output_let_go_of_while_a_kernel_writes_it_is_not_reused(cupy: Any, is_blocking: bool) -> None:
    slow, x = cupy.RawKernel(SLOW, "slow"), np.zeros(1, np.float32)
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE) as worker:
        with cupy.cuda.Stream(non_blocking=not is_blocking):
            output = worker.schedule(x).peek_output()
            taken = cupy.from_dlpack(output)
            slow((1,), (256,), (taken, np.int64(COUNT)))
        assert output is not None
        output.close()
        del output, taken
        later = [worker.schedule(x).peek_output() for _ in range(4)]
        found = later[-1]
        assert found is not None
        cupy.cuda.runtime.deviceSynchronize()
        assert found.readback_and_clone().min() == 1


def test_memory_goes_back_to_the_driver(cupy: Any) -> None:
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE) as worker:
        device = worker._backend.device
        device.trim()
        before, _ = cupy.cuda.runtime.memGetInfo()
        device.allocate(64 << 20).free()
        assert device.cached_nbytes == 64 << 20
        assert device.trim() == 64 << 20
        assert cupy.cuda.runtime.memGetInfo()[0] == before

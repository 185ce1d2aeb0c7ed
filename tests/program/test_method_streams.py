"""Methods on a caller's stream, whole and in steps."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.device import MemoryBlock, Stream
from tests.model.small_models import CPU, affine, expect_affine, hold, ramp

SHAPES = {"x": ((1, 8), 3)}


def load(backend: Backend) -> gx.Method:
    program = gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, backend=backend)
    return program.load_method("forward")


def fill(memory: MemoryBlock, stream: Stream, number: float) -> None:
    stream.fill(memory.address, np.float32(number).tobytes(), memory.nbytes // 4)


class Foreign:
    """An array of another package in device memory, which leaves all order to streams."""

    def __init__(self, memory: MemoryBlock) -> None:
        data = (memory.address, False)
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (8, 3),
            "typestr": "<f4",
            "data": data,
            "version": 3,
            "stream": None,
        }


# Orders nothing but by streams; the simulator refuses at the call what nothing orders.
@pytest.mark.parametrize("stepwise", [False, True])
def test_run_comes_after_what_is_on_the_stream_and_before_what_follows(stepwise: bool) -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    stream, memory = backend.device.create_stream(), backend.device.allocate(8 * 3 * 4)
    with load(backend) as method:
        method.set_input(0, Foreign(memory))
        for number in (1, 2):
            fill(memory, stream, number)
            if stepwise:
                assert len([method.step(stream=stream), *iter(method.step, None)]) > 1
                method.reset()
            else:
                method.execute(wait=False, stream=stream)
            request = method.get_output(0).readback_request()
            # The run reads what was there, and not this.
            fill(memory, stream, 7)
            np.testing.assert_array_equal(request.result(), expect_affine(np.full((8, 3), number, np.float32)))
        stream.synchronize()


def test_run_is_on_the_stream_before_the_call_returns() -> None:
    backend = open_backend(CPU)
    with load(backend) as method:
        method.set_input(0, ramp(8, 3))
        stream, gate = backend.device.create_stream(), hold(method._engine.stream)
        run = method.execute(wait=False, stream=stream)
        after = backend.device.create_event()
        stream.record(after)
        assert not after.is_done()
        gate.set()
        after.synchronize()
        assert run.is_done()


def test_what_is_no_stream_is_refused_and_changes_nothing() -> None:
    with load(open_backend(CPU)) as method:
        method.set_input(0, ramp(8, 3))
        with pytest.raises(gx.InputError, match="stream= is a str"):
            method.execute(stream="first")
        with pytest.raises(gx.InputError, match="stream= is a str"):
            method.step(stream="first")
        assert not method.in_progress()
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect_affine(ramp(8, 3)))


def test_module_takes_a_stream() -> None:
    backend = open_backend(CPU)
    program = gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, backend=backend)
    with gx.Module(program) as module:
        stream = backend.device.create_stream()
        for answer in (module.forward(ramp(8, 3), stream=stream)[0], module.execute("forward", stream=stream)[0]):
            np.testing.assert_array_equal(answer, expect_affine(ramp(8, 3)))
        with pytest.raises(gx.InputError, match="stream= is a str"):
            module.execute("forward", stream="first")

"""Claims on user memory: exclusive, or shared by Methods that alternate."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from gpuexec.execution.resources.claims import claim, claim_part
from tests.model.small_models import CPU, ramp, two_layers
from tests.model.state_models import running_sum

BACKENDS = [CPU, gx.BackendType.SIMULATOR]
SHAPES = {"x": ((1, 8), 3)}
STATE = 3


def build(backend: gx.BackendType, model: gx.Model) -> gx.Program:
    return gx.Program.build({"a": model, "b": model}, shapes={"a": SHAPES, "b": SHAPES}, backend=backend)


def manage(buffers: list[Any]) -> gx.MemoryManager:
    return gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(buffers))


def run(method: gx.Method, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    method.execute([x])
    return method.get_output(0).readback_and_clone()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [0, 1, 2])
def test_block_in_two_allocators_is_refused_until_the_first_method_is_closed(
    backend: gx.BackendType, shared: int
) -> None:
    program = build(backend, two_layers())
    first, second = (program.method_meta(name).allocate() for name in ("a", "b"))
    second[shared] = first[shared]
    method = program.load_method("a", manage(first))
    expected = run(method, ramp(8, 3))
    with pytest.raises(
        gx.InputError, match=rf"buffer {shared} .* of method 'b' overlaps planned buffer {shared} .* of method 'a'"
    ):
        program.load_method("b", manage(second))
    np.testing.assert_array_equal(run(method, ramp(8, 3)), expected)
    method.close()
    with program.load_method("b", manage(second)) as other:
        np.testing.assert_array_equal(run(other, ramp(8, 3)), expected)


def test_part_of_a_block_is_refused_too() -> None:
    program = build(CPU, two_layers())
    raw = np.zeros(2048, np.uint8)
    raw = raw[-raw.ctypes.data % 256 :]
    with pytest.raises(gx.InputError, match=r"buffer 1 \(inputs\) .* overlaps planned buffer 0 \(activations\)"):
        program.load_method("a", manage([raw, raw[256 - 256 :], raw[1024:]]))
    with program.load_method("a", manage([raw, raw[256:], raw[512:]])) as method:
        assert run(method, ramp(8, 3)).shape == (8, 2)


def test_block_of_a_method_that_nobody_closed_is_free_once_nobody_holds_it() -> None:
    program = build(CPU, two_layers())
    buffers = program.method_meta("a").allocate()
    method: Any = program.load_method("a", manage(buffers))
    cycle: list[Any] = [method]
    cycle.append(cycle)
    del method, cycle
    with pytest.warns(ResourceWarning, match="'a'"):
        other = program.load_method("b", manage(buffers))
    other.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_over_one_allocator_have_a_part_each_of_the_block_for_state(backend: gx.BackendType) -> None:
    program = build(backend, running_sum())
    buffers, x = program.method_meta("a").allocate(), ramp(2, 3) + 1
    nbytes = program.method_meta("a").memory_planned_buffer_size(STATE)
    memory = manage(buffers)
    with program.load_method("a", memory), pytest.raises(gx.InputError) as caught:
        program.load_method("b", memory)
    assert f"needs {nbytes} bytes of its own, and 0 of {nbytes} are left" in str(caught.value)
    assert caught.value.code == ErrorCode.MEMORY_ALLOCATION_FAILED
    buffers[STATE] = gx.DeviceAllocator(backend).allocate(2 * nbytes)
    memory = manage(buffers)
    with program.load_method("a", memory) as first, program.load_method("b", memory) as second:
        for turn in range(1, 5):
            np.testing.assert_array_equal(run(first, x), 2 * turn * x)
            np.testing.assert_array_equal(run(second, 100 * x), 200 * turn * x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_somebody_goes_on_from_keeps_its_bytes_after_the_method(backend: gx.BackendType) -> None:
    program = build(backend, running_sum())
    memory, x = manage(program.method_meta("a").allocate()), ramp(2, 3) + 1
    method = program.load_method("a", memory)
    run(method, x)
    state: Any = method.state
    method.close()
    with pytest.raises(gx.InputError, match=r"0 of .* are left"):
        program.load_method("b", memory)
    np.testing.assert_array_equal(state.get(), x)
    del state
    gc.collect()
    with program.load_method("b", memory) as other:
        np.testing.assert_array_equal(run(other, x), 2 * x)


def test_claims_are_apart_or_take_turns() -> None:
    group = (object(), 0)
    first = claim(1024, 512, "One", group)
    again = claim(1024, 256, "Another", group)
    beside = claim(1536, 256, "Beside", (object(), 0))
    with pytest.raises(gx.InputError, match="Late overlaps one"):
        claim(1535, 1, "Late", (group[0], 1))
    with pytest.raises(gx.InputError, match="Bytes overlaps one"):
        first.check_apart(1000, 25, "Bytes")
    first.check_apart(1000, 24, "Bytes")
    first.release()
    first.release()
    first.check_apart(1024, 1, "Bytes")
    again.release()
    late = claim(1280, 256, "Late", (group[0], 1))
    assert claim_part(1024, 1024, 256, "Part").address == 1024
    assert claim_part(1280, 1024, 256, "Part").address == 1792
    late.release()
    beside.release()

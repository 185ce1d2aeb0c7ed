"""User memory for outputs of a Method: separate bytes, on its device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import CPU, affine, expect_affine, ramp, two_inputs

SIMULATOR = gx.BackendType.SIMULATOR
SHAPES = {"x": ((1, 8), 3)}


def load(backend: gx.BackendType, *, planned: bool = False) -> gx.Method:
    program = gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, backend=backend)
    arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
    return program.load_method("forward", gx.MemoryManager(planned_memory=arenas) if planned else None)


class PinnedArray:
    """Host memory as DLPack calls it that a device copies from."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.dtype = array, array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0


@pytest.mark.parametrize(
    "array", [np.zeros((8, 3), np.float32), PinnedArray(np.zeros((8, 3), np.float32)), bytearray(96)], ids=type
)
def test_host_memory_for_an_output_on_a_device_is_refused_with_what_to_do(array: Any) -> None:
    with load(SIMULATOR) as method:
        with pytest.raises(gx.InputError) as caught:
            method.set_output(0, array)
        assert "written by simulator" in str(caught.value) and "lies on the host" in str(caught.value)
        assert "get_output('y').readback_and_clone(array)" in str(caught.value)
        # What it says works.
        method.execute([ramp(8, 3)])
        out = np.zeros((8, 3), np.float32)
        method.get_output("y").readback_and_clone(out)
        np.testing.assert_array_equal(out, expect_affine(ramp(8, 3)))


@pytest.mark.feature("E46")
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
def test_bytes_of_an_allocator_hold_an_output(backend: gx.BackendType, planned: bool) -> None:
    mine = gx.DeviceAllocator(backend).allocate(96)
    with load(backend, planned=planned) as method:
        method.set_output(0, mine)
        for x in (ramp(8, 3), -ramp(8, 3)):  # it stays set
            method.execute([x])
            np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), expect_affine(x))
        method.set_output("y", None)
        method.execute([2 * ramp(8, 3)])
        np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), expect_affine(2 * ramp(8, 3)))
        written = mine.readback_and_clone().view(np.float32).reshape(8, 3)
        np.testing.assert_array_equal(written, expect_affine(-ramp(8, 3)))


def test_tensor_of_the_cpu_is_host_memory() -> None:
    with load(CPU) as first, load(SIMULATOR) as second:
        first.execute([ramp(8, 3)])
        with pytest.raises(gx.InputError, match="the Tensor lies on the host"):
            second.set_output(0, first.get_output(0))


def test_two_outputs_have_bytes_of_their_own() -> None:
    shapes = {"forward": {"left": ((1, 8), 3), "right": ((1, 8), 3)}}
    program = gx.Program.build({"forward": two_inputs()}, shapes=shapes, backend=CPU)
    array = np.zeros((12, 3), np.float32)
    with program.load_method("forward") as method:
        method.set_output("sum", array[4:])
        with pytest.raises(gx.InputError, match="Output 'difference' overlaps output 'sum'"):
            method.set_output("difference", array[:8])
        method.set_output("sum", array[4:])
        method.set_output("sum", None)
        method.set_output("difference", array[:8])
        method.execute([ramp(8, 3), ramp(8, 3)])
        np.testing.assert_array_equal(array[:8], 0)
        np.testing.assert_array_equal(method.get_output("sum").readback_and_clone(), 2 * ramp(8, 3))


@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
@pytest.mark.parametrize(("planned", "other"), [(True, "planned buffer 1 (inputs)"), (False, "the memory of an input")])
def test_output_is_not_where_an_input_stays(backend: gx.BackendType, planned: bool, other: str) -> None:
    with load(backend, planned=planned) as method:
        place = method.input_buffer(0)
        with pytest.raises(gx.InputError) as caught:
            method.set_output(0, place)
        assert f"Output 'y' overlaps {other}" in str(caught.value)
        for _ in range(2):
            method.execute([ramp(8, 3)])
            method.execute()
            np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect_affine(ramp(8, 3)))

"""Replacement of weights in methods and programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.editing.weighted import FIRST, OTHER, X, expect
from tests.model.small_models import affine, make_model, ramp, two_layers
from tests.model.state_models import cache


def test_a_method_goes_on_with_other_weights_in_its_memory(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.gxp"
    gx.Program.build({"forward": two_layers()}, shapes={"forward": {"x": (2, 3)}}).save(path)
    program = gx.Program.load(path)
    meta = program.method_meta("forward", backend=backend)
    memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate()))
    with program.load_method("forward", memory, backend=backend) as method:
        method.set_input(0, X)
        method.execute()
        method.replace_weights({"first": OTHER})
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(OTHER))
        with pytest.raises(gx.InputError, match="no weight 'third'"):
            method.replace_weights({"third": OTHER})
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(OTHER))


def test_a_program_with_other_weights_is_a_program(backend: Backend, tmp_path: Path) -> None:
    models = {"one": two_layers(), "two": two_layers().rename({"y": "z"}), "three": affine()}
    program = gx.Program.build(models, shapes={"one": {"x": ((1, 4), 3)}})
    assert program.weight_names("one") == ("first", "second")
    changed = program.with_weights({"first": OTHER})
    changed.save(tmp_path / "changed.gxp")
    again = gx.Program.load(tmp_path / "changed.gxp")
    for each, first in ((program, FIRST), (changed, OTHER), (again, OTHER)):
        for name in ("one", "two"):
            with each.load_method(name, backend=backend) as method:
                method.set_input(0, X)
                method.execute()
                np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(first))
    with pytest.raises(gx.InputError, match="No method has a weight 'third'"):
        program.with_weights({"first": OTHER, "third": OTHER})


def test_bounds_of_a_program_stay(backend: Backend) -> None:
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (None, 3)}, {"y": (None, 3)}, w=ramp(3))
    program = gx.Program.build({"forward": model}, shapes={"forward": {"x": ((1, 4), 3)}}, backend=backend)
    changed = program.with_weights({"w": ramp(3) + 1})
    sizes = [each.method_meta("forward").input_tensor_meta(0).sizes for each in (program, changed)]
    assert [tuple(each) for each in sizes] == [(4, 3)] * 2


def test_a_cache_of_a_program_goes_on_growing(backend: Backend, tmp_path: Path) -> None:
    model = cache().bind_state({"present": "past"}, capacity=4)
    gx.Program.build({"forward": model}, shapes={"forward": {"x": (2, 1, 3)}}).save(tmp_path / "cache.gxp")
    program = gx.Program.load(tmp_path / "cache.gxp", backend=backend).with_weights({"two": np.float32(3)})
    x = np.ones((2, 1, 3), np.float32)
    with program.load_method("forward") as method:
        for count in (1, 2):
            method.set_input("x", x)
            method.execute()
            np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), np.full((2, 3), 3 * count))

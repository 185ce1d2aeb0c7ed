"""Modules: methods loaded on first use, and results that the caller owns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import CPU, affine, expect_affine, make_tracer, ramp, trace, two_inputs

SHAPES = {"forward": {"x": ((1, 8), 3)}, "pair": {"left": ((1, 8), 3), "right": ((1, 8), 3)}}
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
BACKENDS = [CPU, gx.BackendType.SIMULATOR]


def build() -> gx.Program:
    return gx.Program.build({"forward": affine(), "pair": two_inputs()}, shapes=SHAPES, backend=CPU)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build().save(tmp_path / "small.gxp")
    return tmp_path / "small.gxp"


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_loads_when_it_is_first_used(path: Path, backend: gx.BackendType) -> None:
    with gx.Module(path, backend=backend) as module:
        assert not module.is_loaded() and not module.is_method_loaded()
        (answer,) = module.forward(ramp(2, 3))
        assert module.is_loaded() and module.is_method_loaded() and not module.is_method_loaded("pair")
        np.testing.assert_array_equal(answer, expect_affine(ramp(2, 3)))
        assert module.load_method() is module.load_method("forward")


def test_forward_takes_inputs_by_name(path: Path) -> None:
    with gx.Module(path, backend=CPU) as module:
        np.testing.assert_array_equal(module.forward({"x": ramp(2, 3)})[0], expect_affine(ramp(2, 3)))


def test_asking_for_meta_loads_no_method(path: Path) -> None:
    module = gx.Module(path, backend=CPU)
    assert module.method_names == ("forward", "pair")
    assert module.method_meta("pair").num_inputs == 2
    assert module.is_loaded() and not module.is_method_loaded("pair")


def test_results_are_the_callers_own_unless_told_otherwise(path: Path) -> None:
    with gx.Module(path, backend=CPU) as module:
        (first,) = module.forward(ramp(2, 3))
        (tensor,) = module.forward(ramp(4, 3), clone=False)
        assert isinstance(first, np.ndarray) and isinstance(tensor, gx.Tensor)
        np.testing.assert_array_equal(first, expect_affine(ramp(2, 3)))
        module.forward(ramp(2, 3))
        with pytest.raises(gx.StaleError):
            tensor.readback_and_clone()


def test_fewer_inputs_will_do_where_the_rest_was_set(path: Path) -> None:
    with gx.Module(path, backend=CPU) as module:
        module.set_input("right", ramp(2, 3), method="pair")
        total, difference = module.execute("pair", [3 * ramp(2, 3)])
        np.testing.assert_array_equal(total, 4 * ramp(2, 3))
        np.testing.assert_array_equal(difference, 2 * ramp(2, 3))
        np.testing.assert_array_equal(module.execute("pair")[0], total)
        np.testing.assert_array_equal(module.execute("pair", {"right": 0 * ramp(2, 3)})[0], 3 * ramp(2, 3))
        np.testing.assert_array_equal(module.get_output("difference", "pair"), 3 * ramp(2, 3))
        assert len(module.get_outputs("pair")) == 2
        with pytest.raises(gx.InputError, match="'x'"):
            module.set_input(0, None)


def test_output_goes_to_memory_of_the_users(path: Path) -> None:
    with gx.Module(path, backend=CPU) as module:
        mine = np.from_dlpack(gx.DeviceAllocator(CPU).allocate(96)).view(np.float32).reshape(8, 3)
        module.set_output(0, mine)
        module.set_inputs([ramp(8, 3)])
        module.forward()
        np.testing.assert_array_equal(mine, expect_affine(ramp(8, 3)))


def test_unloaded_method_is_loaded_anew(path: Path) -> None:
    with gx.Module(path, backend=CPU) as module:
        assert not module.unload_method()
        method = module.load_method()
        assert module.unload_method() and not module.is_method_loaded() and not module.unload_method()
        with pytest.raises(gx.ClosedError):
            method.execute([ramp(2, 3)])
        np.testing.assert_array_equal(module.forward(ramp(2, 3))[0], expect_affine(ramp(2, 3)))
        with pytest.raises(gx.InputError, match="no method 'back'"):
            module.execute("back")


def test_module_takes_a_program_or_a_model() -> None:
    program = build()
    with gx.Module(program) as first, gx.Module(program) as second:
        assert first.is_loaded() and first.load() is second.load()
        np.testing.assert_array_equal(first.forward(ramp(2, 3))[0], second.forward(ramp(2, 3))[0])
    with gx.Module(DIGITS, backend=CPU, shapes={"image": ((1, 4), 1, 8, 8)}) as module:
        assert module.method_names == ("forward",)
        assert [row.shape for row in module.forward(np.zeros((2, 1, 8, 8), np.float32))] == [(2, 10), (2, 10)]
        assert module.method_meta().input_tensor_meta(0).sizes == (4, 1, 8, 8)


def test_shared_arenas_make_outputs_of_other_methods_stale() -> None:
    backend = make_tracer()
    with gx.Module(build(), backend=backend, share_arenas=True) as module:
        (tensor,) = module.forward(ramp(2, 3), clone=False)
        module.execute("pair", [ramp(2, 3), ramp(2, 3)])
        with pytest.raises(gx.StaleError):
            tensor.readback_and_clone()
        before = trace(backend).count("allocate")
        module.forward()
        assert trace(backend).count("allocate") == before

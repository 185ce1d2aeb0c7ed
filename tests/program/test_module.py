"""Modules: methods loaded on first use, and results that the caller owns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import is_tracer, on
from tests.model.small_models import CPU, affine, expect_affine, ramp, trace, two_inputs, two_layers

SHAPES = {"forward": {"x": ((1, 8), 3)}, "pair": {"left": ((1, 8), 3), "right": ((1, 8), 3)}}
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
BACKENDS = [CPU, gx.BackendType.SIMULATOR]


def build() -> gx.Program:
    return gx.Program.build({"forward": affine(), "pair": two_inputs()}, shapes=SHAPES, backend=CPU)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build().save(tmp_path / "small.gxp")
    return tmp_path / "small.gxp"


@pytest.mark.feature("E66")
@pytest.mark.parametrize("backend", BACKENDS)
def test_module_loads_when_it_is_first_used(path: Path, backend: gx.BackendType) -> None:
    absent = gx.Module(path.with_name("none.gxp"), backend=backend)
    assert not absent.is_loaded()
    with pytest.raises(gx.NotFoundError):
        absent.forward(ramp(2, 3))
    with gx.Module(path, backend=backend) as module:
        assert not module.is_loaded() and not module.is_method_loaded()
        assert module.load() is module.load()
        assert module.is_loaded() and not module.is_method_loaded()
        (answer,) = module.forward(ramp(2, 3))
        assert module.is_loaded() and module.is_method_loaded() and not module.is_method_loaded("pair")
        np.testing.assert_array_equal(answer, expect_affine(ramp(2, 3)))
        assert module.load_method() is module.load_method("forward")


def test_forward_takes_inputs_by_name(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend) as module:
        np.testing.assert_array_equal(module.forward({"x": ramp(2, 3)})[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("E10", "T12")
def test_asking_for_meta_loads_no_method(path: Path, backend: Backend) -> None:
    module = gx.Module(path, backend=backend)
    assert module.method_names == ("forward", "pair")
    assert module.method_meta("pair").num_inputs == 2
    assert module.is_loaded() and not module.is_method_loaded("pair")


@pytest.mark.feature("E67")
def test_results_are_the_callers_own_unless_asked_otherwise(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend) as module:
        (first,) = module.forward(ramp(2, 3))
        (tensor,) = module.forward(ramp(4, 3), clone=False)
        assert isinstance(first, np.ndarray) and isinstance(tensor, gx.Tensor)
        np.testing.assert_array_equal(first, expect_affine(ramp(2, 3)))
        first[...] = 0
        module.forward(ramp(2, 3))
        with pytest.raises(gx.StaleError):
            tensor.readback_and_clone()
        np.testing.assert_array_equal(module.get_output(0), expect_affine(ramp(2, 3)))


@pytest.mark.feature("E65", "E67", "E68", "T11")
def test_fewer_inputs_will_do_where_the_rest_was_set(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend) as module:
        given = ramp(2, 3)
        module.set_input("right", given, method="pair")
        given[...] = 9
        assert module.is_method_loaded("pair") and not module.is_method_loaded("forward")
        total, difference = module.execute("pair", [3 * ramp(2, 3)])
        np.testing.assert_array_equal(total, 4 * ramp(2, 3))
        np.testing.assert_array_equal(difference, 2 * ramp(2, 3))
        np.testing.assert_array_equal(module.execute("pair")[0], total)
        np.testing.assert_array_equal(module.execute("pair", {"right": 0 * ramp(2, 3)})[0], 3 * ramp(2, 3))
        np.testing.assert_array_equal(module.get_output("difference", "pair"), 3 * ramp(2, 3))
        assert len(module.get_outputs("pair")) == 2
        with pytest.raises(gx.InputError, match="'z'"):
            module.set_input("z", ramp(2, 3), method="pair")
        module.set_input(0, ramp(2, 3))
        for wrong in (None, "nothing", object()):  # and what was set stays
            with pytest.raises(gx.InputError, match="'x'"):
                module.set_input(0, wrong)
            np.testing.assert_array_equal(module.forward()[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("E68")
def test_output_goes_to_memory_of_the_users(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend) as module:
        mine = gx.DeviceAllocator(backend).allocate(96)
        module.set_output(0, mine)
        module.set_inputs([ramp(8, 3)])
        module.forward()
        written = mine.readback_and_clone().view(np.float32).reshape(8, 3)
        np.testing.assert_array_equal(written, expect_affine(ramp(8, 3)))


@pytest.mark.feature("E65", "E66")
def test_unloaded_method_is_loaded_anew(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend) as module:
        assert not module.unload_method()
        method = module.load_method()
        module.forward(ramp(2, 3))
        assert module.unload_method() and not module.is_method_loaded() and not module.unload_method()
        with pytest.raises(gx.ClosedError):
            method.execute([ramp(2, 3)])
        with pytest.raises(gx.InputError, match="'x'"):
            module.forward()
        np.testing.assert_array_equal(module.forward(ramp(2, 3))[0], expect_affine(ramp(2, 3)))
        with pytest.raises(gx.InputError, match="no method 'back'; it has forward, pair"):
            module.execute("back")


@pytest.mark.feature("E65")
def test_module_takes_a_program_or_a_model(backend: Backend) -> None:
    program = build()
    with gx.Module(program) as first, gx.Module(program) as second:
        assert first.is_loaded() and first.load() is second.load() is program
        np.testing.assert_array_equal(first.forward(ramp(2, 3))[0], second.forward(ramp(2, 3))[0])
    image = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    with gx.Worker(gx.load(DIGITS), backend=backend) as worker:
        expected = worker.run(image)
    with gx.Module(DIGITS, backend=backend, shapes={"image": ((1, 4), 1, 8, 8)}) as module:
        assert module.method_names == ("forward",)
        for got, wanted in zip(module.forward(image), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert module.method_meta().input_tensor_meta(0).sizes == (4, 1, 8, 8)


@pytest.mark.feature("E69")
@on("cpu", "simulator", "tracer")
def test_shared_arenas_make_outputs_of_other_methods_stale(backend: Backend) -> None:
    with gx.Module(build(), backend=backend, share_arenas=True) as module:
        (tensor,) = module.forward(ramp(2, 3), clone=False)
        total, _ = module.execute("pair", [ramp(2, 3), ramp(2, 3)])
        with pytest.raises(gx.StaleError):
            tensor.readback_and_clone()
        if is_tracer(backend):
            before = trace(backend).count("allocate")
            module.forward()
            assert trace(backend).count("allocate") == before
        else:
            np.testing.assert_array_equal(total, 2 * ramp(2, 3))
            np.testing.assert_array_equal(module.forward()[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("E70")
@on("tracer")
def test_modules_over_one_program_share_its_weights(backend: Backend) -> None:
    program = gx.Program.build({"forward": two_layers()}, shapes={"forward": SHAPES["forward"]}, backend=backend)
    with gx.Module(program, backend=backend) as first, gx.Module(program, backend=backend) as second:
        first.load_method()
        before = trace(backend).count("copy_to_device")
        assert before > 0
        assert second.load_method() is not first.load_method()
        assert trace(backend).count("copy_to_device") == before


@pytest.mark.feature("E70")
def test_modules_over_one_program_are_independent(backend: Backend) -> None:
    x, program = ramp(2, 3), build()
    with gx.Module(program, backend=backend) as first, gx.Module(program, backend=backend) as second:
        first.set_input(0, x)
        with pytest.raises(gx.InputError, match="'x'"):
            second.forward()
        np.testing.assert_array_equal(second.forward(2 * x)[0], expect_affine(2 * x))
        np.testing.assert_array_equal(first.forward()[0], expect_affine(x))
        first.close()
        np.testing.assert_array_equal(second.forward()[0], expect_affine(2 * x))

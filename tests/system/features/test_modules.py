"""Rows on the simple interfaces: the Module, which loads on first use, and the look-alike of ExecuTorch's runtime."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat import executorch
from gpuexec.compat.executorch import Runtime, Verification
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU, expect_affine, ramp, trace
from tests.system.features.marks import on
from tests.system.features.programs import build, expect_layers

X = ramp(2, 3)
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "models" / "digits.onnx"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(CPU).save(tmp_path / "small.gxp")
    return tmp_path / "small.gxp"


@pytest.fixture
def module(path: Path, backend: Backend) -> Iterator[executorch.Module]:
    with executorch.Module(path, backend=backend) as module:
        yield module


def test_e65_a_module_runs_methods_of_a_file_by_name(module: executorch.Module) -> None:
    assert module.method_names == ("forward", "affine", "pair") and module.num_methods() == 3
    np.testing.assert_array_equal(module.forward(X)[0], expect_layers(X))
    np.testing.assert_array_equal(module.execute("affine", [X])[0], expect_affine(X))
    total, difference = module.execute("pair", {"left": 3 * X, "right": X})
    np.testing.assert_array_equal(total, 4 * X)
    np.testing.assert_array_equal(difference, 2 * X)
    with pytest.raises(gx.InputError, match="no method 'back'; it has forward, affine, pair"):
        module.execute("back", [X])


def test_e65_a_module_is_made_of_a_model_too(backend: Backend) -> None:
    with gx.Module(DIGITS, backend=backend, shapes={"image": ((1, 4), 1, 8, 8)}) as module:
        image = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
        with gx.Worker(gx.load(DIGITS), backend=backend) as worker:
            expected = worker.run(image)
        for got, wanted in zip(module.forward(image), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert module.method_meta().input_tensor_meta(0).sizes == (4, 1, 8, 8)


def test_e66_nothing_is_read_before_it_is_needed(path: Path, backend: Backend) -> None:
    absent = gx.Module(path.with_name("none.gxp"), backend=backend)
    assert not absent.is_loaded()
    with pytest.raises(gx.NotFoundError):
        absent.forward(X)
    with executorch.Module(path, backend=backend) as module:
        assert not module.is_loaded() and not module.is_method_loaded()
        module.load()
        assert module.is_loaded() and not module.is_method_loaded()
        method = module.load_forward()
        assert module.load() is module.load()
        assert method is module.load_method() is module.load_method("forward")
        assert module.is_method_loaded() and not module.is_method_loaded("pair")


def test_e66_a_method_is_unloaded_and_loaded_anew(module: executorch.Module) -> None:
    assert not module.unload_method()
    method = module.load_method()
    module.forward(X)
    assert module.unload_method() and not module.is_method_loaded() and not module.unload_method()
    with pytest.raises(gx.ClosedError):
        method.execute([X])
    with pytest.raises(gx.InputError, match="'x'"):
        module.forward()
    np.testing.assert_array_equal(module.forward(X)[0], expect_layers(X))


def test_e67_results_are_copies_unless_told_otherwise(module: executorch.Module) -> None:
    (first,) = module.execute("affine", [X])
    second = module.get("affine", [X + 1])
    np.testing.assert_array_equal(first, expect_affine(X))
    np.testing.assert_array_equal(second, expect_affine(X + 1))
    first[...] = 0
    np.testing.assert_array_equal(module.get_output(0, "affine"), expect_affine(X + 1))
    (view,) = module.execute("affine", [X], clone=False)
    assert isinstance(view, gx.Tensor)
    module.execute("affine", [X])
    with pytest.raises(gx.StaleError):
        view.readback_and_clone()
    assert [array.shape for array in module.get_outputs("affine")] == [(2, 3)]


def test_e67_get_gives_the_first_output_and_fewer_inputs_will_do(module: executorch.Module) -> None:
    module.set_inputs([X, 2 * X], method="pair")
    np.testing.assert_array_equal(module.get("pair"), 3 * X)
    np.testing.assert_array_equal(module.get("pair", [5 * X]), 7 * X)
    np.testing.assert_array_equal(module.get_output("difference", "pair"), 3 * X)


def test_e68_t11_presets_go_to_the_method_at_once_and_stay(module: executorch.Module) -> None:
    given = X.copy()
    module.set_input("right", given, method="pair")
    assert module.is_method_loaded("pair") and not module.is_method_loaded("forward")
    given[...] = 9
    for scale in (1, 3):
        np.testing.assert_array_equal(module.get("pair", [scale * X]), (scale + 1) * X)
    with pytest.raises(gx.InputError, match="'z'"):
        module.set_input("z", X, method="pair")


@pytest.mark.parametrize("empty", [None, "nothing", object()], ids=["none", "text", "object"])
def test_t11_a_preset_that_is_no_array_is_refused_and_clears_nothing(empty: Any, module: executorch.Module) -> None:
    module.set_input(0, X, method="affine")
    with pytest.raises(gx.InputError, match="'x'"):
        module.set_input(0, empty, method="affine")
    np.testing.assert_array_equal(module.get("affine"), expect_affine(X))


def test_e68_outputs_are_set_by_a_module_too(module: executorch.Module, backend: Backend) -> None:
    with gx.Worker(build(CPU).contents.methods["affine"].model, backend=backend) as worker:
        worker.schedule(ramp(8, 3))
        mine = worker.copy_output()
    module.set_output("y", mine, method="affine")
    module.execute("affine", [ramp(8, 3) + 1])
    np.testing.assert_array_equal(mine.readback_and_clone(), expect_affine(ramp(8, 3) + 1))


def test_e69_a_module_shares_arenas_among_its_methods(path: Path, backend: Backend) -> None:
    with gx.Module(path, backend=backend, share_arenas=True) as module:
        (view,) = module.forward(X, clone=False)
        np.testing.assert_array_equal(module.execute("affine", [X])[0], expect_affine(X))
        with pytest.raises(gx.StaleError):
            view.readback_and_clone()
        np.testing.assert_array_equal(module.forward(X)[0], expect_layers(X))


@on("tracer")
def test_e70_modules_over_one_program_share_its_weights(backend: Backend) -> None:
    program = build(backend)
    with gx.Module(program, backend=backend) as first, gx.Module(program, backend=backend) as second:
        assert first.load() is second.load() is program
        first.load_method()
        before = trace(backend).count("copy_to_device")
        assert before > 0
        assert second.load_method() is not first.load_method()
        assert trace(backend).count("copy_to_device") == before


def test_e70_modules_over_one_program_are_independent(backend: Backend) -> None:
    program = build(backend)
    with gx.Module(program, backend=backend) as first, gx.Module(program, backend=backend) as second:
        first.set_input(0, X, method="affine")
        with pytest.raises(gx.InputError, match="'x'"):
            second.execute("affine")
        np.testing.assert_array_equal(second.execute("affine", [2 * X])[0], expect_affine(2 * X))
        np.testing.assert_array_equal(first.execute("affine")[0], expect_affine(X))
        first.close()
        np.testing.assert_array_equal(second.execute("affine")[0], expect_affine(2 * X))


def test_e75_there_is_one_runtime_and_it_knows_backends_and_operators() -> None:
    runtime = Runtime.get()
    assert runtime is Runtime.get()
    backends = runtime.backend_registry
    assert {"CPU", "SIMULATOR", "GPU_COMPUTE"} <= set(backends.registered_backend_names)
    assert backends.is_available("CPU") and not backends.is_available("XnnpackBackend")
    assert {"Conv", "MatMul", "LSTM"} <= runtime.operator_registry.operator_names


@pytest.mark.parametrize("verification", Verification)
def test_e76_programs_are_loaded_from_bytes_paths_and_files(verification: Verification, path: Path) -> None:
    whole = path.read_bytes()
    for data in (path, str(path), whole, bytearray(whole), io.BytesIO(whole)):
        program = Runtime.get().load_program(data, verification=verification, backend=CPU)
        np.testing.assert_array_equal(program.load_method("affine").execute([X])[0], expect_affine(X))
    with pytest.raises(TypeError, match="got int") as caught:
        Runtime.get().load_program(3)  # type: ignore[arg-type]
    assert caught.value.code == 0x13  # type: ignore[attr-defined]


def test_e76_programs_are_verified_fully_unless_asked_not_to(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(ramp(3, 5).tobytes())] ^= 1
    with pytest.raises(gx.ModelError, match="altered or damaged"):
        Runtime.get().load_program(damaged, backend=CPU)
    Runtime.get().load_program(damaged, verification=Verification.Minimal, backend=CPU)


def test_e77_methods_are_cached_and_described(path: Path, backend: Backend) -> None:
    program = Runtime.get().load_program(path, backend=backend)
    assert program.method_names == {"forward", "affine", "pair"}
    metadata = program.metadata("pair")
    assert (metadata.name(), metadata.num_inputs(), metadata.num_outputs()) == ("pair", 2, 2)
    assert (metadata.input_tensor_meta(1).name(), metadata.input_tensor_meta(1).sizes()) == ("right", (8, 3))
    assert metadata.memory_planned_buffer_size(1) == 256 + 96
    for ask in (metadata.input_tensor_meta, metadata.output_tensor_meta, metadata.memory_planned_buffer_size):
        with pytest.raises(IndexError, match="got index 9"):
            ask(9)
    for call in (program.load_method, program.metadata):
        with pytest.raises(KeyError, match="no method 'back'") as caught:
            call("back")
        assert isinstance(caught.value, gx.InputError) and caught.value.code == 0x12
    method = program.load_method("pair")
    assert method is program.load_method("pair") and method.metadata.num_inputs() == 2


def test_e78_execute_gives_a_list_of_copies(path: Path, backend: Backend) -> None:
    method = Runtime.get().load_program(path, backend=backend).load_method("affine")
    first, second = method.execute([X]), method.execute([ramp(4, 3)])
    assert isinstance(first, list) and isinstance(first[0], np.ndarray)
    np.testing.assert_array_equal(first[0], expect_affine(X))
    np.testing.assert_array_equal(second[0], expect_affine(ramp(4, 3)))
    second[0][...] = 0
    np.testing.assert_array_equal(method.execute([ramp(4, 3)])[0], expect_affine(ramp(4, 3)))
    with pytest.raises(gx.InputError, match="1 inputs, got 2"):
        method.execute([X, X])

"""The look-alike of ExecuTorch's Python runtime: names, behaviour, error codes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat.executorch import Method, Module, Program, Runtime, Verification
from gpuexec.devices.backend import Backend
from gpuexec.errors import ErrorCode
from tests.model.small_models import CPU, affine, expect_affine, ramp, two_inputs, two_layers

SHAPES = {"forward": {"x": ((1, 8), 3)}, "pair": {"left": (2, 3), "right": (2, 3)}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    program = gx.Program.build({"forward": affine(), "pair": two_inputs()}, shapes=SHAPES, backend=CPU)
    program.save(tmp_path / "small.gxp")
    return tmp_path / "small.gxp"


@pytest.mark.feature("E75")
def test_runtime_is_one() -> None:
    assert Runtime.get() is Runtime.get()


@pytest.mark.feature("E75")
def test_registries_report_backends_and_operators() -> None:
    runtime = Runtime.get()
    names = runtime.backend_registry.registered_backend_names
    assert {"CPU", "SIMULATOR", "GPU_COMPUTE"} <= set(names) and "AUTO" not in names
    assert runtime.backend_registry.is_available("CPU")
    assert not runtime.backend_registry.is_available("XnnpackBackend")
    assert {"Conv", "LSTM", "MatMul", "Relu"} <= runtime.operator_registry.operator_names


@pytest.mark.feature("E76")
def test_program_is_loaded_from_all_sources(path: Path) -> None:
    whole = path.read_bytes()
    for verification in Verification:
        for data in (path, str(path), whole, bytearray(whole), io.BytesIO(whole)):
            program = Runtime.get().load_program(data, verification=verification, backend=CPU)
            assert program.method_names == {"forward", "pair"}
            outputs = program.load_method("forward").execute([ramp(2, 3)])
            np.testing.assert_array_equal(outputs[0], expect_affine(ramp(2, 3)))
    with pytest.raises(TypeError, match="got int") as caught:
        Runtime.get().load_program(3)  # type: ignore[arg-type]
    assert isinstance(caught.value, gx.InputError) and caught.value.code == ErrorCode.INVALID_TYPE


@pytest.mark.feature("E77", "E78")
@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_method_is_cached_and_gives_arrays_of_ones_own(path: Path, backend: gx.BackendType) -> None:
    program = Runtime.get().load_program(path, backend=backend)
    method = program.load_method("forward")
    assert method is program.load_method("forward")
    outputs = method.execute([ramp(2, 3)])
    assert isinstance(outputs, list) and isinstance(outputs[0], np.ndarray)
    (first,), (second,) = outputs, method.execute([ramp(4, 3)])
    np.testing.assert_array_equal(first, expect_affine(ramp(2, 3)))
    np.testing.assert_array_equal(second, expect_affine(ramp(4, 3)))
    second[...] = 0
    np.testing.assert_array_equal(method.execute([ramp(4, 3)])[0], expect_affine(ramp(4, 3)))
    with pytest.raises(gx.InputError, match="1 inputs, got 2") as caught:
        method.execute([ramp(2, 3), ramp(2, 3)])
    assert caught.value.code == ErrorCode.INVALID_ARGUMENT


@pytest.mark.feature("E77")
def test_unknown_method_is_a_key_error(path: Path, backend: Backend) -> None:
    program = Runtime.get().load_program(path, backend=backend)
    for call in (program.load_method, program.metadata):
        with pytest.raises(KeyError) as caught:
            call("back")
        assert isinstance(caught.value, gx.InputError) and caught.value.code == ErrorCode.INVALID_ARGUMENT
        assert str(caught.value).startswith("The program has no method 'back'")


@pytest.mark.feature("E77")
def test_metadata_reports_what_is_planned(path: Path, backend: Backend) -> None:
    program = Runtime.get().load_program(path, backend=backend)
    metadata = program.metadata("pair")
    assert (metadata.name(), metadata.num_inputs(), metadata.num_outputs()) == ("pair", 2, 2)
    assert metadata.num_attributes() == 0 and metadata.num_instructions() > 0
    info = metadata.input_tensor_meta(1)
    assert (info.name(), info.sizes(), info.dtype()) == ("right", (2, 3), np.dtype(np.float32))
    assert info.is_memory_planned() and info.nbytes() == 24
    assert metadata.output_tensor_meta(0).name() == "sum"
    sizes = [metadata.memory_planned_buffer_size(i) for i in range(metadata.num_memory_planned_buffers())]
    assert sizes[1:3] == [256 + 24, 256 + 24]
    assert metadata.uses_backend(backend.type.value)
    for call in (metadata.input_tensor_meta, metadata.output_tensor_meta, metadata.memory_planned_buffer_size):
        with pytest.raises(IndexError, match="got index 9") as caught:
            call(9)
        assert isinstance(caught.value, gx.InputError)
    assert program.load_method("pair").metadata.num_inputs() == 2


def test_sample_that_executes_a_method(path: Path) -> None:
    runtime = Runtime.get()
    program = runtime.load_program(path, verification=Verification.Minimal)
    method = program.load_method("forward")
    assert method.metadata.num_inputs() == method.inputs_size() == method.outputs_size() == 1
    outputs = method.execute([ramp(2, 3)])
    np.testing.assert_array_equal(outputs[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("E65", "E67")
def test_sample_of_a_module(path: Path, backend: Backend) -> None:
    with Module(path, backend=backend) as module:
        assert module.load_forward() is module.load_method("forward") and module.num_methods() == 2
        np.testing.assert_array_equal(module.forward(ramp(2, 3))[0], expect_affine(ramp(2, 3)))
        np.testing.assert_array_equal(module.get("pair", [ramp(2, 3), ramp(2, 3)]), 2 * ramp(2, 3))
        np.testing.assert_array_equal(module.get(), expect_affine(ramp(2, 3)))
        module.set_inputs([ramp(2, 3), 2 * ramp(2, 3)], method="pair")
        np.testing.assert_array_equal(module.get("pair"), 3 * ramp(2, 3))


@pytest.mark.feature("E76")
def test_programs_are_verified_fully_unless_asked_not_to(tmp_path: Path) -> None:
    gx.Program.build({"forward": two_layers()}, backend=CPU).save(tmp_path / "small.gxp")
    damaged = bytearray((tmp_path / "small.gxp").read_bytes())
    damaged[damaged.index(ramp(3, 5).tobytes())] ^= 1
    with pytest.raises(gx.ModelError, match="altered or damaged"):
        Runtime.get().load_program(damaged, backend=CPU)
    Runtime.get().load_program(damaged, verification=Verification.Minimal, backend=CPU)


@pytest.mark.feature("E9")
def test_methods_have_numbers(path: Path) -> None:
    numbered = Program(gx.Program.load(path))
    assert [numbered.get_method_name(index) for index in range(numbered.num_methods())] == ["forward", "pair"]
    for index in (-1, 2, "forward"):
        with pytest.raises(IndexError, match=f"2 methods, got index {index!r}") as refused:
            numbered.get_method_name(index)  # type: ignore[arg-type]
        assert isinstance(refused.value, gx.InputError)


@pytest.mark.feature("E58")
def test_methods_report_their_sizes(path: Path, backend: Backend) -> None:
    with gx.Program.load(path, backend=backend).load_method("pair") as method:
        meta, sized = method.method_meta, Method(method)
        assert (sized.inputs_size(), sized.outputs_size()) == (meta.num_inputs, meta.num_outputs) == (2, 2)
        assert meta.name == "pair" and meta.input_tensor_meta(0).sizes == (2, 3)

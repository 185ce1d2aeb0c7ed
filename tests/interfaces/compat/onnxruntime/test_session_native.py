"""Classes of the compiled module, and other names that ONNX Runtime's own tests use, compared with it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as real
import pytest

import gpuexec.compat.onnxruntime as ours
from gpuexec.compat.onnxruntime import capi, providers
from gpuexec.errors import GpuexecError
from tests.interfaces.compat.onnxruntime.sessions import CPU, F32, FEED, SIMULATOR, B, X, make_bytes, make_session

BOTH = pytest.mark.parametrize("ort", [real, ours], ids=["theirs", "ours"])
errors = capi.onnxruntime_pybind11_state


def compiled(ort: Any) -> Any:
    """Return the module that has the compiled classes."""
    return importlib.import_module(f"{ort.__name__}.capi._pybind_state")


def open_session(ort: Any) -> Any:
    return ort.InferenceSession(make_bytes(), providers=[CPU])


def hold(ort: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return a value made below the Python classes."""
    names = compiled(ort)
    device = names.OrtDevice(names.OrtDevice.cpu(), names.OrtDevice.default_memory(), 0)
    return names.OrtValue.ortvalue_from_numpy(array, device)


@BOTH
def test_vector_of_values_comes_of_a_run(ort: Any) -> None:
    session, names = open_session(ort), compiled(ort)
    values = session._sess.run_with_ort_values({"x": hold(ort, X), "b": hold(ort, B)}, ["z", "y"], ort.RunOptions())
    assert isinstance(values, names.OrtValueVector) and len(values) == 2
    np.testing.assert_array_equal([value.numpy() for value in values], [-(X + B), X + B])
    again = session._sess.run_with_ort_values({"x": hold(ort, X), "b": hold(ort, B)}, ["z"], None)
    assert again.element_type_at(0) == 1


@BOTH
def test_bindings_take_devices_for_names(ort: Any) -> None:
    session, names = open_session(ort), compiled(ort)
    device, made = names.OrtDevice(0, 0, 0), np.zeros((3, 2), F32)
    binding = names.SessionIOBinding(session._sess)
    binding.bind_ortvalue_input("x", hold(ort, X))
    binding.bind_input("b", B)
    binding.bind_output("z", device)
    session._sess.run_with_iobinding(binding, None)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), -(X + B))
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu(), [-(X + B)])
    binding.clear_binding_outputs()
    binding.bind_input("x", device, F32, [3, 2], X.ctypes.data)
    binding.bind_output("y", device, F32, [3, 2], made.ctypes.data)
    binding.synchronize_inputs()
    session._sess.run_with_iobinding(binding, None)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(made, X + B)


@BOTH
def test_python_bindings_hold_compiled_ones(ort: Any) -> None:
    session = open_session(ort)
    binding = session.io_binding()
    for name, array in FEED.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    for outputs in (binding._iobinding.get_outputs(), binding.get_outputs_as_ortvaluevector()):
        np.testing.assert_array_equal(outputs[0].numpy(), X + B)


@BOTH
def test_runs_append_to_a_vector(ort: Any) -> None:
    names = compiled(ort)
    feeds, made = names.OrtValueVector(), names.OrtValueVector()
    feeds.reserve(2)
    for array in FEED.values():
        feeds.push_back(hold(ort, array))
    run = (ort.RunOptions(), list(FEED), feeds, ["z", "y"], made, [names.OrtDevice(0, 0, 0)] * 2)
    open_session(ort).run_with_ortvaluevector(*run)
    made.shrink_to_fit()
    np.testing.assert_array_equal([value.numpy() for value in made], [-(X + B), X + B])


@BOTH
def test_binding_of_another_session_is_refused(ort: Any) -> None:
    first, second = open_session(ort), open_session(ort)
    binding = first.io_binding()
    for name, array in FEED.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    with pytest.raises(ValueError, match="session"):
        second.run_with_iobinding(binding)
    first.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + B)


@BOTH
def test_strings_come_as_values(ort: Any) -> None:
    model = make_bytes("g (int64[2] x) => (string[2] y) { y = Cast <to = 8> (x) }")
    session = ort.InferenceSession(model, providers=[CPU])
    (value,) = session.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(np.array([3, -4]))})
    assert value.numpy().tolist() == ["3", "-4"]
    reported = (value.shape(), value.data_type(), value.element_type(), value.is_tensor(), value.device_name())
    assert reported == ([2], "tensor(string)", 8, True, "cpu")


def test_values_on_a_device_are_bound_and_fetched_by_it() -> None:
    device = ours.OrtDevice.make("simulator", 0)
    session = make_session(provider=SIMULATOR)
    value = ours.OrtValue.ortvalue_from_numpy(X, device)
    empty = ours.OrtValue.ortvalue_from_shape_and_type([3, 2], F32, device)
    assert value.device_name() == empty.device_name() == "simulator"
    made = errors.OrtValueVector()
    session.run_with_ortvaluevector(None, ["x", "b"], [value, hold(ours, B)], ["y"], made, [device])
    assert made[0].device_name() == "simulator"
    np.testing.assert_array_equal(made[0].numpy(), X + B)
    ours.copy_tensors(made, [empty])
    np.testing.assert_array_equal(empty.numpy(), X + B)
    (where,) = {info.name for info in session.get_input_memory_infos()}
    assert where == "Simulator"


def test_values_are_made_of_values_and_capsules() -> None:
    value = ours.OrtValue.ortvalue_from_numpy(X)
    for capsule in (value._ortvalue.to_dlpack(), value._get_c_value().__dlpack__(), X.__dlpack__()):
        assert not errors.is_dlpack_uint8_tensor(capsule)
        taken = errors.OrtValue.from_dlpack(capsule, False)
        assert taken.data_ptr() == X.ctypes.data and taken.shape() == [3, 2]
        with pytest.raises(RuntimeError, match="no DLPack capsule"):
            errors.OrtValue.from_dlpack(capsule, False)
    assert ours.OrtValue(value._ortvalue).data_ptr() == value.data_ptr()
    bits = np.array([1, 0, 1], np.uint8)
    assert errors.is_dlpack_uint8_tensor(bits.__dlpack__())
    assert errors.OrtValue.from_dlpack(bits.__dlpack__(), True).numpy().tolist() == [True, False, True]
    for shape in ((0,), (0, 4), (1, 8, 0, 128)):
        assert errors.OrtValue.from_dlpack(np.zeros(shape, F32).__dlpack__(), False).shape() == list(shape)


def test_values_are_replaced_by_values() -> None:
    value = ours.OrtValue.ortvalue_from_numpy(X.copy())
    value.update_inplace(ours.OrtValue.ortvalue_from_numpy(X * 2))
    np.testing.assert_array_equal(value.numpy(), X * 2)
    with pytest.raises(RuntimeError, match="1 values to copy into 0"):
        ours.copy_tensors([value], [])


def list_memory(session: Any) -> list[Any]:
    """Return what the session reports of the memory of inputs and outputs, while it lives."""
    return [
        (m.name, m.device_id, int(m.mem_type), int(m.allocator_type), int(m.device_mem_type), int(m.device_vendor_id))
        for m in (*session.get_input_memory_infos(), *session.get_output_memory_infos())
    ]


TOLD: dict[str, Callable[[Any], Any]] = {
    "types of devices": lambda ort: [
        getattr(compiled(ort).OrtDevice, name)()
        for name in ("cpu", "cuda", "gpu", "dml", "npu", "fpga", "cann", "webgpu")
    ],
    "memory": lambda ort: compiled(ort).OrtDevice.default_memory(),
    "a device": lambda ort: [
        (d.device_type(), d.device_id(), d.device_mem_type(), int(d.device_vendor_id()))
        for d in (ort.OrtDevice.make("cpu", 0), ort.OrtDevice.make("cuda", 1))
    ],
    "a compiled device": lambda ort: (lambda d: (d.device_type(), d.device_id(), d.mem_type(), int(d.vendor_id())))(
        compiled(ort).OrtDevice(0, 0, 0)
    ),
    "vendors": lambda ort: {name: int(value) for name, value in ort.OrtDeviceVendorId.__members__.items()},
    "memory of inputs and outputs": lambda ort: list_memory(open_session(ort)),
    "devices of inputs": lambda ort: len(open_session(ort).get_input_epdevices()),
    "tuning": lambda ort: (open_session(ort).get_tuning_results(), open_session(ort).set_tuning_results([])),
    "memory described": lambda ort: (
        lambda m: (m.name, m.device_id, str(m.mem_type), str(m.allocator_type), str(m.device_mem_type))
    )(ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)),
    "an arena": lambda ort: (
        lambda c: (c.max_mem, c.arena_extend_strategy, c.initial_chunk_size_bytes, c.initial_growth_chunk_size_bytes)
    )(ort.OrtArenaCfg(8, 0, 4, 2)),
    "an arena by names": lambda ort: (
        ort.OrtArenaCfg({"max_power_of_two_extend_bytes": 17}).max_power_of_two_extend_bytes
    ),
    "metadata below": lambda ort: [each.name for each in open_session(ort)._sess.inputs_meta],
    "options added": lambda ort: (
        lambda options: (options.has_providers(), options.add_provider(CPU, {}), options.has_providers())
    )(ort.SessionOptions()),
    "the last of all providers": lambda ort: ort.get_all_providers()[-1],
    "default options": lambda ort: type(compiled(ort).get_default_session_options()).__name__,
    "what was built": lambda ort: "Build Info" in ort.get_build_info(),
}


@pytest.mark.parametrize("tell", TOLD.values(), ids=TOLD)
def test_names_mean_the_same(tell: Callable[[Any], Any]) -> None:
    assert tell(ours) == tell(real)


@pytest.mark.parametrize("name", ["OrtAllocatorType", "OrtMemType", "OrtDeviceMemoryType", "OrtMemoryInfoDeviceType",
                                  "OrtSparseFormat"])  # fmt: skip
def test_enumerations_of_memory_are_the_same(name: str) -> None:
    theirs, mine = getattr(real, name).__members__, getattr(ours, name).__members__
    assert {key: int(value) for key, value in theirs.items()} == {key: int(value) for key, value in mine.items()}


def test_enumerations_of_arenas_are_the_same() -> None:
    theirs, mine = compiled(real), compiled(ours)
    assert int(theirs.kSameAsRequested) == int(mine.kSameAsRequested) == 1
    assert int(theirs.kNextPowerOfTwo) == int(mine.kNextPowerOfTwo) == 0


NORMALIZED: list[tuple[Any, Any]] = [
    (None, None),
    (["a"], None),
    (["a", "b"], None),
    ([("a", {1: 2}), "b"], None),
    (["a", "b"], [{1: 2}, {}]),
    (["a", "b", "a"], [{"x": 1}, {}, {"y": 2}]),
    (3, None),
    ([3], None),
    (["a"], 3),
    (["a"], ["no"]),
    (["a", "b"], [{1: 2}]),
    ([("a", {1: 2})], [{3: 4}]),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("names", "options"), NORMALIZED, ids=str)
def test_providers_are_normalized_alike(names: Any, options: Any) -> None:
    made = []
    for ort in (real, ours):
        collection = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_inference_collection")
        try:
            made.append(collection.check_and_normalize_provider_args(names, options, ["a", "b", "c"]))
        except ValueError:
            made.append(None)
    assert made[0] == made[1]


def test_provider_of_no_name_is_refused_and_the_session_goes_on() -> None:
    with pytest.raises(RuntimeError, match="InvalidProvider"), pytest.warns(UserWarning, match="InvalidProvider"):
        open_session(real).set_providers(["InvalidProvider"])
    session = open_session(ours)
    for given in (["InvalidProvider"], [("InvalidProvider", {})], [CPU, "InvalidProvider"], "InvalidProvider"):
        with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
            session.set_providers(given)
        np.testing.assert_array_equal(session.run(["y"], FEED)[0], X + B)
    assert session.get_providers() == [CPU]


def test_providers_that_are_not_here_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.compat.onnxruntime.notices._said", set())
    session = open_session(ours)
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider is not used"):
        session.set_providers(["TensorrtExecutionProvider", SIMULATOR])
    assert session.get_providers()[0] == SIMULATOR
    assert set(real.get_all_providers()) <= {*providers.BACKENDS, *providers._OTHERS}


def test_providers_of_options_are_taken_where_there_are_no_others() -> None:
    options = ours.SessionOptions()
    options.add_provider(SIMULATOR, {"device_id": "0"})
    assert ours.InferenceSession(make_bytes(), options).get_providers()[0] == SIMULATOR
    assert ours.InferenceSession(make_bytes(), options, [CPU]).get_providers() == [CPU]


@BOTH
def test_nodes_are_reported_with_their_provider(ort: Any) -> None:
    options = ort.SessionOptions()
    with pytest.raises(compiled(ort).Fail, match=r"session\.record_ep_graph_assignment_info"):
        ort.InferenceSession(make_bytes(), options, providers=[CPU]).get_provider_graph_assignment_info()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    found = ort.InferenceSession(make_bytes(), options, providers=[CPU]).get_provider_graph_assignment_info()
    assert [(each.ep_name, [(n.domain, n.op_type) for n in each.get_nodes()]) for each in found] == [
        (CPU, [("", "Add")]),
        (CPU, [("", "Neg")]),
    ]


def test_log_lines_go_to_a_callback(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[Any, ...]] = []
    logger = logging.getLogger("gpuexec")
    level, handlers = logger.level, list(logger.handlers)
    try:
        ours.set_default_logger_callback(lambda *line: said.append(line), severity=0)
        np.testing.assert_array_equal(open_session(ours).run(["y"], FEED)[0], X + B)
        assert said and all([type(part) for part in line] == [int, str, str, str, str] for line in said)
        assert said[0][0] == 0 and "session" in said[0][4]
        ours.set_default_logger_callback(said.append, severity=0)  # type: ignore[arg-type]
        open_session(ours)
        assert "TypeError" in capsys.readouterr().err
        ours.set_default_logger_callback(None)
        count = len(said)
        open_session(ours)
        assert len(said) == count
        for callback, severity in ((print, 5), (print, -1), ("print", 2)):
            with pytest.raises(RuntimeError):
                ours.set_default_logger_callback(callback, severity=severity)  # type: ignore[arg-type]
    finally:
        ours.set_default_logger_callback(None)
        ours.set_default_logger_severity(2)
        logger.setLevel(level)
    assert logger.handlers == handlers


@pytest.mark.filterwarnings("ignore:.*is ignored:UserWarning")
def test_allocators_are_taken_and_not_used() -> None:
    info = ours.OrtMemoryInfo("Cpu", ours.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ours.OrtMemType.DEFAULT)
    ours.create_and_register_allocator(info, None)
    ours.create_and_register_allocator_v2(CPU, info, {}, ours.OrtArenaCfg(0, -1, -1, -1))
    for sizes in ((1, 2), ({"q": 1},)):
        with pytest.raises(RuntimeError, match=r"arena|Expected"):
            ours.OrtArenaCfg(*sizes)


ABSENT: dict[str, Callable[[], Any]] = {
    "SparseTensor": lambda: ours.SparseTensor.sparse_coo_from_numpy([1], X, X, None),
    "LoraAdapter": lambda: ours.LoraAdapter(),
    "AdapterFormat": lambda: ours.AdapterFormat.read_adapter("a"),
    "ModelCompiler": lambda: ours.ModelCompiler("a", "b"),
    "get_ep_devices": lambda: ours.get_ep_devices(),
    "Sparse tensors": lambda: hold(ours, X).as_sparse_tensor(),
    "plug-in": lambda: ours.SessionOptions().add_provider_for_devices([], {}),
    "policy": lambda: ours.SessionOptions().set_provider_selection_policy(3),
}


@pytest.mark.parametrize("name", ABSENT)
def test_name_that_stands_for_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(errors.NotImplemented, match=name):
        ABSENT[name]()


def test_name_that_nobody_has_is_no_attribute() -> None:
    for module in (ours, *(getattr(capi, name) for name in ("_pybind_state", "onnxruntime_inference_collection"))):
        assert not hasattr(module, "nothing_such")
    assert isinstance(ours.SparseTensor, type) and not isinstance(X, ours.SparseTensor)
    assert ours.SparseTensor is errors.SparseTensor
    with pytest.raises(GpuexecError, match="type 3 with memory 0"):
        ours.OrtDevice(ours.OrtDevice.npu(), 0, 0)


@BOTH
def test_backends_refuse_options_that_write_files(ort: Any) -> None:
    backend = importlib.import_module(f"{ort.__name__}.backend")
    for name, value in (("optimized_model_filepath", "x.onnx"), ("enable_profiling", True)):
        with pytest.raises(RuntimeError, match=name):
            backend.prepare(make_bytes(), "CPU", **{name: value})
    prepared = backend.prepare(make_bytes(), "CPU", unknown=3)
    with pytest.raises(RuntimeError, match="terminate"):
        prepared.run([X, B], terminate=True)
    np.testing.assert_array_equal(prepared.run([X, B], unknown=3)[0], X + B)

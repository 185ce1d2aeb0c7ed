"""Execution providers, process-wide functions, and replacement of ``import onnxruntime``."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi, errors, providers, runner
from tests.devices.opening import why_no_gpu
from tests.interfaces.compat.onnxruntime.sessions import CPU, SIMULATOR, make_bytes, make_session

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.compat.onnxruntime.notices._said", set())


def test_first_provider_that_works_is_taken_and_others_are_named_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            session = make_session(provider="TensorrtExecutionProvider")
            assert session.get_providers() == [CPU]
            chosen = providers.choose_provider(["DmlExecutionProvider", (SIMULATOR, {"device_id": 0}), CPU])
            assert chosen.name == SIMULATOR
    assert len(said) == 2
    assert "TensorrtExecutionProvider is not used: there is no provider" in str(said[0].message)


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_gpu_that_is_not_there_is_named_with_the_reason() -> None:
    assert ort.get_available_providers() == [CPU, SIMULATOR] and ort.get_device() == "CPU"
    with pytest.warns(UserWarning, match=r"CUDAExecutionProvider is not used: .*driver"):
        assert providers.choose_provider(["CUDAExecutionProvider", CPU]).name == CPU
    assert providers.choose_provider(None).name == CPU


@pytest.mark.gpu
def test_gpu_is_taken_where_it_works() -> None:
    assert ort.get_available_providers()[0] == "CUDAExecutionProvider" and ort.get_device() == "GPU"
    assert providers.choose_provider(None).backend.type is gx.BackendType.GPU_COMPUTE


def test_options_of_providers_act_or_are_named() -> None:
    options = {"device_id": "1", "gpu_mem_limit": 1 << 20, "cudnn_conv_algo_search": "DEFAULT"}
    with pytest.warns(UserWarning, match="'cudnn_conv_algo_search'") as said:
        chosen = providers.choose_provider([SIMULATOR], [options])
    assert len(said) == 1
    assert (chosen.backend.device.ordinal, chosen.max_bytes, chosen.stream) == (1, 1 << 20, None)
    assert chosen.options == {key: str(value) for key, value in options.items()}


def test_provider_given_twice_counts_once() -> None:
    with pytest.warns(UserWarning, match="given twice"):
        assert providers.choose_provider([(SIMULATOR, {"device_id": 1}), SIMULATOR]).backend.device.ordinal == 1


def test_limit_of_memory_holds() -> None:
    text = "g (float[n, n] x) => (float[n, n] y) { a = MatMul (x, x) y = MatMul (a, a) }"
    session = ort.InferenceSession(make_bytes(text), providers=[(SIMULATOR, {"gpu_mem_limit": 100_000})])
    assert session.run(None, {"x": np.ones((8, 8), np.float32)})[0].shape == (8, 8)
    with pytest.raises(errors.RuntimeException) as caught:
        session.run(None, {"x": np.ones((256, 256), np.float32)})
    assert isinstance(caught.value.__cause__, gx.OutOfMemoryError)
    assert session.run(None, {"x": np.ones((8, 8), np.float32)})


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        ([CPU], [{}, {}], "2 provider_options for 1"),
        ([(CPU, {})], [{"a": 1}], "stand in providers and in"),
        ([3], None, "a name or"),
        ([SIMULATOR], [{"device_id": "x"}], "whole number"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: Any, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        providers.choose_provider(given, options)


def test_device_that_is_not_there_is_an_error_where_its_provider_works() -> None:
    with pytest.raises(errors.EPFail, match="There is no simulator 7"):
        providers.choose_provider([(SIMULATOR, {"device_id": 7}), CPU])


def test_errors_are_errors_of_both_and_cross_processes() -> None:
    for kind in (errors.InvalidArgument, errors.NoSuchFile, errors.NotImplemented, errors.Fail, errors.BindingError):
        error = errors.make_error(kind, "why", gx.InputError("x", node="n", value="v"))
        assert isinstance(error, gx.GpuexecError) and (error.node, error.value) == ("n", "v")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == str(error) and again.node == "n"


def test_process_reports_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert ort.__version__ == ort.get_version_string() and "gpuexec" in ort.get_build_info()
    ort.print_debug_info()
    assert "CPUExecutionProvider: works here" in capsys.readouterr().out
    ort.disable_telemetry_events()
    assert not ort.has_collective_ops()
    with pytest.warns(UserWarning, match="set_global_thread_pool_sizes"):
        ort.set_global_thread_pool_sizes(1, 1)


def test_severity_decides_whether_there_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.compat.onnxruntime.notices._default_severity", 2)
    with pytest.raises(RuntimeError, match="0 to 4, got 9"):
        ort.set_default_logger_severity(9)
    try:
        ort.set_default_logger_severity(4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ort.set_global_thread_pool_sizes(1, 1)
    finally:
        ort.set_default_logger_severity(2)
    with pytest.warns(UserWarning, match="set_global_thread_pool_sizes"):
        ort.set_global_thread_pool_sizes(1, 1)


def test_pool_lends_no_more_than_it_may_and_the_last_first() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(SimpleNamespace(closed=0, is_closed=False))
        made[-1].close = lambda worker=made[-1]: setattr(worker, "closed", worker.closed + 1)
        return made[-1]

    lender = runner.WorkerPool(make, 2)
    with lender.lending() as first, lender.lending() as second:
        assert first is not second
        got = threading.Event()

        def borrow() -> None:
            with lender.lending():
                got.set()

        third = threading.Thread(target=borrow)
        third.start()
    assert got.wait(30)
    third.join()
    assert len(made) == 2
    with lender.lending() as one, lender.lending() as other:
        pass
    # The one was given back after the other.
    with lender.lending() as again:
        assert again is one and again is not other
    with lender.lending() as again:
        lender.close()
        assert [worker.closed for worker in made if worker is not again] == [1] and not again.closed
    assert again.closed == 1


def run_python(code: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_code_that_imports_the_other_gets_this() -> None:
    code = """
        import sys
        import gpuexec.compat.onnxruntime
        gpuexec.compat.onnxruntime.stand_in()
        gpuexec.compat.onnxruntime.stand_in()
        import onnxruntime as ort
        from onnxruntime import InferenceSession, SessionOptions
        from onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile
        from onnxruntime.capi import _pybind_state as C
        import onnxruntime.backend as backend
        assert backend is ort.backend
        from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
        assert ort is gpuexec.compat.onnxruntime and OrtValue is ort.OrtValue and C.NoSuchFile is NoSuchFile
        try:
            InferenceSession("nowhere.onnx", providers=["CPUExecutionProvider"])
        except ort.capi.onnxruntime_pybind11_state.NoSuchFile as error:
            print(type(error).__name__, "nowhere.onnx" in str(error))
    """
    assert run_python(code) == "NoSuchFile True"


def test_names_that_tests_of_the_other_import_are_there() -> None:
    code = """
        import gpuexec.compat.onnxruntime as ours
        ours.stand_in()
        import onnxruntime.backend.backend
        from onnxruntime.backend.backend import OnnxRuntimeBackend
        from onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep
        from onnxruntime.capi._pybind_state import OrtDevice, OrtValue, OrtValueVector, SessionIOBinding
        from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RunOptions
        from onnxruntime import OrtArenaCfg, OrtMemoryInfo, OrtMemType, SparseTensor, get_ep_devices
        assert OrtValue is ours.OrtValue and OrtDevice is ours.OrtDevice and SessionIOBinding is ours.SessionIOBinding
        assert OnnxRuntimeBackend.prepare is onnxruntime.backend.prepare
        print(OrtDevice.dml(), OrtDevice.default_memory())
    """
    assert run_python(code) == "4 0"


@pytest.mark.parametrize("name", ["quantization", "tools", "transformers", "datasets"])
def test_packages_of_the_installed_one_are_reached(name: str) -> None:
    code = f"""
        import os, sys
        import gpuexec.compat.onnxruntime as ours
        ours.stand_in()
        import onnxruntime
        from onnxruntime import {name}
        import onnxruntime.{name} as again
        assert onnxruntime is ours and again is {name} is onnxruntime.{name}
        assert not any("pybind11_state.cpython" in str(getattr(m, "__file__", "")) for m in sys.modules.values())
        print(os.path.basename(os.path.dirname(os.path.dirname({name}.__file__))), "gpuexec" in {name}.__file__)
    """
    assert run_python(code) == "onnxruntime False"


def test_packages_of_one_that_is_not_installed_are_refused_by_name() -> None:
    code = """
        import sys
        import gpuexec.compat.onnxruntime as ours
        ours.stand_in()
        sys.path[:] = [path for path in sys.path if "site-packages" not in path]
        for name in ("quantization", "tools", "transformers"):
            try:
                __import__(f"onnxruntime.{name}")
            except ImportError as error:
                print(f"onnxruntime.{name}" in str(error) and "pip install onnxruntime" in str(error), error.name)
        try:
            from onnxruntime import quantization
        except ImportError as error:
            print(error.name)
        try:
            import onnxruntime.training
        except ModuleNotFoundError as error:
            print(error.name)
    """
    reported = run_python(code).splitlines()
    assert reported == [*(f"True onnxruntime.{name}" for name in ("quantization", "tools", "transformers")),
                    "onnxruntime.quantization", "onnxruntime.training"]  # fmt: skip


def test_standing_in_too_late_is_refused() -> None:
    code = """
        import onnxruntime
        import gpuexec.compat.onnxruntime as ort
        try:
            ort.stand_in()
        except ort.capi.onnxruntime_pybind11_state.Fail as error:
            print("imported already" in str(error))
    """
    assert run_python(code) == "True"


def test_look_alike_does_not_need_the_other() -> None:
    code = """
        import sys
        import gpuexec.compat.onnxruntime
        print(any(name.split(".")[0] == "onnxruntime" for name in sys.modules))
    """
    assert run_python(code) == "False"


def test_capi_has_what_code_imports_from_it() -> None:
    assert issubclass(capi.onnxruntime_pybind11_state.InvalidArgument, gx.InputError)
    assert capi._pybind_state.SessionOptions is ort.SessionOptions
    assert capi.onnxruntime_inference_collection.InferenceSession is ort.InferenceSession

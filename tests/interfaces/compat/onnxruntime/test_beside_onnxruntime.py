"""Comparison of the look-alike with the installed ONNX Runtime, call by call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import onnxruntime.backend as real_backend
import pytest

import gpuexec.compat.onnxruntime as ours
from tests.interfaces.compat.onnxruntime.sessions import (
    CPU,
    F32,
    FEED,
    NONZERO,
    TWO_OUTPUTS,
    WITH_DEFAULT,
    B,
    X,
    make_bytes,
)

Session = Any
Try = Callable[[Any], Any]
SCALARS = (
    "g (float x, int64[n] i, bool[?] f, float16[a, 2] h, double d) => (float y, int64[n] j, bool[?] e, float16[a, 2] k,"
    " double c) { y = Neg (x) j = Neg (i) e = Not (f) k = Neg (h) c = Neg (d) }"
)
SCALAR_FEED = {
    "x": np.array(2, F32),
    "i": np.arange(3),
    "f": np.array([True, False]),
    "h": np.ones((1, 2), np.float16),
    "d": np.array(0.5),
}

FEEDS = {TWO_OUTPUTS: FEED, SCALARS: SCALAR_FEED, WITH_DEFAULT: {"x": X}}


def open_both(text: str) -> tuple[Session, Session]:
    options = real.SessionOptions()
    options.log_severity_level = 4
    model = make_bytes(text)
    return real.InferenceSession(model, options, providers=[CPU]), ours.InferenceSession(model, providers=[CPU])


ANSWERS: dict[str, tuple[str, Try]] = {
    "all outputs for None": (TWO_OUTPUTS, lambda s: s.run(None, FEED)),
    "all outputs for an empty list": (TWO_OUTPUTS, lambda s: s.run([], FEED)),
    "one output": (TWO_OUTPUTS, lambda s: s.run(["z"], FEED)),
    "a tuple of names, one twice": (TWO_OUTPUTS, lambda s: s.run(("z", "y", "z"), FEED)),
    "lists": (TWO_OUTPUTS, lambda s: s.run(None, {"x": [[1.0, 2.0]], "b": [1.0, 2.0]})),
    "lists of whole numbers for floats": (TWO_OUTPUTS, lambda s: s.run(None, {"x": [[1, 2]], "b": [1, 2]})),
    "an array that is not dense": (TWO_OUTPUTS, lambda s: s.run(None, {"x": np.ones((2, 4), F32).T, "b": B})),
    "an empty batch": (TWO_OUTPUTS, lambda s: s.run(None, {"x": np.ones((0, 2), F32), "b": B})),
    "arguments by name": (TWO_OUTPUTS, lambda s: s.run(output_names=["y"], input_feed=FEED, run_options=None)),
    "scalars and other types": (SCALARS, lambda s: s.run(None, SCALAR_FEED)),
    "lists for other types": (SCALARS, lambda s: s.run(["j", "e"], {**SCALAR_FEED, "i": [1, 2], "f": [False]})),
    "shapes that depend on data": (NONZERO, lambda s: s.run(None, {"x": np.array([0, 1, 1], F32)})),
    "an initializer left as it is": (WITH_DEFAULT, lambda s: s.run(None, {"x": X})),
    "an initializer given anew": (WITH_DEFAULT, lambda s: s.run(None, {"x": X, "b": B})),
}


@pytest.mark.parametrize(("text", "call"), ANSWERS.values(), ids=ANSWERS)
def test_answers_are_the_same(text: str, call: Try) -> None:
    theirs, mine = (call(session) for session in open_both(text))
    assert type(theirs) is type(mine) and len(theirs) == len(mine)
    for left, right in zip(theirs, mine, strict=True):
        assert type(left) is type(right) and left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


# What goes wrong there, by the name of the error, and a part of the message that says why in ours.
REFUSALS: dict[str, tuple[str, Try, str]] = {
    "an input is missing": (TWO_OUTPUTS, lambda s: s.run(None, {"x": X}), r"\['b'\] are missing"),
    "an input has another name": (TWO_OUTPUTS, lambda s: s.run(None, {"x": X, "c": B}), r"\['b'\] are missing"),
    "an input too many": (TWO_OUTPUTS, lambda s: s.run(None, {**FEED, "c": B}), "no input 'c'"),
    "another float": (TWO_OUTPUTS, lambda s: s.run(None, {"x": X.astype(np.float64), "b": B}), "float32, got float64"),
    "integers": (TWO_OUTPUTS, lambda s: s.run(None, {"x": X.astype(np.int64), "b": B}), "float32, got int64"),
    "strings": (TWO_OUTPUTS, lambda s: s.run(None, {"x": np.array([["a", "b"]]), "b": B}), "expects float32"),
    "another rank": (TWO_OUTPUTS, lambda s: s.run(None, {"x": X[0], "b": B}), "1 axes, not 2"),
    "another extent": (TWO_OUTPUTS, lambda s: s.run(None, {"x": np.ones((3, 4), F32), "b": B}), "axis 1 must be 2"),
    "an output that is not there": (TWO_OUTPUTS, lambda s: s.run(["q"], FEED), "no output 'q'"),
    "an output without a name": (TWO_OUTPUTS, lambda s: s.run([""], FEED), "no output ''"),
    "names that are no list": (TWO_OUTPUTS, lambda s: s.run("z", FEED), "list of names"),
    "options that are none": (TWO_OUTPUTS, lambda s: s.run(None, FEED, 3), "Expected RunOptions"),
    "smaller integers": (SCALARS, lambda s: s.run(None, {**SCALAR_FEED, "i": np.arange(3, dtype=np.int32)}), "int64"),
    "an initializer of another shape": (WITH_DEFAULT, lambda s: s.run(None, {"x": X, "b": X}), "float32"),
    "terminated": (TWO_OUTPUTS, lambda s: s.run(None, FEED, terminated_for(s)), "terminate"),
    "bound: no output": (TWO_OUTPUTS, lambda s: s.run_with_iobinding(bind(s)), "at least one"),
    "bound: no input": (TWO_OUTPUTS, lambda s: s.run_with_iobinding(bind(s, "y", inputs=False)), "missing"),
    "bound: another type": (TWO_OUTPUTS, lambda s: s.run_with_iobinding(bind(s, "y", X.astype(int))), "float32"),
    "bound: an unknown input": (TWO_OUTPUTS, lambda s: s.io_binding().bind_cpu_input("q", X), "no input 'q'"),
}


def terminated_for(session: Session) -> Any:
    options = ours.RunOptions() if isinstance(session, ours.InferenceSession) else real.RunOptions()
    options.log_severity_level = 4
    options.terminate = True
    return options


def bind(session: Session, output: str = "", x: Any = X, *, inputs: bool = True) -> Any:
    binding = session.io_binding()
    if inputs:
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("b", B)
    if output:
        binding.bind_output(output)
    return binding


@pytest.mark.parametrize(("text", "call", "why"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_are_of_the_same_kind(text: str, call: Try, why: str) -> None:
    theirs, mine = open_both(text)
    with pytest.raises(Exception) as expected:  # noqa: PT011  (which one is what is asked)
        call(theirs)
    with pytest.raises(Exception, match=why) as caught:
        call(mine)
    assert is_like(caught.value, type(expected.value))
    # It goes on as if nothing had been.
    assert mine.run(None, FEEDS[text])


def is_like(error: Exception, kind: type) -> bool:
    """Return whether an except clause for the other's class, found where code finds it, would catch ours."""
    if kind.__module__ == "builtins":
        return isinstance(error, kind)
    return isinstance(error, getattr(ours.capi.onnxruntime_pybind11_state, kind.__name__))


BAD_MODELS = {
    "no such file": lambda ort, path: ort.InferenceSession(path / "none.onnx", providers=[CPU]),
    "no protobuf": lambda ort, path: ort.InferenceSession(b"garbage", providers=[CPU]),
    "a file that is none": lambda ort, path: ort.InferenceSession(str(path / "bad.onnx"), providers=[CPU]),
    "no source": lambda ort, path: ort.InferenceSession(3, providers=[CPU]),
    "no options": lambda ort, path: ort.InferenceSession(make_bytes(), 3),
}


@pytest.mark.parametrize("load", BAD_MODELS.values(), ids=BAD_MODELS)
def test_bad_models_are_refused_alike(load: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    with pytest.raises(Exception) as expected:  # noqa: PT011
        load(real, tmp_path)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        load(ours, tmp_path)
    assert is_like(caught.value, type(expected.value))


@pytest.mark.parametrize("text", [TWO_OUTPUTS, SCALARS, WITH_DEFAULT, NONZERO])
def test_inputs_and_outputs_are_reported_alike(text: str) -> None:
    reported = [
        [
            [(arg.name, arg.type, arg.shape) for arg in args]
            for args in (session.get_inputs(), session.get_outputs(), session.get_overridable_initializers())
        ]
        for session in open_both(text)
    ]
    assert reported[0] == reported[1]


HEADS = {
    "all": ', producer_name: "maker", producer_version: "2", domain: "a.b", model_version: 7, doc_string: "doubles"'
    ', metadata_props: ["author": "someone"]',
    "nothing": "",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_metadata_is_reported_alike(head: str) -> None:
    model = make_bytes(head=head)
    theirs, mine = (ort.InferenceSession(model, providers=[CPU]).get_modelmeta() for ort in (real, ours))
    names = [name for name in dir(theirs) if not name.startswith("_")]
    assert len(names) == 7
    assert {name: getattr(theirs, name) for name in names} == {name: getattr(mine, name) for name in names}


PREPARED: dict[str, Try] = {
    "a list": lambda backend: backend.prepare(make_bytes(), "CPU").run([X, B]),
    "a session": lambda backend: backend.prepare(backend.prepare(make_bytes())._session).run([X, B]),
    "prepared before": lambda backend: backend.prepare(backend.prepare(make_bytes())).run([X, B]),
    "a model of onnx": lambda backend: backend.prepare(onnx.load_from_string(make_bytes())).run([X, B]),
    "one array": lambda backend: backend.prepare(make_bytes(NONZERO), "CPU").run(X[0]),
    "options": lambda backend: backend.prepare(make_bytes(), log_severity_level=4).run([X, B], log_severity_level=4),
    "at once": lambda backend: backend.run(make_bytes(), [X, B], "CPU"),
    "devices": lambda backend: [np.array([backend.supports_device(name) for name in ("CPU", "TPU")])],
}


@pytest.mark.parametrize("call", PREPARED.values(), ids=PREPARED)
def test_backends_answer_alike(call: Try) -> None:
    theirs, mine = call(real_backend), call(ours.backend)
    assert type(theirs) is type(mine)
    for left, right in zip(theirs, mine, strict=True):
        np.testing.assert_array_equal(left, right)


REFUSED_BY_BACKENDS: dict[str, Try] = {
    "a device": lambda backend: backend.prepare(make_bytes(), "TPU"),
    "too few inputs": lambda backend: backend.prepare(make_bytes()).run(X),
}


@pytest.mark.parametrize("call", REFUSED_BY_BACKENDS.values(), ids=REFUSED_BY_BACKENDS)
def test_backends_refuse_alike(call: Try) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        call(real_backend)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(ours.backend)
    assert is_like(caught.value, type(expected.value))


OPTIONS = [name for name in dir(real.SessionOptions()) if not name.startswith("_")]


def test_options_begin_alike() -> None:
    for theirs, mine in ((real.SessionOptions(), ours.SessionOptions()), (real.RunOptions(), ours.RunOptions())):
        values = {n: v for n in dir(theirs) if not n.startswith("_") and not callable(v := getattr(theirs, n))}
        for name, value in values.items():
            got = getattr(mine, name)
            assert (str(value), type(value).__name__) == (str(got), type(got).__name__), name


def test_enumerations_are_the_same() -> None:
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        theirs, mine = getattr(real, name).__members__, getattr(ours, name).__members__
        assert {key: int(value) for key, value in theirs.items()} == {key: int(value) for key, value in mine.items()}
        assert [str(value) for value in theirs.values()] == [str(value) for value in mine.values()]


def test_values_are_reported_alike() -> None:
    asked = ("shape", "data_type", "element_type", "device_name", "tensor_size_in_bytes", "is_tensor", "has_value")
    for array in (X, np.arange(3), np.array(2, np.float16), np.array([[True]]), np.zeros((0, 3))):
        theirs, mine = (ort.OrtValue.ortvalue_from_numpy(array) for ort in (real, ours))
        assert [getattr(theirs, name)() for name in asked] == [getattr(mine, name)() for name in asked]
        assert theirs.data_ptr() == mine.data_ptr() == array.ctypes.data or not array.size
        np.testing.assert_array_equal(theirs.numpy(), mine.numpy())


def test_free_dimensions_are_fixed_alike() -> None:
    for ort in (real, ours):
        options = ort.SessionOptions()
        options.add_free_dimension_override_by_name("n", 3)
        options.add_free_dimension_override_by_name("unknown", 4)
        session = ort.InferenceSession(make_bytes(), options, providers=[CPU])
        assert [arg.shape for arg in session.get_inputs()] == [[3, 2], [2]]
        assert session.run(["y"], FEED)[0].shape == (3, 2)
        refusal = ort.capi.onnxruntime_pybind11_state.InvalidArgument
        with pytest.raises(refusal):
            session.run(None, {"x": X[:2], "b": B})

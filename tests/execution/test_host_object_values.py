"""Host objects as inputs and outputs: accepted forms, reading, and ownership."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.compat import sentis
from gpuexec.ir.operator import Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.model.objects import BACKENDS, INPUTS, MIXED, ONE, TWO, WORDS, are_equal, parse, run_on


@operator("Careless", "test")
@dataclass(frozen=True, slots=True)
class Careless(Operator):
    """Strings that come out as NumPy's own."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(x.shape, x.dtype),)

    def compute(self, x: np.ndarray[Any, Any], out: Any = None) -> tuple[np.ndarray[Any, Any], ...]:
        return (x.astype("U"),)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_set_and_are_copied(backend: gx.BackendType) -> None:
    words, rows = WORDS.copy(), [ONE.copy()]
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.schedule({"s": rows, "x": TWO, "w": words})
        words[0], rows[0][:] = "changed", 9
        worker.wait_for_completion()
        found = worker.run({"x": TWO})
    assert are_equal(found[0], [ONE * 2, TWO * 2])
    assert found[2].tolist() == [*WORDS, "more"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_read_back_is_the_callers_own(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        first = [tensor.readback_and_clone() for tensor in run.outputs.values()]
        first[0][0][:], first[2][0] = 7, "changed"
        again = [tensor.readback_and_clone() for tensor in run.outputs.values()]
    assert are_equal(again[0], [ONE * 2, np.array([0, 4, 6], np.float32)])
    assert again[2][0] == "a"


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_last_beyond_later_runs_and_the_worker(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        requests = [t.readback_request() for t in worker.schedule(INPUTS).outputs.values()]
        for value in range(4):
            worker.run({**INPUTS, "x": np.full(3, value, np.float32), "w": [str(value)]})
    assert are_equal(requests[0].result(), [ONE * 2, np.array([0, 4, 6], np.float32)])
    assert are_equal(requests[2].result(), np.append(WORDS, "more"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_put_into_a_sequence_is_not_written_by_later_runs(backend: gx.BackendType) -> None:
    model = gx.load(parse("(float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x, x) }"))
    with gx.Worker(model, backend=backend, frames=1) as worker:
        request = worker.schedule({"x": ONE}).peek_output().readback_request()
        worker.run({"x": ONE * 5})
        assert are_equal(request.result(), [ONE, ONE])


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ways_to_read_agree(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        words, sequence = run.outputs["v"], run.outputs["t"]
        wanted = np.append(WORDS, "more")
        awaited = asyncio.run(words.readback_and_clone_async())
        assert all(are_equal(each, wanted) for each in (awaited, np.asarray(words), words[:], worker.read_output("v")))
        assert are_equal(words.readback_request().view(), wanted)
        assert are_equal(words.readback_and_clone(np.empty(4, object)), wanted)
        assert (words.shape, words.dtype, len(words), str(words.spec)) == ((4,), np.dtype(object), 4, "string[4]")
        assert are_equal(asyncio.run(sequence.readback_and_clone_async()), worker.read_output("t"))
        assert str(sequence.spec) == "sequence"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_makes_no_sense_for_host_objects_is_refused(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        run.wait()
        words, sequence = run.outputs["v"], run.outputs["t"]
        with pytest.raises(BufferError, match=r"string\[4\], which DLPack does not know"):
            np.from_dlpack(words)
        assert not hasattr(words, "__cuda_array_interface__")
        for act in (
            lambda: sentis.Tensor(words).data_on_backend.max_capacity,
            lambda: worker.copy_output("v"),
            lambda: worker.copy_output("t"),
        ):
            with pytest.raises(gx.InputError, match="has no bytes on a device"):
                act()
        with pytest.raises(gx.InputError, match="nothing to upload to"):
            words.upload(WORDS)
        with pytest.raises(gx.InputError, match=r"'t' is no array but a sequence: call readback_and_clone\(\)"):
            np.asarray(sequence)
        with pytest.raises(gx.ImplicitSyncError, match="SequenceInsert"):
            worker.record(INPUTS)
        assert are_equal(worker.run()[3], np.array([0, 2, 3], np.float32))  # it goes on


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("s", np.ones(2, np.float32), "Input 's': expected a list of values, got a ndarray"),
        ("s", "text", "Input 's': expected a list of values, got a str"),
        ("s", [np.ones(2, np.int32)], r"element 0: expected float32\[...\], got int32\[2\]"),
        ("w", np.ones(2), "Input 'w': expected strings, got float64"),
        ("w", [b"\xff"], "not text in UTF-8"),
        ("w", ["a", 3, None], "expected strings, got an element of type int"),
        ("w", [["a"]], r"expects string\[k\], got string\[1,1\]"),
        ("x", np.array(["a"]), "expects float32, got str"),
        ("x", None, r"Input 'x': expected float32\[n\], got a NoneType"),
        ("x", {"a": 1}, r"Input 'x': expected float32\[n\], got a dict"),
        ("x", [1.0, None], r"Input 'x': expected float32\[n\], got Python objects"),
        ("s", [{1: 2}], r"element 0: expected float32\[...\], got a dict"),
    ],
)
def test_inputs_of_another_kind_are_refused_and_the_worker_goes_on(
    backend: gx.BackendType, name: str, given: Any, message: str
) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=message):
            worker.run({**INPUTS, name: given})
        assert worker.run(INPUTS)[2].tolist() == [*WORDS, "more"]


@pytest.mark.parametrize("words", [["a", "ü"], np.array(["a", "ü"]), [b"a", "ü".encode()], ("a", "ü")])
def test_strings_come_in_any_form(words: Any) -> None:
    model = parse("(string[k] w) => (string[k] v) { v = Identity (w) }")
    for backend in BACKENDS:
        assert run_on(backend, model, {"w": words})[0].tolist() == ["a", "ü"]


@pytest.mark.parametrize("producer", BACKENDS)
@pytest.mark.parametrize("consumer", BACKENDS)
def test_a_pending_tensor_of_host_objects_is_an_input_elsewhere(
    producer: gx.BackendType, consumer: gx.BackendType
) -> None:
    model = gx.load(MIXED)
    with gx.Worker(model, backend=producer) as first, gx.Worker(model, backend=consumer) as second:
        made = first.schedule(INPUTS)
        found = second.run({"s": made.outputs["t"], "x": ONE, "w": made.outputs["v"]})
        again = second.run({"x": ONE})
    assert are_equal(found[0], [ONE * 4, np.array([0, 8, 12], np.float32), ONE * 2])
    assert found[2].tolist() == [*WORDS, "more", "more"]
    assert are_equal(again, found)


def test_a_tensor_of_another_kind_is_refused_as_an_input() -> None:
    model = gx.load(MIXED)
    with gx.Worker(model, backend=gx.BackendType.CPU) as first, gx.Worker(model, backend=gx.BackendType.CPU) as second:
        made = first.schedule(INPUTS)
        with pytest.raises(gx.InputError, match=r"Input 'w' expects string\[k\], got sequence"):
            second.schedule({"s": made.outputs["t"], "x": ONE, "w": made.outputs["t"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_computed_of_another_type_than_inferred_is_refused(backend: gx.BackendType) -> None:
    model = parse("(string[n] x) => (string[n] y) { y = test.Careless(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("test", 1))
    refusal = pytest.raises(gx.PlanError, match=r"test.Careless 'Careless_0'.*expected string\[1\].*got <U1\[1\]")
    with gx.Worker(gx.load(model), backend=backend) as worker, refusal:
        worker.run(np.array(["a"], object))

"""Inputs: their forms, checks before any work, and how long they are borrowed."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.errors import ErrorCode
from tests.model.control_models import ControlModel
from tests.model.small_models import (
    CPU,
    Array,
    affine,
    expect_affine,
    hold_worker,
    make_model,
    make_tracer,
    ramp,
    trace,
    two_inputs,
    two_layers,
)


@pytest.fixture
def pair(backend: Backend) -> Iterator[gx.Worker]:
    with gx.Worker(two_inputs(), backend=backend) as worker:
        yield worker


def read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    raw[...] = array.reshape(-1).view(np.uint8)
    return raw.view(array.dtype).reshape(array.shape)


LAYOUTS = {
    "dense": lambda x: x.copy(),
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "negative strides": lambda x: x[::-1].copy()[::-1],
    "Fortran order": np.asfortranarray,
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": unaligned,
    "nested list": lambda x: {"x": [[[[np.float32(v) for v in row] for row in c] for c in n] for n in x]},
}


@pytest.mark.feature("S39")
@pytest.mark.parametrize("copy", [True, False], ids=["copied", "borrowed"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_is_accepted(layout: object, copy: bool, backend: Backend) -> None:
    given = layout(ramp(2, 3, 4, 5))  # type: ignore[operator]
    x = np.asarray(given["x"] if isinstance(given, dict) else given, np.float32)
    with gx.Worker(affine(("n", 3, "h", "w")), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(given, copy=copy)[0], expect_affine(x))


@pytest.mark.feature("S22")
@pytest.mark.parametrize(
    "form", [list, tuple, lambda xs: {"right": xs[1], "left": xs[0]}], ids=["list", "tuple", "dict"]
)
def test_several_inputs_come_in_order_or_by_name(pair: gx.Worker, form: object) -> None:
    left, right = ramp(2, 3), ramp(2, 3) ** 2
    _, difference = pair.run(form([left, right]))  # type: ignore[operator]
    np.testing.assert_array_equal(difference, left - right)


@pytest.mark.feature("S39")
def test_python_and_numpy_scalars_are_inputs(backend: Backend) -> None:
    with gx.Worker(affine(()), backend=backend) as worker:
        for x in (3, 1.5, np.float32(-2), np.array(4, np.float32)):
            y = worker.schedule(x).peek_output()
            assert y.shape == () and y.size == 1
            assert y.readback_and_clone().item() == expect_affine(np.float32(x))


def test_python_scalar_that_would_be_rounded_is_refused() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    with gx.Worker(make_model(nodes, {"x": ()}, {"y": ()}, TensorProto.INT32), backend=CPU) as worker:
        assert worker.run(4)[0] == 8
        for wrong in (1.5, True, 1 << 40):
            with pytest.raises(gx.InputError, match="'x'"):
                worker.run(wrong)


@pytest.mark.feature("B26", "S20")
def test_missing_input_is_named(pair: gx.Worker) -> None:
    with pytest.raises(gx.InputError, match=r"'right' \(float32\[n,3\]\) is missing") as caught:
        pair.schedule({"left": ramp(2, 3)})
    assert caught.value.value == "right" and caught.value.code == ErrorCode.INVALID_ARGUMENT
    with pytest.raises(gx.InputError, match=r"'left'.*'right'"):
        pair.schedule()
    assert pair.report().runs == 0


@pytest.mark.feature("B26", "S20")
def test_misspelt_input_is_named(pair: gx.Worker) -> None:
    with pytest.raises(gx.InputError, match=r"no input 'lefft'; it has left, right"):
        pair.schedule({"lefft": ramp(2, 3), "right": ramp(2, 3)})
    assert pair.report().runs == 0


def test_too_many_inputs_are_refused(pair: gx.Worker) -> None:
    with pytest.raises(gx.InputError, match="has 2 inputs, got 3"):
        pair.schedule([ramp(2, 3)] * 3)


@pytest.mark.feature("S20", "S39")
@pytest.mark.parametrize(
    ("dtype", "reported"),
    [
        (np.float64, "float64"),
        (np.float16, "float16"),
        (np.int32, "int32"),
        (np.dtype(">f4"), ">f4"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (object, "string"),
    ],
)
def test_wrong_dtype_is_refused_with_the_cast_to_write(worker: gx.Worker, dtype: object, reported: str) -> None:
    with pytest.raises(gx.InputError, match=rf"'x' expects float32, got {reported}.*cast it: x\.astype\('float32'\)"):
        worker.schedule(ramp(2, 3).astype(dtype))  # type: ignore[arg-type]
    assert worker.report().runs == 0
    np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("S20")
@pytest.mark.parametrize(
    ("shape", "reported"),
    [((2,), "1 axes, not 2"), ((2, 4), "axis 1 must be 3"), ((1, 2, 3), "3 axes, not 2")],
)
def test_wrong_shape_is_refused(worker: gx.Worker, shape: tuple[int, ...], reported: str) -> None:
    with pytest.raises(gx.InputError, match=rf"'x' expects float32\[n,3\], got float32\[.*{reported}"):
        worker.schedule(ramp(*shape))
    assert worker.report().runs == 0
    np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("S7")
def test_dimension_of_two_inputs_takes_several_sizes_in_one_worker(pair: gx.Worker) -> None:
    for rows in (2, 5, 1):
        total, _ = pair.run([ramp(rows, 3), ramp(rows, 3)])
        np.testing.assert_array_equal(total, 2 * ramp(rows, 3))
    with pytest.raises(gx.InputError, match=r"'right'.*'n' is 4, but 2 in input 'left'"):
        pair.schedule([ramp(2, 3), ramp(4, 3)])


@pytest.mark.feature("S7")
def test_dimension_that_differs_between_inputs_is_refused(pair: gx.Worker) -> None:
    with pytest.raises(gx.InputError, match=r"'right'.*'n' is 3, but 2 in input 'left'"):
        pair.schedule([ramp(2, 3), ramp(3, 3)])


def test_what_is_no_array_is_refused(worker: gx.Worker) -> None:
    class Broken:
        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            raise RuntimeError("has no data")

    with pytest.raises(gx.InputError, match="'x': a Broken can't be read as an array: has no data"):
        worker.schedule(Broken())
    with pytest.raises(gx.InputError, match="'x'"):
        worker.schedule("a word")


@pytest.mark.feature("S21", "T9")
def test_refusals_do_not_depend_on_assertions() -> None:
    program = (
        "from tests.execution.runs.test_inputs import *; test_refusal_touches_neither_device_nor_worker(); assert False"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-O", "-c", program], cwd=root, check=True)


@pytest.mark.feature("B26", "S20")
def test_refusal_touches_neither_device_nor_worker() -> None:
    backend = make_tracer()
    with gx.Worker(two_inputs(), backend=backend) as worker:
        rows = len(trace(backend))
        for wrong in ({"left": ramp(2, 3)}, [ramp(2, 3), ramp(3, 3)], [ramp(2, 4)] * 2, [ramp(2, 3).astype(int)] * 2):
            with pytest.raises(gx.InputError):
                worker.schedule(wrong)
        assert len(trace(backend)) == rows and worker.report().runs == 0
        assert worker.run([ramp(2, 3)] * 2)[0].shape == (2, 3)


@pytest.mark.feature("E43")
def test_host_array_is_copied_before_schedule_returns(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    x = ramp(2, 3)
    with worker:
        run = worker.schedule(x)
        x[...] = 99
        gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(ramp(2, 3)))


@pytest.mark.feature("E43")
def test_borrowed_host_array_is_read_when_the_run_is() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    with worker:
        run = worker.schedule(x, copy=False)
        x[...] = 99
        gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(x))


def test_borrowed_host_array_is_never_written(worker: gx.Worker) -> None:
    x = read_only(ramp(2, 3))
    worker.run(x, copy=False)
    np.testing.assert_array_equal(x, ramp(2, 3))


def test_borrowed_arrays_go_to_a_device_without_staging() -> None:
    backend = make_tracer()
    with gx.Worker(two_inputs(), backend=backend) as worker:
        worker.schedule([ramp(2, 3), ramp(2, 3)])
        together = trace(backend).count("copy_to_device")
        worker.schedule([ramp(2, 3), ramp(2, 3)], copy=False)
        assert (together, trace(backend).count("copy_to_device")) == (1, 3)


@pytest.mark.feature("B24")
def test_inputs_stay_set_for_later_runs(pair: gx.Worker) -> None:
    left, right = ramp(2, 3), ramp(2, 3) + 5
    pair.run([left, right])
    left[...] = 0  # the Worker has its own copy
    total, _ = pair.run({"right": right + 1})
    np.testing.assert_array_equal(total, ramp(2, 3) + right + 1)
    for _ in range(5):
        total, _ = pair.run()
        np.testing.assert_array_equal(total, ramp(2, 3) + right + 1)
    assert left.flags.owndata and (left == 0).all()


@pytest.mark.feature("S7")
def test_kept_input_of_another_size_is_refused_by_name(pair: gx.Worker) -> None:
    pair.run([ramp(2, 3), ramp(2, 3)])
    with pytest.raises(gx.InputError, match=r"'right'.*'n' is 2, but 4 in input 'left'"):
        pair.run({"left": ramp(4, 3)})
    assert pair.run()[0].shape == (2, 3)


def test_refused_inputs_do_not_replace_kept_ones(pair: gx.Worker) -> None:
    pair.run([ramp(2, 3), ramp(2, 3)])
    with pytest.raises(gx.InputError):
        pair.run({"left": ramp(2, 3) + 1, "right": ramp(3, 3)})
    np.testing.assert_array_equal(pair.run()[1], np.zeros((2, 3)))


def test_kept_tensor_of_a_later_run_is_stale() -> None:
    with gx.Worker(affine(), backend=CPU) as producer, gx.Worker(affine(), backend=CPU) as consumer:
        consumer.run(producer.schedule(ramp(2, 3)).peek_output())
        consumer.run()
        producer.schedule(ramp(2, 3))
        with pytest.raises(gx.StaleError, match="Input 'x'"):
            consumer.run()


def test_empty_batch_runs(worker: gx.Worker) -> None:
    answer = worker.run(np.zeros((0, 3), np.float32))[0]
    assert isinstance(answer, np.ndarray) and answer.shape == (0, 3)


def test_sizes_change_from_run_to_run_over_few_plans(worker: gx.Worker) -> None:
    for rows in (2, 5, 3, 200, 7, 2, 1, 0, 130):
        x = ramp(rows, 3)
        np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
    assert worker.report().plans < worker.report().variants


@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
@pytest.mark.parametrize("copy", [True, False])
def test_content_that_planning_reads_may_be_written_between_runs(backend: gx.BackendType, copy: bool) -> None:
    """Pads of another content and the same shape of the output, in the same array."""
    pads = np.array([1, 0])
    model = ControlModel("(float[2] x, int64[2] pads) => (float[n] y) { y = Pad (x, pads) }", (), 21)
    with gx.Worker(gx.load(model.parse().SerializeToString()), backend=backend) as worker:
        for given in ((1, 0), (0, 1), (1, 0)):
            pads[:] = given
            run = worker.schedule({"x": ramp(2), "pads": pads}, copy=copy)
            np.testing.assert_array_equal(run.peek_output().readback_and_clone(), np.pad(ramp(2), given))


def test_what_was_run_once_is_held_no_longer() -> None:
    """Neither inputs, by the plans that were made for them, nor outgrown arenas by the recordings over them."""
    held = []
    with gx.Worker(two_layers(), backend=CPU, frames=1) as worker:
        for rows in (256, 512, 768):
            x = ramp(rows, 3)
            worker.run(x)
            memory = worker._engine.arena._memory
            assert memory is not None and memory.array is not None
            held += [weakref.ref(x), weakref.ref(memory.array.base)]
        del x, memory
        worker.trim()
        assert [each() is not None for each in held] == [False] * 5 + [True]


def test_an_initializer_that_is_an_input_too_has_no_effect_where_nothing_reads_it() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (float[2] x, float[2] w, float[2] idle) => (float[2] y) <float[2] w = {1, 2}, float[2] idle = {1, 2}>
        { y = Add(x, w) }"""
    x = np.ones(2, np.float32)
    with gx.Worker(parser.parse_model(text), backend=CPU) as worker:
        (y,) = worker.run({"x": x, "idle": x})
        np.testing.assert_array_equal(y, [2, 3])
        with pytest.raises(gx.InputError, match=r"no input 'w'; it has x\. That is a weight: Worker\.replace_weights"):
            worker.run({"x": x, "w": x})

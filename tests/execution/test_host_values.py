"""Host values, four ways: a constant, given by NumPy, given on a device, computed on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.host_value_cases import CASES, Array, HostCase, ints, put_on_device, scalar
from tests.model.small_models import CPU, ramp

SIMULATOR = gx.BackendType.SIMULATOR
BY_ID = {case.id: case for case in CASES}
# How the host gets what it needs -> how the model is made, and whether those inputs lie on a device.
WAYS = {
    "constant": ("constant", False),
    "array": ("given", False),
    "tensor": ("given", True),
    "light, of an array": ("light", False),
    "light, of a tensor": ("light", True),
    "heavy": ("heavy", False),
}


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(CPU if request.param == "cpu" else SIMULATOR)


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The code for GPUs over a simulator of its own."""
    from gpuexec.devices.cuda.cuda import CudaDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.opening import make_simulator

    below = make_simulator()
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    device = CudaDevice()
    yield Backend(device, gx.BackendType.GPU_COMPUTE, "for a test")
    device.close()
    below.close()


@pytest.mark.feature("S61", "S68")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_content_reaches_the_host(case: HostCase, way: str, backend: Backend) -> None:
    check_case(case, way, backend)


@pytest.mark.parametrize("way", ["array", "tensor", "heavy"])
@pytest.mark.parametrize("name", ["Reshape", "Slice of axes and steps", "Pad of axes", "ReduceSum", "TopK"])
def test_content_reaches_the_host_of_a_gpu(name: str, way: str, standin: Backend) -> None:
    check_case(BY_ID[name], way, standin)


def check_case(case: HostCase, way: str, backend: Backend) -> None:
    """Run all inputs of a case, the first ones twice: right results, and no byte read that need not be."""
    form, is_far = WAYS[way]
    numbers = [0] if way == "constant" else [*range(len(case.inputs)), 0]
    expected_reads: dict[str, tuple[int, int]] = {}
    with gx.Worker(case.load(form), backend=backend) as worker:
        for number in numbers:
            given: dict[str, Any] = dict(case.feed(form, number))
            source = "a" if form in ("given", "heavy") else "s"
            for position in case.needed if is_far or way == "heavy" else ():
                array = case.inputs[number][position]
                assert array is not None
                add_read(expected_reads, f"{source}{position}", array.nbytes)
            for position in case.needed if is_far else ():
                given[f"{source}{position}"] = put_on_device(given[f"{source}{position}"], backend)
            for name in case.read if expected_reads else ():
                add_read(expected_reads, name, 8)
            outputs = worker.schedule(given).outputs.values()
            for tensor, expected in zip(outputs, case.expect(number), strict=True):
                made = tensor.readback_and_clone()
                assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
                if case.exact:
                    np.testing.assert_array_equal(made, expected)
                else:
                    np.testing.assert_allclose(made, expected, rtol=1e-5)
        report = worker.report()
    assert {row.value: (row.nbytes, row.times) for row in report.host_reads} == expected_reads
    assert {row.node for row in report.host_reads} <= {"subject", "y0.cut"}
    assert (report.host_calls, report.host_syncs) == ((), ())


def add_read(reads: dict[str, tuple[int, int]], name: str, nbytes: int) -> None:
    before = reads.get(name, (0, 0))
    reads[name] = before[0] + nbytes, before[1] + 1


class Foreign:
    """An array of another package on the device: DLPack and no more."""

    def __init__(self, tensor: gx.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> object:
        return self._tensor.__dlpack__(**options)


def test_content_of_an_array_of_another_package_is_read_from_its_device() -> None:
    case = BY_ID["Reshape"]
    with gx.Worker(case.load("given"), backend=SIMULATOR) as worker:
        shape = Foreign(put_on_device(ints(4, 6), SIMULATOR))
        answer = worker.run({"a0": case.inputs[0][0], "a1": shape})[0]
        reads = worker.report().host_reads
    np.testing.assert_array_equal(answer, case.expect(0)[0])
    assert [(row.value, row.nbytes, row.times) for row in reads] == [("a1", 16, 1)]


def test_where_content_lies_may_change_from_run_to_run(backend: Backend) -> None:
    case = BY_ID["Slice"]
    with gx.Worker(case.load("given"), backend=backend) as worker:
        for turn in range(6):
            feed: dict[str, Any] = dict(case.feed("given", turn % 2))
            if turn in (1, 2, 4):
                feed["a1"] = put_on_device(feed["a1"], backend)
            if turn in (2, 5):
                feed["a2"] = put_on_device(feed["a2"], backend)
            np.testing.assert_array_equal(worker.run(feed)[0], case.expect(turn % 2)[0])
        times = {row.value: row.times for row in worker.report().host_reads}
    assert times == {"a1": 3, "a2": 2}


def late_reshape() -> gx.Model:
    """y = the positions of what is not 0 in x, reshaped to size - 1: the shape is wanted when x is long computed."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"], name="find"),
        helper.make_node("Sub", ["size", "one"], ["shape"], name="count"),
        helper.make_node("Reshape", ["found", "shape"], ["y"], name="reshape"),
    ]
    graph = helper.make_graph(
        nodes,
        "late",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
            helper.make_tensor_value_info("size", TensorProto.INT64, ["rank"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        [helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )
    opsets = [helper.make_opsetid("", 21)]
    return gx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


# NonZero of so large an input is nothing the host would do by itself.
LARGE = (np.arange(40000) % 1000 == 7).astype(np.float32).reshape(200, 200)


def test_content_of_an_array_is_not_read_for_a_node_that_comes_late(backend: Backend) -> None:
    with gx.Worker(late_reshape(), backend=backend) as worker:
        for shape in (ints(-1), ints(40, 2), ints(2, 2, -1)):
            answer = worker.run({"x": LARGE, "size": shape + 1})[0]
            np.testing.assert_array_equal(answer, np.array(np.nonzero(LARGE)).reshape(shape))
        assert [row.value for row in worker.report().host_reads] == ["find.count"]


def test_content_of_a_tensor_is_read_once_for_a_node_that_comes_late(backend: Backend) -> None:
    with gx.Worker(late_reshape(), backend=backend) as worker:
        answer = worker.run({"x": LARGE, "size": put_on_device(ints(41, 3), backend)})[0]
        np.testing.assert_array_equal(answer, np.array(np.nonzero(LARGE)).reshape(40, 2))
        rows = [(row.nbytes, row.times) for row in worker.report().host_reads if row.value != "find.count"]
    assert rows == [(16, 1)]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Trilu", (ramp(3, 4), scalar(1)), {"upper": 0}, np.tril(ramp(3, 4), 1)),
        ("Clip", (ramp(3, 4), scalar(0, np.float32), scalar(5, np.float32)), {}, np.clip(ramp(3, 4), 0, 5)),
        (
            "Pad",
            (ramp(2, 2), ints(0, 0, 0, 1), scalar(9, np.float32)),
            {},
            np.pad(ramp(2, 2), ((0, 0), (0, 1)), constant_values=9),
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_content_that_no_shape_depends_on_stays_on_the_device(
    op: str, inputs: tuple[Array, ...], attributes: dict[str, Any], expected: Array, backend: Backend
) -> None:
    case = HostCase(op, op, (), (inputs,), attributes)
    feed: dict[str, Any] = dict(case.feed("given", 0))
    for name in list(feed)[1:]:
        if not (op == "Pad" and name == "a1"):
            feed[name] = put_on_device(feed[name], backend)
    with gx.Worker(case.load("given"), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(feed)[0], expected)
        assert worker.report().host_reads == ()

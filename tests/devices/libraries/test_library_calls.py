"""Libraries called by runs, on streams and as child nodes of graphs, over stand-ins: see `library_standins`."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.ir.command import LibraryCall
from gpuexec.planner.providers import Providers
from tests.devices.libraries.models import expect_product, make_model, product, ramp

LT, DNN = Providers(("cublaslt",), forced="cublaslt"), Providers(("cudnn",), forced="cudnn")


def open_worker(model: gx.Model, gpu: SimpleNamespace, providers: Providers, **options: Any) -> gx.Worker:
    """Return a Worker whose plans take a library wherever it can."""
    worker = gx.Worker(model, backend=gpu.backend, providers=providers.names, **options)
    worker._engine.planning.providers = providers
    return worker


def run(model: gx.Model, gpu: SimpleNamespace, providers: Providers, x: np.ndarray) -> np.ndarray:
    with open_worker(model, gpu, providers) as worker:
        (y,) = worker.run(x)
        (plan,) = worker.plans
        assert [type(command) for command in plan.segment.commands] == [LibraryCall]
        return y  # type: ignore[no-any-return]


def test_product_with_bias_and_activation_is_one_call(gpu: SimpleNamespace) -> None:
    x = ramp(5, 6)
    np.testing.assert_array_equal(run(product(), gpu, LT, x), expect_product(x))
    (call,) = gpu.lt.products
    assert gpu.lt.Epilogue(call["EPILOGUE"]).name == "RELU_BIAS" and call["compute"].name == "COMPUTE_32F"
    (preference,) = gpu.lt.preferences
    assert preference["MAX_WORKSPACE_BYTES"] == 4 << 20 and preference["REDUCTION_SCHEME_MASK"] == 6
    assert {value for name, value in preference.items() if "ALIGNMENT" in name} == {16}


@pytest.mark.parametrize(
    ("attributes", "a", "b", "c"),
    [
        ({}, (5, 6), (6, 7), None),
        ({"transA": 1}, (6, 5), (6, 7), None),
        ({"transB": 1}, (5, 6), (7, 6), (7,)),
        ({"transA": 1, "transB": 1}, (6, 5), (7, 6), (5, 7)),
        ({"alpha": 2.0, "beta": 3.0}, (5, 6), (6, 7), (5, 7)),
        ({"alpha": 2.0}, (1, 6), (6, 7), (1, 7)),
        ({}, (5, 1), (1, 7), (7,)),
        ({"transB": 1}, (5, 6), (1, 6), (1,)),
    ],
)
def test_product_of_any_lie_of_its_operands(
    gpu: SimpleNamespace, attributes: dict[str, Any], a: Any, b: Any, c: Any
) -> None:
    weights = {"b": ramp(*b)} | ({} if c is None else {"c": ramp(*c)})
    model = make_model([helper.make_node("Gemm", ["x", *weights], ["y"], **attributes)], a, weights)
    x = ramp(*a)
    left, right = (x.T if attributes.get("transA") else x), (ramp(*b).T if attributes.get("transB") else ramp(*b))
    expected = attributes.get("alpha", 1.0) * (left @ right)
    expected = expected if c is None else expected + attributes.get("beta", 1.0) * ramp(*c)
    np.testing.assert_array_equal(run(model, gpu, LT, x), expected)


@pytest.mark.parametrize("shapes", [((3, 5, 6), (3, 6, 7)), ((2, 3, 5, 6), (6, 7)), ((3, 5, 6), (1, 6, 7))])
def test_batches_of_products(gpu: SimpleNamespace, shapes: Any) -> None:
    x, w = (ramp(*shape) for shape in shapes)
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], x.shape, {"w": w})
    np.testing.assert_array_equal(run(model, gpu, LT, x), x @ w)


def test_product_of_halves_adds_floats(gpu: SimpleNamespace) -> None:
    x = ramp(5, 6, dtype="float16")
    np.testing.assert_array_equal(run(product(dtype="float16"), gpu, LT, x), expect_product(x))
    assert gpu.lt.products[0]["compute"].name == "COMPUTE_32F"


def test_tf32_is_asked_for_by_that_precision_alone(gpu: SimpleNamespace) -> None:
    with open_worker(product(), gpu, LT, precision="tf32") as worker:
        problems = [offer.problem for _, offer in (worker.prepare((5, 6)), worker._engine.planning.offers)[1]]
    assert "as tf32" in problems[0]


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_bias_and_activation_is_one_call(gpu: SimpleNamespace, groups: int) -> None:
    x, w, b = ramp(2, 4, 7, 6), ramp(6, 4 // groups, 3, 2), ramp(6)
    options: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": groups}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], **options), helper.make_node("Relu", ["c"], ["y"])]
    model = make_model(nodes, x.shape, {"w": w, "b": b})
    with gx.Worker(model, backend="cpu") as reference:
        (expected,) = reference.run(x)
    np.testing.assert_array_equal(run(model, gpu, DNN, x), expected)
    (graph,) = gpu.cudnn.graphs
    notes = {note.name for note in graph.notes}
    assert {"NONDETERMINISTIC", "TENSOR_CORE", "WINOGRAD"} <= notes and graph.workspace_limit == 32 << 20


def test_calls_are_child_nodes_of_a_graph_and_captured_anew_where_they_are_bound_elsewhere(
    gpu: SimpleNamespace,
) -> None:
    """The input and the output are in another frame with each run, what lies between in the arena."""
    count = 24
    names = ["x", *(f"v{number}" for number in range(1, count)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    model = make_model(nodes, (3, 4), {"w": np.eye(4, dtype=np.float32)[::-1].copy()})
    with open_worker(model, gpu, LT) as worker:
        for number in range(7):
            x = ramp(3, 4) + number
            np.testing.assert_array_equal(worker.run(x)[0], x)
        assert worker.report().graphs == 1
        assert gpu.cuda.graphs.captures == count + 2 * 3  # made for the fourth run


def test_prepared_graph_of_a_call_runs_and_is_updated(gpu: SimpleNamespace) -> None:
    from gpuexec.devices.device import Region
    from gpuexec.devices.recording import record_graph

    with open_worker(product(), gpu, LT) as worker:
        worker.prepare((5, 6))
        (plan,) = worker.plans
        device, stream = gpu.device, gpu.device.create_stream()
        arrays = {"w": ramp(6, 7), "b": ramp(7)}
        regions, bound = {}, {}
        for buffer in plan.buffers:
            memory = device.allocate(buffer.nbytes)
            (bound if buffer.role.value in ("input", "output") else regions)[buffer.id] = Region(
                memory, 0, buffer.nbytes
            )
            if buffer.name in arrays:
                stream.copy_to_device(memory.address, arrays[buffer.name].reshape(-1).view(np.uint8))
        recording = record_graph(device, plan.segment, regions)
        (x_id,) = (port.buffer for port in plan.inputs)
        (y_id,) = (port.buffer for port in plan.outputs)
        for number in range(3):
            x = ramp(5, 6) + number
            moved = device.allocate(x.nbytes)
            stream.copy_to_device(moved.address, x.reshape(-1).view(np.uint8))
            recording.submit(stream, {**bound, x_id: Region(moved, 0, x.nbytes)})
            pinned = device.allocate_pinned(4 * 35)
            stream.copy_to_host(pinned.array, bound[y_id].memory.address)
            stream.synchronize()
            np.testing.assert_array_equal(pinned.array[:140].view(np.float32).reshape(5, 7), expect_product(x))
        assert recording.has_graph and gpu.cuda.graphs.captures == 3
        recording.close()


def test_sizes_of_a_class_are_calls_of_their_own(gpu: SimpleNamespace) -> None:
    with open_worker(product(rows="n"), gpu, LT) as worker:
        for rows in (16, 9, 16, 12, 9):
            x = ramp(rows, 6)
            np.testing.assert_array_equal(worker.run(x)[0], expect_product(x))
        assert worker.report().providers[0][1] == "cublaslt"


def test_library_that_fails_names_itself_and_the_problem(gpu: SimpleNamespace) -> None:
    gpu.lt.status = 15
    with (
        open_worker(product(), gpu, LT) as worker,
        pytest.raises(gx.DeviceError, match=r"cublaslt failed for a product"),
    ):
        worker.run(ramp(5, 6))
    gpu.lt.status = 0


@pytest.mark.parametrize("name", ["cublaslt", "cudnn"])
def test_problem_without_an_algorithm_is_refused_with_the_cure(gpu: SimpleNamespace, name: str) -> None:
    gpu.lt.algorithms, gpu.cudnn.refuses = 0, True
    x = ramp(5, 6) if name == "cublaslt" else ramp(1, 2, 3, 3)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    model = product() if name == "cublaslt" else make_model(nodes, x.shape, {"w": ramp(2, 2, 3, 3)})
    providers = Providers((name,), forced=name)
    with open_worker(model, gpu, providers) as worker, pytest.raises(gx.UnsupportedError, match=r"Leave it out of"):
        worker.run(x)

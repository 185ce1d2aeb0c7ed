"""Ray over gpuexec, with a real Ray on this machine whose four GPUs are made up: `make test-ray`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import runpy
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: make test-ray.")
from ray import serve  # noqa: E402

import gpuexec as gx  # noqa: E402
from gpuexec.compat.ray import ModelServer, Predictor, deploy  # noqa: E402

pytestmark = pytest.mark.ray
Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "examples" / "models" / "digits.onnx"
EXAMPLES = ROOT / "examples"
GPUS, PORT, PATIENCE_S = 4, 8123, 60.0


def load_digits(count: int) -> tuple[Array, Array]:
    with np.load(ROOT / "examples" / "data" / "digits.npz") as data:
        return data["images"][-count:, None].astype(np.float32), data["labels"][-count:]


def read_digits(images: Array) -> Array:
    with gx.Worker(DIGITS, backend="cpu") as worker:
        logits: Array = worker.run(images)["logits"]
        return logits


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    there = {"env_vars": {"PYTHONPATH": os.pathsep.join((str(ROOT), str(EXAMPLES)))}}  # for the actors
    ray.init(
        num_gpus=GPUS, num_cpus=2 * GPUS, include_dashboard=False, object_store_memory=128 << 20, runtime_env=there
    )
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order, context.enable_progress_bars = True, False
    yield
    ray.shutdown()
    sys.path.remove(str(EXAMPLES))


class MarkingPredictor(Predictor):
    """Leaves a file named after the GPU that it sees, begins once there is one of each, and is killed once."""

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__(model)
        self.folder = folder
        self.gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        (folder / f"gpu-{self.gpu}").touch()

    def __call__(self, batch: Any) -> dict[str, Array]:
        end = time.monotonic() + PATIENCE_S
        while len([*self.folder.glob("gpu-*")]) < GPUS and time.monotonic() < end:
            time.sleep(0.01)
        if 50 in batch["id"] and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os._exit(1)
        answer = super().__call__(batch)
        return {**answer, "gpu": np.full(len(batch["id"]), int(self.gpu))}


def make_dataset(images: Array) -> Any:
    """Return a dataset of rows in 16 blocks."""

    def load(batch: dict[str, Array]) -> dict[str, Array]:
        return {"id": batch["id"], "image": images[batch["id"]]}

    return ray.data.range(len(images), override_num_blocks=16).map_batches(load)


@pytest.mark.usefixtures("cluster")
def test_actors_see_a_gpu_each_and_every_row_comes_back_in_order_though_one_is_killed(tmp_path: Path) -> None:
    images, _ = load_digits(96)
    model = ray.put(gx.load(DIGITS))
    rows = (
        make_dataset(images)
        .map_batches(
            MarkingPredictor,
            fn_constructor_args=[tmp_path, model],
            batch_size=6,
            num_gpus=1,
            compute=ray.data.ActorPoolStrategy(size=GPUS),
        )
        .take_all()
    )
    assert {path.name for path in tmp_path.glob("gpu-*")} == {f"gpu-{number}" for number in range(GPUS)}
    assert (tmp_path / "died").exists()
    assert [row["id"] for row in rows] == [*range(96)]
    assert {row["gpu"] for row in rows} <= {*range(GPUS)} and "image" not in rows[0]
    np.testing.assert_allclose([row["logits"] for row in rows], read_digits(images), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("cluster")
def test_row_that_does_not_fit_fails_alone_by_name() -> None:
    images, _ = load_digits(8)
    items = [{"id": number, "pixels": image} for number, image in enumerate(images)]
    items[5]["pixels"] = images[5][:, :7]
    rows = (
        ray.data.from_items(items, override_num_blocks=2)
        .map_batches(
            Predictor,
            fn_constructor_args=[DIGITS],
            fn_constructor_kwargs={"columns": {"image": "pixels"}, "error_column": "error"},
            batch_format="pyarrow",
            batch_size=4,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        .take_all()
    )
    wrong = "Input 'image' expects float32[batch,1,8,8], got float32[1,1,7,8]: axis 2 must be 8."
    assert [row["error"] for row in rows] == ["", "", "", "", "", wrong, "", ""]
    right = [number for number in range(8) if number != 5]
    found = np.stack([rows[number]["logits"] for number in right])
    np.testing.assert_allclose(found, read_digits(images[right]), rtol=1e-4, atol=1e-4)
    assert np.isnan(rows[5]["logits"]).all() and rows[5]["logits"].shape == (10,)


@pytest.mark.parametrize("form", ["numpy", "arrow", "pandas"])
def test_batches_come_as_arrays_tables_and_frames(form: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    columns = {"x": np.arange(5, dtype=np.float32), "name": np.array(list("abcde"))}
    batch: Any = columns
    if form == "arrow":
        batch = pytest.importorskip("pyarrow").table(columns)
    elif form == "pandas":
        batch = pytest.importorskip("pandas").DataFrame(columns)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    predictor = Predictor(model, max_batch=2)
    found = predictor(batch)
    assert found["name"].tolist() == list("abcde") and found["y"].tolist() == [0, 2, 4, 6, 8]
    predictor.close()


@pytest.mark.usefixtures("cluster")
def test_error_of_a_row_survives_the_way_with_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = load_digits(4)
    items = [{"image": image} for image in images]
    items[2]["image"] = images[2][:, :7]
    # Ray Data puts errors into one of its own else, which has the text alone.
    monkeypatch.setattr(ray.data.DataContext.get_current(), "raise_original_map_exception", True)
    dataset = ray.data.from_items(items, override_num_blocks=1).map_batches(
        Predictor, fn_constructor_args=[DIGITS], compute=ray.data.ActorPoolStrategy(size=1)
    )
    with pytest.raises(
        gx.InputError, match=r"Row 2 of the batch: Input 'image' expects float32\[batch,1,8,8\]"
    ) as caught:
        dataset.take_all()
    assert caught.value.cause.value == "image"  # type: ignore[attr-defined]


def test_batches_of_any_size_are_read_where_they_lie() -> None:
    images, labels = load_digits(23)
    images.setflags(write=False)
    predictor = Predictor(DIGITS, max_batch=4)
    for count in (0, 1, 4, 23):
        found = predictor({"image": images[:count], "label": labels[:count]})
        assert [*found] == ["label", "logits", "probabilities"] and found["logits"].shape == (count, 10)
        np.testing.assert_allclose(found["logits"], read_digits(images[:count]), rtol=1e-4, atol=1e-4)
    predictor.close()


def test_batch_whose_rows_are_all_wrong_has_blanks() -> None:
    predictor = Predictor(DIGITS, error_column="why")
    found = predictor({"image": np.zeros((2, 1, 8, 7), np.float32)})
    assert found["logits"].shape == (2, 10) and np.isnan(found["logits"]).all()
    assert all("axis 3 must be 8" in why for why in found["why"])
    predictor.close()


def test_columns_that_are_missing_or_of_no_input_are_named() -> None:
    predictor = Predictor(DIGITS, columns={"image": "pixels"}, error_column="why")
    with pytest.raises(gx.InputError, match="Input 'image' expects the column 'pixels', and the batch has image, id"):
        predictor({"image": np.zeros((1, 1, 8, 8), np.float32), "id": np.arange(1)})
    predictor.close()
    with pytest.raises(gx.InputError, match="no input 'picture'; it has image"):
        Predictor(DIGITS, columns={"picture": "pixels"})


def test_lost_worker_is_an_error_of_the_batch_and_not_of_its_rows() -> None:
    predictor = Predictor(DIGITS, error_column="why")
    predictor._worker.close()
    with pytest.raises(gx.ClosedError):
        predictor({"image": np.zeros((1, 1, 8, 8), np.float32)})
    predictor.close()


def post(path: str, body: object) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def serving(cluster: None) -> Iterator[None]:
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield
    serve.shutdown()


@pytest.mark.usefixtures("serving")
def test_clients_share_runs_and_a_wrong_request_fails_alone() -> None:
    images, _ = load_digits(64)
    handle = serve.run(deploy(DIGITS, num_gpus=1, max_delay_ms=20), name="digits", route_prefix="/digits")
    bodies: list[object] = [{"image": [image.tolist()]} for image in images]
    bodies[7], bodies[30] = {"imag": [images[7].tolist()]}, [1, 2]
    with ThreadPoolExecutor(64) as clients:
        answers = [*clients.map(lambda body: post("/digits", body), bodies)]
    assert answers[7] == (422, '{"error":"The model has no input \'imag\'; it has image."}')
    assert answers[30][0] == 422 and "expects an object of inputs by name, got a list" in answers[30][1]
    right = [number for number in range(64) if number not in (7, 30)]
    found = [answers[number][1]["logits"][0] for number in right]
    np.testing.assert_allclose(found, read_digits(images[right]), rtol=1e-4, atol=1e-4)
    answer = handle.predict.remote({"image": images[:3]}).result(timeout_s=PATIENCE_S)
    np.testing.assert_allclose(answer["logits"], read_digits(images[:3]), rtol=1e-4, atol=1e-4)
    with pytest.raises(gx.InputError, match="expects float32, got float64"):
        handle.predict.remote({"image": images[:1].astype(np.float64)}).result(timeout_s=PATIENCE_S)
    assert serve.status().applications["digits"].status == "RUNNING"
    serve.delete("digits")


def make_slow(trips: int) -> bytes:
    """Return y = x + trips, by a loop."""
    one = helper.make_tensor("one", TensorProto.FLOAT, (), [1.0])
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "one"], ["b"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, ("n", 1)),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, ("n", 1)),
        ],
        [one],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
        "slow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 1))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 1))],
        [helper.make_tensor("trips", TensorProto.INT64, (), [trips])],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return data


@pytest.mark.usefixtures("serving")
def test_requests_beyond_the_queue_are_answered_503() -> None:
    trips = 5_000
    application = deploy(make_slow(trips), max_batch=1, frames=1, max_queued=1, max_delay_ms=0)
    serve.run(application, name="slow", route_prefix="/slow")
    with ThreadPoolExecutor(16) as clients:
        answers = [*clients.map(lambda number: post("/slow", {"x": [[float(number)]]}), range(16))]
    statuses = [status for status, _ in answers]
    assert {*statuses} == {200, 503}
    assert all(answer == {"y": [[number + trips]]} for number, (status, answer) in enumerate(answers) if status == 200)
    serve.delete("slow")


def test_replica_that_lost_its_worker_says_so_when_its_health_is_checked() -> None:
    server = ModelServer(DIGITS, 4, 1.0, 2, None)
    server.check_health()
    server._worker.close()
    with pytest.raises(gx.ClosedError):
        server.check_health()
    server._batcher.close()


def test_fastapi_server_answers_and_names_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    server: Any = importlib.import_module("fastapi_server")
    images, labels = load_digits(3)

    async def ask(body: object) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/digits", "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "raw_path": b"/digits"}
        scope |= {"headers": [(b"content-type", b"application/json")]}
        await server.app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))

    async def serve_all() -> list[tuple[int, Any]]:
        async with server.lifespan(server.app):
            pictures = [{"image": images[number : number + 1].tolist()} for number in range(3)]
            return await asyncio.gather(*map(ask, [*pictures, {"image": images[:, :, :5].tolist()}]))

    *right, (status, wrong) = asyncio.run(serve_all())
    assert [(each, answer["digits"]) for each, answer in right] == [(200, [label]) for label in labels]
    assert status == 422 and wrong["detail"].startswith("Input 'image' expects float32[batch,1,8,8]")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("ray_batch.py", [r"in order: True", r"read right: True"]), ("ray_serve.py", [r"served: 35\d of 360 digits"])],
)
def test_example_runs(name: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr().out
    assert all(re.search(each, said) for each in expected), said

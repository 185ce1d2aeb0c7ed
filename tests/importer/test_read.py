"""Model sources: files, bytes and external data, and errors for anything else."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from gpuexec.errors import InputError, ModelError
from gpuexec.importer import load_graph

W = np.arange(2000, dtype=np.float32)


@pytest.fixture
def model() -> onnx.ModelProto:
    text = "agraph (float[2000] x) => (float[2000] y) { y = Add (x, w) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    return model


@pytest.fixture
def external(model: onnx.ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    return path


@pytest.mark.feature("B1", "S1")
def test_every_kind_of_source_gives_the_same(model: onnx.ModelProto, tmp_path: Path) -> None:
    path, content = tmp_path / "m.onnx", model.SerializeToString()
    path.write_bytes(content)
    with path.open("rb") as file:
        for source in (
            model,
            content,
            bytearray(content),
            memoryview(content),
            io.BytesIO(content),
            file,
            path,
            str(path),
        ):
            graph = load_graph(source).graph
            assert [node.operator.name for node in graph.nodes] == ["Add"]
            assert [array.tobytes() for array in graph.constants.values()] == [W.tobytes()]


def test_model_proto_is_not_changed(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    load_graph(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.feature("S1")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got 0 bytes"),
        (b"\xff" * 100, "100 bytes that are no protobuf of one"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (numpy_helper.from_array(W, "w").SerializeToString(), "expected an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "a protobuf without graph"),
    ],
    ids=["empty", "noise", "lfs", "tensor", "no_graph"],
)
def test_file_of_another_kind_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(content)
    for source in (content, path):
        with pytest.raises(ModelError, match=message):
            load_graph(source)


@pytest.mark.feature("S1")
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.99])
def test_truncated_file_is_refused(model: onnx.ModelProto, fraction: float) -> None:
    content = model.SerializeToString()
    with pytest.raises(ModelError, match="cut short"):
        load_graph(content[: int(len(content) * fraction)])


@pytest.mark.feature("S1")
def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent.onnx: the model can't be read: No such file"):
        load_graph(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="can't be read"):
        load_graph(tmp_path)


def test_text_file_object_is_refused() -> None:
    with pytest.raises(InputError, match="binary mode"):
        load_graph(io.StringIO("text"))  # type: ignore[arg-type]


def test_external_data_is_read_beside_the_file(external: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with external.open("rb") as file:
        for source in (external, file):
            (array,) = load_graph(source).graph.constants.values()
            assert array.tobytes() == W.tobytes()
            assert not array.flags.writeable
    monkeypatch.chdir(external.parent)
    (array,) = load_graph("m.onnx").graph.constants.values()
    assert array.tobytes() == W.tobytes()


def test_external_data_without_a_place_is_refused(external: Path) -> None:
    with pytest.raises(ModelError, match=r"Initializer %w has its content in the file 'm.bin' beside the model"):
        load_graph(external.read_bytes())


def test_missing_external_data_is_refused_by_name(external: Path) -> None:
    (external.parent / "m.bin").unlink()
    with pytest.raises(ModelError, match=r"Initializer %w: its content in the file 'm.bin' can't be read"):
        load_graph(external)


def test_truncated_external_data_is_refused(external: Path) -> None:
    data = external.parent / "m.bin"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"Initializer %w: its content in the file 'm.bin' can't be read"):
        load_graph(external)


@pytest.mark.parametrize("is_absolute", [False, True])
def test_external_data_outside_the_folder_is_refused(external: Path, is_absolute: bool) -> None:
    folder = external.parent / "inner"
    folder.mkdir()
    secret = external.parent / "m.bin"
    model = onnx.load(external, load_external_data=False)
    entry = next(e for e in model.graph.initializer[0].external_data if e.key == "location")
    entry.value = str(secret) if is_absolute else "../m.bin"
    onnx.save(model, folder / "m.onnx")
    with pytest.raises(ModelError, match="can't be read"):
        load_graph(folder / "m.onnx")


def test_link_to_external_data_outside_the_folder_is_refused(external: Path) -> None:
    folder = external.parent / "inner"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(external.read_bytes())
    (folder / "m.bin").symlink_to(external.parent / "m.bin")
    with pytest.raises(ModelError, match="can't be read"):
        load_graph(folder / "m.onnx")

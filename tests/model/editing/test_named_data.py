"""Replacement weights from files: arrays by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model
from safetensors.numpy import save_file

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import ramp, two_layers

ARRAYS = {"first": ramp(3, 5), "count": np.array(7, np.int64), "half": np.ones(3, np.float16)}
ONE_ARRAY = (  # what numpy.save writes
    b"\x93NUMPY\x01\0\x46\0{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(79) + b"\n" + bytes(4)
)


def write(kind: str, folder: Path, arrays: dict[str, Any] = ARRAYS) -> Path:
    path = folder / f"weights.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "safetensors":
        save_file(arrays, path)
    else:
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        nothing = helper.make_tensor_value_info("nothing", TensorProto.FLOAT, [1])
        graph = helper.make_graph([], "weights", [nothing], [nothing], tensors)
        save_model(helper.make_model(graph), path, save_as_external_data=True, location="beside", size_threshold=0)
    return path


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu])
def test_floats_of_8_bits_are_read_from_safetensors(tmp_path: Path, dtype: Any) -> None:
    array = np.array([1, 2, 4]).astype(dtype)
    save_file({"a": array}, tmp_path / "w.safetensors")
    got = gx.NamedDataMap.load(tmp_path / "w.safetensors")["a"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got.view(np.uint8), array.view(np.uint8))


@pytest.mark.parametrize("kind", ["npz", "safetensors", "onnx"])
def test_files_are_read_by_name(kind: str, tmp_path: Path) -> None:
    data = gx.NamedDataMap.load(write(kind, tmp_path))
    assert sorted(data) == sorted(ARRAYS) and len(data) == len(ARRAYS)
    for name, array in ARRAYS.items():
        assert data.get_tensor_layout(name) == TensorSpec(array.shape, array.dtype)
        np.testing.assert_array_equal(data[name], array)
        assert not data[name].flags.writeable


def test_bfloat16_is_read_from_safetensors(tmp_path: Path) -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    save_file({"b": array}, tmp_path / "w.safetensors")
    got = gx.NamedDataMap.load(tmp_path / "w.safetensors")["b"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got.astype(np.float32), array.astype(np.float32))


def test_what_is_of_a_type_there_is_none_for_is_left_out(tmp_path: Path) -> None:
    save_file({"a": np.zeros(4, np.complex64), "b": ramp(2)}, tmp_path / "w.safetensors")
    assert list(gx.NamedDataMap.load(tmp_path / "w.safetensors")) == ["b"]


@pytest.mark.parametrize("kind", ["npz", "safetensors", "onnx"])
def test_weights_come_from_files(kind: str, tmp_path: Path, backend: Backend) -> None:
    other = np.full((3, 5), 2, np.float32)
    path = write(kind, tmp_path, {"first": other})
    x = ramp(2, 3)
    expected = np.maximum(x @ other, 0) @ ramp(5, 2)
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(x)
        worker.replace_weights(path)
        np.testing.assert_array_equal(worker.run(x)[0], expected)
    with gx.Worker(two_layers().with_weights(gx.NamedDataMap.load(path)), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(x)[0], expected)


def test_several_are_one_unless_they_share_a_key(tmp_path: Path) -> None:
    path = write("npz", tmp_path)
    both = gx.NamedDataMap.load(path, {"more": ramp(2)})
    assert (len(both), both["more"].tolist()) == (4, [-2, -1])
    with pytest.raises(gx.InputError, match=r"The key 'first' is in .*weights\.npz and in a mapping"):
        gx.NamedDataMap.merge(both, gx.NamedDataMap.load({"first": ramp(2)}))
    with pytest.raises(gx.InputError, match=r"merge takes NamedDataMaps, .* got a dict"):
        gx.NamedDataMap.merge(both, {"second": ramp(2)})  # type: ignore[arg-type]


def test_content_is_copied_into_memory_of_the_callers() -> None:
    data = gx.NamedDataMap.load(ARRAYS)
    array, raw = np.zeros((3, 5), np.float32), bytearray(60)
    data.load_data_into("first", array)
    data.load_data_into("first", raw)
    np.testing.assert_array_equal(array, ARRAYS["first"])
    assert bytes(raw) == ARRAYS["first"].tobytes()
    wrongs: tuple[Any, ...] = (
        np.zeros((5, 3), np.float32),
        bytearray(59),
        bytes(60),
        3,
        memoryview(bytearray(120))[::2],
    )
    for wrong in wrongs:
        with pytest.raises(gx.InputError, match="'first' is float32"):
            data.load_data_into("first", wrong)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("w.npz", b"no archive", gx.ModelError, "holds no weights"),
        ("w.npz", ONE_ARRAY, gx.ModelError, "holds no weights"),
        ("w.safetensors", b"\x10\0\0\0\0\0\0\0{", gx.ModelError, "holds no weights"),
        ("w.safetensors", b"", gx.ModelError, "holds no weights"),
        ("w.onnx", b"\xff", gx.ModelError, "expected an ONNX model"),
        ("w.bin", b"", gx.InputError, "expected a file .safetensors, .npz, .onnx, got .bin"),
    ],
)
def test_files_that_hold_none_are_refused(
    name: str, content: bytes, error: type[gx.GpuexecError], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        gx.NamedDataMap.load(tmp_path / name)


def test_a_long_name_in_a_broken_file_makes_no_long_message(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    header = json.dumps({"a" * 5000: entry}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(gx.ModelError, match=r"holds no weights: .*aaa \.\.\. aaa") as caught:
        gx.NamedDataMap.load(path)
    assert len(str(caught.value)) < 600


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(gx.ModelError, match="can't be read"):
        gx.NamedDataMap.load(tmp_path / "none.npz")
    data = gx.NamedDataMap.load(ARRAYS)
    with pytest.raises(gx.InputError, match="no 'second' in a mapping; there is count, first, half"):
        data.get_tensor_layout("second")
    with pytest.raises(KeyError, match="second"):
        data["second"]

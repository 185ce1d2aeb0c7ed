"""Packed forms of weights: registry, and packing of arrays in memory and in files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import AccessError, InputError, PlanError
from gpuexec.ir import weight_forms
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import ColumnsFirst, PackedForm, WeightForm, weight_form
from gpuexec.system.mapped import find_source, map_file, open_regular

Array = np.ndarray[Any, Any]


def pack(array: Array, axes: tuple[int, ...] | None = None, source: TensorSpec | None = None) -> Array:
    source = source or TensorSpec(array.shape, array.dtype)
    form = PackedForm.of(ColumnsFirst(), source, axes or tuple(range(source.rank)))
    packed = form.pack(array)
    assert (packed.shape, packed.dtype) == (form.spec.shape, form.spec.dtype)
    assert packed.flags.c_contiguous
    return packed


def ramp(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


def in_file(path: Path, array: Array) -> Array:
    path.write_bytes(array.tobytes())
    mapped = np.frombuffer(map_file(open_regular(path), "w.bin", path), array.dtype).reshape(array.shape)
    assert find_source(mapped) is not None
    return mapped


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (2, 3, 5)])
def test_columns_first_is_the_transposed_matrix(shape: tuple[int, ...], dtype: Any) -> None:
    array = ramp(*shape, dtype=dtype)
    np.testing.assert_array_equal(pack(array), array.swapaxes(-1, -2))


def test_a_transposed_view_is_packed_as_it_looks() -> None:
    array = ramp(3, 5)
    np.testing.assert_array_equal(pack(array, axes=(1, 0)), array)


def test_a_weight_is_packed_in_the_shape_and_type_that_its_reader_sees() -> None:
    array = ramp(4, 3, 2)
    expected = array.view(np.int32).reshape(4, 6).T
    np.testing.assert_array_equal(pack(array, source=TensorSpec((4, 6), np.dtype(np.int32))), expected)
    strided = np.asfortranarray(array)
    np.testing.assert_array_equal(pack(strided, source=TensorSpec((4, 6), np.dtype(np.int32))), expected)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("is_turned", [False, True])
def test_content_of_a_file_is_read_once_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: tuple[int, ...], is_turned: bool
) -> None:
    array = ramp(300, 200)
    mapped = in_file(tmp_path / "w.bin", array)
    if is_turned:
        array, mapped = array.T, mapped.T
    blocks: list[Array] = []
    read = weight_forms.read_content

    def spy(block: Array) -> Array:
        blocks.append(block)
        return read(block)

    monkeypatch.setattr(weight_forms, "_BLOCK_NBYTES", 60_000)
    monkeypatch.setattr(weight_forms, "read_content", spy)
    np.testing.assert_array_equal(pack(mapped, axes=axes), array.transpose(axes).T)
    spans = [(low, high) for low, high in map(np.lib.array_utils.byte_bounds, blocks)]
    assert len(spans) == 5 and all(high - low <= 60_000 for low, high in spans)
    assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_blocks_begin_at_multiples_of_64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []

    def note(self: ColumnsFirst, block: Array, at: tuple[int, ...], packed: Array) -> None:
        starts.append(at)

    monkeypatch.setattr(ColumnsFirst, "pack", note)
    monkeypatch.setattr(weight_forms, "_BLOCK_NBYTES", 1000)
    pack(in_file(tmp_path / "w.bin", ramp(2, 200, 8)), axes=(1, 0, 2), source=None)
    pack(in_file(tmp_path / "v.bin", ramp(1, 130, 8)))
    assert starts == [(0, 0, 0), (0, 0, 0), (0, 64, 0), (0, 128, 0)]


def test_a_file_that_changed_is_not_packed(tmp_path: Path) -> None:
    mapped = in_file(tmp_path / "w.bin", ramp(64, 64))
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(AccessError, match=r"w\.bin"):
        pack(mapped)


def test_a_form_has_fields_of_ints_alone() -> None:
    @dataclass(frozen=True, slots=True)
    class Scaled(WeightForm):
        by: float

    with pytest.raises(InputError, match="Weight form scaled: expected a frozen dataclass with fields of type int"):
        weight_form("scaled")(Scaled)


def test_a_form_that_nobody_registered_is_named() -> None:
    form = PackedForm("of_another_package", (), TensorSpec((2, 2), np.dtype(np.float32)), (0, 1))
    with pytest.raises(PlanError, match=r"'of_another_package' is not registered; known are .*columns_first"):
        _ = form.spec

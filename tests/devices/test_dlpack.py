"""DLPack capsules: read from NumPy and by NumPy, versioned and not, consumed and unconsumed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices import dlpack
from gpuexec.errors import InputError
from gpuexec.ir.spec import DTYPES, TensorSpec, dtype_row

Array = np.ndarray[Any, Any]


class Given:
    """An array given by `dlpack.give`."""

    def __init__(self, array: Array, *, is_versioned: bool = True) -> None:
        self.array, self.is_versioned = array, is_versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    def __dlpack__(self, **_: Any) -> object:
        spec = TensorSpec(self.array.shape, self.array.dtype)
        return dlpack.give(self.array.ctypes.data, spec, (dlpack.CPU, 0), self, is_versioned=self.is_versioned)


def make(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize(
    "array",
    [make(2, 3, 4), make(2, 3, 4)[:, ::2], make(4, 3).T, make(3)[::-1], make(0, 3), make(5)[2:], np.array(True)],
    ids=["dense", "strided", "transposed", "reversed", "empty", "offset", "scalar"],
)
def test_arrays_of_numpy_are_read_where_they_lie(array: Array) -> None:
    view = dlpack.view_host(dlpack.take(array))
    np.testing.assert_array_equal(view, array)
    assert view.dtype == array.dtype
    assert array.size == 0 or np.shares_memory(view, array)


def test_read_only_array_stays_so() -> None:
    array = make(3)
    array.flags.writeable = False
    taken = dlpack.take(array)
    assert taken.is_read_only and not dlpack.view_host(taken).flags.writeable


@pytest.mark.parametrize("is_versioned", [True, False], ids=["new", "old"])
@pytest.mark.parametrize("row", [row for row in DTYPES if row.width >= 8], ids=lambda row: row.name)
def test_every_dtype_goes_out_and_comes_in(row: Any, is_versioned: bool) -> None:
    array = make(2, 3, dtype=row.numpy)
    taken = dlpack.take(Given(array, is_versioned=is_versioned))
    assert taken.spec == TensorSpec((2, 3), row.numpy) and taken.strides == (3, 1)
    np.testing.assert_array_equal(dlpack.view_host(taken).view(np.uint8), array.view(np.uint8))


@pytest.mark.parametrize("name", ["int4", "uint2", "float4e2m1", "float6e3m2"])
def test_types_that_share_bytes_in_dlpack_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"several elements of {name} in a byte"):
        Given(make(2, dtype=dtype_row(name).numpy)).__dlpack__()


@pytest.mark.parametrize("code", [2, 15, 16, 17])
def test_elements_of_less_than_a_byte_are_not_taken(code: int) -> None:
    with pytest.raises(InputError, match=f"type code {code}, 4 bits"):
        dlpack._to_numpy(dlpack._DataType(code, 4, 1))


@pytest.mark.parametrize("is_versioned", [True, False], ids=["new", "old"])
def test_numpy_reads_what_is_given(is_versioned: bool) -> None:
    array = make(2, 3)
    assert np.shares_memory(np.from_dlpack(Given(array, is_versioned=is_versioned)), array)


@pytest.mark.parametrize("is_versioned", [True, False], ids=["new", "old"])
def test_owner_lives_as_long_as_the_taker(is_versioned: bool) -> None:
    given = Given(make(2, 3), is_versioned=is_versioned)
    gone = weakref.ref(given)
    view = np.from_dlpack(given)
    del given
    gc.collect()
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


def test_capsule_that_nobody_takes_lets_its_owner_go() -> None:
    given = Given(make(2, 3))
    gone = weakref.ref(given)
    capsule = given.__dlpack__()
    del given
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_owner_taken_over_is_let_go_of_once() -> None:
    given = Given(make(2, 3))
    gone = weakref.ref(given)
    taken = dlpack.take(given)
    view = dlpack.view_host(taken)
    del given, taken
    gc.collect()
    assert gone() is not None and view[1, 2] == 5
    del view
    gc.collect()
    assert gone() is None


def test_types_that_are_not_supported_are_refused() -> None:
    with pytest.raises(InputError, match="type code 5, 64 bits"):
        dlpack.take(make(2, dtype=np.complex64))


def test_what_is_no_capsule_is_refused() -> None:
    class Wrong:
        def __dlpack__(self, **_: Any) -> object:
            return 7

    with pytest.raises(InputError, match=r"Wrong.__dlpack__\(\) returned no DLPack capsule"):
        dlpack.take(Wrong())


def test_strides_of_empty_and_scalar_shapes() -> None:
    assert dlpack.dense_strides(()) == ()
    assert dlpack.dense_strides((2, 0, 3)) == (3, 3, 1)
    assert np.dtype(ml_dtypes.bfloat16).itemsize == 2

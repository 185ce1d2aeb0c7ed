"""Restoring of padding: what kernels do with places that there are not."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.operator import build
from tests.ops.test_conv_simt import CheckingEmitter


@pytest.mark.parametrize("place", [-1, -(2**31), 6, 7, 2**31 - 1], ids=str)
def test_place_out_of_range_is_left_out(place: int) -> None:
    """Nothing is written for it, in front of the output or behind it."""
    rows = np.arange(1, 17, dtype=np.float16).reshape(4, 4)
    places = np.array([[1, place, 0], [2, 5, 4]], np.int32)
    emit = CheckingEmitter()
    got = emit.run(build("gpuexec.RestoreRows", {}), (rows, places)).reshape(6, 4)
    np.testing.assert_array_equal(got[[1, 0, 2]], rows[[0, 2, 3]])
    assert not got[[4, 5]].any()
    assert (emit.arrays[-1][got.nbytes :] == 0xCD).all()

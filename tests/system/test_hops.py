"""Counts of calls, files and changes of file."""

from __future__ import annotations

import sys

from gpuexec.ir import geometry, spec
from tests.system.hops import Hops, count_hops


def test_calls_are_counted_by_file_in_their_order() -> None:
    def call() -> None:
        geometry.ceil_div(7, 2)
        geometry.ceil_div(7, 2)
        spec.dtype_row("float32")
        geometry.ceil_div(7, 2)
        sorted([2, 1])

    hops = count_hops(call)
    assert hops == Hops((("ir/geometry.py", 2), ("ir/spec.py", 1), ("ir/geometry.py", 1)))
    assert (hops.calls, hops.files, hops.changes) == (4, 2, 2)
    assert sys.getprofile() is None
    assert count_hops(lambda: None) == Hops(()) and Hops(()).changes == 0

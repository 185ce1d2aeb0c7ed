"""Copy of a vector in Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _copy(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * block + tl.arange(0, block)
    is_inside = places < count
    tl.store(target + places, tl.load(source + places, mask=is_inside), mask=is_inside)


def copy(source: Any, target: Any) -> None:
    """Copy a tensor to another of the same size."""
    count = source.numel()
    _copy[(triton.cdiv(count, _BLOCK),)](source, target, count, _BLOCK)

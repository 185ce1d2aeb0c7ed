"""Scratch of prepared operators."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.ir.operator import Array


def has_scratch(scratch: Sequence[Array], nbytes: Sequence[int]) -> bool:
    """Return whether there are as many arrays of bytes as an operator counted, each as large or larger."""
    return len(scratch) >= len(nbytes) and all(have.nbytes >= need for have, need in zip(scratch, nbytes))

"""Types of what callers give: arrays of any package, and the inputs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np


class SupportsDLPack(Protocol):
    """An array of a package that has DLPack: NumPy, CuPy, torch, JAX, a Tensor."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the array as a capsule."""

    def __dlpack_device__(self) -> Any:
        """Return where it lies."""


class SupportsCudaArray(Protocol):
    """An array in the memory of a GPU: of CuPy, Numba, torch, a Tensor."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """Address, shape, type and stream."""


class SupportsArray(Protocol):
    """What NumPy makes an array of."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return it as an array."""


ArrayLike: TypeAlias = (
    np.ndarray[Any, Any]
    | SupportsDLPack
    | SupportsCudaArray
    | SupportsArray
    | np.generic
    | bool
    | int
    | float
    | complex
    | str
)
# One input: an array; numbers or rows, a sequence or, where a call says so, a shape; a map; None for an empty optional.
Input: TypeAlias = ArrayLike | Sequence[Any] | Mapping[Any, Any] | None
# All inputs: one array, a list in the model's order, or a mapping by name (for a Method, by index too).
Inputs: TypeAlias = ArrayLike | Sequence[Input] | Mapping[Any, Input]

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
"""An array of any package: what a run takes as an input.

Example:
    >>> with gx.Worker(model, backend="cpu") as worker:
    ...     for image in (x[:1], gx.to_tensor(np.zeros((8, 8), np.uint8))):
    ...         worker.run(image)[0].shape
    (1, 10)
    (1, 10)
"""
# One input: an array; numbers or rows, a sequence or, where a call says so, a shape; a map; None for an empty optional.
Input: TypeAlias = ArrayLike | Sequence[Any] | Mapping[Any, Any] | None
Inputs: TypeAlias = ArrayLike | Sequence[Input] | Mapping[Any, Input]
"""All inputs of a run: one array, a list in the model's order, or a mapping by name (for a Method, by index too).

Example:
    >>> with gx.Worker(model, backend="cpu") as worker:
    ...     for inputs in (x, [x], {"image": x}):
    ...         worker.run(inputs)[0].shape
    (8, 10)
    (8, 10)
    (8, 10)
"""

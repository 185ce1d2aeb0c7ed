"""Spec and bytes of a tensor, which may be known only once its run is on the stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.device import Region
from gpuexec.errors import InputError, PendingError
from gpuexec.ir.spec import TensorSpec, is_host_object


class Place:
    """Spec and bytes of a tensor; of strings or a container, its content on the host in place of bytes (``array``).

    Args:
        name: What the tensor is called, for messages.
        spec: Shape and dtype, where they are known.
        region: The bytes, where they are known.
        bound: The largest the tensor can be, where that is known.
    """

    __slots__ = ("_region", "_spec", "array", "bound", "name")

    def __init__(
        self, name: str, spec: TensorSpec | None, region: Region | None = None, bound: TensorSpec | None = None
    ) -> None:
        self.name, self._spec, self._region, self.bound = name, spec, region, bound
        self.array: np.ndarray[Any, Any] | None = None

    @property
    def has_spec(self) -> bool:
        """True where the spec is known."""
        return self._spec is not None

    @property
    def is_known(self) -> bool:
        """True where both spec and bytes are known."""
        return self._spec is not None and (self._region is not None or self.array is not None)

    @property
    def is_object(self) -> bool:
        """True where it is known to be strings or a container, which have no bytes on a device."""
        known = self._spec or self.bound
        return known is not None and is_host_object(known.dtype)

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype.

        Raises:
            PendingError: The shape depends on data that is not computed yet.
        """
        if self._spec is None:
            raise PendingError(
                f"The shape of {self.name!r} depends on data that is not computed yet: call y.wait() or"
                " await y.wait_async(), or wait for the run; max_shape bounds it.",
                value=self.name,
            )
        return self._spec

    @property
    def region(self) -> Region:
        """The bytes.

        Raises:
            InputError: There are none: it is strings or a container.
            PendingError: They are not there before the run is on its stream.
        """
        if self.is_object:
            assert self._spec is not None
            raise InputError(
                f"{self.name!r} is {self._spec}, which lies on the host and has no bytes on a device; read it back.",
                value=self.name,
            )
        if self._region is None:
            raise PendingError(
                f"The bytes of {self.name!r} are not there before its run is wholly on the stream: call y.wait()"
                " or await y.wait_async(), or wait for the run.",
                value=self.name,
            )
        return self._region

    @property
    def largest(self) -> TensorSpec:
        """The spec where it is known, else the bound.

        Raises:
            PendingError: No bound is known either.
        """
        return self.spec if self.bound is None or self._spec is not None else self.bound

    def settle(self, spec: TensorSpec, region: Region | None, array: np.ndarray[Any, Any] | None = None) -> None:
        """Set spec and bytes, or the content on the host where there are no bytes."""
        self._spec, self._region, self.array = spec, region, array

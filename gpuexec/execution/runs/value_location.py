"""Location of a value of a run: on the device, on the host, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.device import Region
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class ValueLocation:
    """Location of a value, valid once the work issued so far is done.

    Attributes:
        spec: Shape and dtype.
        region: Its bytes on the device; None where they are not (yet) needed there.
        array: Its content on the host, where it is known there.
        is_computed: The run itself made the content, so that it may differ in the next.
        is_weight: It is a constant of the model, which lies with the weights.
        owner: The lender of the bytes, kept while they are in use.
    """

    spec: TensorSpec
    region: Region | None = None
    array: Array | None = None
    is_computed: bool = False
    is_weight: bool = False
    owner: object = None

    def describe(self) -> TensorSpec:
        """Return the spec, with the content where the host has it."""
        return self.spec if self.array is None else self.spec.with_value(self.array)


# The values of a run made so far.
RunValues = dict[Value, ValueLocation]

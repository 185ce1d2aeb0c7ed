"""OneHotEncoder: one column per category; strings are compared on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.elementwise.elementwise_cast import convert
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.ml.features import SOURCE, launch_elements
from gpuexec.ops.ml.table_operator import FLOAT, INT64, NUMBERS, show_as

instantiate(SOURCE, ["mark_category"])


@operator("OneHotEncoder", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class OneHotEncoder(Operator):
    """New last axis of categories: 1 at that of the element, 0 elsewhere. Of equal categories the last counts.

    Numbers are truncated to integers. Other elements are 0 everywhere, or an error if not ``zeros``; on a device,
    where the host does not wait for the answer, 0 everywhere all the same.
    """

    cats_int64s: tuple[int, ...] | None = None
    cats_strings: tuple[str, ...] | None = None
    zeros: int = 1
    tolerance = Tolerance.EXACT
    example = "float32[2,1] cats_int64s=(1,) | string[2,1] cats_strings=('a',)"
    flops_per_output = None
    has_blits = False

    def __post_init__(self) -> None:
        if bool(self.cats_int64s) == bool(self.cats_strings):
            raise InputError(
                f"expected categories in cats_int64s or cats_strings, got {len(self.cats_int64s or ())} and "
                f"{len(self.cats_strings or ())}."
            )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Add the axis of categories."""
        check_dtype(self.name, x, (STRING,) if self.cats_strings else NUMBERS)
        return (TensorSpec((*x.shape, len(self.cats_int64s or self.cats_strings or ())), FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compare with each category.

        Raises:
            InputError: An element is no category, and ``zeros`` is not set.
        """
        elements = x if self.cats_strings else convert(x, INT64)
        names, is_last = self._categories()
        y = ((elements[..., None] == names) & is_last).astype(FLOAT)
        if not self.zeros and not y.any(-1).all():
            unknown = x[~y.any(-1)].reshape(-1).tolist()
            raise InputError(f"{self.name} expects categories (zeros=0), got {unknown[0]!r}, which is none.")
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element of the result."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        names, is_last = self._categories()
        arguments: list[Argument] = [show_as(emit, x, INT64), emit.constant(names), emit.constant(is_last), y]
        arguments += [int64(y.spec.size), pack_fast_div64(len(names))]
        launch_elements(emit, "mark_category", arguments, y, 3)

    def _categories(self) -> tuple[Array, Array]:
        """Return the categories, and of each whether none after it is equal."""
        names = self.cats_strings or self.cats_int64s or ()
        last = {name: place for place, name in enumerate(names)}
        is_last = [last[name] == place for place, name in enumerate(names)]
        return np.array(names, STRING if self.cats_strings else INT64), np.array(is_last, np.bool_)

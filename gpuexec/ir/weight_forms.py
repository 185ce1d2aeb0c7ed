"""Packed forms of weights: their registry, and the packing of a weight's content.

A lowering asks for a weight in the layout that its kernel reads best, by `Emitter.packed`. The plan names the form, as
data; whoever puts the weight on a device packs it then, once for all that use it.

    @weight_form("columns_first")
    @dataclass(frozen=True, slots=True)
    class ColumnsFirst(WeightForm):
        def infer(self, source: TensorSpec) -> TensorSpec: ...
        def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None: ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.system.mapped import find_source, read_content

Array = np.ndarray[Any, Any]
# Content of a weight in a file is read in blocks of about this many bytes, which begin at multiples of so many rows.
_BLOCK_NBYTES, _BLOCK_ROWS = 16 << 20, 64


class WeightForm:
    """Base of all forms: frozen slotted dataclasses whose fields, if any, are ints."""

    __slots__ = ()
    name: ClassVar[str] = ""
    # Whether what computes on the host reads weights in it, too: it changes their numbers, and not where they lie.
    is_for_host: ClassVar[bool] = False
    # Whether it must see all of a weight at once.
    is_whole: ClassVar[bool] = False

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec of a packed weight; a pure function of fields, shape and dtype."""
        raise TypeError(f"{type(self).__name__} lacks infer")

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a block of the source to its places in the packed weight, which is all zeros at first.

        Args:
            block: A part of the source along one axis, of any strides; not to be written to.
            at: The index of its first element in the source, a multiple of 64 along every axis.
            packed: The whole packed weight, dense.
        """
        raise TypeError(f"{type(self).__name__} lacks pack")


FormType = TypeVar("FormType", bound=type[WeightForm])
_FORMS: dict[str, type[WeightForm]] = {}


def weight_form(name: str) -> Callable[[FormType], FormType]:
    """Register a class as the form ``name``, by which plans mean it.

    Raises:
        InputError: It is no dataclass of ints.
    """

    def register(cls: FormType) -> FormType:
        if not dataclasses.is_dataclass(cls) or any(
            field.type not in (int, "int") for field in dataclasses.fields(cls)
        ):
            raise InputError(f"Weight form {name}: expected a frozen dataclass with fields of type int, got {cls!r}.")
        cls.name = name
        _FORMS[name] = cls
        return cls

    return register


@dataclass(frozen=True, slots=True)
class PackedForm:
    """The form of a packed weight, as data of a plan.

    The weight's elements, as a dense tensor ``source`` whose axes are permuted by ``axes``, are what the form packs: a
    transposed view of a weight is packed as it looks. Where there is a form ``after`` which it is packed, those are the
    elements that this other form gave.
    """

    name: str
    parameters: tuple[int, ...]
    source: TensorSpec
    axes: tuple[int, ...]
    after: PackedForm | None = None

    @staticmethod
    def of(form: WeightForm, source: TensorSpec, axes: tuple[int, ...], after: PackedForm | None = None) -> PackedForm:
        """Return the data that says this form of such a weight."""
        values = [getattr(form, field.name) for field in dataclasses.fields(form)]  # type: ignore[arg-type]
        return PackedForm(form.name, tuple(values), TensorSpec(source.shape, source.dtype), axes, after)

    @property
    def spec(self) -> TensorSpec:
        """Spec of the packed weight."""
        return self._build().infer(self.source.with_shape(tuple([self.source.shape[axis] for axis in self.axes])))

    def pack(self, array: Array) -> Array:
        """Return a weight packed; content in a file is read block by block.

        Raises:
            AccessError: The file changed, or can't be read.
            PlanError: The form is not registered.
        """
        form, source, spec = self._build(), self.source, self.spec
        if self.after is not None:
            array = self.after.pack(array)
        if array.shape != source.shape or array.dtype != source.dtype:
            dense = array if array.flags.c_contiguous else np.ascontiguousarray(read_content(array))
            array = dense.reshape(-1).view(source.dtype).reshape(source.shape)
        packed = np.zeros(spec.shape, spec.dtype)
        turned = array.transpose(self.axes)
        for at, block in [((0,) * turned.ndim, turned)] if form.is_whole else _divide(turned):
            form.pack(read_content(block), at, packed)
        return packed

    def __str__(self) -> str:
        own = f"{self.name}({', '.join(map(str, self.parameters))})"
        return own if self.after is None else f"{self.after}, {own}"

    def _build(self) -> WeightForm:
        cls = _FORMS.get(self.name)
        if cls is None:
            raise PlanError(f"Weight form {self.name!r} is not registered; known are {', '.join(sorted(_FORMS))}.")
        return cls(*self.parameters)


@weight_form("columns_first")
@dataclass(frozen=True, slots=True)
class ColumnsFirst(WeightForm):
    """A matrix ``[rows, columns]`` as ``[columns, rows]``, dense; matrices before the last two axes stay apart."""

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec with the last two axes swapped."""
        *outer, rows, columns = source.shape
        return source.with_shape((*outer, columns, rows))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Transpose a block, some rows at a time, so that what is read and written stays in the cache."""
        places = packed.swapaxes(-1, -2)[find_window(block, at)]
        for first in range(0, block.shape[-2], _BLOCK_ROWS):
            rows = slice(first, first + _BLOCK_ROWS)
            places[..., rows, :] = block[..., rows, :]


@weight_form("converted")
@dataclass(frozen=True, slots=True)
class Converted(WeightForm):
    """Elements in another type, by its ONNX code, where they lie."""

    code: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec of the other type."""
        return TensorSpec(source.shape, dtype_row(self.code).numpy)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Convert a block."""
        packed[find_window(block, at)] = block


def find_window(block: Array, at: tuple[int, ...]) -> tuple[slice, ...]:
    """Return where a block lies in the whole that it begins at an index of."""
    return tuple([slice(start, start + extent) for start, extent in zip(at, block.shape, strict=True)])


def _divide(array: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield blocks of an array with the index where each begins: all of it at once where it is not in a file.

    It is divided along the axis of the largest stride, so each block is a range of the file.
    """
    start = (0,) * array.ndim
    if array.nbytes <= _BLOCK_NBYTES or find_source(array) is None:
        yield start, array
        return
    axis = max(range(array.ndim), key=lambda each: (array.shape[each] > 1, abs(array.strides[each])))
    row_nbytes = array.nbytes // array.shape[axis]
    rows = max(_BLOCK_NBYTES // row_nbytes // _BLOCK_ROWS, 1) * _BLOCK_ROWS
    for first in range(0, array.shape[axis], rows):
        index = (slice(None),) * axis + (slice(first, first + rows),)
        yield (*start[:axis], first, *start[axis + 1 :]), array[index]

"""Elementwise operators as rows of a table: the row is all there is to say of an operator.

    Row("Exp", FLOATS, Form(np.exp, "Exp"))

gives the operator class, its shapes and dtypes, its NumPy form, its launch and its kernel instances. The functor stands in the
kernel source of the table the row is in (`elementwise_unary`, `elementwise_binary`). This file holds what all elementwise
operators share, those included that are no rows: `launch_units` and `apply`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gpuexec.command import Kernel, Slot
from gpuexec.errors import InputError
from gpuexec.geometry import broadcast, ceil_div
from gpuexec.operator import Array, Emitter, Operator, Tolerance, instantiate, operator
from gpuexec.ops.strided import Walk, join_slots
from gpuexec.spec import TensorSpec, accumulator, dtype_row, dtypes_of

DType = np.dtype[Any]

FLOATS = dtypes_of("float")
INTEGERS = dtypes_of("int", "uint")
NUMBERS = dtypes_of("float", "int", "uint")
SIGNED = dtypes_of("float", "int")
BOOL = np.dtype(np.bool_)
UNSIGNED_BY_SIZE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

THREADS = 256  # kThreads of elementwise.cuh
VECTOR_BYTES, VECTOR_LANES = 16, 8  # kWidth of elementwise.cuh
BLOCK = 1 << 14  # elements of one pass of a composed NumPy form, so that its temporaries stay in cache


@dataclass(frozen=True, slots=True)
class Form:
    """What an operator does to elements, twice: in NumPy and in CUDA.

    ``function(*arrays, *parameters, out=)`` writes into ``out``, which may be memory of an input of the same shape: it reads
    all it needs of an element before it writes it. It sees float32 for half and bfloat16.
    """

    function: Callable[..., Any]
    functor: str


@dataclass(frozen=True, slots=True)
class Row:
    """One elementwise operator.

    Args:
        name: ONNX name.
        dtypes: Element types of the inputs; they agree.
        form: The form, or the forms by the value of the attribute ``choice``.
        attributes: Attributes and defaults, in the order the form takes its parameters; a type as default: required.
        choice: The attribute that chooses the form; it is no parameter.
        storage: Name of the C++ type a dtype is computed as.
        result: Element type of the output, where it isn't that of the inputs.
        is_swapped: Whether the kernel takes the two inputs in reverse.
        is_unidirectional: Whether only the second input may be stretched.
    """

    name: str
    dtypes: tuple[DType, ...]
    form: Form | Mapping[Any, Form]
    attributes: tuple[tuple[str, Any], ...] = ()
    choice: str = ""
    storage: Callable[[DType], str] = field(default=lambda dtype: dtype_row(dtype).cuda)
    result: DType | None = None
    tolerance: Tolerance = Tolerance.ROUNDING
    is_swapped: bool = False
    is_unidirectional: bool = False

    @property
    def forms(self) -> tuple[Form, ...]:
        """All forms."""
        return (self.form,) if isinstance(self.form, Form) else tuple(self.form.values())

    def output_type(self, dtype: DType) -> str:
        """Return the C++ type of the output for inputs of ``dtype``."""
        return self.storage(dtype) if self.result is None else dtype_row(self.result).cuda

    def expressions(self, template: str) -> Iterator[str]:
        """Yield the kernel instances the operator can launch."""
        for form in self.forms:
            for dtype in self.dtypes:
                yield f"{template}<{form.functor}, {self.storage(dtype)}, {self.output_type(dtype)}>"


class Elementwise(Operator):
    """Base of the operators a table gives; subclasses differ in ``row`` and their attributes alone."""

    __slots__ = ()
    row: ClassVar[Row]
    source: ClassVar[str]
    template: ClassVar[str]
    arity: ClassVar[int]

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Broadcast the shapes; the inputs must agree in dtype."""
        row = self.row
        self._form()
        specs = require_inputs(row.name, inputs, self.arity)
        dtype = require_same_dtype(row.name, specs, row.dtypes)
        shape = broadcast(*(spec.shape for spec in specs))
        if row.is_unidirectional and shape != specs[0].shape:
            raise InputError(
                f"{row.name} stretches its second input only: expected a shape that broadcasts to {specs[0]}, got {specs[1]}."
            )
        return (TensorSpec(shape, row.result or dtype),)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Apply the NumPy form."""
        arrays = [x for x in inputs if x is not None]
        dtype = self.row.result or arrays[0].dtype
        return (apply(self._form().function, arrays, dtype, out, self._parameters()),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Launch the kernel once."""
        row, (y,) = self.row, outputs
        slots = [x for x in inputs if x is not None]
        if y is None:
            return
        types = f"{row.storage(slots[0].dtype)}, {row.output_type(slots[0].dtype)}"
        kernel = Kernel(self.source, f"{self.template}<{self._form().functor}, {types}>")
        if row.is_swapped:
            slots.reverse()
        scalars: list[np.generic] = []
        if self.arity == 1:
            scalars = [np.float64(value) for value in (*self._parameters(), 0.0, 0.0)[:2]]
        launch_units(emit, kernel, slots, y, scalars)

    def _form(self) -> Form:
        form = self.row.form
        if isinstance(form, Form):
            return form
        key = getattr(self, self.row.choice)
        if key not in form:
            expected = " or ".join(repr(each) for each in form)
            raise InputError(f"{self.row.name} expects {self.row.choice} to be {expected}, got {key!r}.")
        return form[key]

    def _parameters(self) -> tuple[float, ...]:
        """Return the numeric attributes; ONNX keeps them in float32."""
        names = (name for name, _ in self.row.attributes if name != self.row.choice)
        return tuple(float(np.float32(getattr(self, name))) for name in names)


def add_table(rows: Sequence[Row], source: str, template: str, arity: int, module: str) -> dict[str, type[Elementwise]]:
    """Make and register the operator class of each row, and instantiate its kernels.

    Args:
        source: Kernel file that holds the functors.
        template: Kernel template of that file, over functor, input type and output type.
        arity: Number of inputs.
        module: Where the classes are to be found by name.

    Returns:
        The classes by name.
    """
    classes: dict[str, type[Elementwise]] = {}
    for row in rows:
        fields = [
            (name, default) if isinstance(default, type) else (name, type(default), field(default=default))
            for name, default in row.attributes
        ]
        namespace = {
            "__doc__": f"ONNX {row.name}: one row of the table in `{module}`.",
            "__module__": module,
            "row": row,
            "source": source,
            "template": template,
            "arity": arity,
            "tolerance": row.tolerance,
        }
        cls = dataclasses.make_dataclass(
            row.name, fields, bases=(Elementwise,), namespace=namespace, frozen=True, slots=True
        )
        classes[row.name] = operator(row.name)(cls)
        instantiate(source, row.expressions(template))
    return classes


def unsigned_storage(dtype: DType) -> str:
    """Return the unsigned C++ type of a dtype's width for integers and bool, where only bits matter; floats as they are."""
    return dtype_row(dtype).cuda if dtype in FLOATS else UNSIGNED_BY_SIZE[dtype.itemsize]


def require_inputs(name: str, inputs: Sequence[TensorSpec | None], count: int) -> list[TensorSpec]:
    """Return the input specs, all of which must be given.

    Raises:
        InputError: One is absent, or there are more or fewer than ``count``.
    """
    specs = [spec for spec in inputs if spec is not None]
    if len(specs) != count or len(inputs) != count:
        raise InputError(f"{name} expects {count} input{'s' * (count != 1)}, got {len(specs)}.")
    return specs


def require_same_dtype(name: str, specs: Sequence[TensorSpec], dtypes: Sequence[DType]) -> DType:
    """Return the one dtype of all specs.

    Raises:
        InputError: They differ, or the dtype is not among ``dtypes``.
    """
    dtype = specs[0].dtype
    if any(spec.dtype != dtype for spec in specs):
        raise InputError(f"{name} expects inputs of one type, got {', '.join(map(str, specs))}.")
    if dtype not in dtypes:
        raise InputError(f"{name} expects {', '.join(d.name for d in dtypes)}, got {specs[0]}.")
    return dtype


def apply(
    function: Callable[..., Any],
    arrays: Sequence[Array],
    dtype: DType,
    out: Sequence[Array | None] | None,
    parameters: Sequence[Any] = (),
) -> Array:
    """Apply a NumPy form to arrays that broadcast; half and bfloat16 are computed in float32 and rounded once.

    Args:
        function: See `Form`.
        dtype: Element type of the result.
        out: Where the caller would like the result, if anywhere.

    Returns:
        ``out[0]`` if it was given, else a fresh array.
    """
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    wanted = out[0] if out else None
    result = np.empty(shape, dtype) if wanted is None else wanted
    with np.errstate(all="ignore"):
        if len(arrays) == 1 and result.size > BLOCK and arrays[0].flags.c_contiguous and result.flags.c_contiguous:
            source, target = arrays[0].reshape(-1), result.reshape(-1)
            for first in range(0, target.size, BLOCK):
                _apply_once(function, (source[first : first + BLOCK],), target[first : first + BLOCK], parameters)
        else:
            _apply_once(function, arrays, result, parameters)
    return result


def _apply_once(
    function: Callable[..., Any], arrays: Sequence[Array], result: Array, parameters: Sequence[Any]
) -> None:
    wide = [x.astype(accumulator(x.dtype), copy=False) for x in arrays]
    if accumulator(result.dtype) == result.dtype:
        function(*wide, *parameters, out=result)
    else:
        rounded = np.empty(result.shape, np.float32)
        function(*wide, *parameters, out=rounded)
        result[...] = rounded


def launch_units(
    emit: Emitter,
    kernel: Kernel,
    inputs: Sequence[Slot],
    output: Slot,
    scalars: Sequence[np.generic] = (),
    *,
    between: Sequence[Slot] = (),
    width: int | None = None,
    in_place: bool = True,
) -> None:
    """Launch a kernel built on ``Unit`` of ``elementwise.cuh``.

    Its parameters are the inputs, what stands ``between``, the output, the walk, size, is_vector, and ``scalars``. The output
    may take the bytes of an input of its shape and dtype.

    Args:
        between: Slots read as they are, not walked.
        width: Lanes of a unit where it isn't what the element types allow.
        in_place: Whether the output may take the bytes of an input.
    """
    walk = join_slots(output, *inputs)
    slots = [*inputs, output]
    lanes = vector_width(slots) if width is None else width
    is_vector = lanes > 1 and can_vectorize(walk, slots, lanes)
    units = walk.in_units(lanes) if is_vector else walk
    if in_place:
        for x in dict.fromkeys(inputs):
            if x.shape == output.shape and x.dtype == output.dtype and x.is_contiguous:
                emit.in_place(output, x)
    emit.launch(
        kernel,
        (max(1, ceil_div(units.count, THREADS)), 1, 1),
        (THREADS, 1, 1),
        [*inputs, *between, output, units.pack(), np.int64(walk.count), np.int32(is_vector), *scalars],
        writes=[len(inputs) + len(between)],
    )


def vector_width(slots: Sequence[Slot]) -> int:
    """Return kWidth of ``elementwise.cuh`` for the element types of the operands."""
    return min(VECTOR_LANES, VECTOR_BYTES // max(slot.dtype.itemsize for slot in slots))


def can_vectorize(walk: Walk, slots: Sequence[Slot], width: int) -> bool:
    """Tell whether every operand can be read ``width`` neighbours at a time, or is one element along the innermost axis.

    Only a walk of one axis may end with a short unit.
    """
    if not walk.shape or (len(walk.shape) > 1 and walk.shape[-1] % width):
        return False
    for slot, strides in zip(slots, walk.strides, strict=True):
        if strides[-1] == 0:
            continue
        if (
            strides[-1] != 1
            or slot.offset_bytes % (width * slot.dtype.itemsize)
            or any(s % width for s in strides[:-1])
        ):
            return False
    return True

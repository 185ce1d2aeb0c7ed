"""Elementwise operators defined by rows of a table.

    Row("Exp", FLOATS, Form(np.exp, "Exp"))

gives the operator class, its shapes and dtypes, its NumPy form, its launch and its kernel instances. The functor stands
in the kernel source of the table the row is in (`elementwise_unary`, `elementwise_binary`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import broadcast
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    qualified,
)
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.prepared_calls import BLOCK, has_scratch, prepare_step, view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import convert_commands, truncate, widen_narrow
from gpuexec.ops.elementwise.elementwise_engine import (
    FLOATS,
    UNSIGNED_BY_SIZE,
    DType,
    apply,
    require_inputs,
    require_same_dtype,
)
from gpuexec.ops.lib.broadcast import launch_broadcast

_FLOAT: DType = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Form:
    """Implementation of an operator on elements, in NumPy and in CUDA.

    ``function(*arrays, *parameters, out=)`` writes into ``out``, which may be memory of an input of the same shape: it
    reads all it needs of an element before it writes it. It sees float32 for half and bfloat16.
    """

    function: Callable[..., Any]
    functor: str


@dataclass(frozen=True, slots=True)
class Row:
    """Table row of one elementwise operator.

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
        narrow: Narrow floats that it takes too, widened to float32 before.
        widened: Integers that it takes too, computed in double and truncated.
        hosted: Types of host objects that its NumPy form takes too.
        example: See `Operator`; wanted where an attribute is required.
        derivative: See `Operator`.
        neutral: The second input that changes nothing, sign included.
        domain: Of the operator, where it is none of ONNX.
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
    narrow: tuple[DType, ...] = ()
    widened: tuple[DType, ...] = ()
    hosted: tuple[DType, ...] = ()
    example: str = ""
    derivative: Derivative = Derivative.RULE
    neutral: float | None = None
    domain: str = ""

    @property
    def operator_name(self) -> str:
        """Return the qualified name of the operator."""
        return qualified(self.name, self.domain)

    @property
    def forms(self) -> tuple[Form, ...]:
        """Return all forms."""
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
    flops_per_output = 1
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Broadcast the shapes; the inputs must agree in dtype."""
        row = self.row
        self.pick_form()
        specs = require_inputs(row.name, inputs, self.arity)
        dtype = require_same_dtype(row.name, specs, (*row.dtypes, *row.narrow, *row.widened, *row.hosted))
        shape = broadcast(*(spec.shape for spec in specs))
        if row.is_unidirectional and shape != specs[0].shape:
            raise InputError(
                f"{row.name} stretches its second input only: expected a shape that broadcasts to {specs[0]}, "
                f"got {specs[1]}."
            )
        return (TensorSpec(shape, row.result or dtype),)

    def find_dtype(self, dtypes: Sequence[DType | None]) -> DType | None:
        """Return the type of the table, or else that of any input, as they agree."""
        return self.row.result or next((dtype for dtype in dtypes if dtype is not None), None)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Apply the NumPy form."""
        arrays = [x for x in inputs if x is not None]
        dtype = self.row.result or arrays[0].dtype
        if dtype in self.row.widened:
            wide = [x.astype(np.float64) for x in arrays]
            return (truncate(apply(self.pick_form().function, wide, wide[0].dtype, None, self.parameters()), dtype),)
        return (apply(self.pick_form().function, arrays, dtype, out, self.parameters()),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what is narrower than float, as floats, where it is no more than a block."""
        y, specs = outputs[0], [spec for spec in (*inputs, *outputs) if spec is not None]
        if y is None or y.size > BLOCK:
            return ()
        return [spec.size * _FLOAT.itemsize for spec in specs if accumulator(spec.dtype) != spec.dtype]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Call the NumPy form; what is narrower than float is widened in scratch, where it is no more than a block."""
        (y,), arrays = out, [x for x in inputs if x is not None]
        if y is None or arrays[0].dtype in (*self.row.widened, *self.row.hosted):
            return None
        function = self.pick_form().function
        narrow = [x for x in (*arrays, y) if accumulator(x.dtype) != x.dtype]
        is_dense = y.size <= BLOCK and all(x.flags.c_contiguous for x in narrow)
        if narrow and not (is_dense and has_scratch(scratch, [x.size * _FLOAT.itemsize for x in narrow])):
            return None
        wide = {id(x): view_bytes(memory, x.shape, _FLOAT) for x, memory in zip(narrow, scratch)}
        calls: list[Callable[[], object]] = [
            functools.partial(np.copyto, wide[id(x)], x, "unsafe") for x in narrow if x is not y
        ]
        operands, result = [wide.get(id(x), x) for x in arrays], wide.get(id(y), y)
        if self.parameters():
            function = functools.partial(_apply_form, function, self.parameters())
        calls += prepare_step(function, operands, result)
        return calls if result is y else [*calls, functools.partial(np.copyto, y, result, "unsafe")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the kernel once."""
        row, (y,) = self.row, outputs
        if y is None:
            return
        if y.dtype in row.widened:
            wide = emit.temp(y.shape, np.float64)
            self.lower(emit, tuple(_widen_integers(emit, x) for x in inputs if x is not None), (wide,))
            convert_commands(emit, y, wide)
            return
        slots = [widen_narrow(emit, x) for x in inputs if x is not None]
        types = f"{row.storage(slots[0].dtype)}, {row.output_type(slots[0].dtype)}"
        kernel = Kernel(self.source, f"{self.template}<{self.pick_form().functor}, {types}>")
        if row.is_swapped:
            slots.reverse()
        scalars: list[np.generic] = []
        if self.arity == 1:
            scalars = [np.float64(value) for value in (*self.parameters(), 0.0, 0.0)[:2]]
        launch_broadcast(emit, kernel, slots, y, scalars)

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return the form that the attribute ``choice`` names, for the types that a kernel computes as they are."""
        specs, row = [spec for spec in inputs if spec is not None], self.row
        if len(specs) != len(inputs) or len({spec.dtype for spec in specs}) != 1 or specs[0].dtype not in row.dtypes:
            return None
        form, dtype, numbers = self.pick_form(), specs[0].dtype, self.parameters()
        given = [_convert_accumulator(dtype, row.storage(dtype), position) for position in range(self.arity)]
        if row.is_swapped:
            given.reverse()
        if self.arity == 1:
            numbers = (*numbers, 0.0, 0.0)[:2]
            given += ["{n0}", "{n1}"] if self.parameters() else ["0", "0"]
        return Pointwise(
            functools.partial(_apply_form, form.function, self.parameters()) if self.parameters() else form.function,
            f"{form.functor}::apply({', '.join(given)})",
            row.result or dtype,
            numbers if self.parameters() else (),
        )

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether the second input is the neutral number, of rank 0, so that it stretches nothing."""
        neutral, second = self.row.neutral, inputs[1] if len(inputs) > 1 else None
        array = None if second is None else second.content
        if neutral is None or array is None or array.ndim or array != neutral:
            return False
        return array.dtype.kind in "iu" or bool(np.signbit(array.astype(np.float64))) == bool(np.signbit(neutral))

    def pick_form(self) -> Form:
        """Return the form that the attribute ``choice`` names.

        Raises:
            InputError: It names none.
        """
        form = self.row.form
        if isinstance(form, Form):
            return form
        key = getattr(self, self.row.choice)
        if key not in form:
            expected = " or ".join(repr(each) for each in form)
            raise InputError(f"{self.row.name} expects {self.row.choice} to be {expected}, got {key!r}.")
        return form[key]

    def parameters(self) -> tuple[float, ...]:
        """Return the numeric attributes; ONNX keeps them in float32."""
        names = (name for name, _ in self.row.attributes if name != self.row.choice)
        return tuple(float(np.float32(getattr(self, name))) for name in names)


def _apply_form(function: Callable[..., Any], parameters: tuple[float, ...], *arrays: Array, out: Array) -> None:
    function(*arrays, *parameters, out=out)


def _convert_accumulator(dtype: DType, storage: str, position: int) -> str:
    """Return the C++ expression of an input of a `Pointwise`, as the type that a functor takes."""
    name = f"{{{position}}}"
    return name if storage == dtype_row(dtype).cuda else f"cast<{storage}>({name})"


def _widen_integers(emit: Emitter, x: Slot) -> Slot:
    wide = emit.temp(x.shape, np.float64)
    convert_commands(emit, wide, x)
    return wide


def add_table(rows: Sequence[Row], source: str, template: str, arity: int, module: str) -> dict[str, type[Elementwise]]:
    """Make and register the operator class of each row, and instantiate its kernels.

    Args:
        rows: The table.
        source: Kernel file that holds the functors.
        template: Kernel template of that file, over functor, input type and output type.
        arity: Number of inputs.
        module: Module of the classes.

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
            "__doc__": f"{row.domain or 'ONNX'} {row.name}: one row of the table in `{module}`.",
            "__module__": module,
            "row": row,
            "source": source,
            "template": template,
            "arity": arity,
            "tolerance": row.tolerance,
            "example": row.example,
            "keeps_dtype": row.result is None,
            "derivative": row.derivative,
        }
        cls = dataclasses.make_dataclass(
            row.name, fields, bases=(Elementwise,), namespace=namespace, frozen=True, slots=True
        )
        classes[row.name] = operator(row.name, row.domain)(cls)
        instantiate(source, row.expressions(template))
    return classes


def unsigned_storage(dtype: DType) -> str:
    """Return the C++ type where only bits matter: unsigned of their width for integers and bool, floats as they are."""
    return dtype_row(dtype).cuda if dtype in FLOATS else UNSIGNED_BY_SIZE[dtype.itemsize]

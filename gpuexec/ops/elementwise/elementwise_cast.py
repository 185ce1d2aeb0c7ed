"""Cast and CastLike between bool, integers, floats, narrow types and strings; Identity as a view."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.graphs import RawNode
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
    upgrade,
)
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.spec import BFLOAT16, COMPUTED, STRING, TensorSpec, dtype_row, dtypes_of, is_container
from gpuexec.ops.elementwise.elementwise_engine import BOOL, FLOATS, UNSIGNED_BY_SIZE, DType, require_inputs
from gpuexec.ops.lib.broadcast import launch_broadcast
from gpuexec.ops.quant.narrow_types import (
    check_rounding,
    is_narrow,
    pack_mode,
    to_narrow_float,
    to_narrow_integer,
    widen,
)

SOURCE = "elementwise_cast.cu"
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]+")
_DECIMAL_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|[+-]?nan", re.IGNORECASE)
_MAX_DIGITS = 1000  # Python refuses to read integers of some thousands
_TRUTHS = {"true": True, "false": False}
_COMPUTED = frozenset(row.numpy for row in COMPUTED)


def cast_expression(to: DType, source: DType) -> str:
    """Return the kernel instance for a pair of dtypes; pairs that move the same bits share one.

    Integers come out as the unsigned type of their width, but from floats int64 and uint64 differ. The sign of what
    goes in counts only where the result is wider or a float.
    """
    to_name = "bool" if to == BOOL else dtype_row(to).cuda
    if to not in FLOATS and to != BOOL and not (source in FLOATS and to.itemsize == 8):
        to_name = UNSIGNED_BY_SIZE[to.itemsize]
    from_name = dtype_row(source).cuda
    is_narrowing = to not in FLOATS and to.itemsize <= source.itemsize
    if source == BOOL or (source not in FLOATS and (is_narrowing or to == BOOL)):
        from_name = UNSIGNED_BY_SIZE[source.itemsize]
    return f"convert<{to_name}, {from_name}>"


# Types one of which is narrow, by the bytes of both: the types are run-time arguments.
_WIDTHS = tuple((to, x) for to in (1, 2, 4, 8) for x in (1, 2, 4, 8) if 1 in (to, x))
instantiate(
    SOURCE, dict.fromkeys(cast_expression(to.numpy, x.numpy) for x in COMPUTED for to in COMPUTED if to is not x)
)
instantiate(SOURCE, [f"convert_narrow<{UNSIGNED_BY_SIZE[to]}, {UNSIGNED_BY_SIZE[x]}>" for to, x in _WIDTHS])


def truncate(x: Array, to: DType) -> Array:
    """Convert floats to an integer type: toward zero through 64 bits, of which the low ones stay; NaN gives 0.

    Beyond 64 bits int64 and uint64 saturate. (NumPy's answers out of range depend on the processor.)
    """
    wide = x if x.dtype == np.float64 else x.astype(np.float32, copy=False)
    inside = np.abs(wide) < 2.0**63
    if to == np.uint64:
        big = wide >= 2.0**63
        if big.any():
            upper = np.where(
                wide >= 2.0**64, np.uint64(2**64 - 1), np.where(big & (wide < 2.0**64), wide, 0).astype(np.uint64)
            )
            return np.where(big, upper, truncate(np.where(big, 0, wide), np.dtype(np.int64)).view(np.uint64))
    if inside.all():
        return wide.astype(np.int64).astype(to)
    limit = np.where(np.isnan(wide), 0, np.where(wide > 0, 2**63 - 1, -(2**63)))
    return np.where(inside, np.where(inside, wide, 0).astype(np.int64), limit).astype(to)


def convert(x: Array, to: DType, saturate: int = 1, round_mode: str = "up") -> Array:
    """Convert an array as the Cast operator does; fresh memory except where the dtype stays."""
    with np.errstate(all="ignore"):
        if x.dtype == to:
            return x
        if to == STRING:
            return _write_numbers(x)
        if is_narrow(x.dtype):
            x = widen(x)
        if x.dtype == STRING:
            x = _read_numbers(x, _read_as(to))
        if is_narrow(to):
            if dtype_row(to).kind == "narrow float":
                return to_narrow_float(x, to, saturate, round_mode)
            return to_narrow_integer(truncate(x, np.dtype(np.int64)) if x.dtype in FLOATS else x, to)
        if x.dtype == to:
            return x
        if to == BOOL:
            return np.asarray(np.not_equal(x.astype(np.float32) if x.dtype in (BFLOAT16, np.float16) else x, 0))
        if x.dtype in FLOATS and to not in FLOATS:
            return truncate(x, to)
        if to == BFLOAT16 or x.dtype == BFLOAT16:
            return x.astype(np.float32).astype(to)
        return x.astype(to)


def _read_as(to: DType) -> DType:
    """Return the type that text is read as on the way to another: of narrow ones a wide one, as a model might."""
    row = dtype_row(to)
    if not row.is_narrow:
        return to
    return np.dtype(np.float32 if row.is_float else np.int64)


def convert_commands(emit: Emitter, destination: Slot, source: Slot, saturate: int = 1, round_mode: str = "up") -> None:
    """Launch the conversion of ``source``, of any strides, into a dense slot of its shape and of another type."""
    if is_narrow(source.dtype) or is_narrow(destination.dtype):
        types = [UNSIGNED_BY_SIZE[slot.dtype.itemsize] for slot in (destination, source)]
        codes = [np.int32(dtype_row(slot.dtype).code) for slot in (source, destination)]
        kernel = Kernel(SOURCE, f"convert_narrow<{', '.join(types)}>")
        launch_broadcast(emit, kernel, (source,), destination, [*codes, pack_mode(saturate, round_mode)])
    else:
        launch_broadcast(emit, Kernel(SOURCE, cast_expression(destination.dtype, source.dtype)), (source,), destination)


def widen_narrow(emit: Emitter, x: Slot) -> Slot:
    """Return a slot, that of a narrow type converted to float32."""
    if not is_narrow(x.dtype):
        return x
    wide = emit.temp(x.shape, np.float32)
    convert_commands(emit, wide, x)
    return wide


class _Conversion(Operator):
    """Base of Cast and CastLike once the type is known."""

    __slots__ = ()
    tolerance = Tolerance.EXACT
    saturate: int
    round_mode: str
    flops_per_output = 0
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once; a view where the type stays."""
        x, (y,) = inputs[0], outputs
        if x is None or y is None:
            return
        if x.dtype == y.dtype:
            emit.alias(y, x)
        else:
            convert_commands(emit, y, x, self.saturate, self.round_mode)


@operator("Cast")
@dataclass(frozen=True, slots=True)
class Cast(_Conversion):
    """x in another element type.

    To a float rounds to nearest even, float to integer truncates and keeps the low bits, to bool is ``x != 0``. Strings
    are written and read as `_write_numbers` and `_read_numbers` say.
    ``saturate`` concerns 8-bit floats alone, ``round_mode`` float8e8m0.
    """

    to: int
    saturate: int = 1
    round_mode: str = "up"
    example = "float32[2] to=7"

    def __post_init__(self) -> None:
        """Check that the type is known; passes look at it."""
        dtype_row(self.to)
        check_rounding("Cast", self.round_mode)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's shape in the type asked for."""
        (x,) = require_inputs("Cast", (x,), 1)
        _check_elements("Cast", x.dtype, dtype_row(self.to).numpy)
        return (TensorSpec(x.shape, dtype_row(self.to).numpy),)

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return the conversion between types that kernels compute with."""
        x, to = inputs[0], dtype_row(self.to)
        if x is None or x.dtype not in _COMPUTED or to.numpy not in _COMPUTED:
            return None
        return Pointwise(functools.partial(_convert_into, to.numpy), f"cast<{to.cuda}>({{0}})", to.numpy)

    @property
    def has_slope(self) -> bool:
        """Whether it is a cast to floats."""
        return dtype_row(self.to).kind not in ("int", "uint", "bool")

    def find_dtype(self, dtypes: Sequence[DType | None]) -> DType | None:
        """Return the type asked for."""
        return dtype_row(self.to).numpy

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether the input is of that type already."""
        # NOTE: to NumPy, None equals float64.
        x = inputs[0]
        return x is not None and x.dtype is not None and x.dtype == dtype_row(self.to).numpy

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Convert."""
        return (_put(convert(x, dtype_row(self.to).numpy, self.saturate, self.round_mode), out),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Convert into the output between numbers of NumPy's own."""
        return _prepare_conversion(inputs[0], out[0])


@operator("CastLike")
@dataclass(frozen=True, slots=True)
class CastLike(_Conversion):
    """x in the element type of the second input, whose content does not matter."""

    saturate: int = 1
    round_mode: str = "up"

    def __post_init__(self) -> None:
        """Check the attribute that is a choice."""
        check_rounding("CastLike", self.round_mode)

    def infer(self, x: TensorSpec, like: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the first input's shape in the second's type."""
        x, like = require_inputs("CastLike", (x, like), 2)
        _check_elements("CastLike", x.dtype, like.dtype)
        return (TensorSpec(x.shape, dtype_row(like.dtype).numpy),)

    def find_dtype(self, dtypes: Sequence[DType | None]) -> DType | None:
        """Return the second input's."""
        return dtypes[1] if len(dtypes) > 1 else None

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether both types are known, and the same."""
        # NOTE: to NumPy, None equals float64.
        dtypes = [given.dtype for given in inputs if given is not None and given.dtype is not None]
        return len(dtypes) == 2 and dtypes[0] == dtypes[1]

    def compute(self, x: Array, like: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Convert."""
        return (_put(convert(x, like.dtype, self.saturate, self.round_mode), out),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Convert into the output between numbers of NumPy's own."""
        return _prepare_conversion(inputs[0], out[0])


@operator("Identity")
@dataclass(frozen=True, slots=True)
class Identity(Operator):
    """x itself, as a view."""

    makes_views = True
    tolerance = Tolerance.EXACT
    takes_containers = True
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        (x,) = require_inputs("Identity", (x,), 1)
        return (TensorSpec(x.shape, x.dtype),)

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return True."""
        return True

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Return the input."""
        return (_put(x, out),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy."""
        x, y = inputs[0], out[0]
        return None if x is None or y is None else [functools.partial(np.copyto, y, x)]

    def prepare_moving(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> Callable[[], PreparedCalls | None] | None:
        """Copy, by one call for all sizes."""

        def copy() -> None:
            x, y = inputs[0], out[0]
            assert x is not None and y is not None
            np.copyto(y, x)

        calls = [copy]
        return lambda: calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias."""
        (x,), (y,) = inputs, outputs
        if x is not None and y is not None:
            emit.alias(y, x)


# ONNX's names of types with another name here.
_ONNX_NAMES = {"float": "float32", "double": "float64"}


@upgrade("Cast", below=6)
def _read_type_name(node: RawNode) -> RawNode:
    """Convert the type's name, such as FLOAT, which was the attribute until opset 5."""
    name = str(node.attributes["to"]).lower()
    return node.with_attributes(to=dtype_row(_ONNX_NAMES.get(name, name)).code)


def _check_elements(name: str, *dtypes: DType) -> None:
    """Check that types are those of tensors.

    Raises:
        InputError: One is a container.
    """
    for dtype in dtypes:
        row = dtype_row(dtype)
        if is_container(dtype):
            raise InputError(f"{name} expects tensors, got a {row.name}.")


def _convert_into(to: DType, x: Array, *, out: Array) -> None:
    """Convert accumulators; ``out`` is of the accumulator of the type, and whoever stores it rounds it."""
    if to == BOOL:
        np.not_equal(x, 0, out=out)
    elif (x.dtype in FLOATS and to not in FLOATS) or (x.dtype == np.float64 and to == np.float16):
        np.copyto(out, convert(x, to))
    else:
        np.copyto(out, x, casting="unsafe")


def _prepare_conversion(x: Array | None, y: Array | None) -> PreparedCalls | None:
    """Return calls that `convert` to the type of an output; None where it does more than NumPy's assignment.

    What NumPy makes of floats beyond an integer type, or of NaN, is one of the bounds: then they are truncated anew.
    """
    if x is None or y is None or not y.size or "V" in (x.dtype.kind, y.dtype.kind) or x.dtype == y.dtype:
        return None
    if not (x.dtype in _NATIVE and y.dtype in _NATIVE):
        return None
    if y.dtype == BOOL:
        return [functools.partial(np.not_equal, x, np.zeros((), x.dtype), out=y)]
    calls: list[Callable[[], object]] = [functools.partial(np.copyto, y, x, "unsafe")]
    if x.dtype.kind != "f" or y.dtype.kind == "f":
        return calls
    if y.dtype not in (np.int32, np.int64):
        return None
    bounds = np.iinfo(y.dtype)

    def settle() -> None:
        if y.min() == bounds.min or y.max() == bounds.max:
            y[...] = truncate(x, y.dtype)

    return [*calls, settle]


_NATIVE = tuple(np.dtype(name) for name in ["?", "b", "B", "h", "H", "i", "I", "l", "L", "f", "d"])


def _put(result: Array, out: Sequence[Array | None] | None) -> Array:
    wanted = out[0] if out else None
    if wanted is None:
        return result
    np.copyto(wanted, result)
    return wanted


def _write_numbers(x: Array) -> Array:
    """Return numbers as text: integers in full, bools as 1 and 0, floats in the fewest digits that distinguish them.

    Floats have no exponent and at least one digit behind the point; those that are no numbers are NaN, INF and -INF.
    bfloat16 and what is narrower are written as the float32 that they equal.
    """
    row = dtype_row(x.dtype)
    if row.is_float:
        wide = x if x.dtype in (np.float16, np.float64) else x.astype(np.float32)
        written = [_write_float(number) for number in wide.reshape(-1)]
    else:
        # A bool as its number is what every type reads back.
        whole = x.astype(np.int64) if row.is_narrow or row.kind == "bool" else x
        written = [str(number) for number in whole.reshape(-1).tolist()]
    return _make_array(written, STRING, x.shape)


def _read_numbers(x: Array, to: np.dtype[Any]) -> Array:
    """Return text as numbers: plain ones, those with an exponent, and NaN, INF, +INF and -INF in any case.

    Fractions are truncated for integers. bool takes true and false too.

    Raises:
        InputError: A text is no number, or one that the integer type does not have.
    """
    return _make_array([_read_number(text, to) for text in x.reshape(-1).tolist()], to, x.shape)


def _write_float(number: Any) -> str:
    if np.isfinite(number):
        return np.format_float_positional(number, unique=True, trim="0")
    return "NaN" if np.isnan(number) else "INF" if number > 0 else "-INF"


def _read_number(text: str, to: np.dtype[Any]) -> Any:
    stripped = text.strip()
    name = dtype_row(to).name
    if to == np.bool_ and stripped.lower() in _TRUTHS:
        return _TRUTHS[stripped.lower()]
    if not _DECIMAL_TEXT.fullmatch(stripped):
        raise InputError(f"expected the text of a number to convert to {name}, got {text[:40]!r}.")
    if to == np.bool_:
        return float(stripped) != 0
    if to in dtypes_of("float"):
        return float(stripped)
    is_whole = _INTEGER_TEXT.fullmatch(stripped) and len(stripped) < _MAX_DIGITS
    number = int(stripped) if is_whole else float(stripped)
    limits = np.iinfo(to)
    if not limits.min - 1 < number < limits.max + 1:
        raise InputError(f"expected the text of a number of {name}, got {text[:40]!r}.")
    return int(number)


def _make_array(elements: list[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    with np.errstate(all="ignore"):
        return np.array(elements, dtype).reshape(shape)

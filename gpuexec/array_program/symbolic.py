"""The symbolic array: what a traced function computes with instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpuexec.errors import InputError
from gpuexec.graph import Value
from gpuexec.spec import Dim

if TYPE_CHECKING:
    from gpuexec.array_program.tracer import Tracer


def _functions() -> Any:
    from gpuexec.array_program import fn

    return fn


def _method(name: str) -> Callable[..., SymbolicArray]:
    """Return a method that is the function of this name, the array its first argument."""

    def method(self: SymbolicArray, *arguments: Any, **options: Any) -> SymbolicArray:
        return getattr(_functions(), name)(self, *arguments, **options)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = name, f"Do as gx.fn.{name}."
    return method


def _operator(name: str) -> tuple[Callable[..., SymbolicArray], Callable[..., SymbolicArray]]:
    """Return the methods of an operator between two arrays: the array on its left, and on its right."""

    def reflected(self: SymbolicArray, other: Any) -> SymbolicArray:
        return getattr(_functions(), name)(other, self)  # type: ignore[no-any-return]

    return _method(name), reflected


class SymbolicArray:
    """An array of a program being traced: dtype and shape are known, content is not.

    It behaves as a NumPy array does: operators, indexing, methods, NumPy's functions and its promotion rules. Python
    scalars are weak, they take the array's dtype where it can hold them. What needs the content while tracing (`if`,
    `float`, iterating over a free dimension) raises and says what to use.

    Attributes:
        dtype: Element type.
        dims: Extents; a name where a dimension is free, None where it is free and nameless. None as a whole: not even
            the rank is known.
    """

    __slots__ = ("_is_weak", "_tracer", "_value", "dims", "dtype")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        tracer: Tracer,
        value: Value,
        dtype: np.dtype[Any],
        dims: tuple[Dim, ...] | None,
        is_weak: bool = False,
    ) -> None:
        self._tracer, self._value, self.dtype, self.dims = tracer, value, np.dtype(dtype), dims
        # An extent taken from a shape: an int as far as promotion goes.
        self._is_weak = is_weak

    def __repr__(self) -> str:
        listed = "..." if self.dims is None else ",".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"SymbolicArray(%{self._value.name}, {self.dtype.name}[{listed}])"

    # -------------------------------------------------------------- what is known

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._known_dims())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents: an int each, or where a dimension is free a symbolic scalar that stands for it in arithmetic."""
        return tuple(_functions().extent(self, axis) for axis in range(self.ndim))

    @property
    def size(self) -> Any:
        """Number of elements: an int, or a symbolic scalar."""
        return _functions().size(self)

    @property
    def T(self) -> SymbolicArray:  # noqa: N802
        """The array with its axes in reverse order."""
        return _functions().transpose(self)  # type: ignore[no-any-return]

    @property
    def mT(self) -> SymbolicArray:  # noqa: N802
        """The array with its last two axes exchanged."""
        return _functions().swapaxes(self, -1, -2)  # type: ignore[no-any-return]

    @property
    def at(self) -> Places:
        """Places to change, functionally: ``x.at[1:3].set(y)`` is a new array, ``x`` stays."""
        return Places(self)

    def __len__(self) -> int:
        dims = self._known_dims()
        if not dims or not isinstance(dims[0], int):
            _refuse("len()", "x.shape[0], which may stand in arithmetic, or fix the dimension by dims=")
        return dims[0]

    def __iter__(self) -> Iterator[SymbolicArray]:
        return (self[index] for index in range(len(self)))

    # -------------------------------------------------------------- indexing

    def __getitem__(self, key: Any) -> SymbolicArray:
        return _functions().getitem(self, key)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, values: Any) -> None:
        """Let this name stand for a changed array from here on; arrays made of it before stay as they were."""
        changed = _functions().setitem(self, key, values)
        self._value, self._is_weak = changed._value, False

    # -------------------------------------------------------------- operators

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("true_divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __divmod__, __rdivmod__ = _operator("divmod")
    __pow__, __rpow__ = _operator("power")
    __matmul__, __rmatmul__ = _operator("matmul")
    __and__, __rand__ = _operator("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor")
    __lshift__, __rlshift__ = _operator("left_shift")
    __rshift__, __rrshift__ = _operator("right_shift")
    __eq__ = _method("equal")  # type: ignore[assignment]
    __ne__ = _method("not_equal")  # type: ignore[assignment]
    __lt__ = _method("less")
    __le__ = _method("less_equal")
    __gt__ = _method("greater")
    __ge__ = _method("greater_equal")
    __neg__ = _method("negative")
    __pos__ = _method("positive")
    __abs__ = _method("absolute")
    __invert__ = _method("invert")

    # -------------------------------------------------------------- methods that NumPy's arrays have

    all = _method("all")
    any = _method("any")
    argmax = _method("argmax")
    argmin = _method("argmin")
    argsort = _method("argsort")
    clip = _method("clip")
    cumprod = _method("cumprod")
    cumsum = _method("cumsum")
    diagonal = _method("diagonal")
    dot = _method("dot")
    flatten = _method("flatten")
    max = _method("max")
    mean = _method("mean")
    min = _method("min")
    nonzero = _method("nonzero")
    prod = _method("prod")
    ravel = _method("ravel")
    repeat = _method("repeat")
    round = _method("round")
    sort = _method("sort")
    squeeze = _method("squeeze")
    std = _method("std")
    sum = _method("sum")
    swapaxes = _method("swapaxes")
    take = _method("take")
    trace = _method("trace")
    var = _method("var")

    def astype(self, dtype: Any) -> SymbolicArray:
        """Convert the elements."""
        return _functions().astype(self, dtype)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any) -> SymbolicArray:
        """Give the same elements another shape; one extent may be -1."""
        return _functions().reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> SymbolicArray:
        """Reorder the axes; without an order, reverse them."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return _functions().transpose(self, order)  # type: ignore[no-any-return]

    def copy(self) -> SymbolicArray:
        """Return an array of its own, which assignments to this one do not change."""
        return SymbolicArray(self._tracer, self._value, self.dtype, self.dims, self._is_weak)

    def item(self) -> NoReturn:
        """Raise: the content is not there yet."""
        _refuse("item()", "the array itself")

    # -------------------------------------------------------------- what asks for the content

    def __bool__(self) -> NoReturn:
        _refuse("bool(), as by 'if', 'and', 'or', 'not', 'while' and chained comparisons", _INSTEAD_OF_IF)

    def __int__(self) -> NoReturn:
        _refuse("int()", "x.astype(np.int64)")

    def __float__(self) -> NoReturn:
        _refuse("float()", "x.astype(np.float32)")

    def __complex__(self) -> NoReturn:
        _refuse("complex()", "the array itself")

    def __index__(self) -> NoReturn:
        _refuse("an index or count of Python's, as range(), needs it", "gx.fn.arange, x[i] or gx.fn.while_loop")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("np.asarray()", "the array itself, or functions of gx.fn")

    def __contains__(self, item: Any) -> NoReturn:
        _refuse("'in'", "(x == item).any()")

    # -------------------------------------------------------------- NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from gpuexec.array_program.dispatch import call_ufunc

        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        from gpuexec.array_program.dispatch import call_function

        return call_function(function, arguments, options)

    def _known_dims(self) -> tuple[Dim, ...]:
        if self.dims is None:
            raise InputError(f"{self!r}: how many axes it has is not known while tracing; give it a shape by reshape.")
        return self.dims


class Places:
    """Places of an array, to be followed by an index."""

    __slots__ = ("_array",)

    def __init__(self, array: SymbolicArray) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> Update:
        return Update(self._array, key)


class Update:
    """Places chosen by an index; each method returns the array with them changed."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: SymbolicArray, key: Any) -> None:
        self._array, self._key = array, key

    def get(self) -> SymbolicArray:
        """Return what is there."""
        return self._array[self._key]

    def set(self, values: Any) -> SymbolicArray:
        """Put values there. Of places named twice, the last counts."""
        return _functions().setitem(self._array, self._key, values)  # type: ignore[no-any-return]

    def add(self, values: Any) -> SymbolicArray:
        """Add values, each as often as its place is named."""
        return _functions().setitem(self._array, self._key, values, "add")  # type: ignore[no-any-return]

    def multiply(self, values: Any) -> SymbolicArray:
        """Multiply by values, each as often as its place is named."""
        return _functions().setitem(self._array, self._key, values, "mul")  # type: ignore[no-any-return]

    def min(self, values: Any) -> SymbolicArray:
        """Keep the smaller of what is there and the values."""
        return _functions().setitem(self._array, self._key, values, "min")  # type: ignore[no-any-return]

    def max(self, values: Any) -> SymbolicArray:
        """Keep the larger of what is there and the values."""
        return _functions().setitem(self._array, self._key, values, "max")  # type: ignore[no-any-return]


_INSTEAD_OF_IF = (
    "gx.fn.where(condition, a, b) to choose elements, gx.fn.cond to choose what is computed, gx.fn.while_loop, or "
    "& | ~ between conditions"
)


def _refuse(what: str, instead: str) -> NoReturn:
    raise InputError(f"{what}: the content of a symbolic array is not known while tracing. Use {instead}.")

"""Symbolic array, the stand-in for numbers in a traced function.

Its methods and operators are the functions of `gpuexec.model.tracing.fn`, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import Dim

if TYPE_CHECKING:
    from gpuexec.model.tracing.tracer import Tracer


def _functions() -> Any:
    """Return the module of functions, which needs the class that is made of these."""
    from gpuexec.model.tracing import fn

    return fn


def _make_method(name: str) -> Callable[..., SymbolicArray]:
    """Return a method that is the function of this name, the array its first argument."""

    def method(self: SymbolicArray, *arguments: Any, **options: Any) -> SymbolicArray:
        return getattr(_functions(), name)(self, *arguments, **options)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = name, f"Do as gx.fn.{name}."
    return method


def _make_array_method(name: str) -> Callable[..., SymbolicArray]:
    """Return a method that calls NumPy's function of this name, with arguments in the method's order."""

    def method(self: SymbolicArray, *arguments: Any, **options: Any) -> SymbolicArray:
        return self.__array_function__(getattr(np, name), (), (self, *arguments), options)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = name, f"Do as gx.fn.{name}."
    return method


def _make_operator(name: str) -> tuple[Callable[..., SymbolicArray], Callable[..., SymbolicArray]]:
    """Return the methods of an operator between two arrays: the array on its left, and on its right."""

    def plain(self: SymbolicArray, other: Any) -> SymbolicArray:
        return _operate(name, self, other)  # type: ignore[no-any-return]

    def reflected(self: SymbolicArray, other: Any) -> SymbolicArray:
        return _operate(name, other, self)  # type: ignore[no-any-return]

    return plain, reflected


def _make_in_place(name: str) -> Callable[..., SymbolicArray]:
    """Return the method of an operator such as ``+=``."""

    def method(self: SymbolicArray, other: Any) -> SymbolicArray:
        if self._is_weak or self.dims == ():
            # Scalars of Python and NumPy are immutable: the name is bound to another one.
            return NotImplemented  # type: ignore[no-any-return]
        from gpuexec.model.tracing.promotion import cast_in_place

        self._value = cast_in_place(_operate(name, self, other), self)._value
        return self

    return method


def _make_unary(name: str) -> Callable[..., SymbolicArray]:
    """Return the method of an operator of one array."""

    def method(self: SymbolicArray) -> SymbolicArray:
        return _operate(name, self)  # type: ignore[no-any-return]

    return method


def _operate(name: str, *operands: Any) -> Any:
    """Return an operator's result, which is weak where all operands are extents and Python numbers."""
    from gpuexec.model.tracing.promotion import kind_of

    kinds = [kind_of(each) for each in operands]
    is_weak = all(isinstance(kind, type) for kind in kinds)
    if name == "power" and is_weak and isinstance(operands[1], int) and operands[1] < 0:
        # Python's integers give a float here.
        operands = operands[0], float(operands[1])
    result = getattr(_functions(), name)(*operands)
    if not is_weak:
        return result
    listed = [_weaken(each) for each in (result if isinstance(result, tuple) else (result,))]
    return tuple(listed) if isinstance(result, tuple) else listed[0]


def _weaken(array: SymbolicArray) -> SymbolicArray:
    """Return an array of one number as one of Python's, as far as promotion goes."""
    weak = array.copy()
    weak._is_weak = True
    return weak


class SymbolicArray:
    """Array of a program being traced: dtype and shape are known, content is not.

    It behaves as a NumPy array does: operators, indexing, methods, NumPy's functions and its promotion rules. Python
    scalars are weak, they take the array's dtype where it can hold them; so are extents, and what Python's operators
    make of them. Assignments and ``+=`` change the array under all its names, but not what was sliced from it before
    nor what it was sliced from: slices are no views here. What needs the content while tracing (`if`, `float`,
    iterating over a free dimension) raises an error that names the alternative.

    Attributes:
        dtype: Element type.
        dims: Extents; a name where a dimension is free, None where it is free and nameless. None as a whole: not even
            the rank is known.

    Example:
        >>> doubled = gx.graph(lambda a: (a + a).sum(axis=1), {"a": ("float32", ("n", 3))})
        >>> with gx.Worker(doubled, backend="cpu") as worker:
        ...     worker.run(np.ones((2, 3), np.float32))[0].tolist()
        [6.0, 6.0]
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
        # An extent taken from a shape, or computed from extents: promotion treats it as a Python number.
        self._is_weak = is_weak

    def __repr__(self) -> str:
        listed = "..." if self.dims is None else ",".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"SymbolicArray(%{self._value.name}, {self.dtype.name}[{listed}])"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._known_dims())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the extents: an int each, or where a dimension is free a symbolic scalar that stands for it."""
        return tuple(_functions().extent(self, axis) for axis in range(self.ndim))

    @property
    def size(self) -> Any:
        """Number of elements: an int, or a symbolic scalar."""
        return _functions().size(self)

    @property
    def T(self) -> SymbolicArray:  # noqa: N802
        """Return the array with its axes in reverse order."""
        return _functions().transpose(self)  # type: ignore[no-any-return]

    @property
    def mT(self) -> SymbolicArray:  # noqa: N802
        """Return the array with its last two axes exchanged."""
        return _functions().swapaxes(self, -1, -2)  # type: ignore[no-any-return]

    @property
    def at(self) -> Places:
        """Return the functional updates: ``x.at[1:3].set(y)`` is a new array, ``x`` stays."""
        return Places(self)

    def __len__(self) -> int:
        dims = self._known_dims()
        if not dims or not isinstance(dims[0], int):
            _refuse("len()", "x.shape[0], which may stand in arithmetic, or fix the dimension by dims=")
        return dims[0]

    def __iter__(self) -> Iterator[SymbolicArray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: Any) -> SymbolicArray:
        return _functions().getitem(self, key)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, values: Any) -> None:
        """Replace this array by an updated one from here on; arrays made of it before stay as they were."""
        changed = _functions().setitem(self, key, values)
        self._value, self._is_weak = changed._value, False

    __add__, __radd__ = _make_operator("add")
    __sub__, __rsub__ = _make_operator("subtract")
    __mul__, __rmul__ = _make_operator("multiply")
    __truediv__, __rtruediv__ = _make_operator("true_divide")
    __floordiv__, __rfloordiv__ = _make_operator("floor_divide")
    __mod__, __rmod__ = _make_operator("remainder")
    __divmod__, __rdivmod__ = _make_operator("divmod")
    __pow__, __rpow__ = _make_operator("power")
    __matmul__, __rmatmul__ = _make_operator("matmul")
    __and__, __rand__ = _make_operator("bitwise_and")
    __or__, __ror__ = _make_operator("bitwise_or")
    __xor__, __rxor__ = _make_operator("bitwise_xor")
    __lshift__, __rlshift__ = _make_operator("left_shift")
    __rshift__, __rrshift__ = _make_operator("right_shift")
    __eq__ = _make_method("equal")  # type: ignore[assignment]
    __ne__ = _make_method("not_equal")  # type: ignore[assignment]
    __lt__ = _make_method("less")
    __le__ = _make_method("less_equal")
    __gt__ = _make_method("greater")
    __ge__ = _make_method("greater_equal")
    __neg__ = _make_unary("negative")
    __pos__ = _make_unary("positive")
    __abs__ = _make_unary("absolute")
    __invert__ = _make_unary("invert")
    __iadd__ = _make_in_place("add")
    __isub__ = _make_in_place("subtract")
    __imul__ = _make_in_place("multiply")
    __itruediv__ = _make_in_place("true_divide")
    __ifloordiv__ = _make_in_place("floor_divide")
    __imod__ = _make_in_place("remainder")
    __ipow__ = _make_in_place("power")
    __imatmul__ = _make_in_place("matmul")
    __iand__ = _make_in_place("bitwise_and")
    __ior__ = _make_in_place("bitwise_or")
    __ixor__ = _make_in_place("bitwise_xor")
    __ilshift__ = _make_in_place("left_shift")
    __irshift__ = _make_in_place("right_shift")

    all = _make_array_method("all")
    any = _make_array_method("any")
    argmax = _make_array_method("argmax")
    argmin = _make_array_method("argmin")
    argsort = _make_array_method("argsort")
    clip = _make_array_method("clip")
    cumprod = _make_array_method("cumprod")
    cumsum = _make_array_method("cumsum")
    diagonal = _make_array_method("diagonal")
    dot = _make_array_method("dot")
    flatten = _make_method("flatten")
    max = _make_array_method("max")
    mean = _make_array_method("mean")
    min = _make_array_method("min")
    nonzero = _make_array_method("nonzero")
    prod = _make_array_method("prod")
    ravel = _make_array_method("ravel")
    repeat = _make_array_method("repeat")
    round = _make_array_method("round")
    searchsorted = _make_array_method("searchsorted")
    squeeze = _make_array_method("squeeze")
    std = _make_array_method("std")
    sum = _make_array_method("sum")
    swapaxes = _make_array_method("swapaxes")
    take = _make_array_method("take")
    trace = _make_array_method("trace")
    var = _make_array_method("var")

    def astype(self, dtype: Any) -> SymbolicArray:
        """Convert the elements."""
        return _functions().astype(self, dtype)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any) -> SymbolicArray:
        """Reshape; one extent may be -1."""
        return _functions().reshape(self, shape[0] if len(shape) == 1 else shape)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> SymbolicArray:
        """Reorder the axes; without an order, reverse them."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return _functions().transpose(self, order)  # type: ignore[no-any-return]

    def sort(self, axis: int = -1) -> None:
        """Sort this array along an axis; gx.fn.sort leaves it and returns a sorted one."""
        self[...] = _functions().sort(self, axis)

    def fill(self, value: Any) -> None:
        """Set all elements to a value."""
        self[...] = value

    def copy(self) -> SymbolicArray:
        """Return an array of its own, which assignments to this one do not change."""
        return SymbolicArray(self._tracer, self._value, self.dtype, self.dims, self._is_weak)

    def item(self) -> NoReturn:
        """Raise an error: a symbolic array has no content."""
        _refuse("item()", "the array itself")

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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from gpuexec.model.tracing.dispatch import call_ufunc

        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        from gpuexec.model.tracing.dispatch import call_function

        return call_function(function, arguments, options)

    def _known_dims(self) -> tuple[Dim, ...]:
        if self.dims is None:
            raise InputError(f"{self!r}: how many axes it has is not known while tracing; give it a shape by reshape.")
        return self.dims


_INSTEAD_OF_IF = (
    "gx.fn.where(condition, a, b) to choose elements, gx.fn.cond to choose what is computed, gx.fn.while_loop, or "
    "& | ~ between conditions"
)


def _refuse(what: str, instead: str) -> NoReturn:
    raise InputError(f"{what}: the content of a symbolic array is not known while tracing. Use {instead}.")


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
        """Return the indexed elements."""
        return self._array[self._key]

    def set(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by values. Of positions named twice, the last counts."""
        return _functions().setitem(self._array, self._key, values)  # type: ignore[no-any-return]

    def add(self, values: Any) -> SymbolicArray:
        """Add values, each as often as its place is named."""
        return _functions().setitem(self._array, self._key, values, "add")  # type: ignore[no-any-return]

    def multiply(self, values: Any) -> SymbolicArray:
        """Multiply by values, each as often as its place is named."""
        return _functions().setitem(self._array, self._key, values, "mul")  # type: ignore[no-any-return]

    def min(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by the minimum of them and the values."""
        return _functions().setitem(self._array, self._key, values, "min")  # type: ignore[no-any-return]

    def max(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by the maximum of them and the values."""
        return _functions().setitem(self._array, self._key, values, "max")  # type: ignore[no-any-return]

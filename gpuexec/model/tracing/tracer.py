"""Tracer: the nodes, constants and specs that a traced function leaves.

Every node is inferred as it is added, so shapes and dtypes are known while the function runs and an error is raised at
the line that makes it (`trials`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.graphs import Array, Node, Value
from gpuexec.ir.operator import Operator, build, find_operator, suggest_name
from gpuexec.ir.spec import DeclaredSpec, Dim, dtype_row
from gpuexec.model.tracing.lines import find_line
from gpuexec.model.tracing.scope import Scope
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.trials import Declared, Trials

_CURRENT: ContextVar[Tracer] = ContextVar("tracer")
# Constants of up to this many bytes are shared where they are equal.
_SHARED_BYTES = 256


class Tracer:
    """Recorder of what a function does to symbolic arrays.

    Values: `add_input`, `add_stand_in`, `add_constant`, `take`. Nodes: `apply`, `add_node`, in the scope that
    `open_scope` opens.
    """

    def __init__(self) -> None:
        self.scope = Scope()
        self._counts: Counter[str] = Counter()
        self._taken: set[str] = set()
        self.trials = Trials()

    def add_input(self, name: str, dtype: np.dtype[Any], dims: tuple[Dim, ...] | None) -> SymbolicArray:
        """Add an input to the current scope."""
        value = Value(self.unique_name(name), DeclaredSpec(dtype, dims))
        self.scope.inputs.append(value)
        self.scope.made.add(value)
        if dims is not None:
            self.trials.add_input(value, dtype, dims)
        return SymbolicArray(self, value, dtype, dims)

    def add_stand_in(
        self, array: SymbolicArray, name: str, dims: tuple[Dim, ...] | None, skipped: int = 0
    ) -> SymbolicArray:
        """Add an input to the current scope, a body's, for a value that changes from trip to trip.

        Args:
            array: Its first value; extents that ``dims`` keeps have the sizes they have there.
            name: Of the input.
            dims: Its own; None where an extent may differ.
            skipped: Axes of the array in front of those of the input.
        """
        value = Value(self.number_name(name), DeclaredSpec(array.dtype, dims))
        self.scope.inputs.append(value)
        self.scope.made.add(value)
        if dims is not None and array.dims is not None:
            changed = [ours != theirs for ours, theirs in zip(dims, array.dims[skipped:], strict=True)]
            self.trials.add_stand_in(value, array._value, (array.dtype, dims), changed, skipped)
        return SymbolicArray(self, value, array.dtype, dims)

    def add_constant(self, array: Any) -> SymbolicArray:
        """Return an array of known content.

        Raises:
            InputError: Its element type is not supported.
        """
        key = id(array)
        shared = self.scope.shared.get(key)
        if shared is None or not np.array_equal(shared[0], self.scope.constants[shared[1]]):
            content = np.array(array)
            if content.dtype.kind in "UOSMmc":
                raise InputError(f"an array of {content.dtype} can't be part of a program; expected numbers or bools.")
            dtype_row(content.dtype)
            content.flags.writeable = False
            small = (content.dtype, content.shape, content.tobytes()) if content.nbytes <= _SHARED_BYTES else None
            known = self.scope.small.get(small)
            value = known or Value(self.number_name("constant"))
            if known is None:
                self._add_content(value, content)
            if small is not None:
                self.scope.small[small] = value
            else:
                self.scope.shared[key] = (array, value)
        else:
            value = shared[1]
        content = self.scope.constants[value]
        return SymbolicArray(self, value, content.dtype, content.shape)

    def take(self, array: SymbolicArray) -> Value:
        """Return the value of an array in the scope at hand; one from around it becomes a capture.

        Raises:
            InputError: It belongs to another program, or to a body that is done.
        """
        if array._tracer is not self:
            raise InputError("an array of another program was used; use gx.fn.forward to take a model into this one.")
        return self._find(array._value, self.scope)

    def content_of(self, array: SymbolicArray) -> Array | None:
        """Return the content of an array where it is the same whatever the free dimensions are, else None."""
        return self.trials.content_of(array._value)

    def unique_name(self, name: str) -> str:
        """Return the name, or one made of it, that no value or node of the program has yet."""
        unique = name
        while unique in self._taken:
            self._counts[name] += 1
            unique = f"{name}.{self._counts[name]}"
        self._taken.add(unique)
        return unique

    def number_name(self, stem: str) -> str:
        """Return a name of the stem and the next number."""
        self._counts[stem] += 1
        return self.unique_name(f"{stem}_{self._counts[stem]}")

    def name_node(self, operator: str) -> str:
        """Return a node's name with its line in the user's source: ``"net.py:12 MatMul"``."""
        return self.unique_name(f"{find_line()} {operator}")

    def apply(
        self,
        op: Operator | str,
        inputs: Sequence[SymbolicArray | None],
        *,
        count: int = 1,
        otherwise: Sequence[Declared] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[SymbolicArray, ...]:
        """Add a node and return its outputs.

        Args:
            op: An operator, or the name of one with ``attributes``.
            inputs: Arrays; None for an optional input not given.
            count: How many outputs are wanted.
            otherwise: Dtype and dims of the outputs, for where they depend on content that only a run knows, or on
                arrays whose rank is not known.
            attributes: Of the operator; None leaves one at its default.

        Raises:
            InputError: The inputs don't fit the operator.
            UnsupportedError: There is no such operator.
        """
        if isinstance(op, str):
            if find_operator(op) is None:
                raise UnsupportedError(f"Operator {op} is not supported. {suggest_name(op)}".rstrip())
            op = build(op, {key: value for key, value in (attributes or {}).items() if value is not None})
        taken = tuple(None if array is None else self.take(array) for array in inputs)
        key = (op, taken, count)
        if key in self.scope.results:
            # The same value, so that sizes known only at run time are known to be equal.
            return tuple(array.copy() for array in self.scope.results[key])
        stem = op.name.rpartition(".")[2]
        made = tuple(Value(self.number_name(stem.lower())) for _ in range(count))
        node = Node(op, taken, made, self.name_node(stem))
        self.add_node(node)
        specs = [self.trials.spec_of(value) for value in made]
        arrays = []
        for index, value in enumerate(made):
            spec = specs[index]
            if spec is None:
                if otherwise is None:
                    raise InputError(
                        f"{node}: the shape depends on content that is known only at run time; expected a known one."
                    )
                spec = self.trials.declare(value, otherwise[index])
            arrays.append(SymbolicArray(self, value, *spec))
        if not op.is_random:
            self.scope.results[key] = tuple(array.copy() for array in arrays)
        return tuple(arrays)

    def add_node(self, node: Node, is_inferred: bool = True) -> None:
        """Add a node to the current scope; specs of its outputs stay unknown where only a run gives them.

        Raises:
            InputError: The inputs don't fit the operator.
        """
        if is_inferred:
            self.trials.infer(node)
        made = [value for value in node.outputs if value is not None]
        self.scope.nodes.append(node)
        self.scope.made.update(made)
        self.trials.add_node(node)

    def adopt_constant(self, name: str, array: Array) -> Value:
        """Return a value for an array that is shared with another model, under its name if that is free."""
        value = Value(self.unique_name(name))
        self._add_content(value, array)
        return value

    @contextmanager
    def open_scope(self) -> Iterator[Scope]:
        """Open a body, to which nodes are added until the end of the block."""
        self.scope = Scope(self.scope)
        try:
            yield self.scope
        finally:
            assert self.scope.outer is not None
            self.scope = self.scope.outer

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the tracer that functions without symbolic arguments add to."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def _find(self, value: Value, scope: Scope) -> Value:
        if value in scope.made:
            return value
        if scope.outer is None:
            raise InputError("an array made inside a body was used outside of it; return it from the body's function.")
        found = self._find(value, scope.outer)
        captured = scope.captures.get(found)
        if captured is None:
            captured = scope.captures[found] = Value(found.name, found.declared)
            scope.made.add(captured)
            self.trials.add_capture(captured, found)
        return captured

    def _add_content(self, value: Value, content: Array) -> None:
        self.scope.constants[value] = content
        self.scope.made.add(value)
        self.trials.add_constant(value, content)


def current_tracer() -> Tracer:
    """Return the tracer of the function being traced.

    Raises:
        InputError: None is.
    """
    tracer = _CURRENT.get(None)
    if tracer is None:
        raise InputError("this function works on symbolic arrays, inside a function that gx.graph traces.")
    return tracer


def find_tracer(*arguments: Any) -> Tracer:
    """Return the tracer of the first symbolic array among arguments, else the one at work.

    Raises:
        InputError: There is none.
    """
    for argument in arguments:
        if isinstance(argument, SymbolicArray):
            return argument._tracer
        if isinstance(argument, (list, tuple)):
            for item in argument:
                if isinstance(item, SymbolicArray):
                    return item._tracer
    return current_tracer()

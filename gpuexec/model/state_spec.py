"""Memories of a model: pairs of an input and an output of its graph that carry state from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError, ModelError
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import DeclaredSpec, Dim, TensorSpec, is_host_object
from gpuexec.passes.append_rows import append_rows, find_growth
from gpuexec.planner.classes import DeclaredDims, fix_dim
from gpuexec.system.html import Markup, make_table

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """State carried from run to run: an input that starts from an output of the previous run.

    Callers need neither give nor take it.

    Attributes:
        input: Name of the input.
        output: Name of the output that becomes it.
        shape: Extents; a name or None where they are free.
        dtype: Element type.
        axis: The one it grows along, by rows put behind those there are; None: it does not.
        capacity: Rows it has room for. With one it is kept in *append* form: it lies in bytes of that capacity, and a
            run copies but its new rows there. Without, in *swap* form: a run's output is the next run's input.
        is_implicit: It was added to a recurrent layer when the model was loaded.

    Example:
        >>> from examples.networks import build_policy
        >>> policy = gx.load(build_policy(), memories="implicit")
        >>> {memory.form for memory in policy.memories}
        {'swap'}
    """

    input: str
    output: str
    shape: tuple[Dim, ...]
    dtype: np.dtype[Any]
    axis: int | None = None
    capacity: int | None = None
    is_implicit: bool = False

    @property
    def form(self) -> str:
        """``"append"`` or ``"swap"``."""
        return "swap" if self.capacity is None else "append"

    def zeros(self, *extents: int, **named: int) -> Array:
        """Return an array of zeros to start from.

        Args:
            *extents: The free extents, in order; the axis it grows along is 0 unless named.
            **named: Free extents by name.

        Raises:
            InputError: A free extent is not given, or one that is not free is.
        """
        left = list(extents)
        shape = []
        known = set()
        for axis, dim in enumerate(self.shape):
            if isinstance(dim, int):
                shape.append(dim)
            elif isinstance(dim, str) and dim in named:
                known.add(dim)
                shape.append(named[dim])
            elif axis == self.axis:
                shape.append(0)
            elif left:
                shape.append(left.pop(0))
            else:
                raise InputError(f"{self}: give an extent for axis {axis}.", value=self.input)
        unknown = sorted(set(named) - known)
        if left or unknown:
            given = ", ".join([*map(str, left), *unknown])
            raise InputError(f"{self}: {given} is no free extent of it.", value=self.input)
        return np.zeros(shape, self.dtype)

    @property
    def _declared(self) -> DeclaredSpec:
        return DeclaredSpec(self.dtype, self.shape)

    def __str__(self) -> str:
        room = "" if self.capacity is None else f" of {self.capacity} rows along axis {self.axis}"
        return f"{self.input} <- {self.output}: {self._declared} ({self.form}{room})"


def make_memory_table(memories: Sequence[Memory]) -> Markup:
    """Return memories as a table of markup; empty where there are none."""
    rows = [
        (memory.input, memory.output, memory._declared, memory.form, "" if memory.capacity is None else memory.capacity)
        for memory in memories
    ]
    return make_table(("input", "output", "spec", "form", "capacity in rows"), rows, numbers=1)


def with_extents(memory: Memory, shape: Sequence[Dim]) -> Memory:
    """Return a memory with these extents, but for the one it grows along."""
    dims = [dim if axis == memory.axis else extent for axis, (dim, extent) in enumerate(zip(memory.shape, shape))]
    return replace(memory, shape=tuple(dims))


def check_held(memory: Memory, spec: TensorSpec) -> None:
    """Check that a memory may hold a tensor.

    Raises:
        InputError: Dtype, rank or a fixed extent is another, or it has more rows than there is room for.
    """
    fits = spec.dtype == memory.dtype and spec.rank == len(memory.shape)
    if not fits or any(isinstance(d, int) and d != extent for d, extent in zip(memory.shape, spec.shape, strict=True)):
        raise InputError(f"Memory {memory.input!r} expects {memory._declared}, got {spec}.", value=memory.input)
    if memory.capacity is not None and memory.axis is not None and spec.shape[memory.axis] > memory.capacity:
        raise InputError(
            f"Memory {memory.input!r} has a capacity of {memory.capacity} rows, got {spec} with"
            f" {spec.shape[memory.axis]}.",
            value=memory.input,
        )


def check_left(memory: Memory, spec: TensorSpec) -> None:
    """Check that a memory may hold an output of a run, whose real spec may differ from the declared one.

    Raises:
        ModelError: Dtype, rank or a fixed extent is another.
    """
    try:
        check_held(memory, spec)
    except InputError as error:
        raise ModelError(
            f"Output {memory.output!r} can't be the next run's input: {error}", value=memory.output
        ) from None


def make_memory(held: Value, output: Value, dims: DeclaredDims, *, is_implicit: bool = False) -> Memory:
    """Return the memory of an input and the output that updates it.

    Raises:
        InputError: Their types or fixed extents differ; names both.
    """
    before, after = held.declared, output.declared
    assert before is not None, "inputs have types"
    if after is None:
        message = (
            f"Memory {held.name!r} ({before}) <- {output.name!r}: the output's type can't be inferred before a run."
        )
        raise InputError(message, value=output.name)
    names = f"Memory {held.name!r} ({before}) <- {output.name!r} ({after})"
    if before.dtype != after.dtype:
        raise InputError(f"{names}: the dtypes differ.", value=held.name)
    if is_host_object(before.dtype):
        raise InputError(f"{names}: a memory lies on the device, which holds no such thing.", value=held.name)
    if before.dims is None or after.dims is None or len(before.dims) != len(after.dims):
        raise InputError(f"{names}: both must have the same, declared number of axes.", value=held.name)
    axes = []
    for axis, (old, new) in enumerate(zip(before.dims, after.dims, strict=True)):
        if isinstance(old, int) and isinstance(new, int) and old != new:
            raise InputError(f"{names}: extents of axis {axis} differ, {old} and {new}.", value=held.name)
        if isinstance(old, str) and not isinstance(new, int) and new != old:
            axes.append(axis)
    shape = tuple([fix_dim(dim, dims) for dim in before.dims])
    # The one axis whose output extent differs from its input extent.
    growing = axes[0] if len(axes) == 1 and not isinstance(shape[axes[0]], int) else None
    return Memory(held.name, output.name, shape, before.dtype, growing, is_implicit=is_implicit)


def bind_pairs(
    graph: Graph,
    memories: Sequence[Memory],
    pairs: Mapping[str, str],
    capacity: int | Mapping[str, int] | None,
    dims: DeclaredDims,
) -> tuple[Graph, tuple[Memory, ...]]:
    """Return the graph with further outputs bound to inputs, and all memories.

    Args:
        graph: Whose values they are.
        memories: Those there are.
        pairs: Input by output.
        capacity: Rows a memory has room for, of all or by input.
        dims: Declared dimensions: the upper bound of one a memory grows along is its capacity.

    Raises:
        InputError: A name is unknown or taken, or two don't fit; names both.
    """
    if not isinstance(pairs, Mapping):
        raise InputError(f"bind_state takes inputs by output, {{'present': 'past'}}, got a {type(pairs).__name__}.")
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    bound = list(memories)
    given = dict(capacity) if isinstance(capacity, Mapping) else {}
    unknown = sorted(set(given) - set(pairs.values()))
    if unknown:
        raise InputError(f"capacity names {unknown[0]!r}, which is not bound; bound are {', '.join(pairs.values())}.")
    for output, held in pairs.items():
        if held not in inputs or output not in outputs:
            name, kind, known = (held, "input", inputs) if held not in inputs else (output, "output", outputs)
            raise InputError(
                f"bind_state({{{output!r}: {held!r}}}): the model has no {kind} {name!r}; it has {', '.join(known)}.",
                value=name,
            )
        taken = next((m for m in bound if held == m.input or output == m.output), None)
        if taken is not None:
            raise InputError(f"bind_state({{{output!r}: {held!r}}}): {taken} is bound already.", value=held)
        memory = make_memory(inputs[held], outputs[output], dims)
        growth = find_growth(graph, inputs[held], outputs[output])
        rows = given.get(held) if isinstance(capacity, Mapping) else capacity
        if growth is not None:
            dim = memory.shape[growth.axis]
            declared = dims.get(dim) if isinstance(dim, str) else None
            rows = declared[1] if rows is None and isinstance(declared, tuple) else rows
            if isinstance(dim, int) and rows is None:
                growth = None
        if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
            raise InputError(f"The capacity of {held!r} must be a number of rows, 1 or more, got {rows!r}.", value=held)
        if rows is not None and growth is None and (held in given or memory.axis is not None):
            raise InputError(
                f"{memory}: a capacity needs an output that is a Concat of the input, first, and of new rows, whose"
                " result is no other output; it is made in another way.",
                value=held,
            )
        if growth is not None:
            memory = replace(memory, axis=growth.axis)
            if rows is not None:
                graph = append_rows(graph, inputs[held], outputs[output], growth, rows)
                memory = replace(memory, capacity=rows)
        bound.append(memory)
    if isinstance(capacity, int) and all(memory.capacity is None for memory in bound[len(memories) :]):
        raise InputError(f"capacity={capacity}, but none of {', '.join(pairs.values())} grows by a Concat of new rows.")
    return graph, tuple(bound)

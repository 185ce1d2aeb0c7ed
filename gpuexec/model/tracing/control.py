"""Control flow that depends on content: If, Loop and Scan, with bodies traced from functions.

A body's function may use arrays from around it. What goes from trip to trip may be an array or a tuple, list or dict
of them, and keeps its dtype and rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import Dim
from gpuexec.model.tracing.promotion import BOOL, INT64, as_symbolic, cast
from gpuexec.model.tracing.scope import Scope
from gpuexec.model.tracing.shaping import as_weak, reshape
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import Tracer, current_tracer

__all__ = ["cond", "fori_loop", "scan", "while_loop"]

Dims = tuple[Dim, ...] | None


def cond(condition: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """Compute one of two functions by a condition of one element; only that one runs.

    Args:
        condition: A truth value.
        then: Of the operands, where it holds.
        otherwise: Of the operands, where it does not. Both give the same structure, dtypes and ranks.
        *operands: Arguments of both; they may use other arrays too.

    Raises:
        InputError: The two give something different.
    """
    tracer = current_tracer()
    flag = _scalar(condition, BOOL, tracer)
    scopes, results = [], []
    for function in (then, otherwise):
        with tracer.open_scope() as scope:
            # Each branch may change its operands in place.
            own = [each.copy() if isinstance(each, SymbolicArray) else each for each in operands]
            leaves, rebuild = flatten(function(*own), tracer)
            results.append((leaves, [tracer.take(leaf) for leaf in leaves]))
            scopes.append(scope)
    (first, first_values), (second, second_values) = results
    if [(leaf.dtype, leaf.ndim) for leaf in first] != [(leaf.dtype, leaf.ndim) for leaf in second]:
        raise InputError(f"the branches of cond must give the same dtypes and ranks, got {first} and {second}.")
    captures = list(dict.fromkeys(value for scope in scopes for value in scope.captures))
    branches = [
        _close(scope, values, captures, name)
        for scope, values, name in zip(scopes, (first_values, second_values), ("then", "else"), strict=True)
    ]
    op = build("If", {"then_branch": branches[0], "else_branch": branches[1]})
    declared = [(one.dtype, _join_dims(one.dims, two.dims)) for one, two in zip(first, second, strict=True)]
    return rebuild(_add(tracer, op, [tracer.take(flag), *captures], declared, "cond"))


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], initial: Any) -> Any:
    """Repeat a function of its last result while a condition of that result holds.

    Args:
        condition: Of the carried arrays; gives a truth value.
        body: Of the carried arrays; gives the next ones. An extent that differs from trip to trip is found to be free.
        initial: Values of the first trip: an array, or a tuple of them, each an argument of the functions.

    Returns:
        The carried values when the condition fails, in the structure of ``initial``.
    """
    return _loop(None, initial, lambda number, *carried: _call(body, carried), condition)


def fori_loop(lower: Any, upper: Any, body: Callable[..., Any], initial: Any) -> Any:
    """Repeat a function for the numbers from ``lower`` to before ``upper``, with carried values.

    Args:
        lower: First number.
        upper: Number after the last; may be symbolic.
        body: Of the number, which promotes as an int, and the carried arrays; returns the next ones.
        initial: Values of the first trip: an array, or a tuple of them.
    """
    return _loop(upper - lower, initial, lambda number, *carried: body(number + lower, *carried), None)


def scan(body: Callable[..., Any], initial: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """Apply a function along the first axis of arrays, with carried values, and stack its results.

    Args:
        body: Of the states and one slice of each array; returns the next states and the values to stack.
        initial: States: an array, or a tuple, list or dict of them; they keep shape and dtype.
        xs: Arrays to walk along, in a structure of their own.
        reverse: Walk from the back; results stand where their slices stood.

    Returns:
        The last states, and the stacked results.
    """
    tracer = current_tracer()
    states, rebuild_states = flatten(initial, tracer)
    arrays, rebuild_arrays = flatten(xs, tracer)
    if not arrays or any(not array.ndim for array in arrays):
        raise InputError("scan walks along the first axis of arrays; expected at least one, each with an axis.")
    with tracer.open_scope() as scope:
        carried = [tracer.add_stand_in(state, "state", state.dims) for state in states]
        slices = [tracer.add_stand_in(array, "slice", array._known_dims()[1:], 1) for array in arrays]
        given = body(rebuild_states(carried), rebuild_arrays(slices))
        if not isinstance(given, tuple) or len(given) != 2:
            raise InputError(f"the body of scan must return the next states and the values to stack, got {given!r}.")
        after, _ = flatten(given[0], tracer)
        rows, rebuild_rows = flatten(given[1], tracer)
        _check_carried(states, after, is_strict=True)
        values = [tracer.take(leaf) for leaf in (*after, *rows)]
    captures = list(scope.captures)
    attributes: dict[str, Any] = {
        "body": _close(scope, values, captures, "scan"), "num_scan_inputs": len(arrays), "states": len(states),
    }  # fmt: skip
    if reverse:
        attributes |= {"scan_input_directions": (1,) * len(arrays), "scan_output_directions": (1,) * len(rows)}
    inputs = [tracer.take(array) for array in (*states, *arrays)]
    length = arrays[0]._known_dims()[0]
    declared = [(leaf.dtype, leaf.dims) for leaf in states]
    declared += [(row.dtype, None if row.dims is None else (length, *row.dims)) for row in rows]
    made = _add(tracer, build("Scan", attributes), [*inputs, *captures], declared, "scan")
    return rebuild_states(made[: len(states)]), rebuild_rows(made[len(states) :])


def _loop(count: Any, initial: Any, body: Callable[..., Any], condition: Callable[..., Any] | None) -> Any:
    tracer = current_tracer()
    first, rebuild = flatten(initial, tracer)
    all_dims: list[Dims] = [leaf.dims for leaf in first]
    while True:
        with tracer.open_scope() as scope:
            number = as_weak(tracer.add_input(tracer.number_name("trip"), INT64, ()))
            tracer.add_input(tracer.number_name("again"), BOOL, ())
            carried = [tracer.add_stand_in(a, "carried", dims) for a, dims in zip(first, all_dims, strict=True)]
            given = body(number, *_arguments(rebuild(carried)))
            after, _ = flatten(given, tracer)
            _check_carried(first, after)
            joined = [_join_dims(dims, leaf.dims) for dims, leaf in zip(all_dims, after, strict=True)]
            if joined == all_dims:
                flag = True if condition is None else condition(*_arguments(rebuild(after)))
                values = [tracer.take(leaf) for leaf in (_scalar(flag, BOOL, tracer), *after)]
                break
        all_dims = joined
    captures = list(scope.captures)
    op = build("Loop", {"body": _close(scope, values, captures, "loop"), "carried": len(first)})
    trips = None if count is None else tracer.take(_scalar(count, INT64, tracer))
    start = None if condition is None else tracer.take(_scalar(condition(*_arguments(initial)), BOOL, tracer))
    inputs = [trips, start, *(tracer.take(leaf) for leaf in first), *captures]
    declared = [(leaf.dtype, dims) for leaf, dims in zip(first, all_dims, strict=True)]
    return rebuild(_add(tracer, op, inputs, declared, "loop"))


def _arguments(carried: Any) -> tuple[Any, ...]:
    return tuple(carried) if isinstance(carried, (tuple, list)) else (carried,)


def _call(body: Callable[..., Any], carried: Sequence[Any]) -> Any:
    return body(*carried)


def _scalar(value: Any, dtype: Any, tracer: Tracer) -> SymbolicArray:
    array = cast(as_symbolic(value, None, tracer), dtype)
    if array.dims == ():
        return array
    if any(isinstance(dim, int) and dim != 1 for dim in array._known_dims()):
        raise InputError(f"expected one element, got {array!r}; use .any() or .all() of a condition.")
    return reshape(array, ())


def _check_carried(before: Sequence[SymbolicArray], after: Sequence[SymbolicArray], is_strict: bool = False) -> None:
    kinds = [[(leaf.dtype, leaf.ndim) for leaf in leaves] for leaves in (before, after)]
    changed = is_strict and any(
        isinstance(x, int) and isinstance(y, int) and x != y
        for one, two in zip(before, after, strict=False)
        for x, y in zip(one._known_dims(), two._known_dims(), strict=False)
    )
    if kinds[0] != kinds[1] or changed:
        what = "shapes and dtypes" if is_strict else "dtypes and ranks"
        raise InputError(f"a carried value must keep its {what}: it enters as {before} and leaves as {after}.")


def _join_dims(first: Dims, second: Dims) -> Dims:
    if first is None or second is None:
        return None
    return tuple(one if one == two else None for one, two in zip(first, second, strict=True))


def _close(scope: Scope, outputs: Sequence[Value], captures: Sequence[Value], name: str) -> Graph:
    for value in captures:
        if value not in scope.captures:
            scope.captures[value] = Value(value.name, value.declared)
    return scope.close(outputs, captures, name)


def _add(
    tracer: Tracer, op: Operator, inputs: Sequence[Value | None], declared: Sequence[Any], stem: str
) -> list[SymbolicArray]:
    made = tuple(Value(tracer.number_name(stem), None) for _ in declared)
    tracer.add_node(Node(op, tuple(inputs), made, tracer.name_node(op.name)), is_inferred=False)
    return [
        SymbolicArray(tracer, value, *tracer.trials.declare(value, each))
        for value, each in zip(made, declared, strict=True)
    ]


def flatten(tree: Any, tracer: Tracer) -> tuple[list[SymbolicArray], Callable[[Sequence[Any]], Any]]:
    """Return the arrays of a structure, and the function that makes the structure of other arrays."""
    leaves: list[SymbolicArray] = []

    def build_with(node: Any) -> Callable[[Sequence[Any]], Any]:
        if isinstance(node, dict):
            parts = {key: build_with(item) for key, item in node.items()}
            return lambda given: {key: part(given) for key, part in parts.items()}
        if isinstance(node, (tuple, list)):
            kind, items = type(node), [build_with(item) for item in node]
            return lambda given: kind(item(given) for item in items)
        if node is None:
            return lambda given: None
        index = len(leaves)
        leaves.append(as_symbolic(node, None, tracer))
        return lambda given: given[index]

    rebuild = build_with(tree)
    return leaves, rebuild

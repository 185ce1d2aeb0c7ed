"""Loop trips of Loop and Scan: conditions, trip counts, specs, and rows of scan outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.interpret import infer_graph

IN_SEGMENTS = "so the extents are known only as it runs; it is run in segments"


def scalar_shape(value: Value) -> tuple[int, ...]:
    """Return the shape a body wants a scalar in: ``[1]`` where it declares one axis, else ``[]``."""
    dims = value.declared.dims if value.declared is not None else None
    return (1,) if dims is not None and len(dims) == 1 else ()


def check_condition(spec: TensorSpec | None) -> None:
    """Check that a condition, if given, is one bool.

    Raises:
        InputError: It is not.
    """
    if spec is not None and (spec.size != 1 or spec.dtype != np.bool_):
        raise InputError(f"the condition must be one bool, got {spec}.")


def check_count(spec: TensorSpec | None) -> None:
    """Check that a trip count, if given, is one integer.

    Raises:
        InputError: It is not.
    """
    if spec is not None and (spec.size != 1 or spec.dtype.kind not in "iu"):
        raise InputError(f"the trip count must be one integer, got {spec}.")


def read_flag(array: Array) -> bool:
    """Return a condition's content.

    Raises:
        InputError: It is not one bool.
    """
    check_condition(TensorSpec(array.shape, array.dtype))
    return bool(array.reshape(()))


def read_count(array: Array) -> int:
    """Return a trip count's content, 0 for negative ones.

    Raises:
        InputError: It is not one integer.
    """
    check_count(TensorSpec(array.shape, array.dtype))
    return max(int(array.reshape(())), 0)


def infer_first_rows(body: Graph, given: Sequence[TensorSpec], first: int) -> tuple[TensorSpec, ...]:
    """Return the specs of scan outputs' rows without trips: as a first trip would make them, or as declared.

    Args:
        body: Body without trips.
        given: Specs of its inputs, with content where it is known.
        first: The body's first scan output.

    Raises:
        InputError: A first trip would fail, and the body declares no rank.
    """
    try:
        return infer_graph(body, given)[first:]
    except InputError:
        return tuple(map(_declared_row, body.outputs[first:]))


def _declared_row(value: Value) -> TensorSpec:
    """Return the spec of a scan output's row as the body declares it, with free extents of 0.

    Raises:
        InputError: It declares no rank.
    """
    if value.declared is None or value.declared.dims is None:
        raise InputError(f"the shape of scan output {value} is not known without a trip, and its body declares none.")
    return TensorSpec(tuple(d if isinstance(d, int) else 0 for d in value.declared.dims), value.declared.dtype)


def forget(spec: TensorSpec) -> TensorSpec:
    """Return the spec without content, which differs from trip to trip."""
    return TensorSpec(spec.shape, spec.dtype)


def infer_trip(body: Graph, own: Sequence[TensorSpec], captures: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Infer a body for specs that hold in any trip.

    Args:
        body: Graph to infer.
        own: Specs of the inputs before the captures.
        captures: Specs of the captures, with content where it is known.

    Raises:
        InputError: A shape depends on content that another trip changes, or the body does not take its inputs.
        NeedsHostValue: A shape depends on the content of a capture.
    """
    try:
        return infer_graph(body, (*own, *captures))
    except NeedsHostValue as need:
        if need.index < len(own):
            raise InputError(f"{need}, {IN_SEGMENTS}.", node=need.node, value=need.value) from need
        raise


def stack_rows(rows: Sequence[Array], index: int) -> Array:
    """Stack the rows of a scan output along a new first axis.

    Args:
        rows: At least one.
        index: Index of the scan output, for messages.

    Raises:
        InputError: They differ in shape or type.
    """
    first = rows[0]
    for trip, row in enumerate(rows):
        if (row.shape, row.dtype) != (first.shape, first.dtype):
            expected, got = TensorSpec(first.shape, first.dtype), TensorSpec(row.shape, row.dtype)
            raise InputError(f"rows of scan output {index} must be alike, got {expected}, then {got} in trip {trip}.")
    return np.stack(rows)

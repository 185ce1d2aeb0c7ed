"""Trips of loops (Loop, Scan, SequenceMap): requests and values of their generators, counts, specs, NumPy's answers.

An operator's ``make_trips`` is a generator over values of any kind: arrays in NumPy, locations on a device. It yields a
request for each trip and is sent what the body made; who runs it says how a value is read, sliced and stacked.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from gpuexec.errors import InputError, ModelError, NeedsHostValue
from gpuexec.ir.containers import hold, make_sequence
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import TensorSpec, is_container
from gpuexec.ops.control.interpret import compute_graph, infer_graph

IN_SEGMENTS = "so the extents are known only as it runs; it is run in segments"

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Trip(Generic[V]):
    """Request for a trip; its answer is what the body makes of ``given``."""

    given: Sequence[V]


@dataclass(frozen=True, slots=True)
class MoveAxis(Generic[V]):
    """Request for a value with one axis moved; its answer is that value alone."""

    value: V
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Collect(Generic[V]):
    """Request for sequences; its answer is one for each column, of its values."""

    columns: Sequence[Sequence[V]]


Request = Trip[V] | MoveAxis[V] | Collect[V]
# A loop on its way: yields requests, is sent their answers, and ends with the outputs of the node.
Trips = Generator[Request[V], Sequence[V], Sequence[V]]


class Rows(Protocol[V]):
    """Rows of one scan output, alike in shape and type."""

    def add(self, row: V) -> None:
        """Add a row behind those there are."""

    def stack(self, *, is_reversed: bool) -> V:
        """Return the rows, at least one, stacked along a new first axis."""


class LoopValues(Protocol[V]):
    """Values that a loop deals with, as who runs it has them."""

    def find_spec(self, value: V) -> TensorSpec:
        """Return the shape and type of a value, without content."""

    def find_content(self, value: V) -> Array | None:
        """Return the content of a value, or None where the host does not have it."""

    def make(self, array: Array) -> V:
        """Return a value that the host computed."""

    def make_empty(self, spec: TensorSpec) -> V:
        """Return a value without elements."""

    def take_slice(self, value: V, place: int) -> V:
        """Return a slice of a value along its first axis."""

    def open_rows(self, max_rows: int | None) -> Rows[V]:
        """Return rows without a row yet; ``max_rows`` will follow at most, where that is known."""


class ScanOutputs(Generic[V]):
    """Scan outputs of a loop on its way.

    Args:
        values: How rows are kept.
        size: Number of scan outputs.
        max_rows: Number of trips, at most, where that is known.
    """

    def __init__(self, values: LoopValues[V], size: int, max_rows: int | None) -> None:
        self._values, self._trips = values, 0
        self._rows = [values.open_rows(max_rows) for _ in range(size)]
        self._specs: list[TensorSpec] = []

    def add(self, rows: Sequence[V]) -> None:
        """Add a row of each scan output.

        Raises:
            InputError: One is not like those before it, or no tensor.
        """
        specs = [self._values.find_spec(row) for row in rows]
        self._specs = self._specs or specs
        for index, (column, row, first, spec) in enumerate(zip(self._rows, rows, self._specs, specs, strict=True)):
            if is_container(spec.dtype):
                raise InputError(f"rows of scan output {index} must be tensors, got {spec}.")
            if spec != first:
                raise InputError(
                    f"rows of scan output {index} must be alike, got {first}, then {spec} in trip {self._trips}."
                )
            column.add(row)
        self._trips += 1

    def stack(self, directions: Sequence[int] = ()) -> list[V]:
        """Return the rows of each stacked along a new first axis; direction 1: the last trip's first."""
        backwards = directions or [0] * len(self._rows)
        return [rows.stack(is_reversed=bool(back)) for rows, back in zip(self._rows, backwards, strict=True)]


def require_content(values: LoopValues[V], value: V) -> Array:
    """Return the content of a value that the host has.

    Raises:
        ModelError: It has not.
    """
    content = values.find_content(value)
    if content is None:
        raise ModelError(f"The host was to know {values.find_spec(value)} and does not.")
    return content


def describe_values(values: LoopValues[V], given: Sequence[V]) -> list[TensorSpec]:
    """Return the specs of values, with content where the host has it."""
    return [values.find_spec(value).with_value(values.find_content(value)) for value in given]


class _ArrayRows:
    """Rows as NumPy arrays."""

    def __init__(self) -> None:
        self._rows: list[Array] = []

    def add(self, row: Array) -> None:
        self._rows.append(row)

    def stack(self, *, is_reversed: bool) -> Array:
        return np.stack(self._rows[::-1] if is_reversed else self._rows)


class _Arrays:
    """Values as NumPy arrays."""

    def find_spec(self, value: Array) -> TensorSpec:
        return TensorSpec(value.shape, value.dtype)

    def find_content(self, value: Array) -> Array:
        return value

    def make(self, array: Array) -> Array:
        return array

    def make_empty(self, spec: TensorSpec) -> Array:
        return np.empty(spec.shape, spec.dtype)

    def take_slice(self, value: Array, place: int) -> Array:
        return np.asarray(value[place])

    def open_rows(self, _max_rows: int | None) -> _ArrayRows:
        return _ArrayRows()


ARRAYS = _Arrays()


def compute_trips(body: Graph, trips: Trips[Array]) -> tuple[Array, ...]:
    """Compute a loop over `ARRAYS`: its body node by node, in NumPy."""
    answer: Sequence[Array] | None = None
    while True:
        try:
            request = next(trips) if answer is None else trips.send(answer)
        except StopIteration as end:
            return tuple(end.value)
        match request:
            case Trip():
                answer = compute_graph(body, request.given)
            case MoveAxis():
                answer = (np.moveaxis(request.value, request.source, request.destination),)
            case Collect():
                answer = [make_sequence([hold(array) for array in column]) for column in request.columns]


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

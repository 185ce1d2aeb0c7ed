"""Statistics of one value, given by a tap or a watch in place of the tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.reduce.statistics import (
    DEVIATION,
    FIRST_INF,
    FIRST_NAN,
    MAXIMUM,
    MEAN,
    MINIMUM,
    NANS,
    NEGATIVE_INFS,
    POSITIVE_INFS,
)
from gpuexec.system.records import Record

Array = np.ndarray[Any, Any]
# A reducer of the caller's own: a function of the tensor, on the host.
Reducer = Callable[[Array], Any]
MOMENTS = frozenset({"mean", "std"})
REDUCERS = ("min", "max", "absmax", "mean", "std", "nonfinite", "histogram")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite elements in each of ``len(counts)`` even parts of ``[least, most]``."""

    least: float
    most: float
    counts: tuple[int, ...]

    def edges(self) -> Array:
        """Return the ``len(counts) + 1`` bounds of the parts."""
        return np.linspace(self.least, self.most, len(self.counts) + 1)


@dataclass(frozen=True, slots=True)
class Statistics(Record):
    """Statistics of a value's finite elements, with counts of NaN and infinities.

    ``min``, ``max``, ``mean`` and ``std`` are of the finite elements: NaN where there are none, and mean and standard
    deviation (without Bessel's correction) where they were not asked for. Range and counts are exact up to the 53 bits
    of a double.

    Attributes:
        value: Its name.
        node: The node that made it; empty for an input.
        spec: Its shape and dtype; None where the host made it while planning.
        nans, positive_infs, negative_infs: How many elements are that.
        first_nan, first_inf: Where the first of them lies, of the flattened tensor; -1 where there is none.
        histogram: Of the finite elements, if it was asked for.
        results: What reducers of the caller's own gave, by their names; of two lambdas, the second is ``"<lambda> 2"``.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     worker.tap({"layer1/relu": ["mean", "max"]})
        ...     (row,) = worker.schedule(x).inspection.statistics().values()
        >>> row.min >= 0, row.nonfinite
        (True, 0)
    """

    value: str
    node: str
    spec: TensorSpec | None
    nans: int
    positive_infs: int
    negative_infs: int
    first_nan: int
    first_inf: int
    min: float
    max: float
    mean: float
    std: float
    histogram: Histogram | None = None
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def infs(self) -> int:
        """Number of infinities, of either sign."""
        return self.positive_infs + self.negative_infs

    @property
    def nonfinite(self) -> int:
        """Number of elements that are not finite."""
        return self.nans + self.infs

    @property
    def absmax(self) -> float:
        """The largest magnitude of a finite element."""
        return max(abs(self.min), abs(self.max))

    def locate(self, index: int) -> tuple[int, ...]:
        """Convert a flat index to one by axes; return it unchanged where the shape is not known."""
        if self.spec is None:
            return (index,)
        return tuple([int(i) for i in np.unravel_index(index, self.spec.shape)])

    def __str__(self) -> str:
        parts = [f"{self.value}: min {self.min:.4g}, max {self.max:.4g}"]
        parts += [f"mean {self.mean:.4g}, std {self.std:.4g}"] if self.mean == self.mean else []
        parts += [f"{self.nans} NaN"] if self.nans else []
        parts += [f"{self.infs} Inf"] if self.infs else []
        return ", ".join(parts)


def read_words(
    value: str,
    node: str,
    spec: TensorSpec | None,
    words: Array,
    counts: Array | None = None,
    results: Mapping[str, Any] | None = None,
) -> Statistics:
    """Decode statistics and histogram counts from the words of `gpuexec.ops.reduce.statistics.StatisticsOperator`."""
    least, most = float(words[MINIMUM]), float(words[MAXIMUM])
    histogram = None if counts is None else Histogram(least, most, tuple([int(count) for count in counts]))
    return Statistics(
        value=value,
        node=node,
        spec=spec,
        nans=int(words[NANS]),
        positive_infs=int(words[POSITIVE_INFS]),
        negative_infs=int(words[NEGATIVE_INFS]),
        first_nan=int(words[FIRST_NAN]),
        first_inf=int(words[FIRST_INF]),
        min=least,
        max=most,
        mean=float(words[MEAN]),
        std=float(words[DEVIATION]),
        histogram=histogram,
        results=dict(results or {}),
    )


def check_reducers(name: str, reducers: object) -> tuple[str | Reducer, ...]:
    """Return reducers as a tuple without repetition; a single one needs no list.

    Raises:
        InputError: One is neither a callable nor the name of a reducer.
    """
    given = (reducers,) if isinstance(reducers, str) or callable(reducers) else reducers
    if not isinstance(given, (list, tuple)) or not given:
        raise InputError(f"Tap {name!r} takes a list of reducers, got {reducers!r}.", value=name)
    for each in given:
        if not callable(each) and each not in REDUCERS:
            raise InputError(
                f"Tap {name!r}: {each!r} is no reducer; there are {', '.join(REDUCERS)}, and functions of an array.",
                value=name,
            )
    return tuple(dict.fromkeys(given))


def reduce_with(reducers: Iterable[Reducer], array: Array) -> dict[str, Any]:
    """Return the results of the caller's own reducers by name; repeated names are numbered."""
    results: dict[str, Any] = {}
    for reducer in dict.fromkeys(reducers):
        name = wanted = str(getattr(reducer, "__name__", type(reducer).__name__))
        number = 1
        while name in results:
            number += 1
            name = f"{wanted} {number}"
        results[name] = reducer(array)
    return results

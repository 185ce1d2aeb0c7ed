"""The provider protocol: candidates for a product or convolution, with cost, workspace and class of bits.

    Provider.candidates(problem, target) -> [Candidate]
    Candidate.emit(emitter, slots)                       adds its commands to a plan

Our kernels are a provider like any library is. Which candidate a plan takes is a pure function of the problem, the
target and a tune file, made while planning; nothing is measured for it. `Offer` records the choice with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.library_problem import Problem
from gpuexec.ir.target import Target

OURS, CUBLASLT, CUDNN = "gpuexec", "cublaslt", "cudnn"
LIBRARIES = (CUBLASLT, CUDNN)


class BitsClass(IntEnum):
    """What the bits of a result follow from; each class allows what those before it do."""

    ORDERED = 0  # sums are in the order of their terms
    SIZE_CLASS = 1  # the size class and the architecture
    EXTENTS = 2  # those and the extents
    LIBRARY = 3  # those, the GPU at hand and the version of a library


@dataclass(frozen=True, slots=True)
class ProblemSlots:
    """Where the operands of a problem lie: x and w of a convolution are a and b, and it has no c."""

    a: Slot
    b: Slot
    c: Slot | None
    bias: Slot | None
    y: Slot


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem with its slots; or, in place of a problem, why no library is asked."""

    problem: Problem | str
    slots: ProblemSlots


class CallEmitter(Protocol):
    """What a candidate of a library adds its command through."""

    def call(self, library: str, problem: Problem, slots: ProblemSlots, workspace_nbytes: int) -> None:
        """Add a call of a library, with scratch memory of so many bytes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to solve a problem.

    Attributes:
        provider: Who solves it.
        cost_us: Microseconds, predicted or measured.
        is_measured: Whether a tune file has them.
        workspace_nbytes: Of scratch memory that it takes beside the results.
        bits: What its bits follow from.
        emit: Adds its commands to the plan that is made.
    """

    provider: str
    cost_us: float
    is_measured: bool
    workspace_nbytes: int
    bits: BitsClass
    emit: Callable[[CallEmitter, ProblemSlots], None]


class Provider(Protocol):
    """A source of candidates."""

    name: str

    def candidates(self, problem: Problem, target: Target) -> Sequence[Candidate]:
        """Return the ways in which it solves a problem on a target; none where `refuse` says why."""

    def refuse(self, problem: Problem, target: Target) -> str:
        """Return why it does not solve a problem on a target; nothing where it does."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The candidates of a problem, and which was taken.

    Attributes:
        problem: As text.
        chosen: The provider that was taken.
        costs: Of each candidate its provider, microseconds, and whether they were measured.
        refused: Of each provider that could not be taken its name and why.
    """

    problem: str
    chosen: str
    costs: tuple[tuple[str, float, bool], ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def reason(self) -> str:
        """Why, in words: the cost of each candidate, and what is against the others."""
        costs = [f"{name} {cost:.1f} us {'measured' if is_measured else 'predicted'}" for name, cost, is_measured in
                 self.costs]  # fmt: skip
        return "; ".join([*costs, *(f"not {name}: {why}" for name, why in self.refused)])


def check_providers(names: Collection[str]) -> tuple[str, ...]:
    """Return the names of libraries, each once.

    Raises:
        InputError: There is no such provider, or what is given is no collection of names.
    """
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise InputError(f"providers takes names of libraries, as in ['{CUBLASLT}'], got {names!r}.")
    for name in names:
        if name not in LIBRARIES:
            raise InputError(f"There is no provider {name!r}; expected some of {', '.join(map(repr, LIBRARIES))}.")
    return tuple(dict.fromkeys(names))

"""Parsing of Einsum equations: axis labels of operands and output, and a contraction order.

A label is a letter, or ``.0``, ``.1``, ... for the axes an ellipsis stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuexec.errors import InputError
from gpuexec.ir.geometry import Shape, element_count
from gpuexec.ir.symbolic_int import memoize

Labels = tuple[str, ...]
_ELLIPSIS = "..."
_EXHAUSTIVE = 5  # operands up to which every order is tried


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation, resolved for operands of given ranks."""

    terms: tuple[Labels, ...]
    output: Labels


@dataclass(frozen=True, slots=True)
class Contraction:
    """Contraction of two operands: ``left`` and ``right`` leave the list of operands, the result goes to its end."""

    left: int
    right: int
    labels: Labels


@memoize(1024)
def parse(equation: str, ranks: tuple[int, ...]) -> Equation:
    """Resolve an equation for operands of these ranks.

    Raises:
        InputError: The equation is malformed, or does not fit the operands; it is shown.
    """

    def refuse(reason: str) -> InputError:
        return InputError(f"Einsum equation {equation!r}: {reason}.")

    plain = equation.replace(" ", "")
    left, arrow, right = plain.partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise refuse(f"expected a term for each of {len(ranks)} operands, got {len(texts)}")
    widths = set()
    for index, (text, rank) in enumerate(zip(texts, ranks, strict=True)):
        named = len(_check_term(text, refuse).replace(_ELLIPSIS, ""))
        if _ELLIPSIS in text:
            widths.add(rank - named)
        if named > rank or (_ELLIPSIS not in text and named != rank):
            expected = f"{named} or more" if _ELLIPSIS in text else str(named)
            raise refuse(f"term {text!r} expects operand {index} of rank {expected}, got rank {rank}")
    if len(widths) > 1:
        raise refuse(f"every ellipsis must stand for equally many axes, got {sorted(widths)}")
    ellipsis = tuple(f".{axis}" for axis in range(max(widths, default=0)))
    letters = left.replace(_ELLIPSIS, "").replace(",", "")
    if not arrow:
        return Equation(
            _resolve(texts, ellipsis), ellipsis + tuple(sorted(x for x in letters if letters.count(x) == 1))
        )
    wanted = _check_term(right, refuse).replace(_ELLIPSIS, "")
    for letter in wanted:
        if wanted.count(letter) > 1 or letter not in letters:
            raise refuse(f"output {right!r} may name each index of the operands once, got {letter!r}")
    if ellipsis and _ELLIPSIS not in right:
        raise refuse(f"output {right!r} lacks the ellipsis, which stands for {len(ellipsis)} axes of the operands")
    return Equation(_resolve(texts, ellipsis), _resolve((right,), ellipsis)[0])


def measure(equation: Equation, shapes: Sequence[Shape], text: str) -> dict[str, int]:
    """Return the extent of each label; an extent of 1 stretches to that of other operands.

    Raises:
        InputError: Extents of a label differ, within an operand or between operands.
    """
    extents: dict[str, int] = {}
    for index, (term, shape) in enumerate(zip(equation.terms, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, extent in zip(term, shape, strict=True):
            known = own.setdefault(label, extent)
            common = extents.get(label, 1)
            if known != extent or (extent != 1 and common not in (1, extent)):
                name = "an axis of the ellipsis" if label[0] == "." else f"index {label!r}"
                raise InputError(
                    f"Einsum equation {text!r}: {name} has extent {extent} in operand {index} of shape {list(shape)}, "
                    f"expected {known if known != extent else common}."
                )
            extents[label] = extent if extent != 1 else common
    return extents


def result_labels(left: Labels, right: Labels, needed: frozenset[str]) -> Labels:
    """Return the labels of the product of two operands: those that others, or the output, still need."""
    both = (*left, *(label for label in right if label not in left))
    return tuple(label for label in both if label in needed)


def order_contractions(terms: tuple[Labels, ...], output: Labels, extents: dict[str, int]) -> tuple[Contraction, ...]:
    """Return the cheapest order found, by multiplications; of equals the first, which is from left to right.

    Extents count as powers of two, so that all sizes of a class of plans come to the same order.
    """
    rounded = tuple(sorted((label, 1 << max(0, extent - 1).bit_length()) for label, extent in extents.items()))
    return _search(terms, output, rounded)[1]


@memoize(1024)
def _search(
    terms: tuple[Labels, ...], output: Labels, extents: tuple[tuple[str, int], ...]
) -> tuple[int, tuple[Contraction, ...]]:
    """Return the cost and the steps: of every order where operands are few, else of the cheapest pair each time."""
    if len(terms) < 2:
        return 0, ()
    sizes = dict(extents)
    found: list[tuple[int, Contraction, tuple[Labels, ...]]] = []
    for left, right in combinations(range(len(terms)), 2):
        rest = tuple(term for index, term in enumerate(terms) if index not in (left, right))
        needed = frozenset(output).union(*rest)
        labels = result_labels(terms[left], terms[right], needed) if rest else output
        cost = element_count([sizes[label] for label in {*terms[left], *terms[right]}])
        found.append((cost, Contraction(left, right, labels), (*rest, labels)))
    if len(terms) > _EXHAUSTIVE:
        found = [min(found, key=lambda each: each[0])]
    best: tuple[int, tuple[Contraction, ...]] | None = None
    for cost, step, rest in found:
        rest_cost, steps = _search(rest, output, extents)
        if best is None or cost + rest_cost < best[0]:
            best = cost + rest_cost, (step, *steps)
    assert best is not None
    return best


def _check_term(text: str, refuse: Callable[[str], InputError]) -> str:
    letters = text.replace(_ELLIPSIS, "", 1)
    if letters and not (letters.isascii() and letters.isalpha()):
        raise refuse(f"a term holds letters and at most one ellipsis, got {text!r}")
    return text


def _resolve(texts: Sequence[str], ellipsis: Labels) -> tuple[Labels, ...]:
    resolved = []
    for text in texts:
        before, found, after = text.partition(_ELLIPSIS)
        resolved.append((*before, *(ellipsis if found else ()), *after))
    return tuple(resolved)

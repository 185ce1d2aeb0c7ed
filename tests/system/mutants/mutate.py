"""Mutation of kernel source: one mistake that a compiler accepts.

Each kind of mistake maps the code of a line to what it may become.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.devices.kernels.kernel_source import index_sources, strip_comments

Change = Callable[[str], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A line of a kernel file and what it becomes.

    ``line`` counts from 1, ``kind`` names the mistake, and ``nth`` tells mutants apart that read the same: it counts
    them through the file from 0.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    nth: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before.strip()}  ->  {self.after.strip() or '(nothing)'}"

    def apply(self, text: str) -> str:
        """Return the source with the mistake in it."""
        lines = text.splitlines()
        assert lines[self.line - 1] == self.before, self
        lines[self.line - 1] = self.after
        return "\n".join(lines) + "\n"


def find_mutants(folder: Path, file: str) -> list[Mutant]:
    """Return every mutant of a kernel file of a folder that the simulator compiles, in the order of its lines."""
    text = index_sources(folder)[file].read_text()
    plain = strip_comments(text).splitlines()
    found: dict[tuple[int, str], Mutant] = {}
    seen: Counter[tuple[str, str]] = Counter()
    skipped = _find_skipped(plain)
    for number, (line, code) in enumerate(zip(text.splitlines(), plain, strict=True), 1):
        if number in skipped or "static_assert" in code:
            continue
        for kind, change in CHANGES.items():
            for changed in change(code):
                if changed != code and (number, changed) not in found:
                    nth = seen[line.strip(), changed.strip()]
                    found[number, changed] = Mutant(file, number, kind, line, changed.rstrip(), nth)
                    seen[line.strip(), changed.strip()] += 1
    return list(found.values())


def _find_skipped(lines: Sequence[str]) -> set[int]:
    """Return the numbers of lines of the preprocessor, and of those it takes away for the simulator."""
    skipped: set[int] = set()
    taken: list[bool] = []  # by conditional around the line
    for number, line in enumerate(lines, 1):
        code = line.lstrip()
        if code.startswith("#if"):
            taken.append(code.split() != ["#ifndef", "GPUEXEC_SIM"])
            is_sure = code.split() in (["#ifdef", "GPUEXEC_SIM"], ["#if", "defined(GPUEXEC_SIM)"])
        elif code.startswith("#elif"):
            taken[-1] = not is_sure
        elif code.startswith("#else"):
            taken[-1] = not is_sure and not taken[-1]
        elif code.startswith("#endif"):
            taken.pop()
        if code.startswith("#") or not all(taken):
            skipped.add(number)
    return skipped


_WAIT = re.compile(r"\b(?:__syncthreads|__syncwarp|__threadfence\w*|\w*wait\w*(?:<[^<>]*>)?|\w*\.sync)\([^()]*\);")
_COMPARISON = re.compile(r" (<=|>=|<|>) (?=[\w(-])")
_MEANS_BOUND = re.compile(r"\b(?:for|if|while)\b|\?|&&|\|\||^\s*(?:const )?bool\b|\breturn\b")
_OFF_BY_ONE = re.compile(r" - 1\b(?!\.)")
_RETURN_GUARD = re.compile(r"^(\s*)if \((?:[^()]|\([^()]*\))*\) (?:return|continue|break)(?: [\w-]+)?;\s*$")
_GUARDED = re.compile(r"^(\s*)if \(((?:[^()]|\([^()]*\))*)\) ([^{]*;)\s*$")
_CHOICE = re.compile(r"= ((?:[\w.\[\]]| [<>=&|+*-]+ |\([^()]*\))+?) \? ([^?:]+|[^?]*?::[^?:]*) : ([^:]+);")
_SUBSCRIPTS = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]+)\]")
_PRODUCT = re.compile(r"\[(\w+) \* (\([^()]*\)|\w+) \+ (\w+)\]")
_SHARED = re.compile(r"__shared__[^;=]*?\w((?:\[[^\[\]]*\])+);")
_FLIPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def _remove_wait(code: str) -> Iterator[str]:
    for match in _WAIT.finditer(code):
        yield code[: match.start()] + code[match.end() :]


def _move_bound(code: str) -> Iterator[str]:
    if "template" in code or not _MEANS_BOUND.search(code):
        return
    for match in _COMPARISON.finditer(code):
        if _is_same_at_bound(code[: match.start()], code[match.end() :]):
            continue  # of equals either may be taken
        yield f"{code[: match.start(1)]}{_FLIPPED[match[1]]}{code[match.end(1) :]}"


def _is_same_at_bound(left: str, right: str) -> bool:
    """Return whether a comparison chooses between the two that it compares, which are the same at the bound.

    As ``a < b ? a : b`` does, and ``a < b ? b : a``, in front of which or behind which others may be chosen.
    """
    bound, question, branches = right.partition(" ? ")
    first, colon, second = branches.partition(" : ")
    if not question or not colon:
        return False
    if left.endswith(first):
        return second.startswith(bound)
    compared = re.search(r"[\w.]+$", left)
    if compared is None or first != bound:
        return False
    return re.match(rf"(?:\w+\()?{re.escape(compared[0])}\)?(?:[;),]| [<>]=? |$)", second) is not None


def _forget_one(code: str) -> Iterator[str]:
    for match in _OFF_BY_ONE.finditer(code):
        yield code[: match.start()] + code[match.end() :]


def _drop_guard(code: str) -> Iterator[str]:
    if _RETURN_GUARD.match(code):
        yield ""
    elif (match := _GUARDED.match(code)) and "else" not in code and "constexpr" not in code:
        yield f"{match[1]}{match[3]}"
    if (match := _CHOICE.search(code)) and "is_inside" in match[1] + match[2] + code.partition("?")[0]:
        yield f"{code[: match.start()]}= {match[2]};{code[match.end() :]}"


def _swap_indices(code: str) -> Iterator[str]:
    if (
        "__shared__" in code
        or "__device__" in code
        or re.match(r"\s*(?:const )?(?:\w+(?:<[^<>]*>)?)[ &*(]+\w+\)?(?:\[[^\]]*\])+[;,)]", code)
    ):
        return
    for match in _SUBSCRIPTS.finditer(code):
        yield f"{code[: match.start()]}[{match[2]}][{match[1]}]{code[match.end() :]}"
    for match in _PRODUCT.finditer(code):
        yield f"{code[: match.start()]}[{match[3]} * {match[2]} + {match[1]}]{code[match.end() :]}"


def _shrink_shared(code: str) -> Iterator[str]:
    for match in _SHARED.finditer(code):
        start = match.start(1)
        for extent in re.finditer(r"\[([^\[\]]*)\]", match[1]):
            if extent[1]:
                yield f"{code[: start + extent.start(1)]}{extent[1]} - 1{code[start + extent.end(1) :]}"


CHANGES: dict[str, Change] = {
    "wait removed": _remove_wait,
    "bound moved": _move_bound,
    "- 1 forgotten": _forget_one,
    "guard removed": _drop_guard,
    "indices swapped": _swap_indices,
    "shared array shorter": _shrink_shared,
}

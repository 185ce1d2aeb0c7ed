"""Leftmost-longest search for matches of a regular expression.

A text is walked twice by automata: once from its end, which says where matches begin, then from a beginning, as far as
a longer match may come. So a search takes time in proportion to the text, whatever the pattern is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuexec.ops.text.automaton import Automaton, build_automaton
from gpuexec.ops.text.characters import Class
from gpuexec.ops.text.pattern import Alternation, Anchor, Repeat, Sequence, Tree

_ANY = Repeat(Class((), is_negated=True), 0, None)
_TURNED = {"begin": "end", "end": "begin"}


@dataclass(frozen=True, slots=True)
class Searcher:
    """The automaton of a pattern, and that of texts whose end, read backwards, is a match."""

    forwards: Automaton
    backwards: Automaton

    def begin(self, text: str) -> Callable[[int], tuple[int, int] | None]:
        """Return a function that finds in a text the first match from a place on: where it begins and ends, or None."""
        is_begin = [*self.backwards.follow(text[::-1])][::-1]  # by place, of which there is one more than characters

        def search(start: int) -> tuple[int, int] | None:
            first = next((place for place in range(start, len(text) + 1) if is_begin[place]), None)
            if first is None:
                return None
            return first, max(end for end, is_end in enumerate(self.forwards.follow(text, first), first) if is_end)

        return search


def build_searcher(tree: Tree) -> Searcher:
    """Return the searcher of a pattern's tree."""
    return Searcher(build_automaton(tree), build_automaton(Sequence((_ANY, _turn(tree)))))


def _turn(tree: Tree) -> Tree:
    """Return the tree that matches texts read backwards."""
    if isinstance(tree, Sequence):
        return Sequence(tuple(_turn(part) for part in reversed(tree.parts)))
    if isinstance(tree, Alternation):
        return Alternation(tuple(map(_turn, tree.parts)))
    if isinstance(tree, Repeat):
        return replace(tree, part=_turn(tree.part))
    if isinstance(tree, Anchor):
        subject, _, side = tree.name.rpartition(" ")
        return Anchor(f"{subject} {_TURNED.get(side, side)}")
    return tree

"""Nondeterministic finite automata for full matches of regular expressions, in linear time.

So the time is at most proportional to the pattern's length times the text's, for any pattern; and sets of states that
were visited before are cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuexec.errors import InputError
from gpuexec.ops.text.characters import Class
from gpuexec.ops.text.pattern import Alternation, Anchor, Repeat, Sequence, Tree

_MAX_STATES = 50_000
_MAX_CACHED_STATES = 200_000  # states in the sets of all steps that are kept
_EDGE, _NEWLINE, _WORD, _OTHER = range(4)  # kinds of neighbours of a position; an edge is that of the text
States = frozenset[int]


@dataclass(slots=True)
class Automaton:
    """Nondeterministic automaton made of a pattern's tree; state 0 is the end.

    Attributes:
        classes: By state that takes a character: which, and the next state.
        jumps: By state that takes none: the next states, and where that is allowed (None: anywhere).
    """

    classes: dict[int, tuple[Class, int]] = field(default_factory=dict)
    jumps: dict[int, tuple[tuple[int, ...], Anchor | None]] = field(default_factory=dict)
    start: int = 0
    _steps: dict[tuple[States, str, int], States] = field(default_factory=dict)
    _kept: int = 0

    def matches(self, text: str) -> bool:
        """Return whether all of a text matches."""
        end, is_end = -1, False
        for end, is_end in enumerate(self.follow(text)):  # noqa: B007  the last is asked
            pass
        return is_end and end == len(text)

    def follow(self, text: str, start: int = 0) -> Iterator[bool]:
        """Yield whether ``text[start:end]`` matches, for each end from ``start`` on, as long as one may match."""
        states = self._close({self.start}, _kind(text[start - 1 : start]), _kind(text[start : start + 1]))
        yield 0 in states
        for index in range(start, len(text)):
            char, behind = text[index], _kind(text[index + 1 : index + 2])
            key = (states, char, behind)
            following = self._steps.get(key)
            if following is None:
                following = self._close(self._take(states, char), _kind(char), behind)
                self._keep(key, following)
            states = following
            if not states:
                return
            yield 0 in states

    def add(self, tree: Tree, end: int) -> int:
        """Add states for a tree before a state; return the first.

        Raises:
            InputError: They are too many.
        """
        if len(self.classes) + len(self.jumps) > _MAX_STATES:
            raise InputError(f"the pattern is too large: its repetitions make more than {_MAX_STATES} states.")
        if isinstance(tree, Class):
            return self._add_class(tree, end)
        if isinstance(tree, Anchor):
            return self._add_jump((end,), tree)
        if isinstance(tree, Sequence):
            for part in reversed(tree.parts):
                end = self.add(part, end)
            return end
        if isinstance(tree, Alternation):
            return self._add_jump(tuple([self.add(part, end) for part in tree.parts]))
        return self._add_repeat(tree, end)

    def _take(self, states: States, char: str) -> set[int]:
        """Return the states after a character; each class is tested once."""
        taken = [self.classes[state] for state in states if state in self.classes]
        takers = {key for key, each in {id(each): each for each, _ in taken}.items() if each.has(char)}
        return {end for each, end in taken if id(each) in takers}

    def _keep(self, key: tuple[States, str, int], following: States) -> None:
        """Keep a step, in place of all others where these have become many."""
        self._kept += len(key[0]) + len(following) + 1
        if self._kept > _MAX_CACHED_STATES:
            self._steps.clear()
            self._kept = len(key[0]) + len(following) + 1
        self._steps[key] = following

    def _add_repeat(self, tree: Repeat, end: int) -> int:
        if tree.max_count is None:
            first = self._add_jump(())
            self.jumps[first] = ((self.add(tree.part, first), end), None)
        else:
            first = end
            for _ in range(tree.max_count - tree.min_count):
                first = self._add_jump((self.add(tree.part, first), end))
        for _ in range(tree.min_count):
            first = self.add(tree.part, first)
        return first

    def _add_class(self, tree: Class, end: int) -> int:
        state = 1 + len(self.classes) + len(self.jumps)
        self.classes[state] = (tree, end)
        return state

    def _add_jump(self, ends: tuple[int, ...], place: Anchor | None = None) -> int:
        state = 1 + len(self.classes) + len(self.jumps)
        self.jumps[state] = (ends, place)
        return state

    def _close(self, states: set[int], before: int, behind: int) -> States:
        """Return states, and those reached from them without a character, at a place between two kinds of them."""
        found, open_states = set[int](), list(states)
        while open_states:
            state = open_states.pop()
            if state in found:
                continue
            found.add(state)
            ends, place = self.jumps.get(state, ((), None))
            if place is None or _holds(place, before, behind):
                open_states += ends
        return frozenset(state for state in found if state not in self.jumps)


def build_automaton(tree: Tree) -> Automaton:
    """Return the automaton of a tree."""
    automaton = Automaton()
    automaton.start = automaton.add(tree, 0)
    return automaton


def _kind(char: str) -> int:
    """Return the kind of a character; none is the edge of the text."""
    if not char:
        return _EDGE
    if char == "\n":
        return _NEWLINE
    return _WORD if char.isascii() and (char.isalnum() or char == "_") else _OTHER


def _holds(place: Anchor, before: int, behind: int) -> bool:
    if place.name.endswith("word edge"):
        return ((before == _WORD) != (behind == _WORD)) == (place.name == "word edge")
    beside = before if place.name.endswith("begin") else behind
    return beside == _EDGE or (beside == _NEWLINE and place.name.startswith("line"))

r"""Parser of regular expressions in RE2's syntax.

The syntax: https://github.com/google/re2/blob/2025-08-12/doc/syntax.txt.

What RE2 refuses (backreferences, lookaround, possessive repetition, more than 1000 times) is refused. Of its
syntax two things are too: ``\C``, a byte, since text has none here, and ``\p{Greek}`` and other scripts, which Python
does not know; general categories like ``\pL`` are there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpuexec.errors import InputError
from gpuexec.ops.text.characters import CATEGORIES, PERL, POSIX, Class, Members, pair, spread

MAX_COUNT = 1000
_DEEPEST = 200
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_GROUP = re.compile(r"\(\?(?:P?<(?P<name>\w+)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))")
_COUNTS = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place between characters: ``"text begin"``, ``"line end"``, ``"word edge"``."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Concatenation of patterns."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Alternation of patterns."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repetition from ``min_count`` to ``max_count`` times; None: no limit."""

    part: Tree
    min_count: int
    max_count: int | None


Tree = Class | Anchor | Sequence | Alternation | Repeat


@dataclass(frozen=True, slots=True)
class Flags:
    """i: in any case; m: ``^`` and ``$`` are of lines; s: ``.`` is a newline too.

    U, what is tried first, makes no difference to whether all of a text matches.
    """

    i: bool = False
    m: bool = False
    s: bool = False

    def change(self, text: str) -> Flags:
        """Return the flags with those set that ``text`` names, or cleared if behind a minus."""
        on, _, off = text.partition("-")
        wanted = {name: True for name in on if name != "U"} | {name: False for name in off if name != "U"}
        return replace(self, **wanted)


def parse(pattern: str) -> Tree:
    """Return the tree of a pattern.

    Raises:
        InputError: It is not RE2's syntax, or what the module's docstring leaves out.
    """
    reader = _Reader(pattern)
    tree = reader.read_choice(Flags(), 0)
    if reader.at < len(pattern):
        raise reader.complain("an unexpected )")
    return tree


class _Reader:
    """A pattern, and how far it is read."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at = pattern, 0

    def complain(self, what: str) -> InputError:
        """Return an error with the position in the pattern."""
        return InputError(f"the pattern {self.text!r} has {what} at character {self.at}; expected the syntax of RE2.")

    def read_choice(self, flags: Flags, depth: int) -> Tree:
        """Read up to a closing parenthesis or the end, neither of which is taken."""
        if depth > _DEEPEST:
            raise self.complain(f"groups more than {_DEEPEST} deep")
        choices: list[Tree] = []
        parts: list[Tree] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self._take("|"):
                choices.append(Sequence(tuple(parts)))
                parts = []
            elif parts and (counts := self._take_counts()) is not None:
                parts[-1] = self._repeat(parts[-1], *counts)
            elif (changed := self._take_flags(flags)) is not None:
                flags = changed
            elif self._take("\\Q"):
                parts += self._read_quoted(flags)
            else:
                parts.append(self._read_atom(flags, depth))
        choices.append(Sequence(tuple(parts)))
        return choices[0] if len(choices) == 1 else Alternation(tuple(choices))

    def _take(self, expected: str) -> bool:
        found = self.text.startswith(expected, self.at)
        self.at += len(expected) if found else 0
        return found

    def _next(self, expected: str) -> str:
        """Consume a character."""
        if self.at >= len(self.text):
            raise self.complain(f"no {expected}")
        self.at += 1
        return self.text[self.at - 1]

    def _take_flags(self, flags: Flags) -> Flags | None:
        found = _GROUP.match(self.text, self.at)
        if found is None or found["end"] != ")":
            return None
        self.at = found.end()
        return flags.change(found["flags"])

    def _read_quoted(self, flags: Flags) -> list[Tree]:
        end = self.text.find("\\E", self.at)
        quoted = self.text[self.at : end if end >= 0 else None]
        self.at = len(self.text) if end < 0 else end + 2
        return [_literal(char, flags) for char in quoted]

    def _repeat(self, part: Tree, min_count: int, max_count: int | None) -> Tree:
        self._take("?")  # the least first: which makes no difference to whether all of a text matches
        if self._take_counts() is not None:
            raise self.complain("a repetition of a repetition ending")
        repeated = Repeat(part, min_count, max_count)
        if max(min_count, max_count or 0) > 1 and not _divide(MAX_COUNT, repeated):
            raise self.complain(f"repetitions of repetitions, together above {MAX_COUNT}, ending")
        return repeated

    def _take_counts(self) -> tuple[int, int | None] | None:
        if self.at < len(self.text) and self.text[self.at] in _REPEATS:
            self.at += 1
            return _REPEATS[self.text[self.at - 1]]
        found = _COUNTS.match(self.text, self.at)
        if found is None:
            return None
        min_count = int(found[1]) if len(found[1]) < 9 else MAX_COUNT + 1
        max_count = min_count if not found[2] else None if not found[3] else int(found[3][:9])
        if max(min_count, max_count or 0) > MAX_COUNT or (max_count is not None and max_count < min_count):
            raise self.complain(f"a repetition {found[0]}, not in order or above {MAX_COUNT},")
        self.at = found.end()
        return min_count, max_count

    def _read_atom(self, flags: Flags, depth: int) -> Tree:
        if self._take("("):
            return self._read_group(flags, depth)
        if self._take("["):
            return self._read_class(flags)
        if self._take("."):
            return Class((Members((("\n", "\n"),)),) if not flags.s else (), is_negated=True)
        if self._take("^"):
            return Anchor("line begin" if flags.m else "text begin")
        if self._take("$"):
            return Anchor("line end" if flags.m else "text end")
        if self._take("\\"):
            return self._read_escape(flags)
        if self._take_counts() is not None:
            raise self.complain("a repetition of nothing ending")
        return _literal(self._next("character"), flags)

    def _read_group(self, flags: Flags, depth: int) -> Tree:
        if self.text.startswith("?", self.at):
            found = _GROUP.match(self.text, self.at - 1)
            if found is None:
                raise self.complain("a group of an unknown kind")
            self.at = found.end()
            flags = flags.change(found["flags"] or "")
        tree = self.read_choice(flags, depth + 1)
        if not self._take(")"):
            raise self.complain("no closing )")
        return tree

    def _read_escape(self, flags: Flags) -> Tree:
        places = {"A": "text begin", "z": "text end", "b": "word edge", "B": "no word edge"}
        following = self.text[self.at : self.at + 1]
        if following in places:
            self.at += 1
            return Anchor(places[following])
        members = self._take_members()
        return Class((members,), folds=flags.i) if members is not None else _literal(self._read_escaped(), flags)

    def _take_members(self) -> Members | None:
        """Read an optional named class after a backslash."""
        name = self.text[self.at : self.at + 1]
        if name.lower() in PERL:
            self.at += 1
            return Members(pair(PERL[name.lower()]), is_negated=name.isupper())
        if name not in ("p", "P"):
            return None
        self.at += 1
        category = self._next("name of a category")
        if category == "{":
            end = self.text.find("}", self.at)
            category, self.at = self.text[self.at : end], end + 1 if end >= 0 else len(self.text)
        is_negated = (name == "P") != category.startswith("^")
        category = category.removeprefix("^")
        if category != "Any" and category not in CATEGORIES:
            raise self.complain(f"{category!r}, no general category of Unicode, ending")
        return Members(category="" if category == "Any" else category, is_negated=is_negated)

    def _read_escaped(self) -> str:
        """Read the character that is meant behind a backslash."""
        char = self._next("character behind \\")
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            return self._read_number(r"\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})", 16)
        self.at -= 1
        if char in "01234567" and (char == "0" or self.text[self.at + 1 : self.at + 2] in tuple("01234567")):
            return self._read_number("([0-7]{1,3})", 8)
        if not char.isascii() or char.isalnum():
            raise self.complain(f"\\{char}, which is not known,")
        self.at += 1
        return char

    def _read_number(self, form: str, base: int) -> str:
        found = re.compile(form).match(self.text, self.at)
        code = 0x110000 if found is None else int(next(digits for digits in found.groups() if digits), base)
        if found is None or code > 0x10FFFF:
            raise self.complain("no number of a character")
        self.at = found.end()
        return chr(code)

    def _read_class(self, flags: Flags) -> Class:
        is_negated, members, is_first = self._take("^"), list[Members](), True
        while is_first or not self._take("]"):
            is_first = False
            members.append(self._take_posix() or self._read_members(flags))
        return Class(tuple(members), is_negated, flags.i)

    def _take_posix(self) -> Members | None:
        found = re.compile(r"\[:(\^?)(\w*):\]").match(self.text, self.at)
        if found is None:
            return None
        if found[2] not in POSIX:
            raise self.complain(f"the unknown class {found[0]}")
        self.at = found.end()
        return Members(pair(POSIX[found[2]]), is_negated=bool(found[1]))

    def _read_members(self, flags: Flags) -> Members:
        """Read a character of a class, a range, or a class within it."""
        if self._take("\\"):
            members = self._take_members()
            if members is not None:
                return members
            self.at -= 1
        low = high = self._read_member()
        if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self._read_member()
        if high < low:
            raise self.complain(f"the range {low}-{high}, not in order, ending")
        return spread(low, high, flags.i)

    def _read_member(self) -> str:
        return self._read_escaped() if self._take("\\") else self._next("closing ]")


def _divide(times: int, tree: Tree) -> int:
    """Return a number divided by the product of nested repetition counts, as RE2 counts them."""
    if isinstance(tree, Repeat):
        return _divide(times // max(1, tree.min_count if tree.max_count is None else tree.max_count), tree.part)
    parts = tree.parts if isinstance(tree, (Sequence, Alternation)) else ()
    return min((_divide(times, part) for part in parts), default=times)


def _literal(char: str, flags: Flags) -> Class:
    return Class((spread(char, char, flags.i),), folds=flags.i)

"""Character classes of regular expressions."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

PERL = {"d": "09", "w": "09AZaz__", "s": "\t\n\f\r  "}  # first and last of each range
POSIX = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\x00\x7f",
    "blank": "\t\t  ",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZaz__",
    "xdigit": "09AFaf",
}
CATEGORIES = frozenset(
    ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe")
    + ("Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Cs", "Co")
)
_MAX_FOLDED = 1000  # ranges of up to this many characters are expanded to all cases


@dataclass(frozen=True, slots=True)
class Members:
    """Set of characters: those of ranges (both ends inclusive) and of a general category, or all others."""

    ranges: tuple[tuple[str, str], ...] = ()
    category: str | None = None
    is_negated: bool = False

    def has(self, forms: frozenset[str]) -> bool:
        """Return whether a character is one of these, in any of its cases."""
        found = any(low <= char <= high for char in forms for low, high in self.ranges)
        if self.category is not None:
            categories = map(unicodedata.category, forms)
            # Numbers without a character are in no category but that of any.
            found |= any(each.startswith(self.category) and (each != "Cn" or not self.category) for each in categories)
        return found != self.is_negated


@dataclass(frozen=True, slots=True)
class Class:
    """Character class: a member of any of these sets, or of none; where ``folds``, in whichever case."""

    members: tuple[Members, ...]
    is_negated: bool = False
    folds: bool = False

    def has(self, char: str) -> bool:
        """Return whether a character is in the class."""
        forms = fold(char) if self.folds else frozenset((char,))
        return any(each.has(forms) for each in self.members) != self.is_negated


def fold(char: str) -> frozenset[str]:
    """Return a character in all its cases."""
    upper, lower = char.upper(), char.lower()
    forms = (char, upper, lower, upper.lower(), lower.upper(), char.casefold())
    return frozenset(form for form in forms if len(form) == 1 and _fold_simply(form) == _fold_simply(char))


def _fold_simply(char: str) -> str:
    """Return the simple case folding of a character: one character for one, independent of language."""
    return next(form for form in (char.casefold(), char.lower(), char) if len(form) == 1)


def spread(low: str, high: str, folds: bool) -> Members:
    """Return a range, with other cases of its characters where that matters and they are few."""
    ranges = [(low, high)]
    if folds and ord(high) - ord(low) < _MAX_FOLDED:
        ranges += [(form, form) for code in range(ord(low), ord(high) + 1) for form in sorted(fold(chr(code)))]
    return Members(tuple(dict.fromkeys(ranges)))


def pair(ends: str) -> tuple[tuple[str, str], ...]:
    """Return ranges from pairs of first and last characters."""
    return tuple(zip(ends[::2], ends[1::2], strict=True))

"""A byte-level BPE tokenizer, as GPT-2 and Llama 3 have one: read from a tokenizer.json, or learnt from a text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

Pair = tuple[str, str]

# What GPT-2 splits a text into before it merges: word endings, words, numbers, other signs, blanks.
_SPLIT = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
# Each byte as a character: itself where it can be printed, else one from 256 on.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTED]
_CHARACTERS = {byte: chr(byte) for byte in _PRINTED} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
_BYTES = {character: byte for byte, character in _CHARACTERS.items()}


class Tokenizer:
    """Text to tokens, and tokens to bytes.

    Args:
        vocabulary: Tokens by what they stand for, in characters of bytes; all 256 are among them.
        merges: Pairs that become one, the first ones first.
        specials: Tokens by their text, which is never split.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], merges: Iterable[Pair], specials: Mapping[str, int] | None = None
    ) -> None:
        if not _BYTES.keys() <= vocabulary.keys():
            raise ValueError("the vocabulary lacks bytes: this is no byte-level BPE.")
        self.vocabulary, self.specials = dict(vocabulary), dict(specials or {})
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._content = {
            token: bytes(_BYTES[each] for each in text)
            for text, token in vocabulary.items()
            if text not in self.specials
        }
        self._content |= {token: text.encode() for text, token in self.specials.items()}

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a tokenizer.json of the tokenizers library."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        model = content["model"]
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        specials = {row["content"]: row["id"] for row in content.get("added_tokens", ())}
        return Tokenizer(model["vocab"], merges, specials)

    @staticmethod
    def learn(text: str, count: int) -> Tokenizer:
        """Merge the commonest pair of a text, ``count`` times."""
        words = {word: _spell(word) for word in set(_SPLIT.findall(text))}
        counts, merges = Counter(_SPLIT.findall(text)), list[Pair]()
        for _ in range(count):
            pairs = Counter[Pair]()
            for word, parts in words.items():
                for pair in pairwise(parts):
                    pairs[pair] += counts[word]
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            merges.append(best)
            words = {word: _merge(parts, best) for word, parts in words.items()}
        texts = [*_CHARACTERS.values(), *map("".join, merges)]
        return Tokenizer({text: token for token, text in enumerate(texts)}, merges)

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json."""
        model = {"type": "BPE", "vocab": self.vocabulary, "merges": [list(pair) for pair in self._ranks]}
        added = [{"content": text, "id": token} for text, token in self.specials.items()]
        Path(path).write_text(json.dumps({"added_tokens": added, "model": model}), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = []
        rule = "|".join(re.escape(each) for each in self.specials)
        for part in re.split(f"({rule})", text) if rule else [text]:
            if part in self.specials:
                tokens.append(self.specials[part])
                continue
            for word in _SPLIT.findall(part):
                tokens += [self.vocabulary[piece] for piece in self._join(_spell(word))]
        return tokens

    def decode(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens, which may end within a character; of numbers that are no token, none."""
        return b"".join(self._content.get(token, b"") for token in tokens)

    def _join(self, parts: Sequence[str]) -> Sequence[str]:
        """Merge pairs, those of the lowest rank first, as long as there are any."""
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = _merge(parts, best)
        return parts


def _spell(word: str) -> list[str]:
    return [_CHARACTERS[byte] for byte in word.encode()]


def _merge(parts: Sequence[str], pair: Pair) -> list[str]:
    """Return the parts with each occurrence of a pair made one."""
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged

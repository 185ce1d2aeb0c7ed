"""Program mutants: good files changed, reproducible by number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.system.bad_programs.parts import Parts

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 7, 255, 256, 2**31, 2**40, 2**62, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, -0.0, 1e308, "", "x", "\0", "a" * 10_000, "../../x", "名前\u202e", "\ud800", "float32", "cpu", "sm_90"),
    *([], {}, [[]], [0, 0], {"$": "graph"}, {"$": "role", "v": "temp"}, {"$": "bytes", "v": "zz"}, [None] * 1000),
)
Path = list[Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bad program in words, and as a file. ``keeps_hashes``: nobody made the hashes fit what was changed."""

    number: int
    mutations: tuple[str, ...]
    content: bytes
    keeps_hashes: bool

    def __str__(self) -> str:
        return f"{self.number}: program by {', '.join(self.mutations)}"


def make_mutant(number: int, good: bytes) -> Mutant:
    """Return the mutant of a number."""
    rng = random.Random(number)
    if rng.random() < 0.3:
        name, mutate = rng.choice(list(OF_FILES.items()))
        return Mutant(number, (name,), mutate(good, rng), True)
    parts = Parts.take_apart(good)
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        name, change = rng.choice(list(OF_PARTS.items()))
        try:
            change(parts, rng)
        except LookupError:  # nothing is left that it could change
            continue
        names.append(name)
    text = None
    if rng.random() < 0.05:
        text = _spoil_text(json.dumps(parts.program).encode(), rng)
        names.append("spoil_text")
    return Mutant(number, tuple(names), parts.put_together(text), False)


def truncate(content: bytes, rng: random.Random) -> bytes:
    """Cut the file anywhere."""
    return content[: rng.randrange(len(content))]


def extend(content: bytes, rng: random.Random) -> bytes:
    """Put something behind it."""
    return content + rng.randbytes(rng.choice((1, 256, 5000)))


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    """Flip some bits."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 8, 200))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_header(content: bytes, rng: random.Random) -> bytes:
    """Change bytes of the header."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 3))):
        changed[rng.randrange(8 + int.from_bytes(content[:8], "little"))] = rng.randrange(256)
    return bytes(changed)


def set_length(content: bytes, rng: random.Random) -> bytes:
    """Say that the header has another length."""
    length = rng.choice((0, 1, 2, 8, 255, len(content), len(content) - 8, 2**31, 2**63, 2**64 - 1, rng.randrange(2000)))
    return length.to_bytes(8, "little") + content[8:]


def move_block(content: bytes, rng: random.Random) -> bytes:
    """Copy a stretch of the file over another."""
    changed = bytearray(content)
    size = rng.randrange(1, max(2, min(2000, len(content) // 2)))
    source, target = rng.randrange(len(content) - size), rng.randrange(len(content) - size)
    changed[target : target + size] = content[source : source + size]
    return bytes(changed)


def replace_by_noise(content: bytes, rng: random.Random) -> bytes:
    """Give noise, perhaps behind a good length."""
    return rng.choice((b"", content[:8])) + rng.randbytes(rng.randrange(4000))


# Mutations of the file, whose hashes stay as they were.
OF_FILES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    f.__name__: f for f in (truncate, extend, flip_bits, flip_header, set_length, move_block, replace_by_noise)
}


def replace_anything(parts: Parts, rng: random.Random) -> None:
    """Put something odd in a place of the program."""
    holder, key = _pick(parts.program, rng)
    holder[key] = rng.choice(ODD)


def change_number(parts: Parts, rng: random.Random) -> None:
    """Change a number a little, or much."""
    holder, key = _pick(parts.program, rng, int)
    holder[key] = rng.choice((holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 256, *ODD[3:16]))


def change_text(parts: Parts, rng: random.Random) -> None:
    """Put a text in another's place: names of operators, types, values."""
    holder, key = _pick(parts.program, rng, str)
    holder[key] = rng.choice(
        [_get(_pick(parts.program, rng, str)), "Loop", "If", "LSTM", "Reshape", "bool", "bfloat16"]
    )


def rename_operator(parts: Parts, rng: random.Random) -> None:
    """Rename a node's operator to another, or to an unknown one."""
    rows = [_at(parts.program, path) for path in _walk(parts.program)]
    nodes = [row for row in rows if isinstance(row, list) and len(row) == 5 and isinstance(row[2], dict)]
    rng.choice(nodes)[1] = rng.choice(("Nonsense", "com.nobody.Op", "", "Relu", "Concat", "Loop", "Scan", "If", "LSTM"))


def drop_entry(parts: Parts, rng: random.Random) -> None:
    """Leave something out."""
    holder, key = _pick(parts.program, rng)
    del holder[key]


def repeat_entry(parts: Parts, rng: random.Random) -> None:
    """Say something twice."""
    holder, key = _pick(parts.program, rng)
    if isinstance(holder, list):
        holder.insert(key, _copy(holder[key]))
    else:
        holder[f"{key}'"] = _copy(holder[key])


def swap_entries(parts: Parts, rng: random.Random) -> None:
    """Put two things in each other's place: nodes before their inputs, among others."""
    holder, key = _pick(parts.program, rng)
    others = list(range(len(holder))) if isinstance(holder, list) else list(holder)
    other = rng.choice(others)
    holder[key], holder[other] = holder[other], holder[key]


def graft(parts: Parts, rng: random.Random) -> None:
    """Put a piece of the program in the place of another."""
    piece = _copy(_get(_pick(parts.program, rng)))
    holder, key = _pick(parts.program, rng)
    holder[key] = piece


def nest(parts: Parts, rng: random.Random) -> None:
    """Put something deep within lists or objects."""
    holder, key = _pick(parts.program, rng)
    item = holder[key]
    for _ in range(rng.choice((1, 10, 200, 400))):
        item = [item] if rng.random() < 0.5 else {"$": "graph", "v": item}
    holder[key] = item


def blow_up(parts: Parts, rng: random.Random) -> None:
    """Say that a tensor, buffer or bound is huge."""
    number = rng.choice((2**31, 2**40, 2**62, 2**63 - 1))
    words = ("dims", "shape", "arena", "nbytes", "values", "offsets", "arrays")
    paths = [
        p for p in _walk(parts.program) if any(word in words for word in p) and isinstance(_at(parts.program, p), int)
    ]
    holder, key = _split(parts.program, rng.choice(paths))
    holder[key] = number


def change_bytes(parts: Parts, rng: random.Random) -> None:
    """Change the weights or the code, which may be anything."""
    body = rng.choice((parts.weights, parts.code))
    for _ in range(rng.choice((1, 50))):
        body[rng.choice(range(len(body)))] = rng.randrange(256)


def cut_bytes(parts: Parts, rng: random.Random) -> None:
    """Make the weights or the code shorter, or longer."""
    body = rng.choice((parts.weights, parts.code))
    if rng.random() < 0.5:
        del body[rng.choice(range(0, len(body), 256)) :]
    else:
        body += bytes(256)


def change_metadata(parts: Parts, rng: random.Random) -> None:
    """Put something odd in the metadata: another format, above all."""
    parts.metadata[rng.choice(list(parts.metadata))] = rng.choice(
        (*ODD, [2, 0], [1, 9], [1], [1, "0"], [0, 9], [-1, 0])
    )


# Mutations of parts, whose hashes are made to fit.
OF_PARTS: dict[str, Callable[[Parts, random.Random], None]] = {
    f.__name__: f
    for f in (replace_anything, change_number, change_text, rename_operator, drop_entry, repeat_entry, swap_entries)
    + (graft, nest, blow_up, change_bytes, cut_bytes, change_metadata)
}


def _spoil_text(text: bytes, rng: random.Random) -> bytes:
    """Return a text that is JSON no more, or of a kind that a parser may choke on."""
    deep = rng.choice((10_000, 200_000))
    return rng.choice(
        (
            text[: rng.randrange(len(text))],
            b"[" * deep,
            b'{"a":' * deep + b"1" + b"}" * deep,
            text.replace(b"0.5", b"NaN").replace(b":1,", b":Infinity,", 1),
            text.replace(b":1,", b":" + b"9" * 10_000 + b",", 1),
            b"\xff\xfe" + text,
            text + text,
            b"",
            b"null",
        )
    )


def _walk(item: Any) -> list[Path]:
    """Return the paths of all things in JSON data but its top."""
    found: list[Path] = []
    waiting: list[tuple[Any, Path]] = [(item, [])]
    while waiting:
        held, path = waiting.pop()
        rows = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
        for key, value in rows:
            found.append([*path, key])
            waiting.append((value, [*path, key]))
    return found


def _pick(item: Any, rng: random.Random, kind: type = object) -> tuple[Any, Any]:
    """Choose a thing in JSON data, as what holds it and its key; small parts of it as often as large ones."""
    paths = [path for path in _walk(item) if isinstance(_at(item, path), kind)]
    by_section: dict[Any, list[Path]] = {}
    for path in paths:
        by_section.setdefault(tuple(path[: 3 if path[0] == "methods" else 1]), []).append(path)
    return _split(item, rng.choice(by_section[rng.choice(list(by_section))]))


def _split(item: Any, path: Path) -> tuple[Any, Any]:
    return _at(item, path[:-1]), path[-1]


def _at(item: Any, path: Path) -> Any:
    for key in path:
        item = item[key]
    return item


def _get(place: tuple[Any, Any]) -> Any:
    return place[0][place[1]]


def _copy(item: Any) -> Any:
    return json.loads(json.dumps(item))

"""Weight-file mutants: good files changed, reproducible by number."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.system.bad_programs.mutant import OF_FILES
from tests.system.bad_weights.seeds import WEIGHTS, make_arrays, make_beside, make_npz, make_safetensors, make_state

_NUMBERS: tuple[Any, ...] = (-1, 0, 1, 7, 4096, 2**31, 2**40, 2**62, 2**63, 2**64, 10**30, None, 0.5, "8", True, [], {})
_DTYPES = ("F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "", "X99", "f32", None, 5)
# As external data says them: text, whatever it holds.
_TEXTS = ("", "0", "-1", "x", "1e3", "0x10", " 8", "1_0", "9" * 30, "9" * 5000, "0" * 5000, "\0", "名前", str(2**63))
_LOCATIONS = (
    "",
    ".",
    "..",
    "../w.bin",
    "/etc/hostname",
    "w.bin/x",
    "absent",
    "a" * 300,
    "w\0.bin",
    "link",
    "pipe",
    "empty",
)
_DAMAGES = tuple(OF_FILES)
# Of files without a header of safetensors.
_DAMAGES_OF_ANY = tuple(name for name in OF_FILES if name != "flip_header")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bad file in words and bytes.

    Attributes:
        number: By which it is made again.
        kind: "safetensors", "npz", "state" or "external".
        mutations: What was done to it.
        content: Of the file.
        rows: What external data says of each tensor, in place of what is so.
        change: What happens to the file between its opening and its use: "", "cut" or "overwritten".
    """

    number: int
    kind: str
    mutations: tuple[str, ...]
    content: bytes
    rows: tuple[tuple[str, str, str], ...] = ()
    change: str = ""

    def __str__(self) -> str:
        changed = f", then {self.change}" if self.change else ""
        return f"{self.number}: {self.kind} by {', '.join(self.mutations)}{changed}"


def make_mutant(number: int) -> Mutant:
    """Return the mutant of a number."""
    rng = random.Random(number)
    kind = rng.choice(("safetensors", "safetensors", "npz", "state", "external"))
    change = rng.choice(("cut", "overwritten")) if rng.random() < 0.15 else ""
    if kind == "external":
        return _mutate_external(number, rng, change)
    good = {"safetensors": make_safetensors, "npz": make_npz, "state": make_state}[kind]()
    if change and rng.random() < 0.7:
        return Mutant(number, kind, ("nothing",), good, (), change)
    if rng.random() < 0.4:
        name = rng.choice(_DAMAGES_OF_ANY if kind == "npz" else _DAMAGES)
        return Mutant(number, kind, (name,), OF_FILES[name](good, rng), (), change)
    if kind == "npz":
        name, make = rng.choice(list(OF_ARRAYS.items()))
        return Mutant(number, kind, (name,), make(rng), (), change)
    names = []
    header, body = take_apart(good)
    for _ in range(rng.choice((1, 1, 2, 4))):
        name, edit = rng.choice(list(OF_HEADERS.items()))
        header = edit(header, rng)
        names.append(name)
    return Mutant(number, kind, tuple(names), put_together(header, body), (), change)


def _mutate_external(number: int, rng: random.Random, change: str) -> Mutant:
    content, names = make_beside(), []
    if rng.random() < 0.4:
        name = rng.choice(_DAMAGES_OF_ANY)
        content = OF_FILES[name](content, rng)
        names.append(name)
    rows = []
    for _ in range(rng.choice((0, 1, 1, 3))):
        key = rng.choice(("location", "offset", "length", "checksum", "basepath", ""))
        value = rng.choice(_LOCATIONS if key == "location" else _TEXTS)
        rows.append((rng.choice(list(WEIGHTS)), key, value))
        names.append(f"{key}={value[:20]!r}")
    return Mutant(number, "external", tuple(names) or ("nothing",), content, tuple(rows), change)


def take_apart(content: bytes) -> tuple[Any, bytes]:
    """Return the header as data, and the bytes behind it."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def put_together(header: Any, body: bytes) -> bytes:
    """Return a file of a header, which may be text as it shall stand there."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _edit_rows(edit: Callable[[dict[str, Any], str, random.Random], None]) -> Callable[[Any, random.Random], Any]:
    """Return what edits a header of one tensor or more; text is left alone."""

    def run(header: Any, rng: random.Random) -> Any:
        names = [name for name, row in header.items() if isinstance(row, dict)] if isinstance(header, dict) else []
        if names:
            edit(header, rng.choice(names), rng)
        return header

    return run


def _choose_value(rng: random.Random) -> Any:
    # A copy: another edit may write into the dictionary among them.
    return copy.deepcopy(rng.choice(_NUMBERS))


def _set_offset(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name]["data_offsets"] = [_choose_value(rng) for _ in range(rng.choice((0, 1, 2, 2, 2, 3)))]


def _set_shape(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name]["shape"] = [_choose_value(rng) for _ in range(rng.choice((0, 1, 2, 9, 70)))]


def _turn_shape(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name]["shape"] = list(reversed(header[name].get("shape") or [])) + [1]


def _set_dtype(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name]["dtype"] = rng.choice(_DTYPES)


def _drop_field(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name].pop(rng.choice(("dtype", "shape", "data_offsets")), None)


def _drop_tensor(header: dict[str, Any], name: str, rng: random.Random) -> None:
    del header[name]


def _rename_tensor(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[rng.choice(("", "x", "held", "y", "w", "名前", "a" * 5000, "\ud800", "__metadata__"))] = header.pop(name)


def _share_place(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header["again"] = dict(header[name])


def _replace_row(header: dict[str, Any], name: str, rng: random.Random) -> None:
    header[name] = _choose_value(rng)


def _spoil_text(header: Any, rng: random.Random) -> Any:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    deep = rng.choice((200, 100_000))
    return rng.choice(
        (
            *(b"", b"null", b"[]", b"{}", b"\xff\xfe" + text, text + text, b"[" * deep, b'{"w":' * deep),
            *(text[: rng.randrange(len(text) + 1)], text.replace(b"0", b"9" * 5000, 1), text.replace(b"0", b"NaN", 1)),
        )
    )


OF_HEADERS: dict[str, Callable[[Any, random.Random], Any]] = {
    **{
        f.__name__.strip("_"): _edit_rows(f)
        for f in (_set_offset, _set_shape, _turn_shape, _set_dtype, _drop_field, _drop_tensor, _rename_tensor)
        + (_share_place, _replace_row)
    },
    "spoil_text": _spoil_text,
}


def _pack(arrays: Any, *, pickles: bool = False, packs: bool = False) -> bytes:
    file = io.BytesIO()
    save = np.savez_compressed if packs else np.savez
    save(file, allow_pickle=pickles, **arrays)
    return file.getvalue()


def _change_array(rng: random.Random) -> bytes:
    """Give a weight another type, shape or layout, or values that are none."""
    arrays = make_arrays(1)
    name = rng.choice(list(arrays))
    changes = [
        lambda a: a.astype(rng.choice(("f8", "i4", "c16", "?", "S4", "U3", ">f4", "M8[s]"))),
        lambda a: a.reshape(-1),
        lambda a: a[:0],
        lambda a: np.asfortranarray(a),
        lambda a: np.full_like(a, np.nan),
        lambda a: np.zeros(a.shape, [("x", "f4"), ("y", "i2")]),
        lambda a: a[0].reshape(-1)[0],
    ]
    return _pack(arrays | {name: rng.choice(changes)(arrays[name])})


def _add_object(rng: random.Random) -> bytes:
    """Hold what would have to be unpickled."""
    return _pack(make_arrays(1) | {rng.choice(("w", "z")): np.array([{"a": 1}, None], object)}, pickles=True)


def _blow_up(rng: random.Random) -> bytes:
    """Say that an array has more elements than there are, or hold many in little."""
    if rng.random() < 0.5:
        return _pack(make_arrays(1) | {"w": np.zeros(rng.choice((1 << 16, 1 << 24)), np.uint8)}, packs=True)
    content = bytearray(make_npz())
    at = content.find(b"(48, 48)")
    content[at : at + 8] = rng.choice((b"(99, 99)", b"(9**9, )", b"(1<<60,)", b"(-1, 48)", b"(48, 4 )", b"48888888"))
    return bytes(content)


def _rename_array(rng: random.Random) -> bytes:
    """Give names that are none of the model's, or of no file."""
    arrays = make_arrays(1)
    arrays[rng.choice(("", "x", "../w", "名前", "a" * 3000))] = arrays.pop(rng.choice(list(arrays)))
    return _pack(arrays)


def _hold_one(rng: random.Random) -> bytes:
    """Be an ``.npy`` file, or an empty archive."""
    if rng.random() < 0.5:
        return _pack({})
    file = io.BytesIO()
    np.save(file, np.ones(5))
    return file.getvalue()


OF_ARRAYS: dict[str, Callable[[random.Random], bytes]] = {
    f.__name__.strip("_"): f for f in (_change_array, _add_object, _blow_up, _rename_array, _hold_one)
}

"""Lists of cases: passing ones by device, which only grow; those that need the host; those that can't pass.

Lines of the latter two are ``id: reason``.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_FOLDER = Path(__file__).parent
# Of one operator's cases at least this many are in the part that every test run repeats, and of all one in so many.
_PER_OPERATOR = 1
_ONE_IN = 40


def list_path(device: str) -> Path:
    """Return where the list of a device stands."""
    return _FOLDER / f"passing_{device}.txt"


def read_passing(path: Path) -> tuple[str, ...]:
    """Return the ids in a list; none where there is no list yet."""
    lines = path.read_text().splitlines() if path.exists() else []
    return tuple(line for line in lines if line and not line.startswith("#"))


def read_reasons(name: str) -> dict[str, str]:
    """Return a list with reasons, by id: ``"fallbacks"`` of devices with kernels, or ``"misses"`` of all."""
    rows = (line.partition(": ") for line in read_passing(_FOLDER / f"{name}.txt"))
    return {id: reason for id, _, reason in rows}


def write_reasons(name: str, reasons: Mapping[str, str]) -> None:
    """Write a list with reasons, sorted."""
    rows = [f"{id}: {reason}" for id, reason in sorted(reasons.items())]
    (_FOLDER / f"{name}.txt").write_text("\n".join(rows) + "\n")


def add_passing(path: Path, ids: Collection[str], suite: str) -> int:
    """Add ids to a list, which keeps what it has; return how many are new.

    Args:
        path: The list.
        ids: What passes now.
        suite: Which version of the suite was run, for the list's first line.
    """
    known = set(read_passing(path))
    new = set(ids) - known
    path.write_text("\n".join([f"# {suite}", *sorted(known | new)]) + "\n")
    return len(new)


def choose_part(listed: Sequence[str], operators: Mapping[str, Collection[str]]) -> list[str]:
    """Return the part of a list that is fast to run and has every operator: a fixed sample, and some of each operator.

    Args:
        listed: Ids of a list.
        operators: The operators of each case of the suite, by id. Ids that are not in it are left out.
    """
    candidates = [id for id in sorted(listed, key=_hash) if id in operators]
    counts: dict[str, int] = {}
    part = []
    for id in candidates:
        if _hash(id) % _ONE_IN == 0 or any(counts.get(name, 0) < _PER_OPERATOR for name in operators[id]):
            part.append(id)
            for name in operators[id]:
                counts[name] = counts.get(name, 0) + 1
    return sorted(part)


def _hash(id: str) -> int:
    return zlib.crc32(id.encode())

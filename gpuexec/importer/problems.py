"""What a model asks for that is not supported, collected so that all of it is reported together."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuexec.errors import UnsupportedError

_NAMES_SHOWN = 4


@dataclass(slots=True)
class Problems:
    """Nodes and values by what is wrong with them, in the order found."""

    rows: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, where: str) -> None:
        """Note that ``what`` is not supported, at a node or value."""
        self.rows.setdefault(what, []).append(where)

    def report(self, model: str) -> None:
        """Raise if there is anything to report.

        Raises:
            UnsupportedError: Lists each problem with its count and the first names.
        """
        if not self.rows:
            return
        lines = [f"  {what}: {len(names)} ({_shorten(names)})" for what, names in self.rows.items()]
        raise UnsupportedError(f"{model} uses what is not supported:\n" + "\n".join(lines))


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, and {len(names) - _NAMES_SHOWN} more"

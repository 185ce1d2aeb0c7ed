"""Collected problems of a model, reported together: contradictions and unsupported features."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuexec.errors import ModelError, UnsupportedError, locate
from gpuexec.ir.operator import OWN_OPERATORS

_NAMES_SHOWN = 4
_ERRORS_SHOWN = 20


@dataclass(slots=True)
class Problems:
    """Unsupported features with their nodes and values, and contradictions, each in the order found."""

    rows: dict[str, list[str]] = field(default_factory=dict)
    cures: dict[str, str] = field(default_factory=dict)
    errors: list[ModelError] = field(default_factory=list)

    def add(self, what: str, where: str, cure: str | None = None) -> None:
        """Note that ``what`` is not supported, at a node or value; ``cure`` is advice on an operator."""
        self.rows.setdefault(what, []).append(where)
        if cure is not None:
            self.cures[what] = cure

    def note(self, error: ModelError, path: str = "", node: str = "") -> None:
        """Collect a contradiction that was raised, so that reading continues.

        Args:
            error: The contradiction.
            path: In which body it is.
            node: At which node, where the error does not say.
        """
        error.node = node if error.node in (None, "", node) and node else error.node
        if path:
            locate(error, path.rstrip("/"))
        self.errors.append(error)

    def report(self, model: str) -> None:
        """Raise an error that lists all problems, if there are any.

        Raises:
            ModelError: The model contradicts itself; lists each contradiction, and after them unsupported features.
            UnsupportedError: Lists each thing that is not supported with its count and the first names.
        """
        lines = [line for what, names in self.rows.items() for line in _describe(what, names, self.cures.get(what, ""))]
        if self.cures:
            lines.append(f"  {OWN_OPERATORS}")
        if not self.errors:
            if lines:
                raise UnsupportedError(f"{model} uses what is not supported:\n" + "\n".join(lines))
            return
        first, *others = self.errors
        if not others and not lines:
            raise first
        shown = [f"  {error}" for error in self.errors[:_ERRORS_SHOWN]]
        if len(self.errors) > _ERRORS_SHOWN:
            shown.append(f"  and {len(self.errors) - _ERRORS_SHOWN} more like these")
        if lines:
            shown += ["and uses what is not supported:", *lines]
        text = f"{model} contradicts itself:\n" + "\n".join(shown)
        raise ModelError(text, node=first.node and str(first.node), value=first.value) from first


def _describe(what: str, names: list[str], cure: str) -> list[str]:
    """Return the lines about an unsupported feature: where, the advice, and the source of the first place."""
    lines = [f"  {what}: {len(names)} ({_shorten(names)})"]
    source = next((source for source in (getattr(name, "source", "") for name in names) if source), "")
    return [*lines, *(f"    {part}" for part in (*source.splitlines(), *cure.splitlines()))]


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, and {len(names) - _NAMES_SHOWN} more"

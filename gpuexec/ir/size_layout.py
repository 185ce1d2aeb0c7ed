"""Layouts of sizes: where the numbers stand in which the commands of a plan's variants differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from gpuexec.ir.command import Command
from gpuexec.ir.plan import Variant
from gpuexec.ir.spec import TensorSpec


class FieldKind(Enum):
    """What a number of a command is: of the launch configuration, within an argument, of a copy or fill, or of a slot.

    WHOLE is none: the command differs in more than numbers of its slots, and is made anew.
    """

    GRID = "grid"
    BLOCK = "block"
    SHARED = "shared_bytes"
    ARGUMENT = "argument"
    OFFSET = "offset_bytes"
    COUNT = "count"
    EXTENT = "extent"
    STRIDE = "stride"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class SizeField:
    """A number of a command that depends on the sizes, and the entry of a `SizeLayout`'s row that it takes.

    Attributes:
        command: Its position in the segment.
        kind: What it is.
        position: Axis of a grid or block, or position of an argument: of a copy, 0 is the destination, 1 the source; of
            a host call, outputs count behind inputs.
        at: Bytes into the argument; axis of an extent or stride.
        form: The type of the number in the argument, as `struct` spells it.
        entry: Of the row.
    """

    command: int
    kind: FieldKind
    entry: int
    position: int = 0
    at: int = 0
    form: str = "q"


@dataclass(frozen=True, slots=True, eq=False)
class SizeLayout:
    """All that differs between the commands of variants: they are the same but for these fields."""

    fields: tuple[SizeField, ...]
    # Positions of the commands that differ.
    commands: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "commands", frozenset([each.command for each in self.fields]))

    def by_command(self) -> dict[int, list[SizeField]]:
        """Return the fields by the position of their command."""
        found: dict[int, list[SizeField]] = {}
        for each in self.fields:
            found.setdefault(each.command, []).append(each)
        return found


class SizedVariant(Variant):
    """A variant that shares its layout with others; its commands are made when they are asked for.

    Args:
        make: Makes the command at a position of the segment.
        count: How many there are.
        inputs: Specs of the inputs.
        outputs: Specs of the outputs.
        layout: Where its numbers stand.
        row: These numbers.
    """

    __slots__ = ("_count", "_made", "_make", "layout", "row")
    _made: tuple[Command, ...] | None
    _make: Callable[[int], Command]
    _count: int
    layout: SizeLayout
    row: tuple[int, ...]

    def __init__(
        self,
        make: Callable[[int], Command],
        count: int,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        layout: SizeLayout,
        row: tuple[int, ...],
    ) -> None:
        put = object.__setattr__
        put(self, "inputs", inputs)
        put(self, "outputs", outputs)
        put(self, "reads", ())
        put(self, "layout", layout)
        put(self, "row", row)
        put(self, "_make", make)
        put(self, "_count", count)
        put(self, "_made", None)

    @property
    def commands(self) -> tuple[Command, ...]:
        """Return the commands in plan order."""
        made = self._made
        if made is None:
            made = tuple(map(self._make, range(self._count)))
            object.__setattr__(self, "_made", made)
        return made

    def make_command(self, position: int) -> Command:
        """Return one of the commands."""
        return self._make(position) if self._made is None else self._made[position]

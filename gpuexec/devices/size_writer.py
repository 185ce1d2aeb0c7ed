"""Writer of sizes: stores the numbers of a variant into prepared commands, all at once.

The commands of variants that share a `SizeLayout` differ in a few distinct numbers, which go to many places. Their
argument blocks lie in one array, so that a size is a few indexed stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.errors import PlanError
from gpuexec.ir.command import LaunchConfig
from gpuexec.ir.size_layout import FieldKind, SizeField, SizeLayout
from gpuexec.ir.target import Target

_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_SIZES = {"q": 8, "Q": 8, "i": 4, "I": 4, "h": 2, "H": 2, "b": 1, "B": 1, "?": 1}
_MASK = 2**64 - 1


class SizeWriter:
    """Writer of the rows of one layout.

    Args:
        layout: Where the numbers of a row stand.
        commands: Prepared commands, set to a variant of the layout.
        target: What they run on.

    Attributes:
        is_cooperative: Whether a configuration of a cooperative launch is among what it writes.
    """

    def __init__(self, layout: SizeLayout, commands: Sequence[Any], target: Target) -> None:
        self.layout, self._commands, self._target = layout, commands, target
        launches = {f.command: commands[f.command].arguments for f in layout.fields if f.kind is FieldKind.ARGUMENT}
        self._array = _gather(list(launches.values()))
        self._stores = [
            (self._array.view(kind), np.array([at for at, _ in rows]), np.array([entry for _, entry in rows]))
            for kind, rows in _list_stores(layout, launches, self._array).items()
        ]
        # Configurations that are alike are made once: the present one, the entries of its numbers, and the launches.
        self._configs: dict[tuple[LaunchConfig, tuple[SizeField, ...]], list[Any]] = {}
        shaped: dict[int, list[SizeField]] = {}
        for field in layout.fields:
            if field.kind in (FieldKind.GRID, FieldKind.BLOCK, FieldKind.SHARED):
                shaped.setdefault(field.command, []).append(field)
        for position, fields in shaped.items():
            key = (commands[position].config, tuple([_without_command(field) for field in fields]))
            self._configs.setdefault(key, []).append(commands[position])
        self.is_cooperative = any(config.cooperative for config, _ in self._configs)
        self._counts = [f for f in layout.fields if f.kind is FieldKind.COUNT]

    @property
    def moved(self) -> frozenset[int]:
        """Positions of launches whose argument blocks were moved."""
        return frozenset([f.command for f in self.layout.fields if f.kind is FieldKind.ARGUMENT])

    def store(self, row: Sequence[int]) -> None:
        """Store a row, but for offsets, which depend on addresses.

        Raises:
            PlanError: The device can't hold all blocks of a cooperative launch together; nothing is stored.
        """
        configs = [
            (_change_config(config, fields, row), launches) for (config, fields), launches in self._configs.items()
        ]
        for made, launches in configs:
            if made.cooperative:
                for launch in launches:
                    launch.function.check_residency(made, self._target)
        if self._stores:
            values = np.array([number & _MASK for number in row], np.uint64)
            for words, places, entries in self._stores:
                words[places] = values[entries]
        for made, launches in configs:
            for launch in launches:
                launch.config = made
        for field in self._counts:
            self._commands[field.command].set_count(row[field.entry])


def _gather(blocks: Sequence[PackedArguments]) -> np.ndarray[Any, Any]:
    """Move argument blocks into one array, which is returned; each keeps its alignment of 16 bytes."""
    sizes = [-(-block.nbytes // 16) * 16 for block in blocks]
    whole = np.zeros((sum(sizes) + 16) // 8, np.uint64)
    at = -whole.ctypes.data % 16
    for block, size in zip(blocks, sizes, strict=True):
        block.move(whole[at // 8 : (at + size) // 8])
        at += size
    return whole


def _list_stores(
    layout: SizeLayout, launches: Mapping[int, PackedArguments], array: np.ndarray[Any, Any]
) -> dict[Any, list[tuple[int, int]]]:
    """Return for each size of word its places in the array, with their entries."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for field in layout.fields:
        if field.kind is not FieldKind.ARGUMENT:
            continue
        size = _SIZES[field.form]
        at = launches[field.command].find_value(field.position) + field.at - array.ctypes.data
        if at % size:
            raise PlanError(f"{field} lies at {at}, which is no multiple of its {size} bytes.")
        found.setdefault(_WORDS[size], []).append((at // size, field.entry))
    return found


def _without_command(field: SizeField) -> SizeField:
    return SizeField(0, field.kind, field.entry, field.position)


def _change_config(config: LaunchConfig, fields: Sequence[SizeField], row: Sequence[int]) -> LaunchConfig:
    grid, block, shared = [*config.grid], [*config.block], config.shared_bytes
    for field in fields:
        if field.kind is FieldKind.GRID:
            grid[field.position] = row[field.entry]
        elif field.kind is FieldKind.BLOCK:
            block[field.position] = row[field.entry]
        else:
            shared = row[field.entry]
    return LaunchConfig((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), shared, config.cooperative)

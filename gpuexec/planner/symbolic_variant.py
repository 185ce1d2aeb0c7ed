"""Variants of all sizes that take one way through the planner: commands whose numbers are expressions of the sizes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from gpuexec.ir.command import Argument, Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.kernel_values import SymbolicBytes, SymbolicScalar, spell_integer
from gpuexec.ir.size_layout import FieldKind, SizedVariant, SizeField, SizeLayout
from gpuexec.ir.spec import SymbolicValue, TensorSpec
from gpuexec.ir.symbolic_int import MemoTable, Symbolic, SymbolicTrace
from gpuexec.ops.tensor.shape import to_literal

_Axis = tuple[str, int]
# Where a number stands: command, kind, axis or argument, bytes into the argument, and its type: see `SizeField`.
Place = tuple[int, FieldKind, int, int, str]


class SymbolicVariant:
    """Commands and specs over symbolic sizes.

    Args:
        trace: Expressions and guards.
        commands: Of the plan's segment.
        inputs: Specs of the plan's inputs, in order.
        outputs: Specs of its outputs.
        groups: The axes that each variable of the trace is the extent of.

    Attributes:
        guards: What must hold of the sizes.
        tied: Extents that it holds for alone, by the function that needed their digits.
        fields: Where each number stands that depends on the sizes.
    """

    def __init__(
        self,
        trace: SymbolicTrace,
        commands: Sequence[Command],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        groups: tuple[tuple[_Axis, ...], ...],
    ) -> None:
        self.commands, self.groups = tuple(commands), groups
        self.guards, self.tied = trace.guards, trace.tied
        row = _Collector()
        self.fields: dict[Place, int] = {}
        for position, command in enumerate(commands):
            self.fields.update(_list_fields(position, command, row))
        self._specs, places = _find_distinct((*inputs, *outputs), row)
        self._inputs, self._outputs = _Picker(places[: len(inputs)]), _Picker(places[len(inputs) :])
        self._evaluate, self._count = trace.compile(row.found), len(row.found)
        everything = _Collector()
        # Whether commands have symbolic numbers anywhere; those without are the same at every size.
        self._depends: list[bool] = []
        for command in commands:
            everything.has_met = False
            map_numbers(command, everything.add_all)
            self._depends.append(everything.has_met)
        self._all = everything.entries
        self._evaluate_all = trace.compile(everything.found)
        # Set by `share_layout`: what follows the evaluated numbers, and which of all of them make a row.
        self.layout = SizeLayout(())
        self._constants: tuple[int, ...] = ()
        self._picks = _Picker(())

    def find(self, extents: Sequence[int]) -> SizedVariant | None:
        """Return the variant for extents of the groups; None where the guards don't hold."""
        values = self._evaluate(extents)
        if values is None:
            return None
        specs = [
            spec if axes is None else TensorSpec(tuple([values[n] if m is None else m for n, m in axes]), spec.dtype)
            for spec, axes in self._specs
        ]
        inputs, outputs = self._inputs.take(specs), self._outputs.take(specs)
        row = self._picks.take(values + self._constants)
        return SizedVariant(self._open_maker(extents), len(self.commands), inputs, outputs, self.layout, row)

    def take_layout(self, layout: SizeLayout, numbers: Sequence[tuple[bool, int]]) -> None:
        """Give rows of a layout from now on.

        Args:
            layout: The layout.
            numbers: Of a row: whether each depends on the sizes, and its entry in what is evaluated, or the number.
        """
        constants = list(dict.fromkeys([number for is_evaluated, number in numbers if not is_evaluated]))
        picks = [n if is_evaluated else self._count + constants.index(n) for is_evaluated, n in numbers]
        self.layout, self._constants, self._picks = layout, tuple(constants), _Picker(picks)

    def _open_maker(self, extents: Sequence[int]) -> Callable[[int], Command]:
        """Return what makes the command at a position; all numbers are evaluated when the first is made."""
        entries, commands, depends = self._all, self.commands, self._depends
        found: list[Sequence[int]] = []

        def settle(number: Any) -> Any:
            return found[0][entries[number.number]] if isinstance(number, Symbolic) else number

        def make(position: int) -> Command:
            if not depends[position]:
                return commands[position]
            if not found:
                values = self._evaluate_all(extents)
                assert values is not None
                found.append(values)
            return map_numbers(commands[position], settle)

        return make


def share_layout(variants: Sequence[SymbolicVariant]) -> None:
    """Let variants of one plan give rows of one layout: of all numbers in which their commands differ.

    What depends on the sizes in one may be a constant in another, or another constant.
    """
    places = dict.fromkeys(place for variant in variants for place in variant.fields)
    places.update(dict.fromkeys(_find_differences([variant.commands for variant in variants], places)))
    places.update(dict.fromkeys(_find_whole([variant.commands for variant in variants])))
    # Places of which each variant says the same take one entry of a row.
    entries: dict[tuple[tuple[bool, int], ...], int] = {}
    fields = []
    for place in places:
        said = tuple([_read_place(variant, place) for variant in variants])
        position, kind, axis, at, form = place
        fields.append(SizeField(position, kind, entries.setdefault(said, len(entries)), axis, at, form))
    layout = SizeLayout(tuple(fields))
    for number, variant in enumerate(variants):
        variant.take_layout(layout, [said[number] for said in entries])


def _read_place(variant: SymbolicVariant, place: Place) -> tuple[bool, int]:
    """Return whether a number depends on the sizes, and its entry or the number itself."""
    entry = variant.fields.get(place)
    return (True, entry) if entry is not None else (False, _read_number(variant.commands[place[0]], place))


def _read_number(command: Command, place: Place) -> int:
    """Return the number at a place of a command where it is a constant."""
    _, kind, axis, at, form = place
    if isinstance(command, Launch):
        match kind:
            case FieldKind.GRID:
                return command.grid[axis]
            case FieldKind.BLOCK:
                return command.block[axis]
            case FieldKind.SHARED:
                return command.shared_bytes
            case FieldKind.OFFSET:
                slot = command.arguments[axis]
                assert isinstance(slot, Slot)
                return slot.offset_bytes
        number: int = struct.unpack_from(f"<{form}", _read_bytes(command.arguments[axis]), at)[0]
        return number
    if isinstance(command, HostCall):
        if kind is FieldKind.WHOLE:
            return 0
        shown = (*command.inputs, *command.outputs)[axis]
        assert shown is not None
        if kind is FieldKind.OFFSET:
            return shown.offset_bytes
        return shown.shape[at] if kind is FieldKind.EXTENT else shown.strides[at]
    assert isinstance(command, Copy | Fill)
    if kind is FieldKind.COUNT:
        return command.source.spec.nbytes if isinstance(command, Copy) else command.destination.spec.size
    slots = (command.destination, command.source) if isinstance(command, Copy) else (command.destination,)
    return slots[axis].offset_bytes


def _read_bytes(argument: Argument) -> bytes:
    """Return the bytes of an argument by value, those of symbolic numbers as they were traced."""
    if isinstance(argument, SymbolicBytes):
        return argument.data
    if isinstance(argument, SymbolicScalar):
        return np.asarray(argument.number.value, argument.dtype).tobytes()
    return argument if isinstance(argument, bytes) else argument.tobytes()  # type: ignore[union-attr]


def _find_differences(variants: Sequence[Sequence[Command]], known: Mapping[Place, None]) -> Iterator[Place]:
    """Yield the places, beside those that are known, where constants of variants differ."""
    covered: dict[tuple[int, int], set[int]] = {}
    for position, kind, axis, at, form in known:
        if kind is FieldKind.ARGUMENT:
            covered.setdefault((position, axis), set()).update(range(at, at + struct.calcsize(f"<{form}")))
    for position, commands in enumerate(zip(*variants, strict=True)):
        first = commands[0]
        for place in _list_places(position, first):
            if place not in known and any(_read_number(each, place) != _read_number(first, place) for each in commands):
                yield place
        if not isinstance(first, Launch):
            continue
        for axis, argument in enumerate(first.arguments):
            if argument is None or isinstance(argument, Slot):
                continue
            rows = [_read_bytes(each.arguments[axis]) for each in commands if isinstance(each, Launch)]
            width = 4 if len(rows[0]) % 4 == 0 else 1
            for at in range(0, len(rows[0]), width):
                is_known = at in covered.get((position, axis), ())
                if not is_known and any(row[at : at + width] != rows[0][at : at + width] for row in rows):
                    yield position, FieldKind.ARGUMENT, axis, at, "I" if width == 4 else "B"


def _list_places(position: int, command: Command) -> list[Place]:
    """Return the places of a command's numbers, but for those within arguments by value."""
    match command:
        case Launch():
            shape = [(position, kind, axis, 0, "q") for kind in (FieldKind.GRID, FieldKind.BLOCK) for axis in range(3)]
            slots = [axis for axis, argument in enumerate(command.arguments) if isinstance(argument, Slot)]
            offsets = [(position, FieldKind.OFFSET, axis, 0, "q") for axis in slots]
            return [*shape, (position, FieldKind.SHARED, 0, 0, "q"), *offsets]
        case Copy() | Fill():
            offsets = [
                (position, FieldKind.OFFSET, axis, 0, "q") for axis in range(2 if isinstance(command, Copy) else 1)
            ]
            return [*offsets, (position, FieldKind.COUNT, 0, 0, "q")]
        case HostCall(inputs=inputs, outputs=outputs):
            shown = [(axis, slot) for axis, slot in enumerate((*inputs, *outputs)) if slot is not None]
            offsets = [(position, FieldKind.OFFSET, axis, 0, "q") for axis, _ in shown]
            kinds = (FieldKind.EXTENT, FieldKind.STRIDE)
            return offsets + [
                (position, kind, axis, at, "q")
                for axis, slot in shown
                for at in range(slot.spec.rank)
                for kind in kinds
            ]
        case LibraryCall():
            return []


def _find_whole(variants: Sequence[Sequence[Command]]) -> Iterator[Place]:
    """Yield the places of host calls that differ in more than numbers of their slots, or whose scratch does."""
    for position, commands in enumerate(zip(*variants, strict=True)):
        calls = [command for command in commands if isinstance(command, HostCall)]
        symbolic = _Collector()
        for call in calls:
            for _, value in call.attributes:
                _settle_literal(value, symbolic.add_all)
        if symbolic.has_met or any(_describe_call(call) != _describe_call(calls[0]) for call in calls):
            yield position, FieldKind.WHOLE, 0, 0, "q"


def _describe_call(call: HostCall) -> tuple[object, ...]:
    """Return what of a host call is no number of its slots."""
    slots = [
        None if slot is None else (slot.buffer, slot.dtype, slot.spec.rank) for slot in (*call.inputs, *call.outputs)
    ]
    return call.operator, call.attributes, slots, call.scratch


def _find_distinct(
    specs: Sequence[TensorSpec], row: _Collector
) -> tuple[list[tuple[TensorSpec, list[tuple[int, int | None]] | None]], list[int]]:
    """Return the distinct ones of some specs, and which of them each is.

    Those with symbolic extents have for each axis the entry of the row, or a number.
    """
    memo: MemoTable[TensorSpec, int] = MemoTable()
    distinct: list[tuple[TensorSpec, list[tuple[int, int | None]] | None]] = []
    places = []
    for spec in specs:
        place = memo.get(spec)
        if place is None:
            axes: list[tuple[int, int | None]] | None = None
            if any(isinstance(extent, Symbolic) for extent in spec.shape):
                entries = [(row.add(extent), extent) for extent in spec.shape]
                axes = [(0, extent) if entry is None else (entry, None) for entry, extent in entries]
            place = len(distinct)
            distinct.append((spec, axes))
            memo.keep(spec, place)
        places.append(place)
    return distinct, places


class _Picker:
    """Picks of places, in one call where there are several."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = tuple(places)
        self._get = itemgetter(*places) if len(places) > 1 else None

    def take(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return the items at the places."""
        if self._get is None:
            return tuple([items[place] for place in self._places])
        taken: tuple[Any, ...] = self._get(items)
        return taken


class _Collector:
    """Distinct expressions, in the order in which they are met."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.has_met = False
        self.entries: dict[int, int] = {}

    def add(self, number: object) -> int | None:
        """Return the entry of a symbolic number; None of another."""
        if not isinstance(number, Symbolic):
            return None
        if number.number not in self.entries:
            self.entries[number.number] = len(self.found)
            self.found.append(number)
        return self.entries[number.number]

    def add_all(self, number: Any) -> Any:
        """Note a number and return it as it is now."""
        if not isinstance(number, Symbolic):
            return number
        self.has_met = True
        self.add(number)
        return number.value


def _list_fields(position: int, command: Command, row: _Collector) -> Iterator[tuple[Place, int]]:
    """Yield the places of a command's numbers that depend on the sizes, with their entries."""
    for place in _list_places(position, command):
        entry = row.add(_read_number(command, place))
        if entry is not None:
            yield place, entry
    for axis, argument in enumerate(command.arguments if isinstance(command, Launch) else ()):
        if isinstance(argument, SymbolicScalar):
            entry = row.add(argument.number)
            assert entry is not None
            yield (position, FieldKind.ARGUMENT, axis, 0, spell_integer(argument.dtype)), entry
        elif isinstance(argument, SymbolicBytes):
            for at, form, number in argument.fields:
                entry = row.add(number)
                assert entry is not None
                yield (position, FieldKind.ARGUMENT, axis, at, form), entry


def map_numbers(command: Command, change: Callable[[Any], Any]) -> Command:
    """Return a command with ``change`` applied to all that may be symbolic."""

    def change_slot(slot: Slot) -> Slot:
        shape, strides = tuple(map(change, slot.spec.shape)), tuple(map(change, slot.strides))
        return Slot(slot.buffer, change(slot.offset_bytes), TensorSpec(shape, slot.spec.dtype), strides)

    def change_argument(argument: Argument) -> Argument:
        if isinstance(argument, Slot):
            return change_slot(argument)
        if isinstance(argument, SymbolicScalar):
            made: np.generic = argument.dtype.type(change(argument.number))
            return made
        if isinstance(argument, SymbolicBytes):
            data = bytearray(argument.data)
            for at, form, number in argument.fields:
                struct.pack_into(f"<{form}", data, at, change(number))
            return bytes(data)
        return argument

    match command:
        case Launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative):
            return Launch(
                kernel, _three(map(change, grid)), _three(map(change, block)), tuple(map(change_argument, arguments)),
                writes, change(shared_bytes), cooperative,
            )  # fmt: skip
        case Copy(destination, source):
            return Copy(change_slot(destination), change_slot(source))
        case Fill(destination, pattern):
            return Fill(change_slot(destination), pattern)
        case LibraryCall(library, problem, slots):
            return LibraryCall(library, problem, tuple([None if slot is None else change_slot(slot) for slot in slots]))
        case HostCall(operator, attributes, inputs, outputs, scratch):
            read, written = (tuple([None if s is None else change_slot(s) for s in each]) for each in (inputs, outputs))
            said = [(name, _settle_literal(value, change)) for name, value in attributes]
            return HostCall(operator, tuple(said), read, written, tuple(map(change_slot, scratch)))


def _settle_literal(value: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(value, SymbolicValue):
        return value
    numbers = [change(number) for number in value.symbols.reshape(-1).tolist()]
    return to_literal(np.array(numbers, value.dtype).reshape(value.symbols.shape))


def _three(numbers: Any) -> tuple[int, int, int]:
    first, second, third = numbers
    return first, second, third

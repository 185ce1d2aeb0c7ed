"""Sizes in device memory: copies of argument blocks that launches of a graph read, and the launch that writes a size.

A graph whose launches read what moves with the sizes from copies of their argument blocks needs no update of nodes for
another size: one small launch in front of it stores the numbers in all copies. They are its own arguments, passed by
value, so no memory of the host has to outlast the call.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.device import ByteArray, Device, Function, MemoryBlock, Stream, note_stream
from gpuexec.devices.prepared import PreparedLaunch, PreparedSegment, list_values
from gpuexec.ir.geometry import round_up
from gpuexec.ir.moving_arguments import MOVING_WIDTHS, STORE_SIZES, MovingArgument, find_moving
from gpuexec.ir.size_layout import FieldKind, SizeField
from gpuexec.ops.tensor.store_sizes import BLOCKS, MAX_NUMBERS, PLACE, PLACES, ROW, make_store

_ALIGNMENT = 16  # of a block
_MASK = 2**64 - 1
# Of a launch: for each parameter that its kernel reads from a copy, the field of the layout that moves it, if one does.
_Fields = Mapping[MovingArgument, SizeField | None]


class DeviceSizes:
    """The launches of a segment that take what moves with the sizes from device memory, and that memory.

    Args:
        device: Where the memory lies.
        segment: Set to a variant of a layout.
        fields: Those of each launch, by its position.

    Attributes:
        positions: Of the launches.
    """

    def __init__(self, device: Device, segment: PreparedSegment, fields: Mapping[int, _Fields]) -> None:
        self._device, self._segment, self._fields = device, segment, fields
        self.positions = frozenset(fields)
        self._launches: list[tuple[PreparedLaunch, int, _Fields]] = []  # with the start of the copy
        end = 0
        for position, each in fields.items():
            launch = segment.commands[position]
            assert isinstance(launch, PreparedLaunch)
            self._launches.append((launch, end, each))
            end += round_up(launch.arguments.nbytes, _ALIGNMENT)
        self._blocks_nbytes, count = end, sum(map(len, fields.values()))
        # Which numbers of a row are passed, behind a 0 for what no field moves.
        self._entries = _list_entries(fields.values())
        self._pack = struct.Struct(f"<{len(self._entries)}q").pack_into
        launch_of_row = make_store(count, end)
        self._config, self._places_nbytes = launch_of_row.config, count * PLACE.itemsize
        self._arguments = PackedArguments(list_values(launch_of_row), launch_of_row)
        self._words, self._at = self._arguments.view(), self._arguments.find_offset(ROW) + 8
        self._memory: MemoryBlock | None = None
        self._function: Function | None = None
        self._stream: Stream | None = None  # the last one that used the memory
        # The places and the row as they are there, and whether addresses may have changed since.
        self._places: ByteArray | None = None
        self._row: tuple[int, ...] | None = None
        self._is_moved = True

    @property
    def is_open(self) -> bool:
        """True if there is memory, and the launches point to it."""
        return self._memory is not None

    def holds(self, field: SizeField) -> bool:
        """Return whether a launch takes a field from the memory."""
        return _find_argument(field) in self._fields.get(field.command, {})

    def open(self) -> None:
        """Give the launches copies of their blocks, for graphs that are made or updated from now on.

        Raises:
            OutOfMemoryError: There is no memory for them.
        """
        memory = self._memory = self._device.allocate(self._blocks_nbytes + self._places_nbytes)
        self._function = self._device.function(STORE_SIZES)
        self._stream, self._places, self._row, self._is_moved = None, None, None, True
        self._arguments.set_pointer(BLOCKS, memory.address)
        self._arguments.set_pointer(PLACES, memory.address + self._blocks_nbytes)
        for launch, start, _ in self._launches:
            launch.moved = NodeArguments(launch.arguments, memory.address + start, launch.arguments.nbytes)

    def close(self) -> None:
        """Free the memory: graphs that point to it are closed, or updated before they are launched again."""
        memory, self._memory = self._memory, None
        for launch, _, _ in self._launches:
            launch.moved = None
        if memory is not None:
            memory.free()

    def note_bound(self, touched: AbstractSet[int]) -> None:
        """Note commands whose addresses changed."""
        self._is_moved = self._is_moved or not self.positions.isdisjoint(touched)

    def store(self, stream: Stream) -> None:
        """Put what writes the present size on a stream, unless it is there."""
        memory, function, row = self._memory, self._function, self._segment.row
        assert memory is not None and function is not None
        if stream is not self._stream:
            note_stream(memory, stream)
            self._stream = stream
        if self._is_moved:
            self._segment.write()
            places = self._find_places(row)
            if self._places is None or not np.array_equal(places, self._places):
                stream.copy_to_device(self._arguments.pointer(PLACES), places)
                self._places, self._row = places, None
            self._is_moved = False
        if row != self._row:
            self._pack(self._words, self._at, *[row[entry] for entry in self._entries])
            stream.launch(function, self._config, self._arguments)
            self._row = row

    def _find_places(self, row: Sequence[int]) -> ByteArray:
        """Return where each number goes and what is added to it: of an offset the address, of what stays all."""
        places = []
        for launch, start, fields in self._launches:
            for each, field in fields.items():
                at, width = launch.arguments.find_offset(each.position) + each.at, MOVING_WIDTHS[each.form]
                number = launch.arguments.read_number(at, width)
                entry = 0 if field is None else 1 + self._entries.index(field.entry)
                places.append((number - (row[field.entry] if field else 0) & _MASK, start + at, entry, width))
        return np.array(places, PLACE).view(np.uint8)


def find_device_sizes(device: Device, segment: PreparedSegment) -> DeviceSizes | None:
    """Return the launches whose kernels can read what the present layout moves; None where there are none.

    What else moves, such as a grid, is a matter of their nodes. One that would make a row too long is not among them.
    """
    moved: dict[int, dict[MovingArgument | None, SizeField]] = {}
    for field in () if segment.layout is None else segment.layout.fields:
        moved.setdefault(field.command, {})[_find_argument(field)] = field
    chosen: dict[int, _Fields] = {}
    for position, own in moved.items():
        prepared = segment.commands[position]
        launch = prepared.arguments.command if isinstance(prepared, PreparedLaunch) else None
        read = frozenset[MovingArgument]() if launch is None else find_moving(launch.kernel)
        if not read.isdisjoint(own):
            fields = {each: own.get(each) for each in sorted(read)}
            if len(_list_entries([*chosen.values(), fields])) < MAX_NUMBERS:
                chosen[position] = fields
    return DeviceSizes(device, segment, chosen) if chosen else None


def _find_argument(field: SizeField) -> MovingArgument | None:
    """Return the parameter, or a part of it, that a field moves; None where it moves something else."""
    if field.kind is FieldKind.OFFSET:
        return MovingArgument(field.position)
    return MovingArgument(field.position, field.at, field.form) if field.kind is FieldKind.ARGUMENT else None


def _list_entries(fields: Collection[_Fields]) -> list[int]:
    return list(dict.fromkeys([field.entry for each in fields for field in each.values() if field is not None]))

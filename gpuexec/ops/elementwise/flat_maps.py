"""Flat regions with index maps on a device with kernels: windows and picked slices in one launch, by generated text.

As in `flat`, a thread makes a unit of neighbours, or one element, of results of one shape. It finds the coordinates of
its unit in each space (`region_spaces`), whether they are inside, and where inputs lie by them. Loads are made inside
alone; a step that is made of windows takes the value of the window that its coordinates are in. Extents, strides,
starts of windows and extents of axes that are picked along are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, max_offset, memory_axes
from gpuexec.ir.index_map import Assembled
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.spec import dtype_row
from gpuexec.ops.elementwise.flat import MAPPED, NARROW, PICKING, SOURCE
from gpuexec.ops.elementwise.joined_axes import group_axes, join_strides
from gpuexec.ops.elementwise.region_spaces import (
    CannotMapError,
    Evaluation,
    InputPlace,
    LinearForm,
    Space,
    Spaces,
    Variable,
)
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import STEP, RegionNumbers, name_text
from gpuexec.ops.lib.broadcast import THREADS, vector_width
from gpuexec.ops.lib.strided import pack_fast_div32, pack_fast_div64


def can_map(rows: tuple[StepRow, ...], forms: StepForms, results: Sequence[int], inputs: Sequence[Slot | None]) -> bool:
    """Return whether steps can be evaluated at the coordinates of their results.

    Args:
        rows: The steps.
        forms: What they make of the inputs; all have a kind.
        results: The steps that make the results, all of one shape.
        inputs: The slots that steps read; None: absent.
    """
    try:
        Spaces.of(rows, forms, results, inputs)
    except CannotMapError:
        return False
    return True


def launch_mapped(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch a region with index maps whose results have one shape and lie alike.

    Args:
        emit: Emitter of the launch.
        rows: The steps.
        forms: What they make of these inputs.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results.

    Raises:
        PlanError: An input does not lie as it does at the upper end of the size class.
    """
    spaces, names = Spaces.of(rows, forms, results, inputs, emit.choose)
    used = [position for position, slot in enumerate(inputs) if slot is not None]
    slots = {position: slot for position, slot in enumerate(inputs) if slot is not None}
    walk = SpaceWalk.of(emit, spaces, slots, outputs[0])
    width = walk.choose_width(slots, outputs)
    lanes = width if walk.can_vectorize(width, slots, outputs) else 1
    writer = MapsWriter(walk, slots, width)
    body = writer.write(rows, forms, used, names, outputs)
    name, text = name_text(MAPPED, body)
    operands = [f"const {dtype_row(slots[position].dtype).cuda}" for position in used]
    operands += [dtype_row(slot.dtype).cuda for slot in outputs]
    arguments: list[Argument] = [
        walk.pack(lanes, writer.places.numbers),
        writer.numbers.pack(),
        *[slots[position] for position in used],
        *outputs,
    ]
    emit.launch(
        Kernel(SOURCE, f"flat<{', '.join([name, *operands])}>", text),
        (max(1, ceil_div(ceil_div(outputs[0].spec.size, lanes), THREADS)), 1, 1),
        (THREADS, 1, 1),
        arguments,
        writes=range(len(arguments) - len(outputs), len(arguments)),
    )


@dataclass(frozen=True, slots=True)
class _Lie:
    """How a place lies, or what a coordinate is a sum of.

    Attributes:
        is_dense: Whether as the results do.
        moves: Else whether it moves along each joined axis, the innermost first.
        others: And the coordinates of windows along no axis of the root.
        has_offset: Whether something is added.
    """

    is_dense: bool
    moves: tuple[bool, ...]
    others: tuple[Variable, ...] = ()
    has_offset: bool = False


@dataclass(frozen=True, slots=True)
class _JoinedForm:
    """A form over joined axes, the innermost first, and how it lies."""

    row: tuple[int, ...]
    others: tuple[tuple[Variable, int], ...]
    offset: int
    lie: _Lie


@dataclass(frozen=True, slots=True)
class SpaceWalk:
    """The joined axes of the results, the innermost first, and all that is known of spaces and places along them.

    Attributes:
        extents: Of each joined axis.
        spaces: The spaces.
        windows: Of each space, by joined axis: start and extent of its window.
        cuts: Of windows along no axis of the root, by space and axis: the coordinate around it.
        places: Where each place lies.
        is_wide: Whether offsets need 64 bits.
    """

    extents: tuple[int, ...]
    spaces: Spaces
    windows: tuple[dict[int, tuple[int, int]], ...]
    cuts: dict[Variable, _JoinedForm]
    places: tuple[_JoinedForm, ...]
    is_wide: bool

    @classmethod
    def of(cls, emit: Emitter, spaces: Spaces, slots: dict[int, Slot], output: Slot) -> SpaceWalk:
        """Return the walk of places, joined as at the upper end of the size class."""
        shape = spaces.spaces[0].extents
        is_row_major = bool(emit.choose(output.is_contiguous))
        order = tuple(range(len(shape))) if is_row_major else memory_axes(shape, _divide(output, spaces.divided))
        cuts = {
            (number, window.axis): window
            for number, space in enumerate(spaces.spaces)
            for window in space.windows
            if window.root < 0
        }
        rows = [(place.form, spaces.spaces[place.space]) for place in spaces.places]
        rows += [(window.form, spaces.spaces[spaces.spaces[number].parent]) for (number, _), window in cuts.items()]
        laid = [tuple([form.row[axis] for axis in order]) for form, _ in rows]
        own = [tuple([space.extents[axis] for axis in order]) for _, space in rows]
        extents = tuple([shape[axis] for axis in order])
        cut = {order.index(window.root) for space in spaces.spaces for window in space.windows if window.root >= 0}
        joined = _list_joined(extents, list(zip(laid, own, strict=True)), cut)
        groups = group_axes(len(extents), emit.choose(sum(1 << axis for axis in joined)))
        walked = [join_strides(extent, strides, groups)[::-1] for strides, extent in zip(laid, own, strict=True)]
        sizes = tuple([prod(extents[axis] for axis in group) for group in groups])[::-1]
        windows = tuple([_join_windows(space, order, groups) for space in spaces.spaces])
        starts = [abs(start) + extent for each in windows for start, extent in each.values()]
        starts += [abs(window.start) + abs(window.form.offset) + _reach(window.form, shape) for window in cuts.values()]
        limit = max([max_offset(s.shape, s.strides) for s in (*slots.values(), output)] + starts, default=0)
        is_wide = bool(emit.choose(max(limit, output.spec.size) >= NARROW))
        dense = contiguous_strides(sizes[::-1])[::-1]
        made = []
        for number, ((form, space), row) in enumerate(zip(rows, walked, strict=True)):
            is_place = number < len(spaces.places)
            can_be_dense = is_place and spaces.places[number].space == 0 and spaces.places[number].picked is None
            lie = _choose_lie(emit, form, row, sizes, dense if can_be_dense else None, has_offset=space.is_shown)
            made.append(_JoinedForm(row, form.others, form.offset, lie))
        count = len(spaces.places)
        named = dict(zip(cuts, made[count:], strict=True))
        return cls(sizes, spaces, windows, named, tuple(made[:count]), is_wide)

    def choose_width(self, slots: dict[int, Slot], outputs: Sequence[Slot]) -> int:
        """Return the lanes of a unit by the types: one where neighbours have indices of their own."""
        indices = {place.picked[0] for place in self.spaces.places if place.picked is not None}
        if any(self.is_vector(index) for index in indices):
            return 1
        read = [slots[place.source] for k, place in enumerate(self.spaces.places) if k not in indices]
        return vector_width((*read, *outputs))

    def is_vector(self, place: int) -> bool:
        """Return whether the lanes of a unit have elements of their own at a place."""
        lie = self.places[place].lie
        return lie.is_dense or (bool(lie.moves) and lie.moves[0])

    def can_vectorize(self, width: int, slots: dict[int, Slot], outputs: Sequence[Slot]) -> bool:
        """Return whether units of several lanes can be read: neighbours that are aligned and inside together."""
        if width == 1 or not self.extents or self.extents[0] % width:
            return False
        if any(slot.offset_bytes % (width * slot.dtype.itemsize) for slot in outputs):
            return False
        borders = [border for windows in self.windows for border in windows.get(0, ())]
        for (number, axis), form in self.cuts.items():
            if not form.row[0]:
                continue  # neighbours share the coordinate
            window = next(each for each in self.spaces.spaces[number].windows if each.axis == axis)
            borders += [window.start, window.extent, *self._list_steps(form), form.row[0] - 1]
        if any(border % width for border in borders):
            return False
        for number, (place, form) in enumerate(zip(self.spaces.places, self.places, strict=True)):
            slot = slots[place.source]
            if not self.is_vector(number) or not slot.spec.size:
                continue
            steps = self._list_steps(form)
            steps += [place.picked[1]] if place.picked is not None and place.picked[2] > 1 else []
            if slot.offset_bytes % (width * slot.dtype.itemsize) or any(step % width for step in steps):
                return False
            if form.row[0] != 1:
                return False
        return True

    def _list_steps(self, form: _JoinedForm) -> list[int]:
        """Return all that is added to a form from unit to unit, but along the innermost axis, and its offset."""
        steps = [factor for factor, extent in zip(form.row[1:], self.extents[1:], strict=True) if extent > 1]
        return [*steps, *[factor for _, factor in form.others], form.offset]

    def pack(self, lanes: int, numbers: Sequence[int]) -> bytes:
        """Return the bytes of ``FlatWalk`` with these numbers as its strides."""
        sizes = list(self.extents)
        if sizes:
            sizes[0] = ceil_div(sizes[0], lanes)
        divide = pack_fast_div64 if self.is_wide else pack_fast_div32
        packed = pack_struct("<qi4x" if self.is_wide else "<ii", prod(self.extents), lanes)
        packed += join_bytes([divide(max(1, size)) for size in sizes[:-1]] or [divide(1)])
        return packed + pack_struct(f"<{max(1, len(numbers))}{'q' if self.is_wide else 'i'}", *(numbers or [0]))


def _list_joined(
    extents: tuple[int, ...], places: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], cut: set[int]
) -> list[int]:
    """Return the axes that are joined with the next outer one: all places walk the two as one.

    Args:
        extents: Of the results, the outermost first.
        places: Strides and extents of each.
        cut: Axes of windows, which are the outermost of those that are joined.
    """
    joined = []
    outer: int | None = None  # the last axis of more than one element
    for axis, extent in enumerate(extents):
        if axis in cut:
            outer = axis
            continue
        if extent == 1:
            if axis:
                joined.append(axis)
            continue
        if axis and (
            outer is None or all(own[outer] == 1 or step[outer] == step[axis] * extent for step, own in places)
        ):
            joined.append(axis)
        outer = axis
    return joined


def _join_windows(space: Space, order: tuple[int, ...], groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Return start and extent of a space's window along each joined axis, the innermost numbered 0."""
    found = {}
    for window in space.windows:
        if window.root < 0:
            continue
        position = order.index(window.root)
        number = next(n for n, group in enumerate(groups) if position in group)
        inner = prod(space.extents[order[each]] for each in groups[number] if each != position)
        start = window.start - window.form.offset
        found[len(groups) - 1 - number] = (start * inner, window.extent * inner)
    return found


def _divide(output: Slot, divided: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the strides of results along the axes of the root."""
    strides = []
    for stride, own in zip(output.strides, divided, strict=True):
        strides += [stride * prod(own[n + 1 :]) for n in range(len(own))]
    return tuple(strides)


def _reach(form: LinearForm, shape: tuple[int, ...]) -> int:
    """Return what a coordinate is at most, but for windows in it."""
    return sum(abs(factor) * extent for factor, extent in zip(form.row, shape, strict=True))


def _choose_lie(
    emit: Emitter,
    form: LinearForm,
    row: tuple[int, ...],
    extents: tuple[int, ...],
    dense: tuple[int, ...] | None,
    *,
    has_offset: bool,
) -> _Lie:
    """Return how a form lies, as at the upper end of the size class.

    Args:
        emit: Which repeats what was chosen there.
        form: The form.
        row: Its factors of the joined axes.
        extents: Of the joined axes.
        dense: Strides of the results, where it may lie as they do.
        has_offset: Whether something may be added.

    Raises:
        PlanError: It does not.
    """
    rows = [(have, want) for extent, have, want in zip(extents, row, dense or (), strict=False) if extent > 1]
    is_dense = dense is not None and bool(rows) and all(have == want for have, want in rows)
    moves = sum(1 << axis for axis, factor in enumerate(row) if factor)
    chosen = emit.choose(moves << 1 | is_dense)
    must_be_dense, mask = bool(chosen & 1), chosen >> 1
    if moves & ~mask or (must_be_dense and not all(have == want for have, want in rows)):
        raise PlanError("An input of a region does not lie as at the upper end of the size class.")
    kept = tuple([bool(mask >> axis & 1) for axis in range(len(extents))])
    return _Lie(must_be_dense, kept, tuple([variable for variable, _ in form.others]), has_offset)


@dataclass(frozen=True, slots=True)
class PlaceNumbers:
    """Numbers of a launch that say where inputs lie, in the order that the text counts them in."""

    numbers: list[int] = field(default_factory=list)

    def add(self, number: int) -> str:
        """Add a number; return its name in the text."""
        self.numbers.append(number)
        return f"walk.strides[{len(self.numbers) - 1}]"


class MapsWriter:
    """The text of a region with index maps; ``places`` and ``numbers`` are its arguments.

    Attributes:
        unit: The type that a unit is of: where it is in results.
        made_of: What a unit is made of beside the walk: the parameter behind it, and the arguments of that type.
        lanes: What stands behind a coordinate along the innermost axis.
    """

    unit = "FlatUnit<kWidth, {offset}>"
    made_of = ("", "walk")
    lanes = " * lanes"

    def __init__(self, walk: SpaceWalk, slots: dict[int, Slot], width: int) -> None:
        self.places, self.numbers = PlaceNumbers(), RegionNumbers()
        self._walk, self._slots, self._width = walk, slots, width
        self._offset = "i64" if walk.is_wide else "i32"

    def write(
        self,
        rows: tuple[StepRow, ...],
        forms: StepForms,
        used: Sequence[int],
        names: Sequence[str],
        outputs: Sequence[Slot],
    ) -> str:
        """Return the text, with ``@`` for the name of the type.

        Args:
            rows: The steps.
            forms: What they make of the inputs.
            used: The inputs in the order of the launch.
            names: Of the results.
            outputs: Where they go.
        """
        walk = self._walk
        types = [dtype_row(slot.dtype).cuda for slot in outputs]
        inputs = [f"const {self._find_type(position)}* in{position}" for position in used]
        made = [f"{cuda}* out{k}" for k, cuda in enumerate(types)]
        unit, compute = self._write_unit(), self._write_compute(rows, forms, names, types)
        lines = [
            f"// {', '.join(name for name, _, _ in rows)}, {self._width} elements of a thread.",
            "struct @ {",
            f"  typedef FlatWalk<{self._offset}, {max(0, len(walk.extents) - 1)}, {len(self.places.numbers)}> Walk;",
            f"  typedef RegionNumbers<{', '.join(map(str, self.numbers.counts))}> Numbers;",
            f"  static constexpr int kWidth = {self._width};",
            "",
            *unit,
            "",
            *compute,
            "",
            f"  static __device__ void run(const Unit& unit, const Numbers& numbers, {', '.join([*inputs, *made])}) {{",
            *self._write_loads(),
            *self._write_whole(types),
            *self._write_one(types),
            "  }",
            "};",
        ]
        return "\n".join(lines) + "\n"

    def _find_type(self, position: int) -> str:
        return dtype_row(self._slots[position].dtype).cuda

    def _write_unit(self) -> list[str]:
        """Return the type that finds where the unit of a thread is inside, and where it lies in inputs."""
        walk, offset = self._walk, self._offset
        base, (parameter, arguments) = self.unit.format(offset=offset), self.made_of
        rank = len(walk.extents)
        guards = [number for number, space in enumerate(walk.spaces.spaces) if number and space.guard == number]
        lines = [f"  struct Unit : {base} {{"]
        lines += [f"    bool inside{space};" for space in guards]
        for number, place in enumerate(walk.spaces.places):
            lines.append(f"    {offset} at{number};")
            if place.picked is not None:
                lines.append(f"    {offset} extent{number}, stride{number};")
        explicit = "" if parameter else "explicit "
        lines += ["", f"    __device__ {explicit}Unit(const Walk& walk{parameter}) : {base}({arguments}) {{"]
        if rank > 1:
            unsigned = "u64" if walk.is_wide else "u32"
            lines.append(f"      {unsigned} rest = {unsigned}(index);")
            for axis in range(rank - 1):
                lines += [f"      {unsigned} c{axis};", f"      rest = walk.extents[{axis}].divide(rest, c{axis});"]
                factor = self.lanes if axis == 0 else ""
                lines.append(f"      const {offset} p0_{axis} = {offset}(c{axis}){factor};")
            lines.append(f"      const {offset} p0_{rank - 1} = {offset}(rest);")
        elif rank:
            lines.append(f"      const {offset} p0_0 = this->at;")
        for space in guards:
            lines += self._write_space(space)
        for number, place in enumerate(walk.spaces.places):
            lines.append(f"      at{number} = {self._write_form(walk.places[number], place.space)};")
            if place.picked is not None:
                lines.append(f"      extent{number} = {self.places.add(place.picked[2])};")
                lines.append(f"      stride{number} = {self.places.add(place.picked[1])};")
        return [*lines, "    }", "  };"]

    def _write_space(self, space: int) -> list[str]:
        """Return the lines that find the coordinates of a window, which are 0 outside."""
        walk, offset = self._walk, self._offset
        own = walk.spaces.spaces[space]
        guard = walk.spaces.spaces[own.parent].guard
        unsigned = "u64" if walk.is_wide else "u32"
        lines, terms, names = [], [f"inside{guard}"] if guard else [], []
        rows = [
            (f"{axis}", self._find_coordinate(own.parent, axis), *each) for axis, each in walk.windows[space].items()
        ]
        for window in own.windows:
            if window.root < 0:
                outer = self._write_form(walk.cuts[space, window.axis], own.parent)
                rows.append((f"w{window.axis}", outer, window.start, window.extent))
        for name, outer, start, extent in rows:
            lines.append(f"      const {offset} q{space}_{name} = {outer} - {self.places.add(start)};")
            terms.append(f"{unsigned}(q{space}_{name}) < {unsigned}({self.places.add(extent)})")
            names.append(name)
        lines.append(f"      inside{space} = {' && '.join(terms) or 'true'};")
        for name in names:
            lines.append(f"      const {offset} p{space}_{name} = inside{space} ? q{space}_{name} : {offset}(0);")
        return lines

    def _find_coordinate(self, space: int, axis: int) -> str:
        """Return the name of a coordinate along a joined axis: that of the next space around with a window there."""
        while space and axis not in self._walk.windows[space]:
            space = self._walk.spaces.spaces[space].parent
        return f"p{space}_{axis}"

    def _write_form(self, form: _JoinedForm, space: int) -> str:
        """Return a sum of coordinates, seen from a space."""
        if form.lie.is_dense:
            return "this->at"
        terms = [
            f"{self._find_coordinate(space, axis)} * {self.places.add(form.row[axis])}"
            for axis, moves in enumerate(form.lie.moves)
            if moves
        ]
        factors = dict(form.others)
        terms += [f"p{each[0]}_w{each[1]} * {self.places.add(factors[each])}" for each in form.lie.others]
        if form.lie.has_offset:
            terms.append(self.places.add(form.offset))
        return " + ".join(terms) or "0"

    def _write_compute(
        self, rows: tuple[StepRow, ...], forms: StepForms, names: Sequence[str], types: Sequence[str]
    ) -> list[str]:
        """Return the function that computes the results of one element."""
        parameters = [f"{self._find_type(place.source)} element{k}" for k, place in self._list_read()]
        parameters += [f"{cuda}& result{k}" for k, cuda in enumerate(types)]
        lines = [
            f"  static __device__ void compute(const Unit& unit, const Numbers& numbers, {', '.join(parameters)}) {{"
        ]
        lines += [f"    const auto x{k} = widen(element{k});" for k, _ in self._list_read()]
        assert forms.kinds is not None
        attributes: dict[int, dict[str, str]] = {}
        for each in self._walk.spaces.evaluations:
            kind, name, cuda = forms.kinds[each.step], rows[each.step][0], dtype_row(forms.specs[each.step].dtype).cuda
            if isinstance(kind, Pointwise):
                if each.step not in attributes:
                    added = {f"n{n}": self.numbers.add_float(number) for n, number in enumerate(kind.numbers)}
                    attributes[each.step] = added
                code = kind.code.format(*map(self._write_value, each.given), **attributes[each.step])
                rounded = dtype_row(kind.dtype).cuda
                lines.append(f"    const auto {each.name} {STEP}{rounded}>({code});  // {name}")
            elif isinstance(kind, Assembled):
                lines.append(f"    const Acc<{cuda}> {each.name} = {self._select(each, kind, cuda)};  // {name}")
        lines += [f"    result{k} = cast<{cuda}>({name});" for k, (name, cuda) in enumerate(zip(names, types))]
        return [*lines, "  }"]

    def _select(self, each: Evaluation, kind: Assembled, cuda: str) -> str:
        """Return the value of the window that an element is in."""
        values = [self._write_value(name) if name is not None else f"Acc<{cuda}>(0)" for name in each.given]
        *inner, last = values
        for space, value in reversed(list(zip(each.inside, inner))):
            last = f"unit.inside{space} ? {value} : {last}"
        return last

    def _write_value(self, name: str | None) -> str:
        """Return the C++ of a value by its name, or of a number."""
        return "" if name is None else self.numbers.add(name) if " " in name else name

    def _list_read(self) -> list[tuple[int, InputPlace]]:
        """Return the places that hold elements: all but those of indices."""
        places = self._walk.spaces.places
        indices = {place.picked[0] for place in places if place.picked is not None}
        named = {name for each in self._walk.spaces.evaluations for name in each.given}
        return [(k, place) for k, place in enumerate(places) if k not in indices or f"x{k}" in named]

    def _write_loads(self) -> list[str]:
        """Return the loads of indices, and of elements that all lanes of a unit share."""
        lines = []
        for k, place in enumerate(self._walk.spaces.places):
            if place.picked is None:
                continue
            index = place.picked[0]
            source = f"in{self._walk.spaces.places[index].source} + unit.at{index}"
            guard = self._walk.spaces.spaces[place.space].guard
            inside = f"unit.inside{guard}" if guard else "true"
            lines.append(
                f"    const auto slice{k} {PICKING}{self._offset}>({inside}, {source}, unit.extent{k}, unit.stride{k});"
            )
        for k, place in self._list_read():
            if not self._walk.is_vector(k):
                lines.append(f"    const {self._find_type(place.source)} shared{k} = {self._load(k, place)};")
        return lines

    def _load(self, k: int, place: InputPlace, vector: str = "") -> str:
        """Return the load of an element, or of a vector of so many."""
        source = f"in{place.source} + unit.at{k}"
        guard = self._walk.spaces.spaces[place.space].guard
        condition = f"unit.inside{guard}" if guard else ""
        if place.picked is not None:
            source, condition = f"{source} + slice{k}.at", f"slice{k}.is_within"
        if vector:
            return f"load_vec_within<{vector}>({condition}, {source})" if condition else f"load_vec<{vector}>({source})"
        return f"load_within({condition}, {source})" if condition else f"*({source})"

    def _write_whole(self, types: Sequence[str]) -> list[str]:
        """Return what a unit of several lanes does."""
        if self._width == 1:
            return []
        vectors = [(k, place) for k, place in self._list_read() if self._walk.is_vector(k)]
        elements = [f"vector{k}.lanes[i]" if self._walk.is_vector(k) else f"shared{k}" for k, _ in self._list_read()]
        made = [f"made{k}.lanes[i]" for k in range(len(types))]
        return [
            "    if (unit.is_whole()) {",
            *[f"      const auto vector{k} = {self._load(k, place, 'kWidth')};" for k, place in vectors],
            *[f"      Vec<{cuda}, kWidth> made{k};" for k, cuda in enumerate(types)],
            "#pragma unroll",
            f"      for (int i = 0; i < kWidth; ++i) compute({', '.join(['unit', 'numbers', *elements, *made])});",
            *[f"      store_vec(out{k} + unit.at, made{k});" for k in range(len(types))],
            "      return;",
            "    }",
        ]

    def _write_one(self, types: Sequence[str]) -> list[str]:
        """Return what a unit of one element does."""
        elements = [self._load(k, place) if self._walk.is_vector(k) else f"shared{k}" for k, place in self._list_read()]
        made = [f"out{k}[unit.at]" for k in range(len(types))]
        return [f"    compute({', '.join(['unit', 'numbers', *elements, *made])});"]

"""Index maps: which element of which input an element of a result is, for operators that only move elements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Where an input lies in a result.

    Attributes:
        source: Position of the input.
        starts: Of its first element along each axis of the result; below 0 or beyond the end where it is cut.
    """

    source: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A result made of windows, each of which shows an input, as of Concat and Pad.

    Attributes:
        axes: The axes along which windows may be other than the whole.
        parts: The windows; they don't meet.
        is_whole: Whether they hold every element.
        filler: Position of the input of one element that is where no window is; None: 0 is.
        contents: Positions of the inputs whose content the map follows from.
    """

    axes: tuple[int, ...]
    parts: tuple[Window, ...]
    is_whole: bool
    filler: int | None = None
    contents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Picked:
    """A result made of slices of input 0 along an axis, whose places input 1 has, as of Gather.

    Attributes:
        axis: Of input 0.
        rank: Axes of input 1, which stand in place of that axis.
    """

    axis: int
    rank: int


@dataclass(frozen=True, slots=True)
class ViewedAxis:
    """Where along an axis of the input a result's elements lie: ``offset + sum(coordinate * step)``.

    Attributes:
        offset: Of the first element.
        moves: Axes of the result that move along this one, each with its step.
    """

    offset: int
    moves: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Viewed:
    """A result that shows input 0 by strides of it, as of Transpose and Slice.

    Attributes:
        axes: Of the input.
        contents: Positions of the inputs whose content the map follows from.
    """

    axes: tuple[ViewedAxis, ...]
    contents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A result that holds the elements of input 0 in order, whose axes are joined and divided otherwise.

    Attributes:
        contents: Positions of the inputs whose content the map follows from.
    """

    contents: tuple[int, ...] = ()


IndexMap = Assembled | Picked | Viewed | Reshaped

"""Revision of memory: a number that changes with what is held on a device, so that nobody sums it up in vain."""

from __future__ import annotations


class Revision:
    """A number that whoever allocates or frees memory adds to; equal numbers: nothing has changed."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

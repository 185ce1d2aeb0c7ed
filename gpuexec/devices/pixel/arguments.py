"""Arguments of a blit on a GPU: a texture or surface object and a byte offset in place of each pointer."""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.errors import KernelError


class TextureFinder(Protocol):
    """Lookup of the texture at an address."""

    def __call__(self, address: int, *, is_write: bool) -> tuple[int, int]:
        """Return the texture object, or the surface object of a written one, and the byte offset within it."""


def name_textures(arguments: PackedArguments, find: TextureFinder) -> PackedArguments:
    """Replace the addresses in arguments by ``Texture`` and ``Surface`` structs of ``kernels/pixel/texture.cuh``.

    Raises:
        KernelError: The launch is in no plan, so nothing says what it writes.
    """
    command = arguments.command
    if command is None:
        raise KernelError("A device with textures launches what plans and copies ask for, no other kernels.")
    values: list[np.generic | bytes | None] = []
    for position, (kind, item) in enumerate(zip(arguments.kinds(), arguments.items(), strict=True)):
        if kind == "P8":
            found = find(int(item), is_write=position in command.writes) if item else (0, 0)
            values.append(struct.pack("<2Q", *found))
        else:
            values.append(item.tobytes() if isinstance(item, np.void) else item)
    return PackedArguments(values, command, arguments.origin)

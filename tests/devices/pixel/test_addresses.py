"""Addresses for textures, and the arguments of blits on a GPU."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.pixel.addresses import AddressSpace, name_textures
from gpuexec.errors import DeviceError, KernelError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec


def test_every_byte_of_a_range_is_its_holders() -> None:
    space: AddressSpace[str] = AddressSpace()
    first, second = space.reserve(300, "first"), space.reserve(256, "second")
    assert first % 256 == second % 256 == 0
    assert space.find(first) == ("first", 0)
    assert space.find(first + 299, 1) == ("first", 299)
    assert space.find(second + 10, 246) == ("second", 10)


def test_empty_range_has_an_address_of_its_own() -> None:
    space: AddressSpace[str] = AddressSpace()
    empty, other = space.reserve(0, "empty"), space.reserve(8, "other")
    assert space.find(empty) == ("empty", 0) and space.find(other) == ("other", 0)


def test_what_lies_in_no_range_is_refused() -> None:
    space: AddressSpace[str] = AddressSpace()
    start = space.reserve(256, "it")
    for address, nbytes in ((start - 1, 1), (start + 250, 7), (start + 256 + 256, 1)):
        with pytest.raises(DeviceError, match=f"{nbytes} bytes at {address:#x} lie in no texture"):
            space.find(address, nbytes)
    space.release(start)
    space.release(start)
    with pytest.raises(DeviceError, match="lie in no texture"):
        space.find(start)
    assert space.reserve(256, "another") != start


def test_blit_takes_objects_and_bytes_in_place_of_addresses() -> None:
    x, y = (Slot(buffer, 0, TensorSpec((4,), np.dtype(np.float32)), (1,)) for buffer in (0, 1))
    command = Launch(Kernel("pixel/f.cu", "f"), (1, 1, 1), (256, 1, 1), (x, None, y, np.int32(7), bytes(24)), (2,))
    given = PackedArguments([None, None, None, np.int32(7), bytes(range(24))], command, "node")
    given.set_pointer(0, 0x1010)
    given.set_pointer(2, 0x2020)
    named = name_textures(given, lambda address, *, is_write: (77 if is_write else 55, address & 0xFF))
    words = [struct.pack("<2Q", *pair) for pair in ((55, 0x10), (0, 0), (77, 0x20))]
    assert named.read() == [*words, np.int32(7).tobytes(), bytes(range(24))]
    assert named.kinds() == ("s16", "s16", "s16", "i4", "s24")
    assert (named.command, named.origin) == (command, "node")


def test_launch_of_no_plan_is_refused() -> None:
    with pytest.raises(KernelError, match="launches what plans and copies ask for"):
        name_textures(PackedArguments([None]), lambda address, *, is_write: (1, 0))

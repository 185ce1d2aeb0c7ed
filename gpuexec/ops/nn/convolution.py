"""Shared parts of convolutions: attributes, checks, and the sizes that their kernels take."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.strided import pack_fast_div32, pack_fast_div64
from gpuexec.ops.lib.windows import MAX_AXES, Windows, resolve_windows
from gpuexec.ops.linalg.matmul_launch import TILE

THREADS = 256
_LIMIT = 2**31
_SIZES = "<2Q2I2Q2I3Iiq"  # of ConvSizes of convolution.cuh


@dataclass(frozen=True, slots=True)
class Convolution(Operator):
    """Base: the attributes of Conv."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    uses_all_cores: ClassVar[bool] = True

    def windows(self, x_shape: Sequence[int], w_shape: Sequence[int]) -> Windows:
        """Return the windows over an input of this shape, channels first."""
        return resolve_windows(x_shape[2:], w_shape[2:], self.strides, self.dilations, self.pads, self.auto_pad)


@dataclass(frozen=True, slots=True)
class ConvSizes:
    """Kernel parameters of a convolution beside its windows: ``ConvSizes`` of ``convolution.cuh``.

    ``group_ins`` and ``group_outs`` are the channels of one group, ``outputs`` the elements of one output channel.
    """

    batch: int
    groups: int
    group_ins: int
    group_outs: int
    outputs: int

    @property
    def tiles(self) -> int:
        """Number of tiles of output channels of a group and windows, each made by a block."""
        return ceil_div(self.batch * self.outputs, TILE) * ceil_div(self.group_outs, TILE) * self.groups

    @property
    def has_single(self) -> bool:
        """Return whether a group has one input or one output channel, so that nothing would be shared in a tile."""
        return self.group_ins == 1 or self.group_outs == 1

    def pack(self) -> bytes:
        """Return the struct; a divisor of nothing is 1."""
        return join_bytes(
            (
                pack_fast_div64(max(1, self.outputs)),
                pack_fast_div64(max(1, self.groups * self.group_outs)),
                pack_fast_div32(max(1, self.group_outs)),
                pack_struct("<iq", self.group_ins, self.batch),
            )
        )

    @staticmethod
    def unpack(packed: bytes) -> ConvSizes:
        """Return the sizes from the bytes of the struct."""
        outputs, _, _, _, out_channels, _, _, _, group_outs, _, _, group_ins, batch = struct.unpack_from(_SIZES, packed)
        return ConvSizes(batch, max(1, out_channels // group_outs), group_ins, group_outs, outputs)


def check_kernel(name: str, x: TensorSpec, w: TensorSpec, kernel_shape: Sequence[int], group: int) -> None:
    """Check that a weight has the rank of its input, and the extents that an attribute gives it.

    Raises:
        InputError: It has not, there are too few or too many spatial axes, or there is no group.
    """
    if x.rank != w.rank or not 3 <= x.rank <= MAX_AXES + 2:
        raise InputError(
            f"{name} expects input and weight of equal rank with 1 to {MAX_AXES} spatial axes, got {x} and {w}."
        )
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise InputError(
            f"{name} expects kernel_shape {list(w.shape[2:])}, as the weight has it, got {list(kernel_shape)}."
        )
    if group < 1:
        raise InputError(f"{name} expects group of at least 1, got group={group}.")


def check_channels(name: str, x: TensorSpec, channels: int, w: TensorSpec, group: int) -> None:
    """Check the channels of weight, input and output against the groups.

    Raises:
        InputError: They don't.
    """
    if channels != w.shape[1] * group:
        raise InputError(
            f"{name} expects {w.shape[1] * group} input channels (shape[1] * group={group} of the weight {w}), got {x}."
        )
    if w.shape[0] % group:
        raise InputError(f"{name} expects out channels that group={group} divides, got weight {w}.")


def check_index(name: str, what: str, count: int) -> None:
    """Check that sizes fit the kernels' 32-bit indices.

    Raises:
        InputError: It does not.
    """
    if count >= _LIMIT:
        raise InputError(f"{name} expects fewer than 2**31 {what} on a device, got {count}.")

"""Output extents and padding of convolution and pooling windows, and of transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import InputError
from gpuexec.ir.geometry import ceil_div

Pads = tuple[tuple[int, int], ...]  # (begin, end) per spatial axis

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def dilated_extent(kernel: int, dilation: int) -> int:
    """Return how many input positions a window of ``kernel`` taps spans."""
    return dilation * (kernel - 1) + 1


def window_pads(
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
) -> Pads:
    """Resolve the padding of Conv and of pooling.

    Args:
        extents: Spatial extents of the input.
        kernel: Taps per spatial axis.
        strides: Steps between windows.
        dilations: Steps between taps.
        pads: All begins, then all ends, as the attribute has them; used with NOTSET only.
        auto_pad: SAME keeps ``ceil(extent / stride)`` windows; an odd pad goes to the end (SAME_UPPER) or the begin.

    Returns:
        (begin, end) per spatial axis.

    Raises:
        InputError: ``auto_pad`` is unknown, or the sequences disagree in length.
    """
    rank = len(extents)
    _check_windows(rank, kernel=kernel, strides=strides, dilations=dilations)
    if auto_pad == "NOTSET":
        if pads and min(pads) < 0:
            raise InputError(f"pads must hold entries of 0 or more, got {list(pads)}.")
        return _pair_pads(pads, rank)
    if auto_pad == "VALID":
        return ((0, 0),) * rank
    if auto_pad not in AUTO_PADS:
        raise InputError(f"auto_pad must be one of {', '.join(AUTO_PADS)}, got {auto_pad!r}.")
    result = []
    for extent, taps, stride, dilation in zip(extents, kernel, strides, dilations):
        needed = (ceil_div(extent, stride) - 1) * stride + dilated_extent(taps, dilation)
        total = max(0, needed - extent) if extent else 0
        small, large = total // 2, total - total // 2
        result.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return tuple(result)


def conv_output_extent(
    extent: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, int] = (0, 0),
    ceil_mode: bool = False,
) -> int:
    """Count the windows along one axis of Conv or of pooling.

    With ``ceil_mode`` a window may hang over the end, but must start inside the input or the padding before it.
    An empty axis without padding has no windows.

    Raises:
        InputError: The window is longer than the padded input, with ``ceil_mode`` by a stride or more.
    """
    room = extent + pads[0] + pads[1] - dilated_extent(kernel, dilation)
    if room < 0 and extent == 0 and pads == (0, 0):
        return 0
    # A single window may hang over the end by up to a stride: exporters write a global pool so.
    if room < 0 and not (ceil_mode and room > -stride):
        raise InputError(
            f"the window spans {dilated_extent(kernel, dilation)} positions (kernel {kernel}, dilation {dilation}): "
            f"expected at most the padded extent {extent + pads[0] + pads[1]}."
        )
    if not ceil_mode:
        return room // stride + 1
    count = ceil_div(room, stride) + 1
    return count - 1 if (count - 1) * stride >= extent + pads[0] else count


def conv_transpose_output(
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    output_shape: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], Pads]:
    """Resolve the spatial extents and the padding of ConvTranspose.

    ``output_shape`` wins over ``pads``; without it SAME asks for ``extent * stride``. The padding that then follows
    may be negative. Its larger half goes to the end with SAME_UPPER and to the begin otherwise, NOTSET included.

    Returns:
        The output extents, and (begin, end) of the padding per spatial axis.

    Raises:
        InputError: ``auto_pad`` is unknown, an extent comes out negative, or the sequences disagree in length.
    """
    rank = len(extents)
    output_padding = output_padding or (0,) * rank
    _check_windows(rank, kernel=kernel, strides=strides, dilations=dilations, output_padding=output_padding)
    if auto_pad not in AUTO_PADS:
        raise InputError(f"auto_pad must be one of {', '.join(AUTO_PADS)}, got {auto_pad!r}.")
    full = [
        stride * (extent - 1) + extra + dilated_extent(taps, dilation)
        for extent, taps, stride, dilation, extra in zip(extents, kernel, strides, dilations, output_padding)
    ]
    if not output_shape and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [extent * stride for extent, stride in zip(extents, strides)]
    if output_shape:
        _check_windows(rank, output_shape=output_shape)
        totals = [have - want for have, want in zip(full, output_shape)]
        halves = [(total // 2, total - total // 2) for total in totals]
        return tuple(output_shape), tuple(half if auto_pad == "SAME_UPPER" else (half[1], half[0]) for half in halves)
    pairs = ((0, 0),) * rank if auto_pad == "VALID" else _pair_pads(pads, rank)
    result = tuple(have - begin - end for have, (begin, end) in zip(full, pairs))
    if any(extent < 0 for extent in result):
        raise InputError(
            f"pads {[list(pair) for pair in pairs]} cut more than the output has: expected at most {full}."
        )
    return result, pairs


def _check_windows(rank: int, **sequences: Sequence[int]) -> None:
    for name, sequence in sequences.items():
        if len(sequence) != rank:
            raise InputError(f"{name} must hold one entry for each of {rank} spatial axes, got {list(sequence)}.")
        if name in ("kernel", "strides", "dilations") and min(sequence, default=1) < 1:
            raise InputError(f"{name} must hold entries of at least 1, got {list(sequence)}.")


def _pair_pads(pads: Sequence[int] | None, rank: int) -> Pads:
    if not pads:
        return ((0, 0),) * rank
    if len(pads) != 2 * rank:
        raise InputError(f"pads must hold a begin and an end for each of {rank} spatial axes, got {list(pads)}.")
    return tuple(zip(pads[:rank], pads[rank:]))

"""The launch that stores the numbers of a size in device memory, for the launches of a graph behind it.

No plan has it: a graph is launched with it (`gpuexec.devices.device_sizes`).
"""

from __future__ import annotations

import numpy as np

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.moving_arguments import STORE_SIZES
from gpuexec.ir.spec import TensorSpec

PLACES, BLOCKS, ROW = 0, 1, 2  # its arguments, and the buffers of the first two
MAX_NUMBERS = 32  # kMaxNumbers of store_sizes.cu
PLACE = np.dtype([("base", "<u8"), ("at", "<u4"), ("entry", "<u2"), ("width", "<u2")])  # SizePlace
_THREADS = 256  # kThreads
_BYTE = np.dtype(np.uint8)
instantiate("store_sizes.cu", [STORE_SIZES.expression])


def make_store(count: int, blocks_nbytes: int) -> Launch:
    """Return the launch that stores a row, of zeros, at so many places in blocks of so many bytes."""
    places, blocks = (
        Slot(buffer, 0, TensorSpec((nbytes,), _BYTE), (1,))
        for buffer, nbytes in ((PLACES, count * PLACE.itemsize), (BLOCKS, blocks_nbytes))
    )
    arguments = (places, blocks, bytes(8 * MAX_NUMBERS), np.int32(count))
    return Launch(STORE_SIZES, (ceil_div(count, _THREADS), 1, 1), (_THREADS, 1, 1), arguments, (BLOCKS,))

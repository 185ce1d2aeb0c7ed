"""Memory manager of a Method: planned memory of the user, and allocators for the rest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from gpuexec.devices.backend import Backend, BackendLike, BackendType, find_backend
from gpuexec.errors import InputError, OutOfMemoryError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Readers, SharedRunCount
from gpuexec.execution.results.arenas import make_bytes
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.geometry import round_up
from gpuexec.system.pickling import not_picklable


class Allocator(Protocol):
    """Memory allocator: anything with this method."""

    def allocate(self, nbytes: int) -> object:
        """Return at least so many bytes on the Method's device, from a multiple of 16 on.

        A Tensor, or anything with DLPack, ``__cuda_array_interface__`` or the buffer protocol. It is held as long as it
        is used; None, or a MemoryError, says that there is no room.
        """


@not_picklable("Make one there.")
class DeviceAllocator:
    """Gives memory of a backend's device, and counts it. For the allocators of a MemoryManager.

    Args:
        backend: Whose device.
        most_nbytes: How much it gives in all; None: what the device has.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": (8, 1, 8, 8)}})
        >>> memory = gx.MemoryManager(gx.DeviceAllocator("cpu"))
        >>> with program.load_method("forward", memory, backend="cpu") as method:
        ...     _ = method.execute([x])
        ...     method.get_output("logits").shape
        (8, 10)
    """

    def __init__(self, backend: BackendLike = BackendType.AUTO, most_nbytes: int | None = None) -> None:
        self._backend = find_backend(backend, None)[0]
        self._most_nbytes = most_nbytes
        self._lock = threading.Lock()
        self.nbytes = 0

    def allocate(self, nbytes: int) -> Tensor:
        """Return bytes of the device.

        Raises:
            OutOfMemoryError: They would be more than it may give, or than there are.
        """
        with self._lock:
            if self._most_nbytes is not None and self.nbytes + nbytes > self._most_nbytes:
                raise OutOfMemoryError(f"{nbytes} bytes are too many: {self.nbytes} of {self._most_nbytes} are given.")
            self.nbytes += nbytes
        try:
            return make_bytes(self._backend, nbytes)
        except BaseException:
            with self._lock:
                self.nbytes -= nbytes
            raise


class BumpAllocator:
    """Gives slices of one block of the user's, one behind the other; what is given is not taken back.

    Args:
        block: A contiguous array of bytes with slices: of NumPy, CuPy or torch.
        alignment: What every slice starts at a multiple of, counted from the block's start.

    Raises:
        InputError: The block or the alignment is none.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": (8, 1, 8, 8)}})
        >>> memory = gx.MemoryManager(gx.BumpAllocator(np.zeros(1 << 20, np.uint8)))
        >>> with program.load_method("forward", memory, backend="cpu") as method:
        ...     _ = method.execute([x])
        ...     method.get_output(0).shape
        (8, 10)
    """

    def __init__(self, block: Any, alignment: int = 256) -> None:
        if len(getattr(block, "shape", ())) != 1 or str(block.dtype).removeprefix("torch.") != "uint8":
            raise InputError("BumpAllocator takes one array of bytes: uint8, of one axis.")
        if not isinstance(alignment, int) or alignment < 1:
            raise InputError(f"A BumpAllocator's alignment is a whole number, at least 1, got {alignment!r}.")
        self._block, self._alignment = block, alignment
        self._lock = threading.Lock()
        self.nbytes = 0

    def allocate(self, nbytes: int) -> object:
        """Return the next slice.

        Raises:
            OutOfMemoryError: The block is used up.
        """
        with self._lock:
            start = round_up(self.nbytes, self._alignment)
            if start + nbytes > len(self._block):
                raise OutOfMemoryError(
                    f"{nbytes} bytes are needed, {max(len(self._block) - start, 0)} of {len(self._block)} are left."
                )
            self.nbytes = start + nbytes
            return self._block[start : start + nbytes]


class SharedUse:
    """Use of the same memory by several Methods: the run count, the present user, and the last use.

    Attributes:
        count: Of runs; a new one makes all outputs stale.
        stepping: The Method that is in the middle of steps.
        last_use: Issued and done when the last run is.
    """

    def __init__(self) -> None:
        self.count = SharedRunCount()
        self.stepping: object | None = None
        self.last_use: Fence | None = None
        self._readers: Readers | None = None
        self._lock = threading.Lock()
        self._last: object | None = None
        self._changes = 0

    def readers_on(self, backend: Backend) -> Readers:
        """Return the users of the bytes, the same object for all."""
        with self._lock:
            self._readers = self._readers or Readers(backend)
            return self._readers

    def enter(self, user: object) -> int:
        """Set the present user of the memory; return how often it has changed."""
        with self._lock:
            self._changes += user is not self._last
            self._last = user
            return self._changes


@not_picklable("Make one there.")
class HierarchicalAllocator:
    """The planned memory of a Method: one block for each buffer that its MethodMeta lists, in that order.

    Blocks may be Tensors, arrays of CuPy, torch or NumPy, pinned memory, or None where a buffer has no bytes. They are
    looked at when a Method is loaded over them, and live as long as it does. Methods loaded over one allocator share
    its blocks: a run of one makes the outputs of the others stale. Of the block for state each takes a part of its
    own, so it has to be as large as all of them need. A block that another allocator has too is refused while a Method
    over that one is open.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": (8, 1, 8, 8)}})
        >>> blocks = program.method_meta("forward", backend="cpu").allocate()  # or arrays of yours
        >>> memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(blocks))
        >>> with program.load_method("forward", memory, backend="cpu") as method:
        ...     _ = method.execute([x])
        ...     method.get_output(0).shape
        (8, 10)
    """

    def __init__(self, buffers: Sequence[object]) -> None:
        # Whether inputs are in the same memory as those of other Methods, too.
        self._shares_inputs = True
        if not isinstance(buffers, (list, tuple)):
            raise InputError(
                f"HierarchicalAllocator takes a list with one block for each buffer, got a {type(buffers).__name__}."
            )
        self._buffers = tuple(buffers)
        self._shared_use = SharedUse()

    def __repr__(self) -> str:
        return f"HierarchicalAllocator({len(self._buffers)} buffers)"


class MemoryManager:
    """Memory of a Method: planned, for state, and for what is temporary.

    Args:
        method_allocator: Gives what the Method keeps and is not planned: outputs that are not, room for inputs that are
            not. None: the device does, or nothing where there is planned memory.
        planned_memory: Blocks for the buffers of the plan.
        temp_allocator: Gives what lives between the plans of a method that needs several, whose sizes only a run knows.
            None: the device does, or nothing where there is planned memory: such a method is refused then.

    Raises:
        InputError: One of them is not of its kind.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": (8, 1, 8, 8)}})
        >>> with program.load_method("forward", gx.MemoryManager(), backend="cpu") as method:
        ...     _ = method.execute([x])
        ...     method.get_output(0).shape
        (8, 10)
    """

    def __init__(
        self,
        method_allocator: Allocator | None = None,
        planned_memory: HierarchicalAllocator | None = None,
        temp_allocator: Allocator | None = None,
    ) -> None:
        for name, each in (("method_allocator", method_allocator), ("temp_allocator", temp_allocator)):
            if each is not None and not callable(getattr(each, "allocate", None)):
                raise InputError(f"{name} must have allocate(nbytes); a {type(each).__name__} has not.")
        if planned_memory is not None and not isinstance(planned_memory, HierarchicalAllocator):
            raise InputError(
                f"planned_memory must be a HierarchicalAllocator, got a {type(planned_memory).__name__}; write"
                " HierarchicalAllocator(arenas)."
            )
        self.method_allocator = method_allocator
        self.planned_memory = planned_memory
        self.temp_allocator = temp_allocator

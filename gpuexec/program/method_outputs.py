"""Output memory of the user: the buffers a Method's outputs are written to."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.errors import InputError
from gpuexec.execution.results.arenas import is_on_host, take_memory
from gpuexec.ir.spec import name_dtype
from gpuexec.model.ports import ModelPort
from gpuexec.program.method_meta import MethodMeta


def take_output(
    meta: MethodMeta, port: ModelPort, nbytes: int, array: object, backend: Backend, stream: Stream
) -> Region:
    """Take over memory for an output of at most so many bytes, for what a stream does from now on.

    An array of one axis of bytes, as allocators give, serves any dtype. It may start at any address. Of an output
    without an upper bound all of it is taken, and held against what each run gives.

    Raises:
        InputError: It is of another dtype, too small, lies elsewhere, or can't be used.
    """
    what = f"Output {port.name!r} of method {meta.name!r}"
    expected = name_dtype(port.spec.dtype)
    dtype = str(getattr(array, "dtype", expected)).rpartition(".")[2]
    is_raw = dtype == "uint8" and len(getattr(array, "shape", ())) == 1
    if dtype != expected and not is_raw:
        raise InputError(f"{what} is {expected}, the memory given is of {dtype}.", value=port.name)
    if backend.device.target.has_kernels and is_on_host(array):
        raise InputError(
            f"{what} is written by {backend.device.name}, and the {type(array).__name__} lies on the host. Give memory"
            f" of the device, or copy after the run: get_output({port.name!r}).readback_and_clone(array).",
            value=port.name,
        )
    memory = take_memory(array, backend, stream, nbytes, what, is_host=False, alignment=1, takes_all=not nbytes)
    return Region(memory, 0, memory.nbytes)


def check_outputs_apart(name: str, region: Region, others: Mapping[str, Region | None]) -> None:
    """Check that the bytes of an output are not those of another.

    Raises:
        InputError: They are; names both.
    """
    for other, taken in others.items():
        if other == name or taken is None or not taken.nbytes:
            continue
        if region.address < taken.address + taken.nbytes and taken.address < region.address + region.nbytes:
            raise InputError(f"Output {name!r} overlaps output {other!r}; give each bytes of its own.", value=name)

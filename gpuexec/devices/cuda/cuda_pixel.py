"""The CUDA device with textures as memory: calls of CuPy, without logic.

Decisions are made in `gpuexec.devices.pixel`. A block of memory is a CUDA array of four 32-bit channels with a texture
object to read it by and a surface object to write it by. It has no address, so it takes one of `AddressSpace`. Pinned
memory, streams, events and kernels are those of `CudaDevice`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.cuda.cuda_stream import CudaStream
from gpuexec.devices.device import ByteArray, Function, MemoryBlock, Stream
from gpuexec.devices.pixel.addresses import AddressSpace, name_textures
from gpuexec.devices.pixel.extents import TEXEL_BYTES, Rectangle, find_extents, split_range
from gpuexec.devices.prepared import list_values
from gpuexec.errors import GpuexecError
from gpuexec.ir.command import Launch, LaunchConfig
from gpuexec.ops.lib.pixel import copy_kernels, make_copy, make_fill

_CHANNEL_BITS = 32


@dataclass(frozen=True, slots=True)
class Handles:
    """CUDA handles of a block of memory: a cudaArray_t, a cudaTextureObject_t and a cudaSurfaceObject_t."""

    array: int
    texture: int
    surface: int


class CudaTexture:
    """Device memory: an array with its texture and surface objects. The host can't access it.

    It is returned to CUDA when it is freed or no longer referenced.
    """

    array: ByteArray | None = None

    def __init__(self, device: CudaPixelDevice, nbytes: int) -> None:
        width, height = find_extents(nbytes, device.name)
        cuda, bits = device.context.cupy.cuda, _CHANNEL_BITS
        textures, runtime = cuda.texture, cuda.runtime
        channels = textures.ChannelFormatDescriptor(bits, bits, bits, bits, runtime.cudaChannelFormatKindUnsigned)
        with device.context.calling(f"allocating a texture of {nbytes} bytes"):
            made = textures.CUDAarray(channels, width, height, 0, runtime.cudaArraySurfaceLoadStore)
            resource = textures.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=made)
            sampling = textures.TextureDescriptor(
                (runtime.cudaAddressModeClamp, runtime.cudaAddressModeClamp),
                runtime.cudaFilterModePoint,
                runtime.cudaReadModeElementType,
            )
            texture, surface = textures.TextureObject(resource, sampling), textures.SurfaceObject(resource)
        self.nbytes = nbytes
        self.address: int = device.space.reserve(nbytes, Handles(made.ptr, texture.ptr, surface.ptr))
        self._release = weakref.finalize(self, _release, device, self.address, [texture, surface, resource, made])
        self._release.atexit = False

    def free(self) -> None:
        """Free the array. A second call does nothing."""
        self._release()


def _release(device: CudaPixelDevice, address: int, objects: list[Any]) -> None:
    """Release CuPy's objects with their own GPU current, where their handles are valid."""
    device.space.release(address)
    with contextlib.suppress(GpuexecError), device.context.calling("freeing a texture"):
        objects.clear()
    objects.clear()  # of a GPU that is lost


class CudaPixelStream(CudaStream):
    """A stream whose launches and copies work on textures."""

    def __init__(self, device: CudaPixelDevice, external: int | None = None) -> None:
        super().__init__(device.context, external, is_packed=device.packed_launch)
        self._pixel = device

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a blit; arguments are copied at the call."""
        named = name_textures(arguments, self._pixel.find_texture)
        super().launch(function, config, named)

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes into a texture, rectangle by rectangle."""
        runtime = self.context.cupy.cuda.runtime
        texture, offset = self._pixel.space.find(address, source.nbytes)
        for part in split_range(offset, source.nbytes):
            host, to_device = source.ctypes.data + part.start, runtime.memcpyHostToDevice
            with self.context.calling("copying to a texture"):
                if part.is_whole:
                    self._write(texture, part, host, to_device)
                    continue
                edge = self._pixel.find_edge(self.handle)
                self._read(texture, part, edge, runtime.memcpyDeviceToDevice)
                runtime.memcpyAsync(edge + part.skipped, host, part.nbytes, to_device, self.handle)
                self._write(texture, part, edge, runtime.memcpyDeviceToDevice)

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy bytes of a texture to host memory, rectangle by rectangle; asynchronous where that is pinned."""
        runtime = self.context.cupy.cuda.runtime
        texture, offset = self._pixel.space.find(address, destination.nbytes)
        for part in split_range(offset, destination.nbytes):
            host, to_host = destination.ctypes.data + part.start, runtime.memcpyDeviceToHost
            with self.context.calling("copying from a texture"):
                if part.is_whole:
                    self._read(texture, part, host, to_host)
                    continue
                edge = self._pixel.find_edge(self.handle)
                self._read(texture, part, edge, runtime.memcpyDeviceToDevice)
                runtime.memcpyAsync(host, edge + part.skipped, part.nbytes, to_host, self.handle)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between textures, or within one, by a blit."""
        self._draw(make_copy(destination, source, nbytes), (source, destination))

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times, by a blit."""
        self._draw(make_fill(pattern, count), (address,))

    def _draw(self, command: Launch, addresses: Sequence[int]) -> None:
        arguments = PackedArguments(list_values(command), command)
        for position, address in enumerate(addresses):
            arguments.set_pointer(position, address)
        self.launch(self._pixel.function(command.kernel), command.config, arguments)

    def _write(self, texture: Handles, part: Rectangle, source: int, kind: int) -> None:
        width, runtime = part.columns * TEXEL_BYTES, self.context.cupy.cuda.runtime
        runtime.memcpy2DToArrayAsync(
            texture.array, part.column * TEXEL_BYTES, part.row, source, width, width, part.rows, kind, self.handle
        )

    def _read(self, texture: Handles, part: Rectangle, destination: int, kind: int) -> None:
        width, runtime = part.columns * TEXEL_BYTES, self.context.cupy.cuda.runtime
        runtime.memcpy2DFromArrayAsync(
            destination, width, texture.array, part.column * TEXEL_BYTES, part.row, width, part.rows, kind, self.handle
        )


class CudaPixelDevice(CudaDevice):
    """One GPU, all memory textures and every launch a blit. It has no graphs: layers are issued as scheduled.

    Args:
        ordinal: As `CudaDevice`.
        packed_launch: As `CudaDevice`.

    Raises:
        DeviceNotFoundError: As `CudaDevice`.
    """

    def __init__(self, ordinal: int = 0, *, packed_launch: bool | None = None) -> None:
        super().__init__(ordinal, packed_launch=packed_launch)
        self.target = dataclasses.replace(self.target, kind="pixel")
        self.space: AddressSpace[Handles] = AddressSpace()
        self._edges: dict[tuple[int, int], MemoryBlock] = {}
        self.load(copy_kernels())

    def allocate(self, nbytes: int, stream: Stream | None = None) -> Any:
        """Return a texture of at least so many bytes; their content is undefined. No pool keeps them."""
        return CudaTexture(self, nbytes)

    def create_stream(self) -> CudaPixelStream:
        """Return a stream that does not synchronize with any other."""
        return CudaPixelStream(self)

    def external_stream(self, handle: int) -> CudaPixelStream:
        """Return a foreign stream by its handle; 1 and 2 are CUDA's default streams."""
        return CudaPixelStream(self, handle)

    def find_texture(self, address: int, *, is_write: bool) -> tuple[int, int]:
        """Return the texture or surface object of an address, and the byte offset within it."""
        texture, offset = self.space.find(address)
        return (texture.surface if is_write else texture.texture), offset

    def find_edge(self, stream: int) -> int:
        """Return the address of 16 bytes of scratch memory, through which a stream's copies move part of a texel.

        They live as long as the device, since work that uses them may outlive its submitter. Each thread has its own,
        so that copies of two don't mix on a stream that both put work on.
        """
        key = (stream, threading.get_ident())
        if key not in self._edges:
            self._edges[key] = super().allocate(TEXEL_BYTES)
        return self._edges[key].address

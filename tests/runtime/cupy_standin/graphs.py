"""Graphs: made, updated and launched in a random order that their edges allow."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as bindings

from tests.runtime.cupy_standin.kernels import read_parameters
from tests.runtime.cupy_standin.statuses import CONTEXT, INVALID_VALUE, CUDARuntimeError

if TYPE_CHECKING:
    from tests.runtime.cupy_standin.standin import Standin


class GraphNode:
    """What one node does on a stream, and the handles of the nodes it waits for."""

    def __init__(self, run: Any, before: list[int]) -> None:
        self.run, self.before = run, before


class GraphCalls:
    """The part of the driver that makes, updates and launches graphs. Parameters are read when a node gets them."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self._random = random.Random(0)
        self._nodes = itertools.count(1)

    def as_dict(self) -> dict[str, Any]:
        names = ("CUDA_KERNEL_NODE_PARAMS", "CUDA_MEMSET_NODE_PARAMS", "CUDA_MEMCPY3D", "CUmemorytype")
        return {
            **{name: getattr(bindings, name) for name in names},
            "cuGraphCreate": lambda flags: (0, self._standin.handles.add({})),
            "cuGraphAddKernelNode": self._add(self._read_launch),
            "cuGraphAddMemcpyNode": self._add(self._read_copy),
            "cuGraphAddMemsetNode": self._add(self._read_fill),
            "cuGraphInstantiate": self._instantiate,
            "cuGraphExecKernelNodeSetParams": self._set(self._read_launch),
            "cuGraphExecMemcpyNodeSetParams": self._set(self._read_copy),
            "cuGraphExecMemsetNodeSetParams": self._set(self._read_fill),
            "cuGraphLaunch": self._launch,
            "cuGraphExecDestroy": self._destroy,
            "cuGraphDestroy": self._destroy,
        }

    def _add(self, read: Any) -> Any:
        def call(graph: int, before: list[Any], count: int, parameters: Any, context: int = CONTEXT) -> tuple[Any, ...]:
            assert count == len(before) and context == CONTEXT
            self._standin._require_current()
            handle = next(self._nodes)
            self._standin.handles[graph][handle] = GraphNode(read(parameters), [int(node) for node in before])
            return 0, bindings.CUgraphNode(handle)

        return call

    def _set(self, read: Any) -> Any:
        def call(executable: int, node: Any, parameters: Any, context: int = CONTEXT) -> tuple[int]:
            assert context == CONTEXT
            self._standin._require_current()
            if getattr(parameters, "height", 1) != 1:  # a fill of an executable graph is updated in one dimension only
                return (INVALID_VALUE,)
            nodes = self._standin.handles[executable]
            nodes[int(node)] = GraphNode(read(parameters), nodes[int(node)].before)
            return (0,)

        return call

    def _instantiate(self, graph: int, flags: int) -> tuple[int, int]:
        return 0, self._standin.handles.add(dict(self._standin.handles[graph]))

    def _launch(self, executable: int, stream: int) -> tuple[int]:
        nodes, done = self._standin.handles[executable], set()
        while len(done) < len(nodes):
            ready = [handle for handle, node in nodes.items() if handle not in done and done.issuperset(node.before)]
            handle = self._random.choice(ready)
            try:
                nodes[handle].run(stream)
            except CUDARuntimeError as error:
                return (error.status,)
            done.add(handle)
        return (0,)

    def _destroy(self, handle: int) -> tuple[int]:
        self._standin.handles.remove(handle)
        return (0,)

    def _read_launch(self, parameters: Any) -> Any:
        raw = self._standin.handles[int(parameters.func)]
        grid = (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ)
        block = (parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ)
        values, shared_bytes = read_parameters(raw, parameters.kernelParams), parameters.sharedMemBytes
        return lambda stream: self._standin.launch(raw, grid, block, values, shared_bytes, stream)

    def _read_copy(self, parameters: Any) -> Any:
        kind = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert parameters.srcMemoryType == parameters.dstMemoryType == kind
        assert (parameters.Height, parameters.Depth) == (1, 1)
        destination, source = int(parameters.dstDevice), int(parameters.srcDevice)
        nbytes = parameters.WidthInBytes
        return lambda stream: self._standin._copy(destination, source, nbytes, 3, stream)

    def _read_fill(self, parameters: Any) -> Any:
        address, pitch = int(parameters.dst), parameters.pitch
        pattern = parameters.value.to_bytes(parameters.elementSize, "little")
        width, height = parameters.width, parameters.height

        def run(stream: int) -> None:
            for row in range(height):
                self._standin._call(self._standin.handles[stream].fill, address + row * pitch, pattern, width)

        return run

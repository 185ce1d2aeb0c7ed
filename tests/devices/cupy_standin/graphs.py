"""Graphs of the stand-in: made, updated and launched in a random order that their edges allow."""

from __future__ import annotations

import copy
import itertools
import random
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as bindings

from gpuexec.ir.command import LaunchConfig
from tests.devices.cupy_standin.kernels import read_parameters
from tests.devices.cupy_standin.statuses import CONTEXT, INVALID_VALUE, CUDARuntimeError

if TYPE_CHECKING:
    from tests.devices.cupy_standin.standin import Standin


class GraphNode:
    """Node of a graph: its work on a stream, the handles it depends on, and whether its launch is cooperative.

    ``programmatic`` are the handles that it waits for itself.
    """

    def __init__(
        self, run: Any, before: list[int], cooperative: bool = False, programmatic: tuple[int, ...] = ()
    ) -> None:
        self.run, self.before, self.cooperative = run, before, cooperative
        self.programmatic = programmatic


class GraphCalls:
    """The part of the driver that makes, updates and launches graphs. Parameters are read when a node gets them."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self._random = random.Random(0)
        self._nodes = itertools.count(1)
        self.programmatic: list[tuple[int, int]] = []  # edges of all graphs
        self._made: dict[int, GraphNode] = {}  # nodes of graphs, which executable ones have copies of
        self.captures = 0
        self._captured: dict[int, list[Any]] = {}  # by stream, what was put on it since its capture began

    def as_dict(self) -> dict[str, Any]:
        names = ("CUDA_KERNEL_NODE_PARAMS", "CUDA_MEMSET_NODE_PARAMS", "CUDA_MEMCPY3D", "CUmemorytype")
        names += ("CUkernelNodeAttrID", "CUkernelNodeAttrValue", "CUgraphEdgeData", "CUgraphDependencyType")
        names += ("CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC", "CUstreamCaptureMode")
        return {
            **{name: getattr(bindings, name) for name in names},
            "cuGraphCreate": lambda flags: (0, self._standin.handles.add({})),
            "cuGraphAddKernelNode": self._add(self._read_launch),
            "cuGraphAddMemcpyNode": self._add(self._read_copy),
            "cuGraphAddMemsetNode": self._add(self._read_fill),
            "cuGraphKernelNodeSetAttribute": self._set_attribute,
            "cuGraphAddDependencies": self._add_dependencies,
            "cuGraphInstantiate": self._instantiate,
            "cuGraphExecKernelNodeSetParams": self._set(self._read_launch),
            "cuGraphExecMemcpyNodeSetParams": self._set(self._read_copy),
            "cuGraphExecMemsetNodeSetParams": self._set(self._read_fill),
            "cuStreamBeginCapture": self._begin_capture,
            "cuStreamEndCapture": self._end_capture,
            "cuGraphAddChildGraphNode": self._add(self._read_child),
            "cuGraphExecChildGraphNodeSetParams": self._set(self._read_child),
            "cuGraphLaunch": self._launch,
            "cuGraphExecDestroy": self._destroy,
            "cuGraphDestroy": self._destroy,
        }

    def _add(self, read: Any) -> Any:
        def call(graph: int, before: list[Any], count: int, parameters: Any, context: int = CONTEXT) -> tuple[Any, ...]:
            assert count == len(before) and context == CONTEXT
            self._standin._require_current()
            handle = next(self._nodes)
            made = GraphNode(read(parameters), [int(node) for node in before])
            self._made[handle] = self._standin.handles[graph][handle] = made
            return 0, bindings.CUgraphNode(handle)

        return call

    def _set(self, read: Any) -> Any:
        def call(executable: int, node: Any, parameters: Any, context: int = CONTEXT) -> tuple[int]:
            assert context == CONTEXT
            self._standin._require_current()
            if getattr(parameters, "height", 1) != 1:  # a fill of an executable graph is updated in one dimension only
                return (INVALID_VALUE,)
            nodes = self._standin.handles[executable]
            old = nodes[int(node)]  # an update gives parameters alone: attributes stay
            nodes[int(node)] = GraphNode(read(parameters), old.before, old.cooperative, old.programmatic)
            return (0,)

        return call

    def _set_attribute(self, node: Any, attribute: Any, value: Any) -> tuple[int]:
        assert isinstance(value, bindings.CUkernelNodeAttrValue)
        assert attribute == bindings.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        self._standin._require_current()
        self._made[int(node)].cooperative = bool(value.cooperative)
        return (0,)

    def _add_dependencies(
        self, graph: int, before: list[Any], after: list[Any], data: list[Any], count: int
    ) -> tuple[int]:
        self._standin._require_current()
        assert count == len(before) == len(after) == len(data)
        for source, node, each in zip(before, after, data, strict=True):
            assert (each.from_port, each.to_port, each.type) == (1, 0, 1)
            made = self._standin.handles[graph][int(node)]
            made.programmatic = (*made.programmatic, int(source))
            self.programmatic.append((int(source), int(node)))
        return (0,)

    def _instantiate(self, graph: int, flags: int) -> tuple[int, int]:
        nodes = {handle: copy.copy(node) for handle, node in self._standin.handles[graph].items()}
        return 0, self._standin.handles.add(nodes)

    def _launch(self, executable: int, stream: int) -> tuple[int]:
        nodes, done, last = self._standin.handles[executable], set(), 0
        while len(done) < len(nodes):
            ready = [
                handle
                for handle, node in nodes.items()
                if handle not in done and done.issuperset((*node.before, *node.programmatic))
            ]
            handle = self._random.choice(ready)
            node = nodes[handle]
            # What it waits for was launched just before it: the device below overlaps the two.
            is_early = last in node.programmatic and not node.before
            try:
                node.run(stream, node.cooperative, is_early)
            except CUDARuntimeError as error:
                return (error.status,)
            done.add(handle)
            last = handle
        return (0,)

    def _destroy(self, handle: int) -> tuple[int]:
        self._standin.handles.remove(handle)
        return (0,)

    def put(self, stream: int, work: Any) -> None:
        """Do what a library puts on a stream, of its handle; where that is being captured, later, in the graph."""
        if stream in self._captured:
            self._captured[stream].append(work)
        else:
            work(stream)

    def _begin_capture(self, stream: int, mode: Any) -> tuple[int]:
        assert mode == bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._standin._require_current()
        assert stream not in self._captured
        self._captured[stream] = []
        return (0,)

    def _end_capture(self, stream: int) -> tuple[int, int]:
        self._standin._require_current()
        captured = self._captured.pop(stream)
        self.captures += 1
        return 0, self._standin.handles.add({number: GraphNode(work, []) for number, work in enumerate(captured)})

    def _read_child(self, child: int) -> Any:
        """Return a copy of a captured graph, which the caller may destroy; its nodes follow each other."""
        works = [node.run for node in self._standin.handles[child].values()]

        def run(stream: int, *_: bool) -> None:
            for work in works:
                work(stream)

        return run

    def _read_launch(self, parameters: Any) -> Any:
        raw = self._standin.handles[int(parameters.func)]
        grid = (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ)
        block = (parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ)
        values, shared_bytes = read_parameters(raw, parameters.kernelParams), parameters.sharedMemBytes
        return lambda stream, cooperative, is_early: self._standin.launch(
            raw, LaunchConfig(grid, block, shared_bytes, cooperative), values, stream, is_early=is_early
        )

    def _read_copy(self, parameters: Any) -> Any:
        kind = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert parameters.srcMemoryType == parameters.dstMemoryType == kind
        assert (parameters.Height, parameters.Depth) == (1, 1)
        destination, source = int(parameters.dstDevice), int(parameters.srcDevice)
        nbytes = parameters.WidthInBytes
        return lambda stream, *_: self._standin._copy(destination, source, nbytes, 3, stream)

    def _read_fill(self, parameters: Any) -> Any:
        address, pitch = int(parameters.dst), parameters.pitch
        pattern = parameters.value.to_bytes(parameters.elementSize, "little")
        width, height = parameters.width, parameters.height

        def run(stream: int, *_: bool) -> None:
            for row in range(height):
                self._standin._call(self._standin.handles[stream].fill, address + row * pitch, pattern, width)

        return run

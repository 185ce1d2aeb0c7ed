"""CUDA graphs built node by node from prepared commands and edges, through ``cuda.bindings``.

CuPy can only capture. What a library does is captured, too: its work on a stream of the graph's own becomes a child
node, which has the edges of its command, and is captured anew where addresses change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gpuexec.devices.cuda.cuda_context import CudaContext
from gpuexec.devices.cuda.cuda_stream import CudaStream
from gpuexec.devices.prepared import PreparedCommand, PreparedCopy, PreparedFill, PreparedLaunch, PreparedLibraryCall
from gpuexec.errors import DeviceLostError


class CudaGraph:
    """An executable graph. A command is one node, or two where it fills with 8-byte patterns.

    Args:
        context: Of the GPU that it will run on.
        commands: Prepared, with every address set.
        edges: Pairs (before, after) of positions in ``commands``, before < after.
        origins: The node of the model that each command stems from, for messages.
        programmatic: Those of the edges that join a launch to one that begins early and waits for it itself.
    """

    def __init__(
        self,
        context: CudaContext,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str] = (),
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        self._context, self._driver = context, context.driver
        self._name = f"a graph of {len(commands)} commands" + (
            f", {origins[0]!r} to {origins[-1]!r}" if origins else ""
        )
        self._nodes: list[list[Any]] = []
        self._captor: CudaStream | None = None  # what libraries are captured on
        # The parameters of each launch node's last update, reused by the next: pointers and scalars lie in the block
        # they name, which stays where it is.
        self._given: dict[int, tuple[tuple[object, ...], Any]] = {}
        before: list[list[int]] = [[] for _ in commands]
        early: list[list[int]] = [[] for _ in commands]
        for first, second in edges:
            (early if (first, second) in programmatic else before)[second].append(first)
        # Made once: the message of a failed launch needs them.
        self._launching, self._updating = f"launching {self._name}", f"updating {self._name}"
        with context.calling(f"building {self._name}"):
            self._context_handle: int = context.cupy.cuda.driver.ctxGetCurrent()
            self._graph = context.check(self._driver.cuGraphCreate(0))
            try:
                for position, (command, sources) in enumerate(zip(commands, before, strict=True)):
                    dependencies = [node for source in sources for node in self._nodes[source]]
                    self._nodes.append(self._add(position, command, dependencies))
                    if early[position]:
                        self._add_programmatic([self._nodes[source][0] for source in early[position]], position)
                self._executable = context.check(self._driver.cuGraphInstantiate(self._graph, 0))
            except BaseException:
                self._driver.cuGraphDestroy(self._graph)
                raise

    def __str__(self) -> str:
        return self._name

    def update(self, positions: Sequence[int], commands: Sequence[PreparedCommand]) -> None:
        """Update the nodes at ``positions`` to the given ``commands``; runs already launched keep theirs."""
        driver, check, executable = self._driver, self._context.check, self._executable
        with self._context.calling(self._updating):
            for position in positions:
                command = commands[position]
                if isinstance(command, PreparedLibraryCall):
                    with self._capture(command) as child:
                        (node,) = self._nodes[position]
                        check(driver.cuGraphExecChildGraphNodeSetParams(executable, node, child))
                    continue
                for node, parameters in zip(self._nodes[position], self._describe(position, command), strict=True):
                    match command:
                        case PreparedLaunch():
                            check(driver.cuGraphExecKernelNodeSetParams(executable, node, parameters))
                        case PreparedCopy():
                            check(
                                driver.cuGraphExecMemcpyNodeSetParams(
                                    executable, node, parameters, self._context_handle
                                )
                            )
                        case _:
                            check(
                                driver.cuGraphExecMemsetNodeSetParams(
                                    executable, node, parameters, self._context_handle
                                )
                            )

    def launch(self, stream: CudaStream) -> None:
        """Put the whole graph on a stream."""
        with self._context.calling(self._launching):
            self._context.check(self._driver.cuGraphLaunch(self._executable, stream.handle))
        stream.note_launched(self)

    def close(self) -> None:
        """Destroy the graph; runs under way finish. After a fault the context has freed it already."""
        executable, self._executable = self._executable, None
        if executable is not None:
            with contextlib.suppress(DeviceLostError), self._context.calling(f"destroying {self._name}"):
                self._context.check(self._driver.cuGraphExecDestroy(executable))
                self._context.check(self._driver.cuGraphDestroy(self._graph))

    def _add(self, position: int, command: PreparedCommand, before: list[Any]) -> list[Any]:
        driver, check, graph, count = self._driver, self._context.check, self._graph, len(before)
        if isinstance(command, PreparedLibraryCall):
            with self._capture(command) as child:
                return [check(driver.cuGraphAddChildGraphNode(graph, before, count, child))]
        parameters = self._describe(position, command)
        match command:
            case PreparedLaunch():
                (row,) = parameters
                node = check(driver.cuGraphAddKernelNode(graph, before, count, row))
                if command.config.cooperative:
                    self._make_cooperative(node)
                return [node]
            case PreparedCopy():
                return [
                    check(driver.cuGraphAddMemcpyNode(graph, before, count, row, self._context_handle))
                    for row in parameters
                ]
            case _:
                return [
                    check(driver.cuGraphAddMemsetNode(graph, before, count, row, self._context_handle))
                    for row in parameters
                ]

    @contextlib.contextmanager
    def _capture(self, command: PreparedLibraryCall) -> Iterator[Any]:
        """Yield the graph of what a library does, to be copied into a node; other threads' calls are not captured."""
        driver, check = self._driver, self._context.check
        if self._captor is None:
            self._captor = CudaStream(self._context)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._captor.handle, mode))
        try:
            command.issue(self._captor)
        except BaseException:
            with contextlib.suppress(*self._context.errors):  # the stream takes work again, whatever was captured
                check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(self._captor.handle))))
            raise
        child = check(driver.cuStreamEndCapture(self._captor.handle))
        try:
            yield child
        finally:
            check(driver.cuGraphDestroy(child))

    def _add_programmatic(self, before: list[Any], position: int) -> None:
        """Let a launch begin once all blocks of those before it have let it, or ended; it waits for them itself."""
        driver, (node,) = self._driver, self._nodes[position]
        data = driver.CUgraphEdgeData()
        data.from_port = driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        data.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        # The bindings of CUDA 12 take data of edges under another name.
        add = getattr(driver, "cuGraphAddDependencies_v2", None) or driver.cuGraphAddDependencies
        count = len(before)
        self._context.check(add(self._graph, before, [node] * count, [data] * count, count))

    def _make_cooperative(self, node: Any) -> None:
        """Set the cooperative attribute of a node, so that all its blocks run at once.

        The attribute is the node's, not one of its parameters: it passes to the executable graph, and updates, which
        give parameters alone, leave it as it is.
        """
        value = self._driver.CUkernelNodeAttrValue()
        value.cooperative = 1
        attribute = self._driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        self._context.check(self._driver.cuGraphKernelNodeSetAttribute(node, attribute, value))

    def _describe(self, position: int, command: PreparedCommand) -> list[Any]:
        """Return the parameters of a command's nodes."""
        match command:
            case PreparedLaunch():
                key = (command.function, command.config, command.node_arguments.address)
                known = self._given.get(position)
                if known is None or known[0] != key:
                    known = self._given[position] = key, self._describe_launch(command)
                return [known[1]]
            case PreparedCopy():
                return [self._describe_copy(command)]
            case PreparedFill():
                width = min(len(command.pattern), 4)
                return [self._describe_fill(command, at, width) for at in range(0, len(command.pattern), width)]
        raise TypeError(f"No graph node for {type(command).__name__}.")

    def _describe_launch(self, command: PreparedLaunch) -> Any:
        parameters = self._driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = command.function.handle  # type: ignore[attr-defined]
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = command.config.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = command.config.block
        parameters.sharedMemBytes = command.config.shared_bytes
        parameters.kernelParams = command.node_arguments.address
        return parameters

    def _describe_copy(self, command: PreparedCopy) -> Any:
        parameters = self._driver.CUDA_MEMCPY3D()
        parameters.dstMemoryType = parameters.srcMemoryType = self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        parameters.dstDevice, parameters.srcDevice = command.addresses
        parameters.WidthInBytes, parameters.Height, parameters.Depth = command.nbytes, 1, 1
        return parameters

    def _describe_fill(self, command: PreparedFill, at: int, width: int) -> Any:
        """One row of elements; a pattern of 8 bytes is two columns of 4, each as high as there are elements."""
        parameters = self._driver.CUDA_MEMSET_NODE_PARAMS()
        is_column = len(command.pattern) > width
        parameters.dst = command.address + at
        parameters.value = int.from_bytes(command.pattern[at : at + width], "little")
        parameters.elementSize = width
        parameters.width, parameters.height = (1, command.count) if is_column else (command.count, 1)
        parameters.pitch = len(command.pattern)
        return parameters

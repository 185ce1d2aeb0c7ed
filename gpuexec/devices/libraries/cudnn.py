"""cuDNN through its frontend: a graph of convolution, bias and activation, planned by heuristics.

This was written against the signatures of nvidia-cudnn-frontend 1.32 and is tested with stand-ins that have them. It
has never run against the library itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from gpuexec.errors import DeviceError, UnsupportedError
from gpuexec.ir.library_problem import RELU, ConvProblem, Problem
from gpuexec.ir.provider import CUDNN

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
# Numbers that tensors are bound by.
_X, _W, _BIAS, _Y = 1, 2, 3, 4
# What no plan may do: other bits in every run, and transforms or sums that lose more than a sum of floats does. Float
# that is to stay float keeps away from tensor cores, too, which would round it to tf32.
_REFUSED = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", "WINOGRAD", "FFT")
_REFUSED_ON_FLOATS = ("TENSOR_CORE",)


class CudnnLibrary:
    """cuDNN, with a handle on the GPU that is current.

    Raises:
        ImportError: nvidia-cudnn-frontend is not installed.
        RuntimeError: cuDNN itself is not.
    """

    name = CUDNN

    def __init__(self) -> None:
        import cudnn

        self.cudnn = cudnn
        self.version = str(cudnn.backend_version())
        self.handle: Any = cudnn.create_handle()
        # A handle has one stream, which is set for each call.
        self.lock = threading.Lock()

    def plan(self, problem: Problem, workspace_nbytes: int) -> CudnnPlan:
        """Return the graph of a convolution with the plan that heuristics name first."""
        assert isinstance(problem, ConvProblem)
        return CudnnPlan(self, problem, workspace_nbytes)

    def close(self) -> None:
        """Destroy the handle."""
        if self.handle is not None:
            self.cudnn.destroy_handle(self.handle)
            self.handle = None


class CudnnPlan:
    """A convolution of cuDNN.

    Args:
        library: Whose handle is used.
        problem: The convolution.
        workspace_nbytes: Scratch memory that it may take.

    Raises:
        UnsupportedError: There is no plan for it.
        DeviceError: The library failed.
    """

    def __init__(self, library: CudnnLibrary, problem: ConvProblem, workspace_nbytes: int) -> None:
        self._library, self._problem = library, problem
        self.calling = f"calling {CUDNN} for a {problem}"
        cudnn = library.cudnn
        try:
            self._graph = self._build(workspace_nbytes)
        except cudnn.cudnnGraphNotSupportedError as error:
            raise UnsupportedError(
                f"{CUDNN} has no plan for a {problem}: {error}. Leave it out of providers, or measure with `gpuexec"
                " tune`, whose file says so."
            ) from error
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"{CUDNN} failed for a {problem}: {error}") from error

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Put the convolution on a stream."""
        x, w, _, bias, y, workspace = addresses
        tensors = {_X: x, _W: w, _Y: y} | ({_BIAS: bias} if bias else {})
        library = self._library
        try:
            with library.lock:
                library.cudnn.set_stream(handle=library.handle, stream=stream)
                self._graph.execute(tensors, workspace, handle=library.handle)
        except (RuntimeError, ValueError, library.cudnn.cudnnGraphNotSupportedError) as error:
            raise DeviceError(f"{CUDNN} failed for a {self._problem}: {error}") from error

    def _build(self, workspace_nbytes: int) -> Any:
        library, problem, cudnn = self._library, self._problem, self._library.cudnn
        kinds = cudnn.data_type
        operand, result = (getattr(kinds, _TYPES[name]) for name in (problem.dtype, problem.result))
        graph = cudnn.pygraph(
            name="gpuexec",
            io_data_type=operand,
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=library.handle,
        )
        x = graph.tensor(dim=list(problem.x[0]), stride=list(problem.x[1]), data_type=operand, name="x", uid=_X)
        w = graph.tensor(dim=list(problem.w[0]), stride=list(problem.w[1]), data_type=operand, name="w", uid=_W)
        y = graph.conv_fprop(
            image=x,
            weight=w,
            pre_padding=list(problem.begins),
            post_padding=list(problem.ends),
            stride=list(problem.strides),
            dilation=list(problem.dilations),
            compute_data_type=kinds.FLOAT,
            name="convolution",
        )
        if problem.has_bias:
            channels = problem.y[0][1]
            ones = [1] * (len(problem.y[0]) - 2)
            bias = graph.tensor(
                dim=[1, channels, *ones], stride=[channels, 1, *ones], data_type=result, name="bias", uid=_BIAS
            )
            y = graph.bias(input=y, bias=bias, name="biased")
        if problem.activation == RELU:
            y = graph.relu(input=y, name="relu")
        y.set_output(True).set_data_type(result).set_dim(list(problem.y[0])).set_stride(list(problem.y[1])).set_uid(_Y)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        refused = (*_REFUSED, *(_REFUSED_ON_FLOATS if problem.is_on_floats else ()))
        graph.deselect_numeric_notes([getattr(cudnn.numerical_note, name) for name in refused])
        graph.deselect_workspace_greater_than(workspace_nbytes)
        graph.check_support()
        graph.build_plans()
        return graph

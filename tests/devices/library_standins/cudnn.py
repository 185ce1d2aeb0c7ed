"""Stand-in for ``cudnn``, the frontend: graphs of a convolution, a bias and an activation."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from gpuexec.ir.spec import BFLOAT16
from tests.devices.cupy_standin import Standin
from tests.devices.cupy_standin.statuses import view_bytes

data_type = Enum("data_type", ["FLOAT", "HALF", "BFLOAT16", "NOT_SET"])
heur_mode = Enum("heur_mode", ["A", "B", "FALLBACK"])
numerical_note = Enum(
    "numerical_note",
    [
        *("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT", "NONDETERMINISTIC", "WINOGRAD"),
        *("WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "STRICT_NAN_PROP"),
    ],
)
_DTYPES = {"FLOAT": np.dtype(np.float32), "HALF": np.dtype(np.float16), "BFLOAT16": BFLOAT16}


class cudnnGraphNotSupportedError(Exception):
    pass


class Handle:
    stream = 0


class Tensor:
    def __init__(self, dim: Any = None, stride: Any = None, data_type: Any = None, uid: int | None = None) -> None:
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.is_output = False

    def set_output(self, value: bool) -> Tensor:
        self.is_output = value
        return self

    def set_data_type(self, dtype: Any) -> Tensor:
        self.data_type = dtype
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def view(self, addresses: dict[int, int]) -> np.ndarray:
        """Return the tensor's elements in memory."""
        dtype = _DTYPES[self.data_type.name]
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(self.dim, self.stride, strict=True))
        flat = view_bytes(addresses[self.uid], span * dtype.itemsize).view(dtype)
        return np.lib.stride_tricks.as_strided(flat, self.dim, [each * dtype.itemsize for each in self.stride])


class CudnnStandin:
    """The module, over the stand-in for CUDA.

    Attributes:
        refuses: Whether plans are refused, as by a graph that no engine supports.
        graphs: All graphs that were made.
    """

    data_type, heur_mode, numerical_note = data_type, heur_mode, numerical_note
    cudnnGraphNotSupportedError, Handle = cudnnGraphNotSupportedError, Handle  # noqa: N815 (its names)

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self.refuses = False
        self.graphs: list[Any] = []
        outer = self

        class pygraph(Graph):
            module = outer

        self.pygraph = pygraph

    def backend_version(self) -> int:
        return 91400

    def create_handle(self) -> Handle:
        self._standin._require_current()
        return Handle()

    def destroy_handle(self, handle: Handle) -> None:
        assert isinstance(handle, Handle)

    def set_stream(self, handle: Handle, stream: int) -> None:
        assert isinstance(handle, Handle)
        handle.stream = stream


class Graph:
    """``cudnn.pygraph``; builders have the parameters that those of the frontend are generated from."""

    module: CudnnStandin

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: Any = None,
        sm_version: Any = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: Any = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
    ) -> None:
        assert isinstance(handle, Handle) and compute_data_type is data_type.FLOAT
        self.steps: list[str] = []
        self.notes: list[Any] = []
        self.workspace_limit: int | None = None
        self.parts: dict[str, Any] = {}
        self.module.graphs.append(self)

    def tensor(
        self,
        dim: list[int],
        stride: list[int] | None = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Any = None,
        reordering_type: Any = None,
        name: str = "",
        uid: int | None = None,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> Tensor:
        return Tensor(dim, stride, data_type, uid)

    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        padding: Any = None,
        pre_padding: Any = None,
        post_padding: Any = None,
        stride: Any = None,
        dilation: Any = None,
        convolution_mode: Any = None,
        *,
        name: str = "",
        compute_data_type: Any = None,
        out_dims: Any = None,
    ) -> Tensor:
        assert padding is None
        self.parts |= {"x": image, "w": weight, "windows": (pre_padding, post_padding, stride, dilation)}
        return self._make()

    def bias(self, input: Tensor, bias: Tensor, *, name: str = "", compute_data_type: Any = None) -> Tensor:
        self.parts["bias"] = bias
        return self._make()

    def relu(
        self,
        input: Tensor,
        negative_slope: Any = None,
        lower_clip: Any = None,
        upper_clip: Any = None,
        name: str = "",
        compute_data_type: Any = None,
    ) -> Tensor:
        self.parts["relu"] = True
        return self._make()

    def validate(self) -> None:
        self.steps.append("validate")

    def build_operation_graph(self) -> None:
        assert self.steps == ["validate"]
        self.steps.append("operations")

    def create_execution_plans(self, heuristics: list[Any] | None = None) -> None:
        assert heuristics == [heur_mode.A]
        self.steps.append("plans")

    def deselect_numeric_notes(self, notes: list[Any]) -> Graph:
        self.notes += notes
        return self

    def deselect_workspace_greater_than(self, workspace_limit: int) -> Graph:
        self.workspace_limit = workspace_limit
        return self

    def check_support(self) -> None:
        self.module._standin._require_current()
        if self.module.refuses:
            raise cudnnGraphNotSupportedError("No valid execution plans built.")

    def build_plans(self, *args: Any, ctx: Any = None) -> None:
        assert self.steps == ["validate", "operations", "plans"]
        self.steps.append("built")

    def execute(
        self,
        tensor_dict: dict[int, int],
        workspace: Any = None,
        handle: Handle | None = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        tensor_uids: Any = None,
    ) -> None:
        self.module._standin._require_current()
        assert self.steps[-1] == "built" and handle is not None and type(workspace) is int
        addresses = dict(tensor_dict)

        def work(stream: int) -> None:
            self.module._standin.handles[stream].synchronize()
            self._compute(addresses)

        self.module._standin.graphs.put(handle.stream, work)

    def _make(self) -> Tensor:
        self.parts["y"] = Tensor()
        return self.parts["y"]  # type: ignore[no-any-return]

    def _compute(self, addresses: dict[int, int]) -> None:
        x, w, y = (self.parts[name].view(addresses) for name in ("x", "w", "y"))
        begins, ends, strides, dilations = self.parts["windows"]
        padded = np.pad(x.astype(np.float32), [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        spread = tuple((extent - 1) * step + 1 for extent, step in zip(w.shape[2:], dilations, strict=True))
        windows = np.lib.stride_tricks.sliding_window_view(padded, spread, axis=tuple(range(2, x.ndim)))
        rank = x.ndim - 2
        windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
        windows = windows[(..., *(slice(None, None, step) for step in dilations))]
        groups = x.shape[1] // w.shape[1]
        outs = w.shape[0] // groups
        made = np.empty(y.shape, np.float32)
        for group in range(groups):
            taken = windows[:, group * w.shape[1] : (group + 1) * w.shape[1]]
            weights = w[group * outs : (group + 1) * outs].astype(np.float32)
            axes = (1, *range(2 + rank, 2 + 2 * rank))
            product = np.tensordot(taken, weights, (axes, tuple(range(1, 2 + rank))))
            made[:, group * outs : (group + 1) * outs] = np.moveaxis(product, -1, 1)
        if "bias" in self.parts:
            made += self.parts["bias"].view(addresses).astype(np.float32)
        y[...] = (np.maximum(made, 0) if "relu" in self.parts else made).astype(y.dtype)

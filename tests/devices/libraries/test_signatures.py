"""Stand-ins compared with the packages that they stand in for, where these are installed."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

ENUMS = (
    *("MatmulDescAttribute", "MatrixLayoutAttribute", "MatmulPreferenceAttribute", "ReductionScheme", "Epilogue"),
    *("CudaDataType", "ComputeType", "Operation"),
)
FUNCTIONS = (
    *("create", "destroy", "get_version", "matmul_desc_create", "matmul_desc_destroy", "matmul_desc_set_attribute"),
    *("matrix_layout_create", "matrix_layout_destroy", "matrix_layout_set_attribute", "matmul_preference_create"),
    *("matmul_preference_destroy", "matmul_preference_set_attribute", "matmul_algo_get_heuristic", "matmul"),
)
BUILDERS = (
    "__init__",
    "tensor",
    "relu",
    "validate",
    "build_operation_graph",
    "create_execution_plans",
    "check_support",
)
BUILDERS = (*BUILDERS, "deselect_numeric_notes", "deselect_workspace_greater_than", "execute")


def load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{name} is not installed ({error}), so there is nothing to compare the stand-in with.")


def list_parameters(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD]


def test_standin_of_cublaslt_has_its_signatures_and_numbers() -> None:
    cublas, lt, nvmath = load("nvmath.bindings.cublas"), load("nvmath.bindings.cublasLt"), load("nvmath")
    from tests.devices.library_standins.cublaslt import CublasLtStandin

    standin = CublasLtStandin(SimpleNamespace(handles=None))  # type: ignore[arg-type]
    for name in FUNCTIONS:
        assert list_parameters(getattr(lt, name)) == list_parameters(getattr(standin, name)), name
    for name in ENUMS:
        real = next(getattr(each, name) for each in (lt, cublas, nvmath) if hasattr(each, name))
        known = getattr(standin, name, None) or getattr(standin.cublas, name)
        assert {each.name: int(real[each.name]) for each in known} == {each.name: int(each) for each in known}
    result, ours = lt.MatmulHeuristicResult(1), standin.MatmulHeuristicResult(1)
    assert result._data.dtype.fields == ours._data.dtype.fields and result.algo.ctypes.data == result.ptr


def test_standin_of_cudnn_has_its_signatures_and_names() -> None:
    cudnn = load("cudnn")
    from tests.devices.library_standins.cudnn import CudnnStandin, Graph

    for name in BUILDERS:
        assert list_parameters(getattr(cudnn.pygraph, name)) == list_parameters(getattr(Graph, name)), name
    standin = CudnnStandin(SimpleNamespace())  # type: ignore[arg-type]
    for name in ("set_stream", "destroy_handle", "create_handle"):
        assert list_parameters(getattr(cudnn, name)) == list_parameters(getattr(standin, name)), name
    for enum in (standin.data_type, standin.heur_mode, standin.numerical_note):
        assert all(hasattr(getattr(cudnn, enum.__name__), each.name) for each in enum)
    # Builders of these are generated: they take what is given by name, and refuse what they don't know.
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT)
    x, w = graph.tensor(dim=[1, 2, 5, 5], uid=1), graph.tensor(dim=[4, 2, 3, 3], uid=2)
    windows = {"pre_padding": [1, 1], "post_padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
    y = graph.conv_fprop(image=x, weight=w, **windows, compute_data_type=cudnn.data_type.FLOAT, name="convolution")
    y = graph.relu(input=graph.bias(input=y, bias=graph.tensor(dim=[1, 4, 1, 1], uid=3), name="biased"), name="relu")
    y.set_output(True).set_data_type(cudnn.data_type.FLOAT).set_dim([1, 4, 5, 5]).set_stride([100, 25, 5, 1]).set_uid(4)
    with pytest.raises(TypeError):
        graph.conv_fprop(image=x, weight=w, paddings=[1, 1])

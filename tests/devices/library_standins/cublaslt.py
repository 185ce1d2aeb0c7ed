"""Stand-in for ``nvmath.bindings.cublasLt``: descriptors by handle, products in the library's own terms."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuexec.ir.spec import BFLOAT16
from tests.devices.cupy_standin import Standin
from tests.devices.cupy_standin.statuses import view_bytes

_ALGORITHM = 0xA160
# Numbers are those of the library's headers.
CudaDataType = IntEnum("CudaDataType", {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14})
ComputeType = IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_32F_FAST_TF32": 77})
Operation = IntEnum("Operation", {"N": 0, "T": 1})
_DTYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: BFLOAT16}
_ALGO = np.dtype([("data_", np.uint64, (8,))])
_RESULT = np.dtype(
    [("algo", _ALGO), ("workspace_size", np.uint64), ("state", np.int32), ("waves_count", np.float32),
     ("reserved", np.int32, (4,))]
)  # fmt: skip


class MatmulHeuristicResult:
    def __init__(self, size: int = 1) -> None:
        self._data = np.zeros(size, _RESULT).view(np.recarray)

    @property
    def ptr(self) -> int:
        return int(self._data.ctypes.data)

    @property
    def algo(self) -> Any:
        return self._data.algo


class cuBLASLtError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"NOT_SUPPORTED ({status})")
        self.status = status


class CublasLtStandin:
    """The module, over the stand-in for CUDA.

    Attributes:
        algorithms: How many heuristics find.
        status: What a product returns; 0: success.
        products: Of each that was run, what it was told: shapes, operations, epilogue, compute type.
    """

    CudaDataType = CudaDataType
    MatmulHeuristicResult, cuBLASLtError = MatmulHeuristicResult, cuBLASLtError  # noqa: N815 (its names)
    MatmulDescAttribute = IntEnum(
        "MatmulDescAttribute",
        {"TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8, "BIAS_DATA_TYPE": 26},
    )
    MatrixLayoutAttribute = IntEnum("MatrixLayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulPreferenceAttribute = IntEnum(
        "MatmulPreferenceAttribute",
        {
            "MAX_WORKSPACE_BYTES": 1,
            "REDUCTION_SCHEME_MASK": 3,
            "MIN_ALIGNMENT_A_BYTES": 5,
            "MIN_ALIGNMENT_B_BYTES": 6,
            "MIN_ALIGNMENT_C_BYTES": 7,
            "MIN_ALIGNMENT_D_BYTES": 8,
        },
    )
    ReductionScheme = IntEnum("ReductionScheme", {"NONE": 0, "INPLACE": 1, "COMPUTE_TYPE": 2, "OUTPUT_TYPE": 4})
    Epilogue = IntEnum("Epilogue", {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36})

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self._objects = standin.handles
        self.cublas = SimpleNamespace(ComputeType=ComputeType, Operation=Operation)
        self.algorithms, self.status = 1, 0
        self.live: set[int] = set()
        self.preferences: list[dict[str, int]] = []
        self.products: list[dict[str, Any]] = []

    def get_version(self) -> int:
        return 130100

    def create(self) -> int:
        self._standin._require_current()
        return self._add({})

    def destroy(self, light_handle: int) -> None:
        self._remove(light_handle)

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        assert scale_type == CudaDataType.CUDA_R_32F
        return self._add({"compute": ComputeType(compute_type)})

    def matmul_desc_destroy(self, matmul_desc: int) -> None:
        self._remove(matmul_desc)

    def matmul_desc_set_attribute(self, matmul_desc: int, attr: int, buf: int, size_in_bytes: int) -> None:
        size = {"BIAS_POINTER": 8}.get(self.MatmulDescAttribute(attr).name, 4)
        assert size_in_bytes == size
        self._objects[matmul_desc][self.MatmulDescAttribute(attr).name] = _read(buf, size)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        assert ld >= rows > 0 and cols > 0
        return self._add({"dtype": _DTYPES[int(type)], "rows": rows, "cols": cols, "ld": ld})

    def matrix_layout_destroy(self, mat_layout: int) -> None:
        self._remove(mat_layout)

    def matrix_layout_set_attribute(self, mat_layout: int, attr: int, buf: int, size_in_bytes: int) -> None:
        size = {"BATCH_COUNT": 4, "STRIDED_BATCH_OFFSET": 8}[self.MatrixLayoutAttribute(attr).name]
        assert size_in_bytes == size
        self._objects[mat_layout][self.MatrixLayoutAttribute(attr).name] = _read(buf, size)

    def matmul_preference_create(self) -> int:
        return self._add({})

    def matmul_preference_destroy(self, pref: int) -> None:
        self._remove(pref)

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size_in_bytes: int) -> None:
        name = self.MatmulPreferenceAttribute(attr).name
        assert size_in_bytes == (8 if name == "MAX_WORKSPACE_BYTES" else 4)
        self._objects[pref][name] = _read(buf, size_in_bytes)

    def matmul_algo_get_heuristic(
        self,
        light_handle: int,
        operation_desc: int,
        adesc: int,
        bdesc: int,
        cdesc: int,
        ddesc: int,
        preference: int,
        requested_algo_count: int,
        heuristic_results_array: int,
        return_algo_count: int,
    ) -> None:
        self._standin._require_current()
        assert {light_handle, operation_desc, adesc, bdesc, cdesc, ddesc, preference} <= self.live
        self._check_shapes(*(self._objects[each] for each in (operation_desc, adesc, bdesc, cdesc, ddesc)))
        self.preferences.append(dict(self._objects[preference]))
        found = min(self.algorithms, requested_algo_count)
        if found:
            view_bytes(heuristic_results_array, 8).view(np.uint64)[0] = _ALGORITHM
        view_bytes(return_algo_count, 4).view(np.int32)[0] = found

    def matmul(
        self,
        light_handle: int,
        compute_desc: int,
        alpha: int,
        a: int,
        adesc: int,
        b: int,
        bdesc: int,
        beta: int,
        c: int,
        cdesc: int,
        d: int,
        ddesc: int,
        algo: int,
        workspace: int,
        workspace_size_in_bytes: int,
        stream: int,
    ) -> None:
        self._standin._require_current()
        assert {light_handle, compute_desc, adesc, bdesc, cdesc, ddesc} <= self.live
        assert _read(algo, 8) == _ALGORITHM
        assert not workspace_size_in_bytes or workspace % 256 == 0 != workspace
        if self.status:
            raise cuBLASLtError(self.status)
        described = dict(self._objects[compute_desc])
        layouts = [dict(self._objects[each]) for each in (adesc, bdesc, cdesc, ddesc)]
        factors = [float(view_bytes(each, 4).view(np.float32)[0]) for each in (alpha, beta)]
        self.products.append({**described, "a": layouts[0], "b": layouts[1], "factors": factors})

        def work(handle: int) -> None:
            self._objects[handle].synchronize()
            _multiply(described, (a, b, c, d), layouts, factors)

        self._standin.graphs.put(stream, work)

    def _check_shapes(self, described: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        m, k = (a["cols"], a["rows"]) if described["TRANSA"] else (a["rows"], a["cols"])
        k2, n = (b["cols"], b["rows"]) if described["TRANSB"] else (b["rows"], b["cols"])
        assert k == k2 and (m, n) == (d["rows"], d["cols"]) == (c["rows"], c["cols"])

    def _add(self, item: dict[str, Any]) -> int:
        handle = self._objects.add(item)
        self.live.add(handle)
        return handle

    def _remove(self, handle: int) -> None:
        self.live.remove(handle)
        self._objects.remove(handle)


def _read(address: int, size: int) -> int:
    return int.from_bytes(ctypes.string_at(address, size), "little")


def _view(address: int, layout: dict[str, Any], number: int) -> np.ndarray:
    """Return a matrix of dense columns."""
    dtype, rows, cols, ld = layout["dtype"], layout["rows"], layout["cols"], layout["ld"]
    address += number * layout.get("STRIDED_BATCH_OFFSET", 0) * dtype.itemsize
    flat = view_bytes(address, ((cols - 1) * ld + rows) * dtype.itemsize).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (dtype.itemsize, ld * dtype.itemsize))


def _multiply(described: Any, addresses: tuple[int, ...], layouts: list[Any], factors: list[float]) -> None:
    counts = {layout.get("BATCH_COUNT", 1) for layout in layouts}
    assert len(counts) == 1
    epilogue = CublasLtStandin.Epilogue(described["EPILOGUE"]).name
    for number in range(counts.pop()):
        a, b, c, d = (_view(at, layout, number) for at, layout in zip(addresses, layouts, strict=True))
        left, right = (x.astype(np.float32) for x in (a, b))
        left, right = left.T if described["TRANSA"] else left, right.T if described["TRANSB"] else right
        value = factors[0] * (left @ right)
        if factors[1]:
            value += factors[1] * c.astype(np.float32)
        if epilogue.endswith("BIAS"):
            dtype = _DTYPES[described["BIAS_DATA_TYPE"]]
            value += view_bytes(described["BIAS_POINTER"], value.shape[0] * dtype.itemsize).view(dtype)[:, None]
        if epilogue.startswith("RELU"):
            value = np.maximum(value, 0)
        elif epilogue.startswith("GELU"):
            value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        d[...] = value.astype(d.dtype)

"""cuBLASLt through the bindings of nvmath-python: descriptors, the algorithm by heuristics, and the call.

Matrices here have dense rows, and those of cuBLAS dense columns: so the library is given the transposed product, b as
its first operand and a as its second, and a bias for each column is one for each of its rows.

This was written against the signatures of nvmath-python 1.0 and is tested with stand-ins that have them. It has never
run against the library itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import DeviceError, UnsupportedError
from gpuexec.ir.library_problem import GELU_TANH, NO_ACTIVATION, RELU, TF32_PRODUCTS, Problem, ProductProblem
from gpuexec.ir.provider import CUBLASLT

_EPILOGUES = {
    (NO_ACTIVATION, False): "DEFAULT",
    (NO_ACTIVATION, True): "BIAS",
    (RELU, False): "RELU",
    (RELU, True): "RELU_BIAS",
    (GELU_TANH, False): "GELU",
    (GELU_TANH, True): "GELU_BIAS",
}
_TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
# Sums of slices that other blocks add in any order would differ from run to run.
_REDUCTIONS = ("NONE", "COMPUTE_TYPE", "OUTPUT_TYPE")


class CublasLtLibrary:
    """cuBLASLt, with a handle on the GPU that is current.

    Raises:
        ImportError: nvmath-python is not installed.
    """

    name = CUBLASLT

    def __init__(self) -> None:
        import nvmath
        from nvmath.bindings import cublas, cublasLt

        self.lt, self.cublas, self.types = cublasLt, cublas, nvmath.CudaDataType
        self.version = str(self.lt.get_version())
        self.handle: int = self.lt.create()
        self._plans: list[CublasLtPlan] = []

    def plan(self, problem: Problem, workspace_nbytes: int) -> CublasLtPlan:
        """Return the descriptors of a product, and the algorithm that heuristics name first."""
        assert isinstance(problem, ProductProblem)
        plan = CublasLtPlan(self, problem, workspace_nbytes)
        self._plans.append(plan)
        return plan

    def close(self) -> None:
        """Destroy the handle and all descriptors."""
        for plan in self._plans:
            plan.close()
        self._plans.clear()
        if self.handle:
            self.lt.destroy(self.handle)
            self.handle = 0


class CublasLtPlan:
    """A product of cuBLASLt.

    Args:
        library: Whose handle is used.
        problem: The product.
        workspace_nbytes: Scratch memory that it may take.

    Raises:
        UnsupportedError: There is no algorithm for it.
        DeviceError: The library failed.
    """

    def __init__(self, library: CublasLtLibrary, problem: ProductProblem, workspace_nbytes: int) -> None:
        self._library, self._problem, self._workspace_nbytes = library, problem, workspace_nbytes
        self.calling = f"calling {CUBLASLT} for a {problem}"
        self._lock = threading.Lock()  # the bias is a part of the descriptor, which several commands share
        self._made: list[tuple[Callable[[int], None], int]] = []  # what is destroyed, and by what
        self._scale = np.array(problem.scale if problem.c_row is not None else (problem.scale[0], 0.0), np.float32)
        lt = library.lt
        try:
            self._description = self._describe()
            rows, columns, inner = problem.extents
            a, b, c, y = problem.walks
            # The library's operands: the transposed product's left one is b.
            self._left = self._lay(problem.dtype, columns, inner, problem.b[::-1], b)
            self._right = self._lay(problem.dtype, inner, rows, problem.a[::-1], a)
            self._result = self._lay(problem.result, columns, rows, (1, problem.y_row), y)
            self._addend = self._result
            if problem.c_row is not None:
                self._addend = self._lay(problem.result, columns, rows, (1, problem.c_row), c)
            self._found = lt.MatmulHeuristicResult(1)
            self._find_algorithm()
        except lt.cuBLASLtError as error:
            self.close()
            raise DeviceError(f"{CUBLASLT} failed for a {problem}: {error}") from error
        except BaseException:
            self.close()
            raise

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Put the product on a stream."""
        lt = self._library.lt
        a, b, c, bias, y, workspace = addresses
        try:
            with self._lock:
                if bias:
                    self._set(lt.MatmulDescAttribute.BIAS_POINTER, np.array([bias], np.intp))
                lt.matmul(
                    self._library.handle,
                    self._description,
                    self._scale.ctypes.data,
                    b,
                    self._left,
                    a,
                    self._right,
                    self._scale.ctypes.data + self._scale.itemsize,
                    c or y,
                    self._addend,
                    y,
                    self._result,
                    self._found.algo.ctypes.data,
                    workspace,
                    self._workspace_nbytes if workspace else 0,
                    stream,
                )
        except lt.cuBLASLtError as error:
            raise DeviceError(f"{CUBLASLT} failed for a {self._problem}: {error}") from error

    def close(self) -> None:
        """Destroy the descriptors."""
        while self._made:
            destroy, handle = self._made.pop()
            destroy(handle)

    def _describe(self) -> int:
        """Return the descriptor of the product: types, transposes, epilogue."""
        library, problem = self._library, self._problem
        lt, attributes = library.lt, library.lt.MatmulDescAttribute
        kinds = library.cublas.ComputeType
        kind = kinds.COMPUTE_32F_FAST_TF32 if problem.compute == TF32_PRODUCTS else kinds.COMPUTE_32F
        description: int = lt.matmul_desc_create(kind, library.types.CUDA_R_32F)
        self._made.append((lt.matmul_desc_destroy, description))
        self._description = description
        operations = library.cublas.Operation
        # Of an operand that is dense along the inner extent, which the library takes as the transposed.
        rows, columns, inner = problem.extents
        is_b_turned = not _is_dense(columns, inner, problem.b[::-1])
        is_a_turned = not _is_dense(inner, rows, problem.a[::-1])
        self._set(attributes.TRANSA, np.array([operations.T if is_b_turned else operations.N], np.int32))
        self._set(attributes.TRANSB, np.array([operations.T if is_a_turned else operations.N], np.int32))
        epilogue = getattr(lt.Epilogue, _EPILOGUES[problem.activation, problem.has_bias])
        self._set(attributes.EPILOGUE, np.array([epilogue], np.uint32))
        if problem.has_bias:
            kind = getattr(library.types, _TYPES[problem.result])
            self._set(attributes.BIAS_DATA_TYPE, np.array([kind], np.int32))
            # Heuristics look whether there is one.
            self._set(attributes.BIAS_POINTER, np.array([256], np.intp))
        return description

    def _lay(self, dtype: str, rows: int, columns: int, strides: tuple[int, int], walk: int) -> int:
        """Return the layout of a matrix as the library has it, of dense columns, or the transposed where rows are."""
        library, lt = self._library, self._library.lt
        if _is_dense(rows, columns, strides):
            pitch = max(rows, strides[1]) if columns > 1 else rows
        else:
            pitch = max(columns, strides[0]) if rows > 1 else columns
            rows, columns = columns, rows
        layout: int = lt.matrix_layout_create(getattr(library.types, _TYPES[dtype]), rows, columns, pitch)
        self._made.append((lt.matrix_layout_destroy, layout))
        if self._problem.count > 1:
            for attribute, number in (
                (lt.MatrixLayoutAttribute.BATCH_COUNT, np.array([self._problem.count], np.int32)),
                (lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, np.array([walk], np.int64)),
            ):
                lt.matrix_layout_set_attribute(layout, attribute, number.ctypes.data, number.nbytes)
        return layout

    def _set(self, attribute: int, value: np.ndarray[Any, Any]) -> None:
        self._library.lt.matmul_desc_set_attribute(self._description, attribute, value.ctypes.data, value.nbytes)

    def _find_algorithm(self) -> None:
        """Ask for the algorithm that heuristics name first, of those that give the same bits in every run."""
        lt = self._library.lt
        preference = lt.matmul_preference_create()
        try:
            names = lt.MatmulPreferenceAttribute
            a, b, c, y = self._problem.alignments
            reductions = 0
            for name in _REDUCTIONS:
                reductions |= int(getattr(lt.ReductionScheme, name))
            for attribute, number in (
                (names.MAX_WORKSPACE_BYTES, np.array([self._workspace_nbytes], np.uint64)),
                (names.REDUCTION_SCHEME_MASK, np.array([reductions], np.uint32)),
                (names.MIN_ALIGNMENT_A_BYTES, np.array([b], np.uint32)),
                (names.MIN_ALIGNMENT_B_BYTES, np.array([a], np.uint32)),
                (names.MIN_ALIGNMENT_C_BYTES, np.array([min(c, y) if self._problem.c_row is None else c], np.uint32)),
                (names.MIN_ALIGNMENT_D_BYTES, np.array([y], np.uint32)),
            ):
                lt.matmul_preference_set_attribute(preference, attribute, number.ctypes.data, number.nbytes)
            count = np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self._library.handle,
                self._description,
                self._left,
                self._right,
                self._addend,
                self._result,
                preference,
                1,
                self._found.ptr,
                count.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise UnsupportedError(
                f"{CUBLASLT} has no algorithm for a {self._problem}. Leave it out of providers, or measure with"
                " `gpuexec tune`, whose file says so."
            )


def _is_dense(rows: int, columns: int, strides: tuple[int, int]) -> bool:
    """Return whether a matrix has dense columns; else its rows are."""
    return strides[0] == 1 or (rows == 1 and strides[1] != 1)

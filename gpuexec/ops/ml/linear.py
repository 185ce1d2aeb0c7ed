"""LinearClassifier and LinearRegressor, on the kernel of support vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Node
from gpuexec.ir.operator import Array, Derivative, Emitter, Out, PreparedCalls, Slots, Tolerance, decompose, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.labels import check_names, label_dtype, list_names, look_up_strings, name_places
from gpuexec.ops.ml.likeness import Vectors, launch_likeness, lower_sums
from gpuexec.ops.ml.scores import LabelRule, Pair, ScorePostprocessing, choose_pair, find_transform
from gpuexec.ops.ml.table_operator import FLOAT, INT64, NUMBERS, TableOperator, as_rows, count_rows


@dataclass(frozen=True, slots=True, eq=False)
class _Coefficients:
    """Coefficients one column after the other; how many columns they are follows from the input's features."""

    numbers: Array
    intercepts: Array | None

    def bind(self, name: str, x: TensorSpec) -> tuple[Vectors, int]:
        """Return the columns as vectors, and the rows of an input.

        Raises:
            InputError: The features don't fit.
        """
        rows, features = count_rows(name, x)
        columns = self.numbers.size // max(1, features)
        if columns * features != self.numbers.size or (self.intercepts is not None and columns != self.intercepts.size):
            columns_text = "" if self.intercepts is None else f" in {self.intercepts.size} columns"
            raise InputError(
                f"{name} expects features that {self.numbers.size} coefficients{columns_text} fit, got {x}."
            )
        return Vectors(self.numbers.reshape(columns, features), bias=self.intercepts), rows


def _read_coefficients(numbers: tuple[float, ...] | None, intercepts: tuple[float, ...] | None) -> _Coefficients:
    if not numbers:
        raise InputError("expected coefficients, got none.")
    return _Coefficients(np.array(numbers, np.float32), np.array(intercepts, np.float32) if intercepts else None)


@operator("LinearClassifier", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class LinearClassifier(TableOperator[_Coefficients]):
    """``x @ coefficients + intercepts``, and the class of the largest. ``multi_class`` changes nothing.

    A single column tells of two classes; the row is of the second where it is above 0.
    """

    coefficients: tuple[float, ...]
    classlabels_ints: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    intercepts: tuple[float, ...] | None = None
    multi_class: int = 0
    post_transform: str = "NONE"
    tolerance = Tolerance.REDUCTION
    example = "float32[2,1] coefficients=(1.0,) classlabels_ints=(1,)"
    flops_per_output = None
    derivative = Derivative.PARTS
    has_blits = False

    def make_tables(self) -> _Coefficients:
        """Read the coefficients."""
        check_names(self.classlabels_ints, self.classlabels_strings)
        find_transform(self.post_transform)
        return _read_coefficients(self.coefficients, self.intercepts)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a label and scores for each row.

        Raises:
            InputError: Features don't fit the coefficients, or these the labels.
        """
        check_dtype(self.name, x, NUMBERS)
        vectors, rows, finish = self._bind(x)
        scores = TensorSpec((rows, finish.width(vectors.count)), FLOAT)
        return TensorSpec((rows,), label_dtype(self.classlabels_strings)), scores

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Multiply with NumPy in float."""
        vectors, _, finish = self._bind(TensorSpec(x.shape, x.dtype))
        places, scores = finish.compute(vectors.compare(as_rows(x)), FLOAT)
        return name_places(places, self.classlabels_ints, self.classlabels_strings), scores

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the products."""
        x = inputs[0]
        assert x is not None
        vectors, rows, _ = self._bind(x)
        return (rows * vectors.count * FLOAT.itemsize,)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply floats in scratch, then finish the scores; labels are integers."""
        x, (labels, scores) = inputs[0], out
        if x is None or x.dtype != FLOAT or labels is None or scores is None or self.classlabels_ints is None:
            return None
        vectors, rows, finish = self._bind(TensorSpec(x.shape, x.dtype))
        if not x.size or not has_scratch(scratch, (rows * vectors.count * FLOAT.itemsize,)):
            return None
        raw = view_bytes(scratch[0], (rows, vectors.count), FLOAT)
        names = np.array(list_names(self.classlabels_ints, None), INT64)

        def end() -> None:
            places, made = finish.compute(raw, FLOAT)
            np.copyto(scores, made)
            np.copyto(labels, names[places])

        return [*vectors.prepare_products(as_rows(x), raw), end]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the products, then a thread per row."""
        x, labels, scores = inputs[0], outputs[0], outputs[1]
        assert x is not None
        vectors, rows, finish = self._bind(x.spec)
        finish.lower(emit, launch_likeness(emit, vectors, x, rows), scores, labels)

    def _bind(self, x: TensorSpec) -> tuple[Vectors, int, ScorePostprocessing]:
        """Return the columns of coefficients, the rows of an input, and how scores end."""
        vectors, rows = self.tables.bind(self.name, x)
        names = list_names(self.classlabels_ints, self.classlabels_strings)
        classes = len(self.classlabels_ints or self.classlabels_strings or ())
        transform = find_transform(self.post_transform)
        if vectors.count == 1 and classes <= 2:
            pair = choose_pair(transform, Pair.COMPLEMENT) if classes == 2 else Pair.AS_IT_IS
            return vectors, rows, ScorePostprocessing(transform, pair, LabelRule.ABOVE, names=names)
        if vectors.count != classes:
            raise InputError(f"{self.name} has {classes} labels for {vectors.count} columns of coefficients.")
        return vectors, rows, ScorePostprocessing(transform, names=names)


@decompose("ai.onnx.ml.LinearClassifier")
def _name_linear(node: Node) -> tuple[Node, ...]:
    return look_up_strings(node, "classlabels_ints", "classlabels_strings")


@operator("LinearRegressor", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class LinearRegressor(TableOperator[_Coefficients]):
    """``x @ coefficients + intercepts``, transformed."""

    coefficients: tuple[float, ...] | None = None
    intercepts: tuple[float, ...] | None = None
    post_transform: str = "NONE"
    targets: int = 1
    tolerance = Tolerance.REDUCTION
    example = "float32[2,1] coefficients=(1.0,)"
    flops_per_output = None
    has_blits = False

    def make_tables(self) -> _Coefficients:
        """Read the coefficients."""
        find_transform(self.post_transform)
        return _read_coefficients(self.coefficients, self.intercepts)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a column for each target.

        Raises:
            InputError: Features and targets don't fit the coefficients.
        """
        check_dtype(self.name, x, NUMBERS)
        vectors, rows = self._bind(x)
        return (TensorSpec((rows, vectors.count), FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Multiply with NumPy in float."""
        vectors, _ = self._bind(TensorSpec(x.shape, x.dtype))
        return (
            ScorePostprocessing(find_transform(self.post_transform)).compute(vectors.compare(as_rows(x)), FLOAT)[1],
        )

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply floats in the output's memory, where nothing transforms them."""
        x, y = inputs[0], out[0]
        if x is None or x.dtype != FLOAT or not x.size or y is None or find_transform(self.post_transform):
            return None
        return self._bind(TensorSpec(x.shape, x.dtype))[0].prepare_products(as_rows(x), y)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the products, and a thread per row where they are transformed."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        vectors, _ = self._bind(x.spec)
        lower_sums(emit, vectors, x, y, ScorePostprocessing(find_transform(self.post_transform)))

    def _bind(self, x: TensorSpec) -> tuple[Vectors, int]:
        vectors, rows = self.tables.bind(self.name, x)
        if vectors.count != self.targets:
            raise InputError(f"{self.name} has {vectors.count} columns of coefficients for {self.targets} targets.")
        return vectors, rows

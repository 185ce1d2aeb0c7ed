"""SVMClassifier and SVMRegressor."""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Node
from gpuexec.ir.operator import Array, Derivative, Emitter, Out, Slots, Tolerance, decompose, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.labels import check_names, label_dtype, list_names, look_up_strings, name_places
from gpuexec.ops.ml.likeness import Vectors, launch_likeness, lower_sums, read_vectors
from gpuexec.ops.ml.one_vs_one import Pairs, read_pairs
from gpuexec.ops.ml.scores import LabelRule, Pair, ScorePostprocessing, Transform, choose_pair, find_transform
from gpuexec.ops.ml.table_operator import FLOAT, NUMBERS, TableOperator, as_rows, count_rows, read_numbers


@operator("SVMRegressor", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class SVMRegressor(TableOperator[tuple[Vectors | None, Vectors]]):
    """The sum of coefficients times likeness to each support vector, plus rho; without vectors, a product with x.

    If ``one_class``, 1 where that is above 0, else -1.
    """

    coefficients: tuple[float, ...] | None = None
    kernel_params: tuple[float, ...] | None = None
    kernel_type: str = "LINEAR"
    n_supports: int = 0
    one_class: int = 0
    post_transform: str = "NONE"
    rho: tuple[float, ...] | None = None
    support_vectors: tuple[float, ...] | None = None
    tolerance = Tolerance.REDUCTION
    example = "float32[2,1] coefficients=(1.0,) rho=(0.0,)"
    flops_per_output = None
    has_blits = False

    def make_tables(self) -> tuple[Vectors | None, Vectors]:
        """Return the support vectors, and the coefficients as a vector of the likenesses."""
        find_transform(self.post_transform)
        count = self.n_supports or len(self.coefficients or ())
        weights = Vectors(
            read_numbers("coefficients", self.coefficients, max(1, count)).reshape(1, -1),
            bias=read_numbers("rho", self.rho, 1),
        )
        if not self.n_supports:
            return None, weights
        return read_vectors(self.support_vectors, self.n_supports, self.kernel_type, self.kernel_params), weights

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a column.

        Raises:
            InputError: Vectors have other features.
        """
        check_dtype(self.name, x, NUMBERS)
        vectors, weights = self.tables
        rows, _ = count_rows(self.name, x, (vectors or weights).rows.shape[1])
        return (TensorSpec((rows, 1), FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Multiply with NumPy in float."""
        vectors, weights = self.tables
        wide = as_rows(x)
        raw = weights.compare(wide if vectors is None else vectors.compare(wide))
        return (self._finish().compute(raw, FLOAT)[1],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the likenesses, their weighted sums, and a thread per row where these are transformed."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        vectors, weights = self.tables
        if vectors is not None:
            x = launch_likeness(emit, vectors, x, y.shape[0])
        lower_sums(emit, weights, x, y, self._finish())

    def _finish(self) -> ScorePostprocessing:
        return ScorePostprocessing(Transform.SIGN if self.one_class else find_transform(self.post_transform))


@operator("SVMClassifier", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class SVMClassifier(TableOperator[tuple[Vectors, Pairs | None]]):
    """Support vector classification, one-vs-one: the class that wins most pairs.

    Scores are those of the pairs (of two classes ``-s, s``), or probabilities of classes if ``prob_a`` and ``prob_b``
    are given. Without support vectors, scores are products with the coefficients of each class, and the largest wins.
    """

    classlabels_ints: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    coefficients: tuple[float, ...] | None = None
    kernel_params: tuple[float, ...] | None = None
    kernel_type: str = "LINEAR"
    post_transform: str = "NONE"
    prob_a: tuple[float, ...] | None = None
    prob_b: tuple[float, ...] | None = None
    rho: tuple[float, ...] | None = None
    support_vectors: tuple[float, ...] | None = None
    vectors_per_class: tuple[int, ...] | None = None
    tolerance = Tolerance.REDUCTION
    example = "float32[2,1] classlabels_ints=(1,) coefficients=(1.0,) rho=(0.0,)"
    flops_per_output = None
    derivative = Derivative.PARTS
    has_blits = False

    def make_tables(self) -> tuple[Vectors, Pairs | None]:
        """Return the support vectors and the pairs of classes; without vectors, the coefficients of each class."""
        find_transform(self.post_transform)
        classes = check_names(self.classlabels_ints, self.classlabels_strings)
        counts = self.vectors_per_class or ()
        if not sum(counts):
            total = len(self.coefficients or ())
            if not total or total % classes:
                raise InputError(f"coefficients expects as many numbers for each of {classes} classes, got {total}.")
            rows = read_numbers("coefficients", self.coefficients, total).reshape(classes, -1)
            return Vectors(rows, bias=read_numbers("rho", self.rho, 1)), None
        if len(counts) != classes or classes < 2 or min(counts) < 0:
            raise InputError(f"vectors_per_class expects a count for each of {classes} classes, got {list(counts)}.")
        vectors = read_vectors(self.support_vectors, sum(counts), self.kernel_type, self.kernel_params)
        return vectors, read_pairs(counts, self.coefficients, self.rho, self.prob_a, self.prob_b)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a label and scores for each row.

        Raises:
            InputError: Vectors have other features.
        """
        check_dtype(self.name, x, NUMBERS)
        vectors, pairs = self.tables
        rows, _ = count_rows(self.name, x, vectors.rows.shape[1])
        columns = vectors.count if pairs is None else pairs.columns
        labels = TensorSpec((rows,), label_dtype(self.classlabels_strings))
        return labels, TensorSpec((rows, self._finish().width(columns)), FLOAT)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compare with NumPy, in float; sums of pairs in double."""
        vectors, pairs = self.tables
        raw, places = vectors.compare(as_rows(x)), None
        if pairs is not None:
            raw = pairs.score(raw)
            places = pairs.count_votes(raw)
            raw = pairs.couple(raw) if pairs.has_probabilities else raw
        places, scores = self._finish().compute(raw, FLOAT, places)
        return name_places(places, self.classlabels_ints, self.classlabels_strings), scores

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the likenesses, a thread per row and pair, then threads per row for votes, probabilities, scores."""
        x, labels, scores = inputs[0], outputs[0], outputs[1]
        assert x is not None
        vectors, pairs = self.tables
        raw, places = launch_likeness(emit, vectors, x, count_rows(self.name, x.spec)[0]), None
        if pairs is not None:
            raw = pairs.launch_scores(emit, raw)
            places = pairs.launch_votes(emit, raw)
            raw = pairs.launch_coupling(emit, raw) if pairs.has_probabilities else raw
        self._finish().lower(emit, raw, scores, labels, places)

    def _finish(self) -> ScorePostprocessing:
        _, pairs = self.tables
        transform, pair = find_transform(self.post_transform), Pair.AS_IT_IS
        if pairs is not None and pairs.columns == 1:
            pair = choose_pair(transform, Pair.OPPOSITE)
        names = list_names(self.classlabels_ints, self.classlabels_strings)
        return ScorePostprocessing(
            transform, pair, LabelRule.LARGEST if pairs is None else LabelRule.GIVEN, names=names
        )


@decompose("ai.onnx.ml.SVMClassifier")
def _name_classes(node: Node) -> tuple[Node, ...]:
    return look_up_strings(node, "classlabels_ints", "classlabels_strings")

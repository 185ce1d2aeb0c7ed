"""Accuracy over models, as it is measured; and of fp16 on both devices, on models of each kind."""

from __future__ import annotations

import numpy as np
import pytest

from tests.system.models.folder import needs_models
from tests.system.models.precisions import TOLD, Accuracy, Row, compare, format_row, format_summary, measure_accuracy

# A convolutional network that is trained, and encoders and a decoder of random weights.
MODELS = ("winml_mnist", "bert__l11", "vit__d18", "gpt2_kv__d21")
# Half has 11 bits, and errors of layers add up: the worst of these was off by 1.5e-3 (2026-11-23).
MAX_ERROR = 1e-2


def test_error_is_told_beside_the_largest_element_of_its_output() -> None:
    right = np.array([[8.0, -2.0, np.inf], [1.0, 0.0, np.nan]], np.float32)
    got = np.array([[8.0, -1.0, np.inf], [1.0, 0.0, 3.0]], np.float32)
    assert compare([(got, right), (right[:1, :2], right[:1, :2])]) == Accuracy(1 / 8)
    assert compare([(np.array([1]), np.array([2]))]) == Accuracy(0.0)
    assert compare([(got[:1], right)]) == Accuracy(float("inf"))
    lost = np.where(right == -2, np.float32(np.nan), right)
    assert compare([(lost, right), (right, right)]) == Accuracy(float("inf"))


def test_classes_are_counted_where_the_largest_stays() -> None:
    right = np.eye(3, 10, dtype=np.float32)
    got = right.copy()
    got[1, 5] = 2
    assert compare([(got, right)]) == Accuracy(2.0, 2, 3)


def test_line_of_a_model_names_the_precisions_that_move_classes() -> None:
    same, moved = Accuracy(1e-4, 2, 2), Accuracy(0.5, 1, 2)
    row = Row("", (same, same, same, moved, Accuracy(None), same))
    line = format_row("model", row)
    assert line.split()[:7] == ["model", "1.0e-04", "1.0e-04", "1.0e-04", "5.0e-01", "-", "1.0e-04"]
    assert line.endswith("2 rows of classes, others first in fp8")
    kept = Row("", (same, Accuracy(0.0, 2, 2, kept=7), same, same, same, same))
    assert format_row("model", kept).endswith("  2 rows of classes, 7 layers beyond the range of fp16 in float there")
    assert format_row("model", Row("cannot\nrun")).split() == ["model", "cannot", "run"]


def test_summary_leaves_out_what_has_no_figure() -> None:
    rows = {str(i): Row("", tuple(Accuracy(i / 10) for _ in TOLD)) for i in range(1, 11)}
    rows["none"] = Row("", (Accuracy(None), *(Accuracy(0.3) for _ in TOLD[1:])))
    median, decile, largest = (line.split() for line in format_summary({**rows, "failed": Row("no")}))
    assert (median[2:4], decile[3:5], largest[2:4]) == (["5.5e-01", "5.0e-01"], ["1.0e+00", "9.0e-01"], ["1.0e+00"] * 2)


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("device", ["cpu", "simulator"])
@pytest.mark.parametrize("model", MODELS)
def test_models_in_half_are_near_and_keep_their_classes(model: str, device: str) -> None:
    accuracy = measure_accuracy(model, "fp16", device)
    assert accuracy.error is not None and accuracy.error <= MAX_ERROR
    assert accuracy.same == accuracy.rows


@pytest.mark.models
@needs_models
def test_layers_beyond_the_range_of_half_stay_in_float() -> None:
    """Its weights are no trained ones: sums grow to 76,970 and more, from which fp16 makes infinities and then NaN."""
    accuracy = measure_accuracy("onnx_light_resnet50", "fp16", "cpu")
    assert accuracy.error is not None and accuracy.error <= MAX_ERROR
    assert accuracy.kept > 0 and accuracy.same == accuracy.rows == 1

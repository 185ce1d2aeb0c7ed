"""Differences between models: gaps by layer, and statistics of inner values."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import ramp, two_layers

X = ramp(4, 3)


@pytest.mark.feature("E84")
@pytest.mark.parametrize("against", [gx.BackendType.CPU, "onnxruntime", "reference"])
def test_gaps_of_layers_in_l1_mse_and_snr(against: gx.BackendType | str, backend: Backend) -> None:
    report = gx.measure_gap(two_layers(), X, backend, against)
    assert [row.node for row in report.rows] == ["first", "relu", "second"]
    for row in report.rows:
        for gap in (row.accumulated, row.alone):
            assert gap is not None
            assert gap.l1 <= 1e-3 and gap.mse <= 1e-8 and gap.snr_db >= 100
    expected = X @ ramp(3, 5)
    gap = gx.gap_of(expected, expected + np.float32(0.5))
    assert (gap.l1, gap.mse) == (0.5 * expected.size, 0.25)
    assert gap.snr_db == pytest.approx(10 * np.log10(np.mean(expected**2) / 0.25))


@pytest.mark.feature("E85")
def test_taps_report_statistics_and_not_tensors(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.tap({"a": ["min", "max", "mean", "std"], "relu": ["histogram"]})
        reported = worker.schedule(X).inspection.statistics()
        a = X @ ramp(3, 5)
        assert (reported["a"].min, reported["a"].max) == (a.min(), a.max())
        assert (reported["a"].mean, reported["a"].std) == (pytest.approx(a.mean()), pytest.approx(a.std()))
        assert reported["b"].histogram is not None
        assert sum(reported["b"].histogram.counts) == a.size

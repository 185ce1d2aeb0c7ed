"""Regions of models as blits: the bits of models that run operator by operator.

`test_every_model` holds those of the host and of the simulator's kernels to the same.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from tests.ops.tolerance import to_bits
from tests.system.models.folder import needs_models, path_of, read_case, read_manifest
from tests.system.models.judge import REGION_PASSES, count_regions

# Rotary embeddings and norms in half, and streams through windows.
DRAWN = ("llama_gqa_kv_half__d20", "gtcrn_simple")


def run(model: str, *disabled: str) -> tuple[list[np.ndarray], int]:
    """Return the outputs of the first case, and how many commands are regions."""
    case = read_case(read_manifest()[model]["cases"][0])
    loaded = gx.load(path_of(model), disabled_passes=disabled)
    with gx.Worker(loaded, backend=gx.BackendType.SIMULATOR_PIXEL, seed=1) as worker:
        made = [np.asarray(each) for each in worker.run(case.inputs)]
        return made, count_regions(worker)


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("model", DRAWN)
def test_regions_give_the_bits_of_single_operators_as_blits(model: str) -> None:
    # Epilogues are regions behind what makes their operand.
    (made, count), (apart, others) = run(model), run(model, *REGION_PASSES, "fuse_epilogues")
    assert count > 0 and others == 0
    for got, expected in zip(made, apart, strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))

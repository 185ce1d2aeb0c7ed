"""Regions of the model suite: the bits of models that run operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.command import HostCall, Launch
from gpuexec.ops.elementwise.region import Region, RowRegion
from tests.ops.tolerance import to_bits
from tests.system.models.folder import needs_models, path_of, read_case, read_manifest

# Of each kind: a transformer with a cache in half, experts, speech, recurrence, convolutions with norms.
SIMULATED = ("llama_gqa_kv_half__d20", "mixtral_kv__l17", "gtcrn_simple", "silero_vad_v6", "unet_diffusion__l17")

# As blits: rotary embeddings and norms in half, and streams through windows.
DRAWN = ("llama_gqa_kv_half__d20", "gtcrn_simple")
SOURCES = ("flat.cu", "rows.cu", "pixel/flat.cu", "pixel/rows.cu")


def run(model: str, backend: str, *disabled: str) -> tuple[list[np.ndarray], int]:
    """Return the outputs of the first case, and how many commands are regions."""
    case = read_case(read_manifest()[model]["cases"][0])
    with gx.Worker(gx.load(path_of(model), disabled_passes=disabled), backend=backend, seed=1) as worker:
        made = [np.asarray(each) for each in worker.run(case.inputs)]
        commands = [command for plan in worker.plans for command in plan.segment.commands]
    calls = [each for each in commands if isinstance(each, HostCall) and each.operator in (Region.name, RowRegion.name)]
    launches = [each for each in commands if isinstance(each, Launch) and each.kernel.source in SOURCES]
    return made, len(calls) + len(launches)


def check_bits(model: str, backend: str, *disabled: str) -> int:
    """Check that regions change no bit, nor what is disabled with them; return how many commands are regions."""
    (made, count), (apart, others) = run(model, backend), run(model, backend, "fuse_rows", "fuse_regions", *disabled)
    assert others == 0
    for got, expected in zip(made, apart, strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))
    return count


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("model", sorted(read_manifest()) or ["no folder"])
def test_regions_give_the_bits_of_single_operators_on_the_host(model: str) -> None:
    check_bits(model, "cpu")


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("model", SIMULATED)
def test_regions_give_the_bits_of_single_operators_on_the_simulator(model: str) -> None:
    assert check_bits(model, "simulator") > 0


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("model", DRAWN)
def test_regions_give_the_bits_of_single_operators_as_blits(model: str) -> None:
    # Epilogues are regions behind what makes their operand.
    assert check_bits(model, "simulator_pixel", "fuse_epilogues") > 0

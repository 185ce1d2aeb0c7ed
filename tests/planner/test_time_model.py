"""Time model of launches: which bound decides, waves of blocks, and constants fitted to measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.work import Work
from gpuexec.planner.launch_work import CommandGrid
from gpuexec.planner.time_model import BOUNDS, LaunchBounds, Sample, TimeModel, bound_launch, fit_time_model

H100, A100 = find_gpu(90), find_gpu(80)
MODEL = TimeModel()


def bound(work: Work, blocks: int, *, dram_nbytes: float = 0.0, missed: float = 0.0) -> LaunchBounds:
    return bound_launch(work, CommandGrid(blocks, 256), dram_nbytes, missed, H100)


@pytest.mark.parametrize(
    ("name", "work", "dram_nbytes"),
    [
        ("issue", Work(instructions=1e8), 0),
        ("tensor", Work(matrix_products=1e11), 0),
        ("shared", Work(wavefronts=1e8), 0),
        ("l2", Work(l2_nbytes=1e9), 0),
        ("dram", Work(), 1e9),
        ("latency", Work(rounds=1e4), 0),
    ],
)
def test_what_a_launch_has_most_of_decides(name: str, work: Work, dram_nbytes: float) -> None:
    bounds = bound(work, 132, dram_nbytes=dram_nbytes)
    decisive, longest = MODEL.find_bound(bounds)
    assert decisive == name
    waits = 0.0 if name == "latency" else MODEL.latency * bounds.latency + bounds.chain
    assert MODEL.predict_us(bounds) == pytest.approx(MODEL.fill_us + (longest**2 + waits**2) ** (1 / 2))


def test_what_blocks_wait_hides_behind_what_they_do_and_the_other_way_round() -> None:
    works = LaunchBounds(dram=10.0)
    alike = replace(works, latency=10.0 * MODEL.dram / MODEL.latency)
    assert MODEL.predict_us(alike) - MODEL.fill_us == pytest.approx(
        2 ** (1 / 2) * (MODEL.predict_us(works) - MODEL.fill_us)
    )
    assert MODEL.predict_us(replace(works, latency=0.1)) < 1.01 * MODEL.predict_us(works)
    # That of blocks which follow others is under way meanwhile.
    assert MODEL.predict_us(replace(alike, latency=2 * alike.latency, waves=1.5)) == MODEL.predict_us(alike)


def test_bytes_of_device_memory_take_their_share_of_the_bandwidth() -> None:
    assert bound(Work(), 132, dram_nbytes=3.35e9).dram == pytest.approx(1000)
    assert MODEL.predict_us(bound(Work(), 132, dram_nbytes=3.35e9)) == pytest.approx(1000 * MODEL.dram, rel=1e-3)


def test_blocks_beyond_a_wave_wait_for_the_next() -> None:
    def issue(blocks: int) -> float:
        return bound(Work(instructions=blocks * 1e6, registers=255), blocks).issue

    assert issue(24) == issue(132)  # a multiprocessor has one block
    assert issue(133) == pytest.approx(2 * issue(132))  # and one of them two, one after the other
    assert bound(Work(registers=255), 198).waves == 1.5


def test_blocks_that_fit_together_share_a_multiprocessor() -> None:
    def issue(blocks: int) -> LaunchBounds:
        return bound(Work(instructions=blocks * 1e6, registers=113), blocks)

    assert issue(264).at_once == 2
    # Twice as many warps hide more of each other's waiting.
    assert 1.5 * issue(132).issue < issue(264).issue < 2 * issue(132).issue


def test_a_gpu_of_half_the_lanes_takes_twice_as_long_for_multiply_adds() -> None:
    work = Work(instructions=1e6, multiply_adds=1e6)
    cycles = {
        gpu.name: bound_launch(work, CommandGrid(1, 256), 0, 0, gpu).issue * gpu.clock_hertz for gpu in (H100, A100)
    }
    assert cycles["A100 SXM"] == pytest.approx(2 * cycles["H100 SXM"])


def test_multiply_adds_of_integers_take_the_lanes_that_there_are_for_them() -> None:
    work = Work(instructions=1e6, multiply_adds=1e6)
    integers = replace(work, integer_multiply_adds=1e6)
    for gpu in (H100, A100):
        issue, slower = (bound_launch(each, CommandGrid(1, 256), 0, 0, gpu).issue for each in (work, integers))
        assert slower / issue == pytest.approx(gpu.fp32_lanes / gpu.integer_lanes)


def test_what_l2_lacks_is_waited_for_longer() -> None:
    near, far = (bound(Work(rounds=100), 132, missed=missed) for missed in (0.0, 1.0))
    longer = 100 * (H100.dram_latency_cycles - H100.l2_latency_cycles) / H100.clock_hertz * 1e6
    assert (near.chain, far.chain) == (0, pytest.approx(longer))
    assert near.latency == far.latency
    assert bound(Work(rounds=0, fetches=10), 132, missed=1.0).chain == pytest.approx(longer / 10)


def test_blocks_wait_for_cycles_of_their_own_wave_by_wave() -> None:
    def chain(blocks: int) -> float:
        return bound(Work(cycles=1755, registers=255), blocks).chain

    assert chain(132) == pytest.approx(1755 / H100.clock_hertz * 1e6)
    assert chain(133) == pytest.approx(2 * chain(132))
    assert MODEL.predict_us(bound(Work(cycles=1e6), 132)) > MODEL.predict_us(bound(Work(), 132)) + 100


def test_nothing_bounds_a_command_without_blocks() -> None:
    assert bound(Work(), 0) == LaunchBounds()


def test_blocks_that_wait_for_all_others_are_a_phase_of_their_own() -> None:
    first, behind = Work(instructions=1e7, rounds=4), Work(l2_nbytes=1e8, rounds=9, blocks=300)
    both = bound(replace(first, behind=behind), 564)
    alone = [bound(first, 264), bound(behind, 300)]
    assert both.phases == tuple(alone) and both.issue == alone[0].issue + alone[1].issue
    assert MODEL.predict_us(both) == pytest.approx(sum(map(MODEL.predict_us, alone)) - MODEL.fill_us)


def test_what_l2_has_no_room_for_is_read_again() -> None:
    def read(nbytes: int) -> LaunchBounds:
        return bound(Work(l2_nbytes=1e6, behind=Work(l2_nbytes=1e6, blocks=132, again_nbytes=nbytes)), 264)

    few, many = read(H100.l2_nbytes), read(2 * H100.l2_nbytes)
    assert few.phases[1].dram == 0
    assert many.phases[1].dram == pytest.approx(H100.l2_nbytes / H100.dram_bytes_per_second * 1e6)
    assert many.phases[1].chain > few.phases[1].chain and many.phases[0] == few.phases[0]


def make_samples(model: TimeModel, noise: float = 0.0) -> list[Sample]:
    """Return launches of all kinds as a model times them."""
    random = np.random.default_rng(1)
    samples = []
    for name in BOUNDS:
        for _ in range(8):
            others = dict(zip(BOUNDS, random.uniform(0, 2, len(BOUNDS))))
            bounds = replace(LaunchBounds(**others), **{name: random.uniform(10, 300)})
            samples.append(Sample(bounds, model.predict_us(bounds) * (1 + noise * random.standard_normal())))
    return samples


def test_fit_finds_the_constants_that_made_the_times() -> None:
    wanted = TimeModel(fill_us=2.5, issue=1.4, shared=0.7, l2=1.9, dram=1.1, latency=0.6)
    fitted = fit_time_model(make_samples(wanted))
    for name in ("fill_us", *BOUNDS):
        assert getattr(fitted, name) == pytest.approx(getattr(wanted, name), rel=1e-6)
    assert fitted.node_us == MODEL.node_us


def test_fit_comes_near_where_times_are_noisy() -> None:
    wanted = TimeModel(fill_us=2.0, issue=1.2, dram=1.4)
    fitted = fit_time_model(make_samples(wanted, noise=0.05))
    for name in BOUNDS:
        assert getattr(fitted, name) == pytest.approx(getattr(wanted, name), rel=0.1)


def test_fit_leaves_what_nothing_shows() -> None:
    samples = [Sample(LaunchBounds(dram=each), 3 + 2 * each) for each in (10.0, 20.0, 40.0)]
    fitted = fit_time_model(samples)
    assert (fitted.dram, fitted.fill_us) == (pytest.approx(2), pytest.approx(3))
    assert (fitted.issue, fitted.latency) == (MODEL.issue, MODEL.latency)
    assert fit_time_model([]) == MODEL

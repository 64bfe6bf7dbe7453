"""The closed form: exact where it can be worked out by hand, monotone, and ranking as the simulator does."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from planned import PLANNED

from rollart.config.load import simulated_config
from rollart.config.simulation import WorkloadConfig
from rollart.data_plane.generation.emulated_models import EmulatedSpeed
from rollart.simulation.candidates import Candidate, Space
from rollart.simulation.estimate import Demand, Estimator, Part, Stragglers, class_seconds
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.simulator import simulate

TEN_MS = EmulatedSpeed(step_seconds=0.01, prefill_token_seconds=0.0)


def workload(**values: object) -> WorkloadConfig:
    return WorkloadConfig.model_validate(values)


def test_demand_is_the_mean_of_the_workload() -> None:
    load = workload(
        turns=[2, 6],
        first_observation=100,
        observation=10,
        action=20,
        reset_seconds=5,
        step_seconds=1,
        reward_seconds=2,
    )
    demand = Demand.of(load)
    assert (demand.prompt, demand.generated, demand.total) == (130, 80, 210)
    assert demand.context == (100 + 210) / 2
    assert demand.history == 3 * demand.context
    assert demand.away == 5 + 4 + 2


def test_demand_is_cut_at_the_limits() -> None:
    assert Demand.of(workload(turns=10, action=10, max_turns=4)).generated == 40
    cut = Demand.of(workload(turns=1, first_observation=100, action=300, max_context=200))
    assert cut.total == pytest.approx(200)
    assert cut.generated == pytest.approx(150)


def test_equal_trajectories_have_no_stragglers() -> None:
    equal = Stragglers.of(workload(turns=3, action=10), 4, 0)
    assert equal.load == pytest.approx(1)
    assert equal.slowest(8, 8) == pytest.approx(1)
    assert Stragglers.of(workload(turns=3, action=10), 4, 2).load == pytest.approx(1.5)


def test_redundancy_shortens_the_wait_for_stragglers_and_costs_work() -> None:
    long_tail = workload(turns=1, action={"median": 100, "sigma": 1.0, "max": 5000})
    plain, redundant = (Stragglers.of(long_tail, 8, members) for members in (0, 2))
    assert plain == Stragglers.of(long_tail, 8, 0)
    assert 1 < redundant.slowest(16, 16) < plain.slowest(16, 16)
    assert plain.slowest(16, 20) < plain.slowest(16, 16)
    assert plain.load == pytest.approx(1)
    assert redundant.kept < redundant.load < 10 / 8
    assert plain.kept == pytest.approx(1)
    assert redundant.kept < 0.9


def part(**values: float) -> Part:
    demand = Demand(prompt=0, history=0, generated=100, context=50, away=values.pop("away", 0.0), total=100)
    return Part(demand, trajectories=values.pop("trajectories", 64.0), **values)


def test_what_keeps_the_engines_busy_is_their_work() -> None:
    # 64 trajectories of 100 steps of 10 ms, 8 at once in each of 2 engines
    assert class_seconds(TEN_MS, [part()], 2, 8, alpha=8, train=0.0, environments=1e9) == pytest.approx(4.0)


def test_what_waits_for_its_slowest_group_is_as_long_as_that_and_training() -> None:
    # the batch in one go: 1 s, the slowest group 3 s
    batch = [part(slowest=3.0)]
    assert class_seconds(TEN_MS, batch, 64, 64, alpha=0, train=5.0, environments=1e9) == pytest.approx(8.0)
    assert class_seconds(TEN_MS, batch, 64, 64, alpha=1, train=5.0, environments=1e9) == pytest.approx(4.0)


def test_environments_limit_what_is_alive() -> None:
    # 64 trajectories of 1 s in an engine and 9 s elsewhere, of which 32 may be alive
    assert class_seconds(TEN_MS, [part(away=9.0)], 64, 64, alpha=9, train=0.0, environments=32) == pytest.approx(20.0)


def test_what_the_cache_loses_is_computed_again() -> None:
    lossy = Part(Demand(prompt=100, history=5000, generated=100, context=500, away=1, total=1000), 64.0)
    seconds = [
        class_seconds(
            EmulatedSpeed(step_seconds=0.01, prefill_token_seconds=1e-4, kv_tokens=room), [lossy], 1, 16, 2, 0, 1e9
        )
        for room in (10**9, 64 * 500, 16 * 500, 8 * 500)
    ]
    assert seconds[0] == seconds[1] < seconds[2] < seconds[3]


def estimator() -> tuple[Estimator, Space]:
    config = simulated_config(PLANNED)
    split = PoolSplit(config)
    found = Estimator(config, split)
    return found, Space(config, split, "time", found.by_intensity)


def test_estimates_of_a_configuration() -> None:
    found, space = estimator()
    assert found.by_intensity == ["many", "long"]
    given = space.given()
    assert given is not None
    estimate = found.estimate(given)
    assert estimate.step == max(estimate.train, *estimate.classes.values())
    assert set(estimate.classes) == {"H800", "H20"}
    assert estimate.cost == pytest.approx(0.03 + 2 * 2.85 + 3 * 2.85 + 2)
    assert estimate.comparable_step == pytest.approx(estimate.step)
    assert estimate.comparable_cost == pytest.approx(estimate.step * estimate.cost / 3600)


def test_screened_order_is_that_of_the_simulator(tmp_path: Path) -> None:
    found, space = estimator()
    chosen = sorted(space.candidates())[::2]
    assert len(chosen) > 20
    estimated = [found.estimate(candidate).step for candidate in chosen]
    simulated = [step_of(space, candidate, tmp_path / str(index)) for index, candidate in enumerate(chosen)]
    assert statistics.correlation(ranks(estimated), ranks(simulated)) > 0.85
    best = min(range(len(chosen)), key=lambda index: estimated[index])
    assert simulated[best] < 1.15 * min(simulated)


def ranks(values: list[float]) -> list[int]:
    ordered = sorted(values)
    return [ordered.index(value) for value in values]


def step_of(space: Space, candidate: Candidate, folder: Path) -> float:
    folder.mkdir()
    iterations = {"run.iterations": 5 + 2 * candidate.alpha}
    config = simulated_config(PLANNED, space.settings(candidate) | iterations)
    return simulate(config, folder, candidate.alpha + 1, log=False).measured.step_time_s

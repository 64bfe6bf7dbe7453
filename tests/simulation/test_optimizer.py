"""The planner: reproducible, near the best of all candidates, within its budget, and modest about staleness."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from planned import PLANNED

from rollart.config.load import load_simulation, simulated_config
from rollart.simulation.candidates import Candidate, Objective, Space
from rollart.simulation.estimate import Estimator
from rollart.simulation.optimizer import LAST, MEASURED, NOTABLE, REPORT_SEEDS, Budget, optimize
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.proposals import Numbers, Plan, Proposal, numbers_of, overrides
from rollart.simulation.simulator import simulate

ENOUGH = Budget(simulations=LAST + 24)


def planned(settings: dict[str, Any] | None = None, objective: Objective = "time", **more: Any) -> Plan:
    return optimize(PLANNED, settings or {}, objective, **({"budget": ENOUGH, "most_alpha": 1} | more))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


def test_what_is_reported(plan: Plan) -> None:
    assert plan.given.settings == {}
    assert plan.given.gain.mean == 0
    assert plan.seeds == REPORT_SEEDS
    best = plan.proposals[0]
    assert best.gain.mean > 0.03
    assert best.comparable_step_s.mean == pytest.approx(
        (1 - best.gain.mean) * plan.given.comparable_step_s.mean, rel=0.02
    )
    for proposal in (plan.given, *plan.proposals):
        assert 0 < proposal.idle_share.mean < 1
        assert 0 <= proposal.wasted_token_share.mean < 1
        assert proposal.step_time_s.std > 0
    assert len({overrides(proposal.settings) for proposal in plan.proposals}) == len(plan.proposals)


def test_the_same_budget_gives_the_same_plan_with_any_number_of_processes(plan: Plan) -> None:
    assert planned(jobs=2) == plan


def test_the_best_is_within_two_percent_of_every_candidate_simulated(plan: Plan, tmp_path: Path) -> None:
    config = simulated_config(PLANNED)
    split = PoolSplit(config)
    space = Space(config, split, "time", Estimator(config, split).by_intensity, 1)
    given = [numbers(tmp_path / f"given-{seed}", {}, config.alpha, seed).tokens for seed in REPORT_SEEDS]

    def step(index: int, candidate: Candidate) -> float:
        found = [
            numbers(tmp_path / f"{index}-{seed}", space.settings(candidate), candidate.alpha, seed)
            for seed in REPORT_SEEDS
        ]
        return statistics.fmean(
            each.step_time_s / each.tokens * tokens for each, tokens in zip(found, given, strict=True)
        )

    everything = [step(index, candidate) for index, candidate in enumerate(space.candidates())]
    assert len(everything) > plan.simulations - LAST
    assert plan.proposals[0].comparable_step_s.mean <= 1.02 * min(everything)


def numbers(folder: Path, settings: dict[str, Any], alpha: int, seed: int) -> Numbers:
    folder.mkdir()
    config = simulated_config(
        PLANNED,
        settings | {"run.iterations": 2 + MEASURED + alpha, "run.seed": seed, "training.checkpoint.every": 0},
    )
    return numbers_of(config, simulate(config, folder, 2, log=False))


def test_the_settings_are_a_configuration(plan: Plan) -> None:
    for proposal in plan.proposals:
        simulated_config(PLANNED, proposal.settings)


def test_a_larger_alpha_is_proposed_only_for_a_notable_gain() -> None:
    # training takes nearly all of a step, so that more staleness than it takes to overlap gains little
    slow = {"simulation.constants": {"train_fixed_seconds": 70.0}, "log.utilisation_seconds": 10}
    best, second, *_ = planned(slow, most_alpha=2).proposals
    assert (alpha_of(best), alpha_of(second)) == (1, 2)
    assert (1 - NOTABLE) * best.comparable_step_s.mean < second.comparable_step_s.mean < best.comparable_step_s.mean
    assert best.gain.mean > 0


def alpha_of(proposal: Proposal) -> int:
    return int(proposal.settings.get("run.alpha", simulated_config(PLANNED).alpha))


def test_where_cost_counts_idle_devices_are_released(plan: Plan) -> None:
    found = planned(objective="cost")
    best = found.proposals[0]
    assert best.cost_per_million_tokens.mean < 0.8 * found.given.cost_per_million_tokens.mean
    assert best.cost_per_million_tokens.mean <= plan.proposals[0].cost_per_million_tokens.mean
    assert best.gain.mean > 0.2
    pools = simulated_config(PLANNED, best.settings).pools
    assert sum(pool.devices for pool in pools.values()) < 9


def test_a_budget_of_time_is_kept_with_what_choice_and_report_need() -> None:
    clock = iter(range(10_000))
    ticks = lambda: float(next(clock))  # noqa: E731
    lines: list[str] = []
    found = planned(budget=Budget(seconds=30.0), said=lines.append, clock=ticks)
    assert not found.settled
    assert found.simulations < 24 + LAST
    assert sum(line.startswith("simulation") for line in lines) == found.simulations


@pytest.mark.parametrize(
    ("settings", "budget", "message"),
    [
        ({}, Budget(simulations=LAST), "too small"),
        ({"simulation.model": "qwen3-480b-a35b"}, ENOUGH, "an engine needs at least"),
        ({"simulation.model": "qwen3-32b"}, ENOUGH, "needs at least 8 H800"),
        ({"training.devices": 4}, ENOUGH, "raise pools.train.devices"),
        ({"simulation.model": "qwen9"}, ENOUGH, "qwen9"),
    ],
)
def test_what_cannot_be_planned_is_refused(settings: dict[str, Any], budget: Budget, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(settings, budget=budget)


def test_overrides_are_taken_by_a_command_line(tmp_path: Path) -> None:
    import shlex

    import yaml

    config = simulated_config(PLANNED)
    settings = PoolSplit(config).settings(6, {"H20": 2}) | {"placement.affinity": {"default": "H20"}}
    file = tmp_path / "planned.yaml"
    file.write_text(yaml.safe_dump(PLANNED))
    loaded = load_simulation(file, shlex.split(overrides(settings)))
    made = simulated_config(PLANNED, settings)
    assert (loaded.pools, loaded.placement, loaded.training) == (made.pools, made.placement, made.training)

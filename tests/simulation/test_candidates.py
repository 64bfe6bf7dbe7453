"""Candidates: which there are, what a move changes, and that each is a valid configuration."""

from __future__ import annotations

from typing import Any

import pytest
from planned import PLANNED

from rollart.config.load import simulated_config
from rollart.simulation.candidates import Objective, Space
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.simulator import check


def space(settings: dict[str, Any] | None = None, objective: Objective = "time", most_alpha: int = 2) -> Space:
    config = simulated_config(PLANNED, settings or {})
    return Space(config, PoolSplit(config), objective, ["many", "long"], most_alpha)


REDUNDANT = {"engine.deterministic": False}


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_every_candidate_is_a_run_that_fits(objective: Objective) -> None:
    found = space(REDUNDANT, objective)
    candidates = list(found.candidates())
    assert len(set(candidates)) == len(candidates)
    for candidate in candidates[::7]:
        check(simulated_config(PLANNED, REDUNDANT | found.settings(candidate)))


def test_all_free_devices_generate_where_time_counts() -> None:
    for candidate in space().candidates():
        engines = dict(candidate.engines)
        assert engines.get("H800", 6 - candidate.trainer) == 6 - candidate.trainer
        assert engines.get("H20", 2) == 2
        assert set(engines) == {name for _, name in candidate.mapping} | ({candidate.prefill} - {""})
        assert not candidate.domains_on(candidate.prefill)


def test_devices_may_stay_unused_where_cost_counts() -> None:
    assert {dict(each.engines).get("H800") for each in space(objective="cost").candidates()} == {None, 1, 2, 3, 4}


def test_the_given_configuration_is_a_candidate() -> None:
    given = space({"run.alpha": 2}).given()
    assert given is not None
    assert (given.trainer, given.alpha, dict(given.mapping)) == (2, 2, {"long": "H20", "many": "H800"})
    assert space({"placement.affinity": {}}).given() is None
    assert space({"placement.prefill": ["more"]}).given() is None


def test_only_what_differs_is_a_change() -> None:
    found = space({"training.devices": 3, "placement.generate": {"more": 3, "h20": 2}})
    given = found.given()
    assert given is not None
    assert found.changes(given) == {}
    (more,) = [each for each in found.neighbours(given) if each.alpha == 2]
    assert found.changes(more) == {"run.alpha": 2}


def test_a_move_changes_one_axis_and_the_engines_with_it() -> None:
    found = space(REDUNDANT)
    given = found.given()
    assert given is not None
    moves = found.neighbours(given)
    assert len(set(moves)) == len(moves)
    for move in moves:
        axes = ("trainer", "mapping", "alpha", "members", "groups")
        assert sum(getattr(move, axis) != getattr(given, axis) for axis in axes) == 1
        check(simulated_config(PLANNED, REDUNDANT | found.settings(move)))
    assert {move.trainer for move in moves} == {2, 3, 5}
    assert {move.alpha for move in moves} == {0, 1, 2}
    assert {move.members for move in moves} == {0, 1}


@pytest.mark.parametrize(
    ("settings", "alphas"),
    [
        ({}, {0, 1, 2}),
        ({"run.mode": "sync_plus"}, {0}),
        ({"run.mode": "one_off"}, {1, 2}),
        ({"run.mode": "areal"}, {1, 2}),
        ({"run.alpha": 3}, {0, 1, 2, 3}),
    ],
)
def test_alphas_are_those_of_the_mode(settings: dict[str, Any], alphas: set[int]) -> None:
    found = space(settings)
    assert {candidate.alpha for candidate in found.candidates()} == alphas
    assert {move.alpha for each in found.candidates() for move in found.neighbours(each)} == alphas


def test_of_many_domains_only_ordered_mappings_are_screened() -> None:
    names = [f"d{number}" for number in range(8)]
    settings = {
        "simulation.workloads": {name: {} for name in names},
        "placement.affinity": {},
        "rollout.groups_per_batch": 8,
    }
    config = simulated_config(PLANNED, settings)
    found = Space(config, PoolSplit(config), "time", names)
    mappings = {candidate.mapping for candidate in found.candidates()}
    assert len(mappings) == 9
    for mapping in mappings:  # the first, with the most prompt tokens, are on the class with the most operations
        classes = [dict(mapping)[name] for name in names]
        assert classes == sorted(classes, reverse=True)


def test_a_class_for_prompts_alone_is_a_move_there_and_back() -> None:
    several = space()
    given = several.given()
    assert given is not None
    (apart,) = [each for each in several.neighbours(given) if each.prefill == "H800"]
    assert {name for _, name in apart.mapping} == {"H20"}
    assert dict(apart.engines)["H800"] == 6 - apart.trainer
    settings = several.settings(apart)
    assert set(settings["placement.prefill"]) < set(settings["placement.generate"])
    assert any(not each.prefill for each in several.neighbours(apart))
    simulated_config(PLANNED, settings)

"""From a configuration to worker requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.config.config import Config
from rollart.data_plane.worker import ActorGen, ActorTrain, Environment, Reward
from rollart.resource_plane.binding import Binding, bind
from rollart.resource_plane.planning import apportion, worker_requests
from rollart.resource_plane.pools import PlanError, pools_of

AFFINITIES = {role.role: role.hardware_affinity for role in (ActorTrain, ActorGen, Environment, Reward)}


def config(**sections: object) -> Config:
    domains = {"frozen_lake": {"env": "frozen_lake", "weight": 3}, "math": {"env": "math_tool", "weight": 1}}
    return Config.model_validate({"domains": domains, **sections})


def test_the_roles_defaults() -> None:
    requests = worker_requests(config(engine={"count": 2}, rollout={"hosts": 2}), AFFINITIES)
    assert [(request.worker, request.affinity) for request in requests] == [
        ("train-0", "H800"),
        ("generate-0", "H20"),
        ("generate-1", "H20"),
        ("environment-0", "CPU"),
        ("environment-1", "CPU"),
        ("reward-0", "local"),
    ]


def test_engines_spread_over_the_classes_that_the_domains_prefer() -> None:
    placement = {"affinity": {"frozen_lake": "H800", "default": "H20"}}
    for count, expected in ((1, ["H800"]), (2, ["H800", "H20"]), (8, ["H800"] * 6 + ["H20"] * 2)):
        requests = worker_requests(config(engine={"count": count}, placement=placement), AFFINITIES)
        assert [request.affinity for request in requests if request.role == "generate"] == expected


def test_engines_go_to_the_pools_that_count_them() -> None:
    pools = {"a": {"hardware": "H20", "devices": 4}, "b": {"hardware": "H800", "devices": 2}, "c": {"devices": 2}}
    placement = {"generate": {"a": 2, "b": 1}, "affinity": {"frozen_lake": "H800"}}
    asked = config(pools=pools, placement=placement, engine={"devices": 2})
    assert asked.engines == 3
    requests = [request for request in worker_requests(asked, AFFINITIES) if request.role == "generate"]
    assert [(each.worker, each.pool, each.devices, each.setting) for each in requests] == [
        ("generate-0", "a", 2, "placement.generate.a"),
        ("generate-1", "a", 2, "placement.generate.a"),
        ("generate-2", "b", 2, "placement.generate.b"),
    ]
    bindings, after = bind(pools_of(asked.pools), requests)
    assert [(each.pool, len(each.devices), each.fallback) for each in bindings] == [("a", 2, "")] * 2 + [("b", 2, "")]
    assert len({(each.pool, device) for each in bindings for device in each.devices}) == 6
    assert (len(after["a"].free), len(after["b"].free)) == (0, 0)


def test_engines_of_several_devices_are_spread_by_the_domains_too() -> None:
    asked = config(engine={"count": 2, "devices": 4}, placement={"affinity": {"math": "H800"}})
    requests = [request for request in worker_requests(asked, AFFINITIES) if request.role == "generate"]
    assert [(each.affinity, each.pool, each.devices) for each in requests] == [("H20", None, 4), ("H800", None, 4)]


def test_more_engines_than_a_pool_holds_are_refused_with_the_setting_to_change() -> None:
    asked = config(
        pools={"a": {"hardware": "H20", "devices": 4}, "cpu": {"devices": 4}},
        placement={"generate": {"a": 2}},
        engine={"devices": 3},
    )
    with pytest.raises(PlanError, match=r"placement\.generate\.a"):
        bind(pools_of(asked.pools), worker_requests(asked, AFFINITIES))


def test_an_unknown_class_is_refused_also_when_pools_count_the_engines() -> None:
    with pytest.raises(PlanError, match=r"placement.affinity.math: unknown hardware class 'H8'"):
        worker_requests(config(placement={"generate": {"local": 1}, "affinity": {"math": "H8"}}), AFFINITIES)


def test_the_default_configuration_fits_its_pool() -> None:
    bindings, _ = bind(pools_of(config().pools), worker_requests(config(), AFFINITIES))
    assert {binding.pool for binding in bindings} == {"local"}


def test_rewards_go_with_the_environment_hosts_and_take_no_device() -> None:
    pools = {"gpu": {"hardware": "H20", "devices": 2}, "cpu": {"hardware": "CPU", "devices": 1}}

    def reward(**placement: str) -> Binding:
        asked = config(pools=pools, placement=placement)
        bindings, after = bind(pools_of(asked.pools), worker_requests(asked, AFFINITIES))
        assert not after["cpu"].free
        return next(binding for binding in bindings if binding.role == "reward")

    assert reward() == Binding("reward-0", "reward", "cpu", "CPU", (), "local")
    assert reward(reward="cpu") == Binding("reward-0", "reward", "cpu", "CPU", (), "cpu")
    elsewhere = reward(reward="gpu")
    assert (elsewhere.pool, elsewhere.wanted) == ("cpu", "gpu")
    assert elsewhere.fallback == "it runs inside the workers of role environment"


def test_a_pool_that_cannot_hold_rewards_is_refused() -> None:
    asked = config(pools={"local": {"devices": 4}, "fn": {"hardware": "serverless"}}, placement={"reward": "fn"})
    with pytest.raises(
        PlanError, match=r"placement.reward: pool 'fn' is serverless, .* and rewards run inside the work"
    ):
        bind(pools_of(asked.pools), worker_requests(asked, AFFINITIES))


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        ({"frozen_lake": "H8000"}, "placement.affinity.frozen_lake: unknown hardware class 'H8000'"),
        ({"frozen_lak": "H800"}, "placement.affinity.frozen_lak: there is no domain of that name"),
    ],
)
def test_bad_affinities_are_refused(affinity: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        worker_requests(config(placement={"affinity": affinity}), AFFINITIES)


@given(st.integers(0, 40), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_apportion_gives_everything_away_fairly(total: int, weights: list[int]) -> None:
    shares = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    counts = apportion(total, shares)
    assert sum(counts.values()) == total
    assert sum(count > 0 for count in counts.values()) == min(total, len(shares))
    if total >= len(shares) ** 2 * 9:
        assert all(abs(counts[name] - share * total) <= 1 for name, share in shares.items())

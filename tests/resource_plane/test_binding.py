"""Binding: every worker where it asked, or in the best stand-in with the reason, or refused with the remedy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.config.resources import PoolConfig
from rollart.resource_plane.binding import Binding, WorkerRequest, bind
from rollart.resource_plane.hardware import CATALOGUE, LOCAL
from rollart.resource_plane.pools import PlanError, PoolView, pools_of


def pools(**sizes: tuple[str, int]) -> dict[str, PoolView]:
    return pools_of({name: PoolConfig(hardware=kind, devices=count) for name, (kind, count) in sizes.items()})


def generate(count: int, affinity: str = "H20", pool: str | None = None) -> list[WorkerRequest]:
    return [WorkerRequest(f"generate-{i}", "generate", affinity, pool, 1, "engine.count") for i in range(count)]


PAPER = {"train": ("H800", 8), "rollout": ("H20", 24), "cpu": ("CPU", 16)}


def where(bindings: list[Binding]) -> list[str]:
    return [binding.pool for binding in bindings]


def test_workers_go_where_their_affinity_says() -> None:
    requests = [
        WorkerRequest("train-0", "train", "H800"),
        *generate(2),
        WorkerRequest("environment-0", "environment", "CPU"),
        WorkerRequest("reward-0", "reward", LOCAL),
    ]
    bindings, after = bind(pools(**PAPER), requests)
    assert where(bindings) == ["train", "rollout", "rollout", "cpu", "cpu"]
    assert not any(binding.fallback for binding in bindings)
    assert after["rollout"].holders == {0: "generate-0", 1: "generate-1"}
    assert after["rollout"].release("generate-0").free[0] == 0


def test_a_full_class_falls_back_to_the_best_stand_in() -> None:
    bindings, _ = bind(pools(a=("H20", 1), b=("A100", 1), c=("H800", 1), d=("CPU", 1)), generate(4))
    assert where(bindings) == ["a", "c", "b", "d"]
    assert [binding.fallback for binding in bindings] == ["", *["every pool of class H20 is full"] * 3]


def test_an_absent_class_falls_back() -> None:
    bindings, _ = bind(pools(local=("CPU", 2)), generate(1))
    assert (bindings[0].hardware_class, bindings[0].fallback) == ("CPU", "there is no pool of class H20")


def test_a_named_pool_comes_first_and_is_never_taken_by_others() -> None:
    requests = [*generate(1), WorkerRequest("train-0", "train", "H800", "small")]
    bindings, _ = bind(pools(small=("H20", 1), big=("H800", 1)), requests)
    assert where(bindings) == ["big", "small"]
    assert bindings[0].fallback
    assert not bindings[1].fallback


def test_a_named_pool_that_others_hold_at_the_moment_falls_back() -> None:
    view = pools(small=("H20", 1), big=("H20", 1))
    view["small"], _ = view["small"].take("other/generate-0", 1)
    bindings, _ = bind(view, generate(1, pool="small"))
    assert (bindings[0].pool, bindings[0].wanted, bindings[0].fallback) == ("big", "small", "pool small is full")


@pytest.mark.parametrize(
    ("view", "requests", "message"),
    [
        (PAPER, generate(1, pool="rolout"), "placement.generate: unknown pool 'rolout': did you mean 'rollout'"),
        (PAPER, generate(1, affinity="H2O"), "generate-0: unknown hardware class 'H2O': did you mean 'H20'"),
        (
            PAPER,
            generate(30, pool="rollout"),
            "30 workers need 30 devices of pool 'rollout', which has 24: raise pools",
        ),
        (PAPER, generate(49), r"49 workers need 49 devices .* or lower engine.count"),
        ({"fn": ("serverless", 9)}, generate(1, pool="fn"), "pool 'fn' is serverless, which runs functions"),
        ({"fn": ("serverless", 9)}, generate(1), "no room for generate-0"),
    ],
)
def test_the_impossible_is_refused(
    view: dict[str, tuple[str, int]], requests: list[WorkerRequest], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        bind(pools(**view), requests)


def test_unknown_hardware_in_the_configuration_is_refused() -> None:
    with pytest.raises(PlanError, match=r"pools.gpu.hardware: unknown hardware class 'H80': did you mean 'H800'"):
        pools_of({"gpu": PoolConfig(hardware="H80")})


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.sampled_from([name for name in CATALOGUE if name != "serverless"]), st.integers(1, 4)),
        min_size=1,
    ),
    st.lists(st.tuples(st.sampled_from(["H800", "H20", "CPU", LOCAL]), st.integers(1, 3)), max_size=6),
)
def test_devices_are_held_once_and_all_or_none_are_bound(
    sizes: dict[str, tuple[str, int]], asked: list[tuple[str, int]]
) -> None:
    view = pools(**sizes)
    requests = [WorkerRequest(f"w{i}", "generate", kind, None, count) for i, (kind, count) in enumerate(asked)]
    try:
        bindings, after = bind(view, requests)
    except PlanError:
        largest = max(count for _, count in sizes.values())
        assert sum(count for _, count in asked) > largest or any(count > largest for _, count in asked)
        return
    held = Counter((binding.pool, device) for binding in bindings for device in binding.devices)
    assert set(held.values()) <= {1}
    assert [len(binding.devices) for binding in bindings] == [count for _, count in asked]
    assert {name: len(pool.holders) for name, pool in after.items()} == {
        name: sum(1 for pool, _ in held if pool == name) for name in view
    }
    for binding in bindings:
        asked_class = binding.wanted in (LOCAL, binding.hardware_class)
        assert bool(binding.fallback) != asked_class

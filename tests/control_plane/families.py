"""The families of scenarios that the property tests play, for hypothesis and by seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import get_args

import msgspec
from hypothesis import strategies as st
from scenarios import NEVER, Scenario

from rollart.config.modes import PRESETS, Mode

MODES: tuple[Mode, ...] = get_args(Mode)

Family = Callable[[random.Random, Mode], Scenario]
"""Draws a scenario of a mode."""


def by_seed(family: Family, seed: int) -> Scenario:
    """A family's scenario number ``seed``."""
    draw = random.Random(seed)
    return family(draw, draw.choice(MODES))


def scenarios(family: Family, *modes: Mode) -> st.SearchStrategy[Scenario]:
    """A family's scenarios of some modes, of all unless any are given."""
    return st.builds(family, st.randoms(use_true_random=False), st.sampled_from(modes or MODES))


def any_run(draw: random.Random, mode: Mode) -> Scenario:
    """3 iterations, 2 domains or 4, 4 groups of 2, up to 3 turns; every switch, every contained failure."""
    alpha = draw.choice([0, 1, 1, 2, 3] if mode == "rollart" else [1, 1, 2])
    behind = alpha > 0 and PRESETS[mode].alpha > 0
    lost = draw.choice([0.0, 0.0, 0.0, 0.03])

    def own(*values: str) -> str | None:
        """Sometimes another value than the mode's."""
        return draw.choice(values) if draw.random() < 0.4 else None

    return Scenario(
        seed=draw.randrange(2**32),
        alpha=alpha,
        mode=mode,
        update=own("eager", "at_batch") if behind else None,
        stale=own("abort", "wait", "withhold", "train"),
        interaction=own("trajectory", "batch"),
        scoring=own("trajectory", "batch"),
        transfer=own("asynchronous", "blocking"),
        weights=draw.choice([(1.0, 1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 3.0, 1.0, 1.0)]),
        redundant_members=draw.choice([0, 0, 1]),
        redundant_groups=draw.choice([0, 0, 1, 2]),
        max_environments=draw.choice([3, 8, 64]),
        hosts=draw.choice([1, 2]),
        engines=draw.choice([1, 1, 2]),
        retries=draw.choice([0, 1, 2]),
        starvation_limit=draw.choice([1, 2, NEVER, NEVER]),
        mix_tolerance=draw.choice([1.0, 1.0, 2.0]),
        mask_truncated=draw.random() < 0.2,
        slow=(0.0, draw.choice([0.05, 0.5, 2.2])),
        step_error=draw.choice([0.0, 0.0, 0.05]),
        reset_error=draw.choice([0.0, 0.0, 0.05]),
        step_hang=draw.choice([0.0, 0.0, 0.02]),
        train=draw.choice([0.01, 0.3, 2.0]),
        publish=draw.choice([0.0, 0.05, 1.0]),
        report=draw.choice([0.0, 0.0, 0.2]),
        evaluate_every=draw.choice([0, 0, 0, 2]),
        lost_answers=lost,
        answer_timeout=4.0 if lost else 1800.0,
        rows=draw.choice([64, 64, 3]),
    )


def with_lost_hosts(draw: random.Random, mode: Mode) -> Scenario:
    """Hosts die at random moments, and some of their restarts fail."""
    scenario = any_run(draw, mode)
    return msgspec.structs.replace(
        scenario,
        kills=tuple((draw.uniform(0.0, 4.0), draw.randrange(scenario.hosts)) for _ in range(draw.randint(1, 4))),
        restart=(draw.choice([0.0, 0.1, 1.0]), draw.choice([0, 0, 1])),
    )


def with_a_death(draw: random.Random, mode: Mode) -> Scenario:
    """An engine or the trainer dies at a random moment."""
    scenario = any_run(draw, mode)
    victims = ["train-0", *(f"generate-{number}" for number in range(scenario.engines))]
    return msgspec.structs.replace(scenario, death=(draw.uniform(0.0, 4.0), draw.choice(victims)))


def that_waits(draw: random.Random, mode: Mode) -> Scenario:
    """Policy ``wait`` without anything that ends a trajectory early: no redundancy, no failures, no suspensions."""
    return msgspec.structs.replace(
        any_run(draw, mode),
        stale="wait",
        redundant_members=0,
        redundant_groups=0,
        step_error=0.0,
        reset_error=0.0,
        step_hang=0.0,
        lost_answers=0.0,
        slow=(0.0, draw.choice([0.05, 0.5, 1.9])),
        starvation_limit=NEVER,
    )


def that_is_pressed(draw: random.Random, mode: Mode) -> Scenario:
    """The bound binds: one domain is slow, training is fast, and groups start member by member."""
    return msgspec.structs.replace(
        any_run(draw, mode),
        alpha=1,
        update=None,
        interaction=None,
        slow=(0.0, 1.9),
        train=0.01,
        publish=0.0,
        mix_tolerance=3.0,
        iterations=6,
    )


def plain(draw: random.Random, mode: Mode) -> Scenario:
    """Only the seed varies."""
    return Scenario(seed=draw.randrange(2**32))

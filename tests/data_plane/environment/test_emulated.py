"""Emulated environments: lengths and latencies in virtual time, drawn from the seeds alone."""

import asyncio

import pytest

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.emulated import Emulated
from rollart.data_plane.environment.session import EnvironmentFailure, open_session
from rollart.data_plane.rendering.lengths import LengthRenderer
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.simulation.virtual_loop import run as run_virtual
from rollart.types import FailureKind, LengthSpan


def play(seed: int, episode: int, task: int = 0, **arguments):
    """Observations, reward, success and virtual seconds of an episode; or how it failed and when."""

    async def main():
        loop = asyncio.get_running_loop()
        config = DomainConfig(env="emulated", args=arguments, reset_timeout=50, step_timeout=20)
        session = open_session(config, episode=episode)
        try:
            seen = [await session.reset(seed, task)]
            while True:
                observation, reward, terminated, _, info = await session.step("")
                seen.append(observation)
                if terminated:
                    return seen, reward, info["success"], loop.time()
        except EnvironmentFailure as failure:
            return failure.kind, loop.time()
        finally:
            await session.close()

    return run_virtual(main())


def test_fixed_numbers():
    seen, reward, success, seconds = play(
        1, 2, turns=3, first_observation=100, observation=7, reset_seconds=10, step_seconds=2, success=1.0
    )
    assert seen == [LengthSpan(100), LengthSpan(7), LengthSpan(7), LengthSpan(7)]
    assert (reward, success, seconds) == (1.0, True, 16.0)


def test_draws_depend_on_the_seeds_alone():
    arguments = {
        "turns": [2, 9],
        "first_observation": [10, 500],
        "observation": {"median": 40, "sigma": 1.0, "max": 400},
        "reset_seconds": {"median": 3.0, "sigma": 1.5, "max": 49},
        "step_seconds": [0.0, 5.0],
    }
    group = [play(3, member, **arguments) for member in range(8)]
    assert group == [play(3, member, **arguments) for member in range(8)]
    assert len({(len(seen), seen[0].length) for seen, *_ in group}) == 1  # one instance
    assert len({seconds for *_, seconds in group}) == 8  # eight members
    assert {success for _, _, success, _ in group} == {True, False}
    assert len({play(seed, 0, **arguments)[0][0].length for seed in range(8)}) > 4
    lengths = [length.length for seed in range(40) for length in play(seed, 0, **arguments)[0][1:]]
    assert 1 <= min(lengths) < 40 < max(lengths) <= 400


@pytest.mark.parametrize(
    ("arguments", "kind", "seconds"),
    [
        ({"reset_error": 1.0, "reset_seconds": 4}, FailureKind.RESET_ERROR, 4.0),
        ({"reset_hang": 1.0}, FailureKind.RESET_TIMEOUT, 50.0),
        ({"reset_seconds": 60}, FailureKind.RESET_TIMEOUT, 50.0),
        ({"step_error": 1.0, "step_seconds": 1}, FailureKind.STEP_ERROR, 1.0),
        ({"step_hang": 1.0}, FailureKind.STEP_TIMEOUT, 20.0),
    ],
)
def test_failures(arguments, kind, seconds):
    assert play(0, 0, **arguments) == (kind, seconds)


def test_failure_rates():
    kinds = [play(seed, 1, turns=1, reset_error=0.2, reset_hang=0.1)[0] for seed in range(400)]
    assert 50 < kinds.count(FailureKind.RESET_ERROR) < 110
    assert 20 < kinds.count(FailureKind.RESET_TIMEOUT) < 65


def reset_seconds(played: range, **incident):
    """Seconds of the reset of four members of each task played, the rest of the episode being instantaneous."""
    slow = {"seconds": 40, "seed": 3, **incident}
    return [[play(task, 10 * task + member, task, reset_slow=slow)[-1] for member in range(4)] for task in played]


def test_an_incident_strikes_tasks_together():
    struck = [set(members) for members in reset_seconds(range(200), probability=0.25, tasks=10)]
    assert all(len({*map(frozenset, struck[block : block + 10])}) == 1 for block in range(0, 200, 10))
    assert set(map(frozenset, struck)) == {frozenset({0.0}), frozenset({40.0})}
    assert 10 < struck.count({40.0}) < 100
    assert struck != [set(members) for members in reset_seconds(range(200), probability=0.25, tasks=10, seed=4)]


def test_an_incident_strikes_a_share_of_the_environments():
    members = [seconds for task in reset_seconds(range(100), probability=1, share=0.3) for seconds in task]
    assert set(members) == {0.0, 40.0}
    assert 85 < members.count(40.0) < 155


def test_failure_rates_change_no_other_draw():
    arguments = {"turns": 6, "step_seconds": [0, 9], "observation": [1, 90]}
    healthy = play(4, 4, **arguments)
    kinds = [play(4, episode, **arguments, step_error=0.1) for episode in range(40)]
    unharmed = [episode for episode, told in enumerate(kinds) if told[0] is not FailureKind.STEP_ERROR]
    assert 5 < len(unharmed) < 35
    assert all(kinds[episode] == play(4, episode, **arguments) for episode in unharmed)
    assert healthy == play(4, 4, **arguments, reset_error=1e-9, step_hang=1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"turns": "many"},
        {"turns": [3, 1]},
        {"turns": [1]},
        {"observation": -1},
        {"step_seconds": {"median": 1}},
        {"success": 1.5},
        {"reset_error": -0.1},
        {"reset_slow": {"probability": 0.5}},
        {"reset_slow": {"probability": 2, "seconds": 1}},
        {"reset_slow": {"probability": 1, "seconds": -1}},
        {"reset_slow": {"probability": 1, "seconds": 1, "tasks": 0}},
        {"reset_slow": {"probability": 1, "seconds": 1, "duration": 1}},
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Emulated(**arguments)


def test_arguments_are_compiled_once_for_equal_objects_only():
    first, second = [5, 5], [7, 7]
    assert play(0, 0, turns=1, first_observation=first)[0][0] == LengthSpan(5)
    assert play(0, 0, turns=1, first_observation=second)[0][0] == LengthSpan(7)
    # More sets than are kept, each of objects that are gone before the next is made.
    for length in range(1, 600):
        env = Emulated(turns=1, first_observation=[length, length])
        assert run_virtual(env.reset(0, 0)) == LengthSpan(length)


def test_lengths_render_to_lengths():
    renderer = LengthRenderer(system=20, opening=3)
    assert renderer.begin(LengthSpan(100)) == LengthSpan(123)
    assert renderer.observe(LengthSpan(10), stopped=True) == LengthSpan(13)
    assert renderer.observe(LengthSpan(10), stopped=False) == LengthSpan(14)
    assert renderer.parse(LengthSpan(5)) == ""
    assert renderer.decode(LengthSpan(5)) == "<5 tokens>"
    with pytest.raises(RenderingError, match="env to 'emulated'"):
        renderer.begin("text")

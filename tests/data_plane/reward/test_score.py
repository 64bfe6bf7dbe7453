"""Scores of every kind, and that a failure is a typed error, never a number."""

import asyncio

import pytest

from rollart.config.domains import RewardConfig
from rollart.data_plane.reward.score import FIRST_PAUSE, MAX_BLOCKING, RewardError, make_scorer
from rollart.simulation.virtual_loop import run as run_virtual
from rollart.types import FailureKind, Score


def scorer(function: str, **settings):
    return make_scorer(RewardConfig(function=f"reward_functions:{function}", **settings))


def test_the_environments_own_reward(trajectory):
    score = asyncio.run(make_scorer(RewardConfig()).score(trajectory, True))
    assert score == Score(pytest.approx(0.3), True)
    assert asyncio.run(make_scorer(RewardConfig()).score(trajectory, None)).success is None


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("turns", Score(2.0, False)),
        ("last_action", Score(1.0, True)),
        ("full", Score(0.25, False, {"format": 0.25})),
        ("numpy_verdict", Score(1.0, True)),
        ("numpy_number", Score(0.5, False)),
        ("judge", Score(2.0, False)),
        ("coroutine_from_sync", Score(1.0, True)),
    ],
)
def test_what_a_function_may_return(trajectory, function, expected):
    assert run_virtual(scorer(function).score(trajectory, False)) == expected


def test_a_blocking_function_runs_beside_the_loop(trajectory):
    async def main():
        ticks = 0
        score = asyncio.ensure_future(scorer("blocks").score(trajectory, None))
        while not score.done():
            ticks += 1
            await asyncio.sleep(0.001)
        with pytest.raises(RewardError):
            await score
        return ticks

    assert asyncio.run(main()) > 5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "reward_functions:raises raised KeyError: 'rubric' (reward_functions.py:"),
        ("nothing", "a reward is a number, a bool or a Score, not None"),
        ("not_a_number", "a reward is finite, not nan"),
    ],
)
def test_errors_are_typed_with_their_first_cause(trajectory, function, message):
    with pytest.raises(RewardError) as caught:
        run_virtual(scorer(function, retries=0).score(trajectory, True))
    assert caught.value.kind is FailureKind.REWARD_ERROR
    assert message in str(caught.value)


def test_tries_are_repeated_with_growing_pauses(trajectory):
    import reward_functions

    async def main():
        return await scorer("sometimes").score(trajectory, None), asyncio.get_running_loop().time()

    reward_functions.calls = 0
    score, seconds = run_virtual(main())
    assert score == Score(1.0, None)
    assert seconds == pytest.approx(FIRST_PAUSE * 3)
    reward_functions.calls = -10
    with pytest.raises(RewardError, match=r"raised ConnectionError: busy .*\(3 tries\)"):
        run_virtual(main())


def test_each_try_has_a_deadline(trajectory):
    async def main():
        with pytest.raises(RewardError) as caught:
            await scorer("waits", timeout=10, retries=1).score(trajectory, None)
        return caught.value, asyncio.get_running_loop().time()

    error, seconds = run_virtual(main())
    assert error.kind is FailureKind.REWARD_TIMEOUT
    assert str(error) == "reward_functions:waits did not return within 10 s (2 tries)"
    assert seconds == pytest.approx(20 + FIRST_PAUSE)


def test_blocking_calls_that_do_not_return_keep_their_places(trajectory):
    """So that a function that hangs cannot take every thread of the process."""

    async def main():
        scores = scorer("blocks", timeout=0.1, retries=0)
        calls = [scores.score(trajectory, None) for _ in range(MAX_BLOCKING + 4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(main())
    assert {error.kind for error in errors} == {FailureKind.REWARD_TIMEOUT}


def test_cancellation_passes_through(trajectory):
    async def main():
        task = asyncio.ensure_future(scorer("waits").score(trajectory, None))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "reward_functions:turn"}, "did you mean 'turns'"),
        ({"function": "no_such:thing"}, "no module named 'no_such'"),
        ({"function": "reward_functions:number"}, "is a int, not a function"),
        ({"function": "turns"}, "not of the form 'module:attribute'"),
        ({"url": "fc://judge/score"}, "there is no provider for 'fc://', use 'inline://'"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message):
    with pytest.raises(ValueError, match="reward") as caught:
        make_scorer(RewardConfig(**settings))
    assert message in str(caught.value)

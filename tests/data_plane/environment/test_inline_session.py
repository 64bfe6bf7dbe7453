"""Sessions on the event loop: checked results, typed failures, deadlines, virtual time."""

import asyncio

import pytest

from rollart.data_plane.environment.session import EnvironmentFailure, InlineSession, open_session
from rollart.simulation.virtual_loop import run as run_virtual
from rollart.types import FailureKind, Purpose


def inline(domain, name, **settings):
    return open_session(domain(name, isolation="inline", **settings))


async def failure_of(awaitable) -> EnvironmentFailure:
    with pytest.raises(EnvironmentFailure) as caught:
        await awaitable
    return caught.value


def test_an_episode(domain):
    async def episode():
        session = open_session(domain("Polite", isolation="inline"), purpose=Purpose.EVAL, episode=7)
        assert await session.reset(3, 4) == "seed 3 task 4 split held_out episode 7"
        assert await session.random_action(9) == "random 9"
        assert await session.step("a") == (
            "1 a", 0.5, False, False, {"success": False, "metrics": {"steps": 1.0}, "is_action_valid": True},
        )  # fmt: skip
        _, _, _, _, info = await session.step("")
        assert info["is_action_valid"] is False
        _, _, terminated, _, info = await session.step("c")
        assert terminated
        assert info["success"] is True
        await session.close()
        await session.close()
        return await failure_of(session.step("d"))

    assert asyncio.run(episode()).kind is FailureKind.STEP_ERROR


def test_arguments_reach_the_factory_and_win_over_what_the_session_offers(domain):
    async def episode():
        session = open_session(domain("Polite", isolation="inline", args={"split": "mine", "goal": 1}))
        first = await session.reset(0, 0)
        return first, (await session.step("x"))[2]

    assert asyncio.run(episode()) == ("seed 0 task 0 split mine episode 0", True)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("RaisesInConstructor", FailureKind.RESET_ERROR, "reset raised OSError: no display (odd_envs.py:"),
        ("RaisesInReset", FailureKind.RESET_ERROR, "reset raised KeyError: 'map' (odd_envs.py:"),
        ("RaisesInStep", FailureKind.STEP_ERROR, "step raised ZeroDivisionError: by zero (odd_envs.py:"),
        ("Exits", FailureKind.STEP_ERROR, "step raised SystemExit: bye"),
        ("NanReward", FailureKind.STEP_ERROR, "step must pay a finite reward, not nan"),
        ("Missing", FailureKind.RESET_ERROR, "'odd_envs' has no 'Missing'"),
    ],
)
def test_what_an_environment_raises_is_typed_with_its_first_cause(domain, name, kind, message):
    async def episode():
        session = inline(domain, name)
        try:
            await session.reset(0, 0)
            await session.step("x")
        finally:
            await session.close()

    with pytest.raises(EnvironmentFailure) as caught:
        asyncio.run(episode())
    assert caught.value.kind is kind
    assert str(caught.value).startswith(f"odd_envs:{name}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, ("ok", {}), [], [{"role": "user"}], [{"role": "user", "content": 1}], b"x"])
def test_reset_must_return_an_observation(domain, value):
    failure = asyncio.run(failure_of(inline(domain, "Returns", args={"reset": value}).reset(0, 0)))
    assert failure.kind is FailureKind.RESET_ERROR
    assert "must give an observation as text or as a list of" in str(failure)
    assert ("gym_text" in str(failure)) == isinstance(value, tuple)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "ok",
        ["ok", 0.0, False, False],
        ["ok", "much", False, False, {}],
        ["ok", 0.0, False, False, "info"],
        ["ok", 0.0, False, False, {"metrics": {"a": "b"}}],
        ["ok", 0.0, False, False, {"metrics": 3}],
        [7, 0.0, False, False, {}],
        ["ok", float("inf"), False, False, {}],
    ],
)
def test_step_must_return_five_valid_values(domain, value):
    async def episode():
        session = inline(domain, "Returns", args={"step": value})
        await session.reset(0, 0)
        return await failure_of(session.step("x"))

    failure = asyncio.run(episode())
    assert failure.kind is FailureKind.STEP_ERROR
    assert "step must" in str(failure)


def test_only_the_named_part_of_info_comes_back(domain):
    info = {"success": 1, "metrics": {"a": True}, "debug": object(), "is_action_valid": 0}

    async def episode():
        session = inline(domain, "Returns", args={"step": ["ok", True, 0, 1, info]})
        await session.reset(0, 0)
        return await session.step("x")

    assert asyncio.run(episode()) == (
        "ok", 1.0, False, True, {"success": True, "metrics": {"a": 1.0}, "is_action_valid": False},
    )  # fmt: skip


def test_an_environment_without_random_policy_or_close(domain):
    async def episode():
        session = inline(domain, "Silent")
        await session.reset(0, 0)
        failure = await failure_of(session.random_action(0))
        assert await session.step("x") == ("bye", 1.0, True, False, {})
        await session.close()
        return failure

    failure = asyncio.run(episode())
    assert failure.kind is FailureKind.NO_RANDOM_POLICY
    assert not failure.kind.retryable
    assert "Silent has no method 'random_action'" in str(failure)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("DeclinesRandom", FailureKind.NO_RANDOM_POLICY), ("RaisesInRandomAction", FailureKind.STEP_ERROR)],
)
def test_a_random_policy_that_is_declined_or_broken(domain, name, kind):
    async def episode():
        session = inline(domain, name)
        await session.reset(0, 0)
        failure = await failure_of(session.random_action(0))
        await session.close()
        return failure

    assert asyncio.run(episode()).kind is kind


def test_a_session_is_one_episode(domain):
    async def episode():
        session = inline(domain, "Polite")
        await session.reset(0, 0)
        await session.reset(0, 0)

    with pytest.raises(RuntimeError, match="one episode"):
        asyncio.run(episode())


def test_an_async_environment_has_a_deadline_in_virtual_time(domain):
    async def episode():
        loop = asyncio.get_running_loop()
        session = inline(domain, "WaitsInStep", step_timeout=1000.0)
        await session.reset(0, 0)
        began = loop.time()
        failure = await failure_of(session.step("x"))
        await session.close()
        return failure, loop.time() - began

    failure, seconds = run_virtual(episode())
    assert failure.kind is FailureKind.STEP_TIMEOUT
    assert "step did not return within 1000 s" in str(failure)
    assert seconds == 1000.0


def test_a_failing_close_is_logged_and_nothing_else(domain, caplog):
    async def episode():
        session = inline(domain, "RaisesInClose")
        await session.reset(0, 0)
        await session.close()

    asyncio.run(episode())
    assert "did not close: ValueError: cannot close" in caplog.text


def test_cancelling_a_step_cancels_the_environment(domain):
    async def episode():
        session = inline(domain, "WaitsInStep")
        await session.reset(0, 0)
        step = asyncio.ensure_future(session.step("x"))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await session.close()

    asyncio.run(episode())


def test_users_code_needs_a_pool_by_default(domain):
    with pytest.raises(ValueError, match="give open_session a ProcessPool"):
        open_session(domain("Polite"))
    assert isinstance(open_session(domain("Polite", isolation="inline")), InlineSession)

"""Environments in real child processes: every way they can go wrong, and that nothing of them stays."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollart.data_plane.environment.messages import MAX_FRAME
from rollart.data_plane.environment.session import EnvironmentFailure, open_session
from rollart.types import FailureKind


def gone(pid: int) -> bool:
    """Whether a process no longer runs; an orphan may wait as a zombie for the machine's first process."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it waits for is outside this program
            await asyncio.sleep(0.01)


async def played(pool, config, action="x"):
    session = open_session(config, pool=pool)
    try:
        await session.reset(1, 2)
        return (await session.step(action))[0]
    finally:
        await session.close()


async def failed(pool, config, action="x") -> EnvironmentFailure:
    with pytest.raises(EnvironmentFailure) as caught:
        await played(pool, config, action)
    return caught.value


@pytest.mark.parametrize(
    ("name", "kind", "reused"),
    [
        ("Silent", FailureKind.NO_RANDOM_POLICY, True),
        ("DeclinesRandom", FailureKind.NO_RANDOM_POLICY, True),
        ("RaisesInRandomAction", FailureKind.STEP_ERROR, False),
    ],
)
def test_a_random_policy_that_is_missing_or_broken(domain, with_pool, name, kind, reused):
    async def body(pool):
        session = open_session(domain(name), pool=pool)
        await session.reset(0, 0)
        pids = {child.pid for child in pool._children}
        with pytest.raises(EnvironmentFailure) as caught:
            await session.random_action(0)
        assert caught.value.kind is kind
        await session.close()
        again = open_session(domain(name), pool=pool)
        await again.reset(0, 0)
        assert ({child.pid for child in pool._children if child.alive} == pids) is reused
        await again.close()

    with_pool(body)


def test_an_episode_and_the_reuse_of_its_process(domain, with_pool):
    async def body(pool):
        session = open_session(domain("Polite"), pool=pool, episode=5)
        assert await session.reset(1, 2) == "seed 1 task 2 split train episode 5"
        assert await session.random_action(3) == "random 3"
        assert await session.step("go") == (
            "1 go", 0.5, False, False, {"success": False, "metrics": {"steps": 1.0}, "is_action_valid": True},
        )  # fmt: skip
        await session.close()
        await session.close()
        first, made = (await played(pool, domain("Process"))).split()
        second, made_again = (await played(pool, domain("Process"))).split()
        assert first == second
        assert (made, made_again) == ("1", "2")  # one process, a fresh environment for each episode
        assert pool.alive == 2

    with_pool(body)


def test_observations_of_messages_and_async_environments(domain, with_pool):
    async def body(pool):
        chat = open_session(domain("Chat"), pool=pool)
        assert await chat.reset(0, 0) == [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]
        await chat.close()
        session = open_session(domain("Asynchronous"), pool=pool)
        await session.reset(0, 0)
        await until_ticking(session)
        await session.close()

    async def until_ticking(session):
        """Its background task goes on between the steps."""
        async with asyncio.timeout(20):
            while int((await session.step("x"))[0]) < 3:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.01)

    with_pool(body)


def test_a_sync_environment_may_run_loops_of_its_own(domain, with_pool):
    assert with_pool(lambda pool: played(pool, domain("NoRunningLoop"))) == "1 x"


@pytest.mark.parametrize(
    ("name", "settings", "kind", "message"),
    [
        ("RaisesInReset", {}, FailureKind.RESET_ERROR, "reset raised KeyError: 'map' (odd_envs.py:"),
        ("RaisesInStep", {}, FailureKind.STEP_ERROR, "step raised ZeroDivisionError: by zero (odd_envs.py:"),
        ("HangsInReset", {"reset_timeout": 0.7}, FailureKind.RESET_TIMEOUT, "reset did not return within 0.7 s"),
        ("HangsInStep", {"step_timeout": 0.5}, FailureKind.STEP_TIMEOUT, "about to wait for ever"),
        ("WaitsInStep", {"step_timeout": 0.2}, FailureKind.STEP_TIMEOUT, "step did not return within 0.2 s"),
        ("Segfaults", {}, FailureKind.ENVIRONMENT_CRASH, "ended with signal 11 (Segmentation fault) in step"),
        ("Vanishes", {}, FailureKind.ENVIRONMENT_CRASH, "exit code 7 in step; its last output:\n  last words"),
    ],
)
def test_failures_are_typed_and_the_process_does_not_outlive_them(domain, with_pool, name, settings, kind, message):
    async def body(pool):
        failure = await failed(pool, domain(name, **settings))
        assert failure.kind is kind
        assert str(failure).startswith(f"odd_envs:{name}: ")
        assert message in str(failure)
        await until(lambda: pool.alive == 0)

    with_pool(body)


def test_a_sibling_does_not_notice(domain, with_pool):
    async def body(pool):
        sibling = open_session(domain("Polite"), pool=pool)
        await sibling.reset(0, 0)
        await failed(pool, domain("Segfaults"))
        await failed(pool, domain("HangsInStep", step_timeout=0.3))
        assert (await sibling.step("still here"))[0] == "1 still here"
        await sibling.close()

    with_pool(body)


def test_what_it_prints_does_not_disturb_the_protocol(domain, with_pool):
    assert with_pool(lambda pool: played(pool, domain("Prints"))) == "1 x"


def test_observations_are_large_up_to_a_limit(domain, with_pool):
    async def body(pool):
        large = 10_000_000
        assert await played(pool, domain("Huge"), str(large)) == "x" * large
        failure = await failed(pool, domain("Huge"), str(MAX_FRAME))
        assert failure.kind is FailureKind.STEP_ERROR
        assert f"more than the {MAX_FRAME} that one may have" in str(failure)

    with_pool(body)


def test_what_it_started_ends_with_it(domain, with_pool):
    async def body(pool):
        config = domain("LeavesProcess")
        session = open_session(config, pool=pool)
        await session.reset(0, 0)
        return int((await session.step("x"))[0])

    pid = with_pool(body)
    asyncio.run(until(lambda: gone(pid)))


@pytest.mark.parametrize("name", ["RaisesInClose", "HangsInClose"])
def test_a_failing_close_is_logged_and_costs_the_process(domain, with_pool, monkeypatch, caplog, name):
    monkeypatch.setattr("rollart.data_plane.environment.process.CLOSE_SECONDS", 0.2)

    async def body(pool):
        assert await played(pool, domain(name)) == "1 x"
        await until(lambda: pool.alive == 0)

    with_pool(body)
    assert "did not close" in caplog.text


@pytest.mark.parametrize("name", ["HangsInReset", "HangsInStep"])
def test_cancellation_kills_the_process_at_once(domain, with_pool, name):
    async def body(pool):
        session = open_session(domain(name), pool=pool)

        async def play():
            await session.reset(0, 0)
            await session.step("x")

        task = asyncio.ensure_future(play())
        await until(lambda: pool.alive == 1)
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: pool.alive == 0)
        await session.close()
        assert await played(pool, domain("Polite")) == "1 x"

    with_pool(body, limit=1)


def test_never_more_children_than_the_limit(domain, with_pool):
    async def body(pool):
        most = 0

        async def watch():
            nonlocal most
            while True:
                most = max(most, pool.alive)
                await asyncio.sleep(0)

        watcher = asyncio.ensure_future(watch())
        configs = [domain(name) for name in ("Polite", "Vanishes", "Process", "RaisesInStep", "Silent", "Polite")]
        results = await asyncio.gather(*(played(pool, config) for config in configs), return_exceptions=True)
        watcher.cancel()
        assert most == 2
        return [isinstance(result, EnvironmentFailure) for result in results]

    assert with_pool(body) == [False, True, False, True, False, False]


def test_waiting_for_a_process_has_a_deadline(domain, with_pool):
    async def body(pool):
        holder = open_session(domain("Polite"), pool=pool)
        await holder.reset(0, 0)
        failure = await failed(pool, domain("Polite"))
        assert failure.kind is FailureKind.RESET_TIMEOUT
        assert "no environment process became free within 0.05 s, all 1 are busy" in str(failure)
        await holder.close()
        assert await played(pool, domain("Polite")) == "1 x"

    with_pool(body, limit=1, max_wait=0.05)


def test_an_idle_process_that_died_is_not_used(domain, with_pool):
    async def body(pool):
        pid = int((await played(pool, domain("Process"))).split()[0])
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pool.alive == 0)
        assert int((await played(pool, domain("Process"))).split()[0]) != pid

    with_pool(body)


def test_a_closed_pool_refuses_and_arguments_must_be_data(domain, with_pool):
    async def body(pool):
        failure = await failed(pool, domain("Polite", args={"goal": object()}))
        assert failure.kind is FailureKind.RESET_ERROR
        await pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            await played(pool, domain("Polite"))

    with_pool(body)
    with pytest.raises(ValueError, match="1 or more"):
        with_pool(None, limit=0)


def test_children_die_with_their_parent(tmp_path):
    """Also those that hang, and also when the parent gets no chance to end them."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, os, signal, sys
            sys.path.insert(0, {str(Path(__file__).parent / "modules")!r})
            from rollart.config.domains import DomainConfig
            from rollart.data_plane.environment.process import ProcessPool
            from rollart.data_plane.environment.session import open_session

            async def main():
                pool = ProcessPool(1)
                config = DomainConfig(env="odd_envs:HangsInStep")
                session = open_session(config, pool=pool)
                await session.reset(0, 0)
                step = asyncio.ensure_future(session.step("x"))
                await asyncio.sleep(0.2)
                child = next(iter(pool._children))
                print(child.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL
    asyncio.run(until(lambda: gone(int(parent.stdout))))


def test_the_child_imports_little():
    code = (
        "import sys, rollart.data_plane.environment.child; print(sorted({'torch', 'ray', 'transformers', 'pydantic', "
        "'jinja2', 'gymnasium', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

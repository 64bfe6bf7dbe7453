"""Simulated environment hosts: real EnvManagers around emulated environments and a shared reward capacity."""

import pytest

from rollart.config.load import simulated_config
from rollart.control_plane.env_host import EnvHost
from rollart.simulation.environment_parts import PARTS, SimulatedEnvHost
from rollart.simulation.virtual_loop import run
from rollart.types import (
    EngineAddress,
    EpisodeSpec,
    GenerationResult,
    LengthSpan,
    ResultStatus,
    TrajectoryId,
    VersionRun,
)

QUIET = {"turns": 3, "first_observation": 100, "observation": 10, "reset_seconds": 4, "step_seconds": 2, "success": 1}


def play(workloads, episodes=4, settings=None, number=0):
    """Trajectories, failures and statistics of one host whose engine answers each request with 5 tokens at once."""

    async def main():
        data = {"simulation": {"workloads": workloads, "reward": {"overhead": 0, "cold_start": 1, "keep_alive": 100}}}
        config = simulated_config(data, settings or {})
        host = SimulatedEnvHost(PARTS, [config.model_dump_json(), str(number)])
        ids = [TrajectoryId(name, 0, 0, member) for name in workloads for member in range(episodes)]
        specs = [EpisodeSpec(each, 11) for each in ids]
        results, finished, failures = [], [], []
        while len(finished) + len(failures) < len(ids):
            await host.post(specs, results, [], [])
            report = await host.collect(1000)
            specs = []
            results = [
                GenerationResult(
                    *(request.trajectory, request.turn, request.attempt, EngineAddress(0), ResultStatus.DONE),
                    LengthSpan(5),
                    (VersionRun(0, 5),),
                )
                for request in report.requests
            ]
            finished += report.finished
            failures += report.failures
        stats = await host.reward_stats()
        await host.stop()
        return finished, failures, stats

    return run(main())


def test_the_domains_of_a_host_share_its_reward_capacity():
    quiet = QUIET | {"reward_seconds": 3}
    finished, failures, stats = play({"a": quiet, "b": quiet}, settings={"simulation.reward.concurrency": 4})
    assert not failures
    assert {each.score.value for each in finished} == {1.0}
    assert {each.total_tokens for each in finished} == {100 + 2 * 10 + 3 * 5}
    # Four instances start together; the second four calls wait for the first.
    assert sorted(each.seconds["reward"] for each in finished) == [4, 4, 4, 4, 7, 7, 7, 7]
    assert {(each.seconds["reset"], each.seconds["step"]) for each in finished} == {(4, 6)}
    assert (stats.calls, stats.cold_starts, stats.busy_seconds, stats.peak_instances) == (8, 4, 24, 4)


def test_each_host_has_its_part():
    settings = {"simulation.reward.concurrency": 3, "rollout.hosts": 2}
    assert [play({"a": QUIET}, 8, settings, number)[2].peak_instances for number in (0, 1)] == [2, 1]


def test_failed_rewards_are_retried_then_raised_and_never_a_zero():
    flaky = QUIET | {"reward_error": 0.5}
    finished, failures, stats = play({"a": flaky}, 64, {"domains.a.reward.retries": 1})
    assert {failure.kind.value for failure in failures} == {"reward_error"}
    assert "2 tries" in failures[0].message
    assert 6 < len(failures) < 28
    assert {each.score.value for each in finished} == {1.0}
    assert stats.calls > 64
    assert [each.id for each in play({"a": flaky}, 64, {"domains.a.reward.retries": 1})[0]] == [
        each.id for each in finished
    ]


def test_a_reward_past_its_deadline_times_out():
    finished, failures, stats = play({"a": QUIET | {"reward_seconds": 50}}, 2, {"domains.a.reward.timeout": 20})
    assert not finished
    assert {failure.kind.value for failure in failures} == {"reward_timeout"}
    assert stats.busy_seconds == 2 * 3 * 20


def test_what_is_wrong_is_said_before_anything_runs():
    with pytest.raises(ValueError, match="success is 3"):
        play({"a": QUIET}, settings={"domains.a.args.success": 3})
    with pytest.raises(ValueError, match="did you mean 'H800'"):
        play({"a": QUIET}, settings={"simulation.reward": {"kind": "dedicated", "hardware": "H801"}})


def test_only_simulated_parts_have_statistics():
    async def main():
        config = simulated_config({"simulation": {"workloads": {"a": QUIET}}})
        host = SimulatedEnvHost("rollart.control_plane.domain_parts:build_parts", [config_json(config), ""])
        assert isinstance(host, EnvHost)
        await host.reward_stats()

    def config_json(config):
        return config.model_dump_json(exclude={"simulation"})

    with pytest.raises(TypeError, match=r"environment_parts:build_parts"):
        run(main())

"""Built-in workloads against what the paper says of them, and workloads made from a run's log."""

import math
import random
import statistics

import pytest
import yaml

from rollart.config import workloads as table
from rollart.config.draw import draw, mean_of, sampler, upper_end
from rollart.config.load import simulated_config
from rollart.config.simulation import WorkloadConfig, mean_tokens
from rollart.events import (
    EventLog,
    RunStarted,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    TurnFinished,
)
from rollart.simulation.environment_parts import PARTS, SimulatedEnvHost
from rollart.simulation.virtual_loop import run
from rollart.simulation.workloads import ENOUGH, KEPT, PRODUCTION, WORKLOADS, LogError, workload_from_log
from rollart.types import (
    EngineAddress,
    EpisodeSpec,
    GenerationResult,
    LengthSpan,
    Outcome,
    Purpose,
    ResultStatus,
    TrajectoryId,
    VersionRun,
    derive_seed,
)

CLEAN_ITERATION = 365.7
"""Seconds, of which env.reset has 14.6 %, and env.step and reward have 8.5 % (the paper's characterisation)."""

BATCH = 128


def trajectory(workload, source):
    """Turns, prompt tokens and generated tokens of one trajectory."""
    turns = max(1, round(draw(workload.turns, source)))
    observed = draw(workload.first_observation, source)
    observed += sum(draw(workload.observation, source) for _ in range(turns - 1))
    return turns, observed, sum(draw(workload.action, source) for _ in range(turns))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_trajectories_fit_the_context(workload):
    source = random.Random(1)
    totals = [sum(trajectory(workload, source)[1:]) for _ in range(2_000)]
    assert sum(total > workload.max_context for total in totals) <= 0.01 * len(totals)
    assert statistics.fmean(totals) == pytest.approx(mean_tokens(workload), rel=0.05)


@pytest.mark.parametrize("name", WORKLOADS)
def test_character(name):
    source = random.Random(2)
    drawn = [trajectory(WORKLOADS[name], source) for _ in range(1_000)]
    prompts, actions = (sum(each[part] for each in drawn) for part in (1, 2))
    if name.startswith("gem_"):
        assert actions > 5 * prompts
    else:
        assert prompts > 1.4 * actions


def test_swe_bench_has_the_latencies_of_the_clean_iteration():
    swe = WORKLOADS["swe_bench"]
    source, reset = random.Random(3), sampler(swe.reset_seconds)
    slowest = statistics.fmean(max(reset(source) for _ in range(BATCH)) for _ in range(1_000))
    assert slowest == pytest.approx(0.146 * CLEAN_ITERATION, rel=0.05)
    acting = mean_of(swe.turns) * mean_of(swe.step_seconds) + mean_of(swe.reward_seconds)
    assert acting == pytest.approx(0.085 * CLEAN_ITERATION, rel=0.05)


def test_production_has_the_shape_of_the_papers_jobs():
    names, weights = list(PRODUCTION), [workload.weight for workload in PRODUCTION.values()]
    assert sum(weights) == pytest.approx(1)
    means = [mean_of(workload.turns) for workload in PRODUCTION.values()]
    assert (min(means), max(means)) == (1, pytest.approx(48, rel=0.05))
    assert all(mean < 5 or mean > 10 for mean in means)
    assert {upper_end(workload.first_observation) for workload in PRODUCTION.values()} == {12_000}
    for workload in PRODUCTION.values():
        assert upper_end(workload.turns) * upper_end(workload.action) <= 46_000
    source = random.Random(4)
    longest, most = [], []
    for _ in range(5):
        batch = [trajectory(PRODUCTION[name], source) for name in source.choices(names, weights, k=4_096)]
        responses, turns = [generated for *_, generated in batch], [turns for turns, *_ in batch]
        longest.append(max(responses) / statistics.fmean(responses))
        most.append(max(turns) / statistics.fmean(turns))
    assert all(5 < ratio < 11 for ratio in longest)
    assert all(ratio > 40 for ratio in most)


def test_every_value_says_how_it_is_known():
    for name, fields in table.BUILT_IN.items():
        assert set(fields) <= set(WorkloadConfig.model_fields), name
        for field, known in fields.items():
            assert known.source, f"{name}.{field}"
            assert known.basis == "assumed" or known.source.startswith("paper, "), f"{name}.{field}"


KNOWN = WorkloadConfig.model_validate(
    {
        "turns": [3, 12],
        "first_observation": {"median": 400, "sigma": 0.4},
        "observation": {"median": 60, "sigma": 0.7},
        "action": {"median": 30, "sigma": 0.5, "max": 200},
        "reset_seconds": {"median": 9, "sigma": 0.8},
        "step_seconds": {"mean": 2, "std": 1},
        "reward_seconds": {"median": 4, "sigma": 0.5},
        "reset_error": 0.04,
        "reset_hang": 0.02,
        "step_error": 0.01,
        "step_hang": 0.005,
        "reward_error": 0.4,
        "success": 0.3,
        "max_new_tokens": 200,
    }
)


def record(folder, workload, episodes, turns):
    """The run folder of ``episodes`` that a host plays of the domain ``known``, as the control plane logs them."""
    data = {"simulation": {"workloads": {"known": workload.model_dump()}, "reward": {"kind": "free", "overhead": 0}}}
    config = simulated_config(data)

    async def main():
        log = EventLog(folder / "events", "run", "control", 0.0, 0.0, lambda: 0.0)
        log.emit(RunStarted("rollart", 1, 0, 1, 1, 1, {"known": 1.0}, {}))
        host, action = SimulatedEnvHost(PARTS, [config.model_dump_json(), "0"]), sampler(workload.action)
        source = random.Random(8)
        ids = [TrajectoryId("known", task, task, 0) for task in range(episodes)]
        specs, results, running = [EpisodeSpec(each, derive_seed(5, each.task)) for each in ids], [], len(ids)
        for each in ids:
            log.emit(TrajectoryStarted(each, 0, "host"))
        while running:
            await host.post(specs, results, [], [])
            report = await host.collect(10_000)
            specs, results = [], []
            for request in report.requests:
                made = max(1, round(action(source)))
                address, run_of = EngineAddress(0), (VersionRun(0, made),)
                results.append(
                    GenerationResult(
                        *(request.trajectory, request.turn, 0, address, ResultStatus.DONE, LengthSpan(made), run_of)
                    )
                )
                if turns:
                    # Every ninth trajectory's engine loses its session once: the whole history is sent again.
                    lost = request.trajectory.task % 9 == 0 and request.turn == 2
                    new = len(request.new) + lost * request.prefix_length
                    log.emit(TurnFinished(request.trajectory, request.turn, address, new, 0, made, 1.0))
            for each in report.finished:
                count = sum(1 for _ in each.turns())
                tokens, limit = (each.generated_tokens, each.total_tokens), each.limit and each.limit.value
                score = (each.id, each.score.value, each.score.success)
                log.emit(TrajectoryScored(*score, count, *tokens, 0, limit, each.seconds))
                log.emit(TrajectoryEnded(each.id, Outcome.TRAINED))
            for failure in report.failures:
                log.emit(TrajectoryEnded(failure.id, Outcome.FAILED, failure.kind))
            running -= len(report.finished) + len(report.failures)
        await host.stop()
        log.close()

    run(main())
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return folder


def assert_same_mean(found, known, count):
    """Within 4.5 standard errors of ``count`` draws."""
    source, compiled = random.Random(9), sampler(known)
    deviation = statistics.pstdev(compiled(source) for _ in range(5_000))
    assert mean_of(found) == pytest.approx(mean_of(known), abs=4.5 * deviation / math.sqrt(count) + 0.05)


def test_a_log_gives_the_workload_back(tmp_path):
    episodes = 3_000
    (found,) = workload_from_log(record(tmp_path, KNOWN, episodes, turns=True)).values()
    scored = 0.7 * episodes
    for field in ("turns", "first_observation", "reset_seconds"):
        assert_same_mean(getattr(found, field), getattr(KNOWN, field), scored)
    for field in ("observation", "action"):
        assert_same_mean(getattr(found, field), getattr(KNOWN, field), 7 * scored)
    assert_same_mean(found.step_seconds, KNOWN.step_seconds, scored)
    for field, error in (("reset_error", 0.013), ("reset_hang", 0.01), ("step_error", 0.004), ("step_hang", 0.003)):
        assert getattr(found, field) == pytest.approx(getattr(KNOWN, field), abs=error), field
    assert found.reward_error == pytest.approx(KNOWN.reward_error, abs=0.05)  # the third root of a small share
    assert found.success == pytest.approx(KNOWN.success, abs=0.05)
    assert (found.max_turns, found.max_context, found.max_new_tokens) == (12, 32768, 200)
    assert len(found.observation["sample"]) == KEPT
    spread = [statistics.pstdev(found.action["sample"]), statistics.pstdev(sample_of(KNOWN.action))]
    assert spread[0] == pytest.approx(spread[1], rel=0.1)


def sample_of(distribution):
    source, compiled = random.Random(6), sampler(distribution)
    return [compiled(source) for _ in range(5_000)]


def test_without_turn_records_the_means_are_kept(tmp_path):
    known = WorkloadConfig.model_validate(KNOWN.model_dump() | {"step_error": 0, "step_hang": 0})
    (found,) = workload_from_log(record(tmp_path, known, 2_000, turns=False)).values()
    assert_same_mean(found.turns, known.turns, 1_500)
    assert mean_of(found.action) == pytest.approx(mean_of(known.action), rel=0.05)
    assert mean_of(found.observation) == pytest.approx(mean_of(known.observation), rel=0.1)
    assert mean_of(found.first_observation) == pytest.approx(mean_of(known.first_observation), rel=0.1)


def test_a_workload_from_a_log_can_be_simulated(tmp_path):
    found = workload_from_log(record(tmp_path / "first", KNOWN, 400, turns=True))["known"]
    again = workload_from_log(record(tmp_path / "second", found, 400, turns=True))["known"]
    assert mean_tokens(again) == pytest.approx(mean_tokens(found), rel=0.1)
    assert again == workload_from_log(tmp_path / "second")["known"]


def write_log(folder, events):
    log = EventLog(folder / "events", "run", "control", 0.0, 0.0, lambda: 0.0)
    for event in events:
        log.emit(event)
    log.close()
    return folder


def scored(member, turns=1, purpose=Purpose.TRAIN, success=None):
    each = TrajectoryId("lake", 0, 0, member, 0, purpose)
    return TrajectoryScored(each, 0.5, success, turns, 5 * turns, 100 + 15 * turns, 0, None, {"reset": 1.0})


STARTED = RunStarted("rollart", 1, 0, 1, 1, 1, {"lake": 1.0}, {})


def test_a_log_with_too_little_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no event log"):
        workload_from_log(tmp_path)
    with pytest.raises(LogError, match="no record of the run's start"):
        workload_from_log(write_log(tmp_path / "a", [scored(0)]))
    too_few = [STARTED, *(scored(member) for member in range(ENOUGH - 1)), scored(99, purpose=Purpose.EVAL)]
    with pytest.raises(LogError, match=rf"domain 'lake' has {ENOUGH - 1} scored trajectories.*let the run go on"):
        workload_from_log(write_log(tmp_path / "b", too_few))
    folder = write_log(tmp_path / "c", [STARTED, *(scored(member) for member in range(ENOUGH))])
    (folder / "config.yaml").write_text("domains: 3\n")
    with pytest.raises(LogError, match=r"config\.yaml is not the configuration of a run"):
        workload_from_log(folder)


def test_a_log_alone_is_enough(tmp_path):
    events = [STARTED, *(scored(member, turns=1 + member % 3) for member in range(30))]
    lake = workload_from_log(write_log(tmp_path, events))["lake"]
    assert (mean_of(lake.first_observation), lake.observation, lake.action) == (110, 10, 5)
    assert (lake.reset_seconds, lake.max_turns, lake.success) == (1, 3, 1)
    assert lake.reward_error == lake.step_error == lake.reset_hang == 0


def test_equal_turns_share_the_prompt_evenly(tmp_path):
    lake = workload_from_log(write_log(tmp_path, [STARTED, *(scored(member, 4) for member in range(20))]))["lake"]
    assert (lake.first_observation, lake.observation, lake.turns) == (35, 35, 4)

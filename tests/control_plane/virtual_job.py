"""A whole job in virtual time: emulated environments, engine and trainer around the real control plane.

``play(scenario)`` runs it and returns everything that happened; ``violations(story)`` lists every broken
invariant of the design. Scenarios are drawn at random by the property tests, and by seed by the mutant tests.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rollart.config.config import Config
from rollart.config.modes import PRESETS, Mode, Switches
from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.job import Job, JobHooks
from rollart.control_plane.job_state import JobState
from rollart.control_plane.rollout_scheduler import StarvedError
from rollart.control_plane.wiring import JobWorkers
from rollart.data_plane.generation.emulated import EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.worker import EmulatedGenerator
from rollart.data_plane.training.emulated import EmulatedLearner, EmulatedTimes, emulated_manifest
from rollart.events import (
    Alarm,
    BatchFormed,
    DomainSuspended,
    Event,
    RunEnded,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
)
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.runtime import Placement, PlacementError, WorkerHandle
from rollart.simulation import virtual_loop
from rollart.types import FailureKind, Outcome, Purpose, TrainBatch, TrajectoryId

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Checkpoints of emulated runs are worth no disk."""

EVENT_LIMIT = 3_000
"""A scenario needs a few hundred."""

VIRTUAL_LIMIT = 1_000.0
"""Virtual seconds after which a run counts as hanging; a scenario needs a few dozen."""


SPEED = EmulatedSpeed(step_seconds=0.02, row_seconds=0.001)
LENGTHS = EmulatedLengths(mean=6.0, spread=0.7)


NEVER = 50
"""Failed groups in a row that no scenario reaches by chance."""


class Scenario(msgspec.Struct, frozen=True):
    """What varies between runs."""

    seed: int = 0
    alpha: int = 1
    """Only read by modes that train behind their rollout."""
    mode: Mode = "rollart"
    update: str | None = None
    stale: str | None = None
    interaction: str | None = None
    scoring: str | None = None
    transfer: str | None = None
    """Switches that are not the mode's."""
    iterations: int = 3
    weights: tuple[float, ...] = (1.0, 1.0)
    groups_per_batch: int = 4
    group_size: int = 2
    turns: int = 3
    redundant_members: int = 0
    redundant_groups: int = 0
    max_environments: int = 64
    hosts: int = 1
    engines: int = 1
    retries: int = 1
    starvation_limit: int = NEVER
    """Below :data:`NEVER` a run may rightly end because its last domain was suspended."""
    mix_tolerance: float = 1.0
    filter_zero_variance: bool = False
    mask_truncated: bool = False
    slow: tuple[float, float] = (0.0, 0.2)
    """Seconds of a step in the first domain, uniform."""
    fast: tuple[float, float] = (0.0, 0.05)
    step_error: float = 0.0
    reset_error: float = 0.0
    step_hang: float = 0.0
    train: float = 0.3
    publish: float = 0.05
    report: float = 0.0
    evaluate_every: int = 0
    kills: tuple[tuple[float, int], ...] = ()
    """When the process of which host dies, in virtual seconds."""
    restart: tuple[float, int] = (0.0, 0)
    """Seconds until a host is back, and how many starts fail before one succeeds."""
    host_restarts: int = 100
    max_train_seconds: float | None = None
    hopeless: bool = False
    """Nothing ever starts in the first domain."""

    @property
    def switches(self) -> Switches:
        return config_of(self).switches


class Story(msgspec.Struct):
    """What happened."""

    scenario: Scenario
    events: list[Event]
    batches: list[TrainBatch]
    error: BaseException | None
    breaches: list[str]
    """Bounds that were exceeded at some moment."""


class Recorder:
    """Keeps the events and checks the bounds at each of them."""

    def __init__(self, scenario: Scenario) -> None:
        self.events: list[Event] = []
        self.breaches: list[str] = []
        self._scenario = scenario
        self._alpha = scenario.switches.alpha
        self.job: Job | None = None

    def emit(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) > EVENT_LIMIT:
            raise AssertionError(f"the run goes on for ever: {EVENT_LIMIT} events")
        wiring = None if self.job is None else self.job.wiring
        if wiring is None:
            return
        scenario = self._scenario
        capacity = (self._alpha + 1) * scenario.groups_per_batch + scenario.redundant_groups
        if wiring.scheduler.environments > scenario.max_environments:
            self.breaches.append(f"{wiring.scheduler.environments} environments alive")
        if wiring.scheduler.live_groups > capacity:
            self.breaches.append(f"{wiring.scheduler.live_groups} live groups, the bound is {capacity}")
        if wiring.proxy.running + wiring.proxy.waiting > 2 * scenario.max_environments:
            self.breaches.append("more requests than environments")


def config_of(scenario: Scenario) -> Config:
    domains: dict[str, Any] = {}
    for number, weight in enumerate(scenario.weights):
        domains[f"d{number}"] = {
            "env": "emulated",
            "weight": weight,
            "max_turns": scenario.turns,
            "max_context": 4096,
            "truncated": "mask" if scenario.mask_truncated else "train",
            "reset_timeout": 2.0,
            "step_timeout": 2.0,
            "args": {
                "turns": [1, scenario.turns + 1],
                "first_observation": [2, 10],
                "observation": [1, 6],
                "reset_seconds": [0.0, 0.1],
                "step_seconds": list(scenario.slow if number == 0 else scenario.fast),
                "reset_error": 1.0 if scenario.hopeless and number == 0 else scenario.reset_error,
                "step_error": scenario.step_error,
                "step_hang": scenario.step_hang,
            },
        }
    return Config.model_validate(
        {
            "run": {
                "seed": scenario.seed,
                "mode": scenario.mode,
                "alpha": scenario.alpha if PRESETS[scenario.mode].alpha else None,
                "update": scenario.update,
                "stale": scenario.stale,
                "iterations": scenario.iterations,
                "max_train_seconds": scenario.max_train_seconds,
            },
            "domains": domains,
            "rollout": {
                "groups_per_batch": scenario.groups_per_batch,
                "group_size": scenario.group_size,
                "redundant_members": scenario.redundant_members,
                "redundant_groups": scenario.redundant_groups,
                "max_environments": scenario.max_environments,
                "retries": scenario.retries,
                "mix_tolerance": scenario.mix_tolerance,
                "filter_zero_variance": scenario.filter_zero_variance,
                "starvation_limit": scenario.starvation_limit,
                "hosts": scenario.hosts,
                "host_restarts": scenario.host_restarts,
                "interaction": scenario.interaction,
                "scoring": scenario.scoring,
            },
            "weights": {"transfer": scenario.transfer},
            "engine": {"count": scenario.engines},
            "evaluation": {"instances": 2 if scenario.evaluate_every else 0, "every": scenario.evaluate_every},
        }
    )


async def _play(
    scenario: Scenario,
    recorder: Recorder,
    batches: list[TrainBatch],
    folder: Path,
    start: JobState,
    stop_after: int | None,
) -> None:
    runtime = InProcessRuntime()
    config = config_of(scenario)

    async def spawn(worker: type, name: str, *args: Any) -> Any:
        return await runtime.spawn(worker, Placement(name, name, "local", "CPU"), args, 10.0)

    async def host(number: int) -> WorkerHandle:
        name, parts = f"environment-{number}", "rollart.control_plane.domain_parts:build_parts"
        return await spawn(EnvHost, name, parts, [text, ""])

    async def restart(number: int) -> WorkerHandle:
        seconds, failures = scenario.restart
        await asyncio.sleep(seconds)
        restarts[number] += 1
        if restarts[number] % (failures + 1):
            raise PlacementError(f"environment-{number} does not start")
        return await host(number)

    async def kill(moment: float, number: int) -> None:
        await asyncio.sleep(moment)
        if job.wiring is not None:
            dead.append(job.wiring.hosts[number].handle)
            await dead[-1].kill()

    dead: list[WorkerHandle] = []  # kept: in one process the episodes of a dead host play on, unheard
    restarts: Counter[int] = Counter()
    text = config.model_dump_json()
    checksum = emulated_manifest(0).checksum
    workers = JobWorkers(
        await spawn(
            EmulatedLearner,
            "train-0",
            scenario.seed,
            EmulatedTimes(scenario.train, scenario.publish, scenario.report, 0.5),
        ),
        [
            await spawn(EmulatedGenerator, f"generate-{number}", text, number, checksum, SPEED, LENGTHS)
            for number in range(scenario.engines)
        ],
        [await host(number) for number in range(scenario.hosts)],
        restart,
    )
    hooks = JobHooks(batches.append, lambda index: job.interrupt() if index + 1 == stop_after else None)
    job = Job(config, workers, {"default": "CPU"}, folder, recorder, hooks, start)
    recorder.job = job
    kills = [asyncio.create_task(kill(*each)) for each in scenario.kills]
    try:
        async with asyncio.timeout(VIRTUAL_LIMIT):
            await job.run()
        if job.wiring is not None and (held := job.wiring.proxy.sessions):
            recorder.breaches.append(f"{held} sessions left at the LLMProxy")
    except TimeoutError as error:
        raise AssertionError(f"the run hangs; who waits for whom:\n{job.wait_graph()}") from error
    finally:
        for each in kills:
            each.cancel()
        await runtime.stop()


def play(
    scenario: Scenario,
    run_folder: Path | None = None,
    start: JobState = JobState(),  # noqa: B008 - immutable
    stop_after: int | None = None,
) -> Story:
    """Play a scenario.

    Args:
        run_folder: Keeps the checkpoints; they are thrown away by default.
        start: Where a resumed run goes on.
        stop_after: The user stops the run when so many iterations have been made.
    """
    recorder = Recorder(scenario)
    batches: list[TrainBatch] = []
    error: BaseException | None = None
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        folder = run_folder or Path(scratch)
        try:
            virtual_loop.run(_play(scenario, recorder, batches, folder, start, stop_after))
        except Exception as raised:  # noqa: BLE001 - judged by the caller
            error = raised
    return Story(scenario, recorder.events, batches, error, recorder.breaches)


def violations(story: Story) -> list[str]:
    """Every invariant of the design that the story breaks, in words."""
    found = [*story.breaches]
    starved = isinstance(story.error, StarvedError) and story.scenario.starvation_limit < NEVER
    if story.error is not None and not starved:
        found.append(f"liveness: {type(story.error).__name__}: {story.error}")
    found += _staleness(story)
    found += _outcomes(story)
    found += _trained_once(story)
    found += _versions(story)
    found += _mix(story)
    found += _lost_hosts(story)
    if story.error is None and len(story.batches) != story.scenario.iterations:
        found.append(f"liveness: {len(story.batches)} batches of {story.scenario.iterations}")
    return found


def _staleness(story: Story) -> list[str]:
    """Invariant 1, of what is trained: policy ``train`` has no such bound."""
    alpha, _, stale, *_ = story.scenario.switches
    if stale == "train":
        return []
    return [
        f"staleness: {member.id} started at {member.start_version} in batch {batch.index}"
        for batch in story.batches
        for group in batch.groups
        for position, member in enumerate(group.members)
        if position not in group.withheld
        and (member.start_version is None or not 0 <= batch.index - member.start_version <= alpha)
    ]


def _outcomes(story: Story) -> list[str]:
    """Invariant 2."""
    open_: Counter[TrajectoryId] = Counter()
    known: set[TrajectoryId] = set()
    found = []
    for event in story.events:
        if isinstance(event, TrajectoryStarted):
            open_[event.id] += 1
            if event.id in known:
                found.append(f"outcome: {event.id} was started twice")
            known.add(event.id)
        elif isinstance(event, TrajectoryEnded):
            open_[event.id] -= 1
            if open_[event.id] != 0:
                found.append(f"outcome: {event.id} ended without being in flight")
            if story.error is None and event.message.startswith("not confirmed"):
                found.append(f"outcome: {event.id} was never confirmed by its host")
    found += [f"outcome: {id} has {count} missing outcomes" for id, count in open_.items() if count > 0]
    ended = [event for event in story.events if isinstance(event, RunEnded)]
    if len(ended) != 1:
        found.append(f"outcome: the run ended {len(ended)} times")
    return found


def _trained_once(story: Story) -> list[str]:
    """Invariant 8: what is in a batch is trained, once; nothing else is."""
    in_batches = Counter(member.id for batch in story.batches for group in batch.groups for member in group.members)
    trained = Counter(
        event.id
        for event in story.events
        if isinstance(event, TrajectoryEnded) and event.outcome in (Outcome.TRAINED, Outcome.WITHHELD)
    )
    found = [f"trained: {id} is in {count} batches" for id, count in in_batches.items() if count > 1]
    if story.error is None and trained != in_batches:
        found.append(f"trained: {sum((in_batches - trained).values())} members of batches have no trained outcome")
    found += [f"trained: {id} is an evaluation" for id in in_batches if id.purpose is Purpose.EVAL]
    sizes = {len(group.members) for batch in story.batches for group in batch.groups}
    if sizes - {story.scenario.group_size}:
        found.append(f"group: sizes {sizes}")
    return found


def _versions(story: Story) -> list[str]:
    """Invariant 4, the part a trajectory shows: versions never fall."""
    found = []
    for batch in story.batches:
        for group in batch.groups:
            for member in group.members:
                versions = [run.version for turn in member.turns() for run in turn.versions]
                if versions != sorted(versions) or versions[-1] > batch.index:
                    found.append(f"versions: {member.id} has {versions} in batch {batch.index}")
    return found


def _mix(story: Story) -> list[str]:
    """Invariant 5, over the active domains: a suspension counts the mix anew."""
    weights = {f"d{number}": weight for number, weight in enumerate(story.scenario.weights)}
    taken: Counter[str] = Counter()
    found = []
    for event in story.events:
        if isinstance(event, DomainSuspended):
            weights.pop(event.domain, None)
            taken.clear()
        if isinstance(event, BatchFormed):
            taken.update(event.groups)
            for domain, weight in weights.items():
                share = weight / sum(weights.values())
                if abs(taken[domain] - share * taken.total()) > story.scenario.mix_tolerance + 1e-6:
                    found.append(f"mix: {dict(taken)} after batch {event.index}")
    return found


def _lost_hosts(story: Story) -> list[str]:
    """Invariant 8, for hosts: when one is back, all that ran on it before has ended, for no fault of its own."""
    on: dict[str, set[TrajectoryId]] = {}
    tries: Counter[tuple[str, int, int, int]] = Counter()
    found = []
    for event in story.events:
        if isinstance(event, TrajectoryStarted):
            on.setdefault(event.host, set()).add(event.id)
            tries[event.id.domain, event.id.task, event.id.group, event.id.member] += 1
        elif isinstance(event, (TrajectoryScored, TrajectoryEnded)):
            for running in on.values():
                running.discard(event.id)
            if isinstance(event, TrajectoryEnded) and event.failure is FailureKind.HOST_LOST:
                tries[event.id.domain, event.id.task, event.id.group, event.id.member] -= 1
        elif isinstance(event, Alarm) and "is lost" in event.message:
            found += [f"host: {id} runs on the lost {event.subject}" for id in on.get(event.subject, ())]
    found += [
        f"host: {key} used {count - 1} retries" for key, count in tries.items() if count > story.scenario.retries + 1
    ]
    return found


def random_kills(seed: int) -> Scenario:
    """A scenario of the family in which hosts die at random moments."""
    draw = random.Random(seed + 1)
    scenario = random_scenario(seed)
    return msgspec.structs.replace(
        scenario,
        kills=tuple((draw.uniform(0.0, 4.0), draw.randrange(scenario.hosts)) for _ in range(draw.randint(1, 4))),
        restart=(draw.choice([0.0, 0.1, 1.0]), draw.choice([0, 0, 1])),
    )


def random_scenario(seed: int) -> Scenario:
    """The scenario family of the design's acceptance: 3 iterations, 2 domains, 4 groups of 2, up to 3 turns."""
    draw = random.Random(seed)
    mode: Mode = draw.choice(["sync", "sync_plus", "one_off", "areal", "rollart", "rollart", "rollart"])
    alpha = draw.choice([0, 1, 1, 2, 3] if mode == "rollart" else [1, 1, 2])
    behind = alpha > 0 and PRESETS[mode].alpha > 0

    def own(*values: str) -> str | None:
        """Sometimes another value than the mode's."""
        return draw.choice(values) if draw.random() < 0.3 else None

    return Scenario(
        seed=seed,
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
    )

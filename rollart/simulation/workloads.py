"""The workloads of simulated runs: the paper's task families, its production jobs, and what a real run's log shows.

The values and where each comes from are in :mod:`rollart.config.workloads`; the workloads page shows them. Called by
experiments, the planner and the command line.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollart.config import workloads as table
from rollart.config.domains import DomainConfig
from rollart.config.errors import ConfigError
from rollart.config.simulation import WorkloadConfig
from rollart.config.yaml_file import read_yaml
from rollart.events import (
    RunStarted,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    TurnFinished,
    purpose_of,
    read_events,
)
from rollart.types import FailureKind, Outcome, Purpose, TrajectoryId

WORKLOADS = {name: WorkloadConfig.model_validate({"like": name}) for name in table.WORKLOADS}
"""The paper's five task families."""

PRODUCTION = {name: WorkloadConfig.model_validate({"like": name}) for name in table.PRODUCTION}
"""The paper's production tasks T1 to T8 with their weights in the mix."""

ENOUGH = 16
"""Scored trajectories of a domain below which its log says too little."""

KEPT = 200
"""Values that a sample keeps at most."""


class LogError(ValueError):
    """A log shows too little to make a workload of it; the message says what and what to do."""


def workload_from_log(folder: Path) -> dict[str, WorkloadConfig]:
    """A workload for each domain of a finished run, in the order of the run's mix, from what its log shows.

    Turns, lengths and latencies become samples of at most :data:`KEPT` values, failures become rates. Only training
    trajectories count, of any outcome. What the log cannot tell:

    * lengths turn by turn, unless the run had ``log.turns``: every turn of a trajectory then counts with the
      trajectory's mean, and the first prompt is told from later ones by how prompts grow with the turns;
    * the latency of a single step: it counts with the trajectory's mean;
    * how much of a reward's time was waiting for its turn: all of it counts as the reward's work;
    * trajectories that were cut by a limit, or aborted, would have become longer than they are here.

    Args:
        folder: A run folder, with its ``events`` and its ``config.yaml``.

    Raises:
        FileNotFoundError: it has no event log.
        LogError: a domain has fewer than :data:`ENOUGH` scored trajectories.
    """
    shares: dict[str, float] = {}
    logs: dict[str, _DomainLog] = defaultdict(_DomainLog)
    for envelope in read_events(folder / "events"):
        event = envelope.e
        if isinstance(event, RunStarted):
            shares = event.domains
        elif isinstance(event, TurnFinished):
            logs[event.id.domain].turn(event)
        elif isinstance(event, TrajectoryStarted | TrajectoryScored | TrajectoryEnded):
            logs[event.id.domain].add(event)
    if not shares:
        raise LogError(f"{folder}: the log has no record of the run's start: it ended before anything was played")
    configured = _configured_domains(folder)
    return {
        name: logs[name].workload(f"{folder}: domain '{name}'", share, configured.get(name))
        for name, share in shares.items()
    }


def _configured_domains(folder: Path) -> dict[str, DomainConfig]:
    """The domains as the run had them; none if the folder has no configuration."""
    path = folder / "config.yaml"
    if not path.exists():
        return {}
    try:
        domains = read_yaml(path).data["domains"]
        return {name: DomainConfig.model_validate(given) for name, given in domains.items()}
    except (ConfigError, LookupError, ValueError, AttributeError) as error:
        raise LogError(f"{path} is not the configuration of a run ({error}): restore it, or remove it") from error


class _DomainLog:
    """What the log says of one domain."""

    def __init__(self) -> None:
        self._started = 0
        self._scored: list[TrajectoryScored] = []
        self._turns_of: dict[TrajectoryId, dict[int, TurnFinished]] = defaultdict(dict)
        self._failures: Counter[FailureKind] = Counter()
        self._first: list[float] = []
        self._further: list[float] = []
        self._actions: list[float] = []
        self._steps = 0

    def turn(self, event: TurnFinished) -> None:
        if event.id.purpose is Purpose.TRAIN:
            self._turns_of[event.id][event.turn] = event

    def add(self, event: TrajectoryStarted | TrajectoryScored | TrajectoryEnded) -> None:
        if purpose_of(event) is not Purpose.TRAIN:
            return
        if isinstance(event, TrajectoryStarted):
            self._started += 1
            return
        turns = self._turns_of.pop(event.id, {})
        if isinstance(event, TrajectoryScored):
            self._scored.append(event)
            self._steps += event.turns
            if (lengths := _lengths(turns, event)) is not None:
                observed, generated = lengths
                self._first.append(observed[0])
                self._further += observed[1:]
                self._actions += generated
        elif event.outcome is Outcome.FAILED and event.failure is not None:
            self._failures[event.failure] += 1
            # The turn whose step failed is logged too; without turns at least that step is known.
            self._steps += len(turns) or (event.failure in (FailureKind.STEP_ERROR, FailureKind.STEP_TIMEOUT))

    def workload(self, where: str, share: float, config: DomainConfig | None) -> WorkloadConfig:
        scored = [each for each in self._scored if each.turns > 0]
        if len(scored) < ENOUGH:
            raise LogError(
                f"{where} has {len(scored)} scored trajectories in the log, {ENOUGH} are the least that a workload can "
                "be made of: let the run go on for longer, or leave the domain out"
            )
        if not self._first:
            self._first, self._further, self._actions = _mean_lengths(scored)
        values: dict[str, Any] = {
            "turns": _sample(each.turns for each in scored),
            "first_observation": _sample(self._first),
            "observation": _sample(self._further or [1.0]),
            "action": _sample(self._actions),
            "reset_seconds": _sample(each.seconds.get("reset", 0.0) for each in scored),
            "step_seconds": _sample(each.seconds.get("step", 0.0) / each.turns for each in scored),
            "reward_seconds": _sample(each.seconds.get("reward", 0.0) for each in scored),
            "success": sum(_succeeded(each) for each in scored) / len(scored),
            "max_turns": max(each.turns for each in scored),
            "max_context": max(8, *(each.total_tokens for each in scored)),
            "weight": share,
        }
        if config is not None:
            values |= {key: getattr(config, key) for key in ("max_turns", "max_context", "max_new_tokens")}
        return WorkloadConfig.model_validate(values | self._rates(1 + (config.reward.retries if config else 0)))

    def _rates(self, tries: int) -> dict[str, float]:
        """Failures by call. A reward has failed ``tries`` times when its trajectory has."""
        failed, scored = self._failures, len(self._scored)
        unscored = failed[FailureKind.REWARD_ERROR] + failed[FailureKind.REWARD_TIMEOUT]
        resets = max(1, self._started, scored + failed.total())
        steps = max(1, self._steps)
        return {
            "reset_error": failed[FailureKind.RESET_ERROR] / resets,
            "reset_hang": failed[FailureKind.RESET_TIMEOUT] / resets,
            "step_error": failed[FailureKind.STEP_ERROR] / steps,
            "step_hang": failed[FailureKind.STEP_TIMEOUT] / steps,
            "reward_error": (unscored / max(1, scored + unscored)) ** (1 / tries),
        }


def _succeeded(event: TrajectoryScored) -> bool:
    """The verdict; a task without one, or cut before it, succeeds if it paid."""
    return event.reward > 0 if event.success is None else event.success


def _lengths(turns: Mapping[int, TurnFinished], scored: TrajectoryScored) -> tuple[list[int], list[int]] | None:
    """Tokens of the prompts and of the actions, turn by turn; ``None`` if not every turn was logged.

    A turn whose engine had lost the session was sent again with its whole history; the sum tells.
    """
    if len(turns) != scored.turns or scored.turns == 0:
        return None
    ordered = [turns[turn] for turn in sorted(turns)]
    generated = [turn.generated_tokens for turn in ordered]
    observed = [turn.new_tokens for turn in ordered]
    if sum(observed) + sum(generated) != scored.total_tokens:
        history = 0
        for index, turn in enumerate(ordered):
            if observed[index] > history:
                observed[index] -= history
            history += observed[index] + turn.generated_tokens
        if history != scored.total_tokens:
            return None
    return observed, generated


def _mean_lengths(scored: Sequence[TrajectoryScored]) -> tuple[list[float], list[float], list[float]]:
    """First prompts, further ones and actions, where only the sums over each trajectory are known."""
    actions = [each.generated_tokens / each.turns for each in scored for _ in range(each.turns)]
    further = [each.turns - 1 for each in scored]
    prompts = [each.total_tokens - each.generated_tokens for each in scored]
    if len(set(further)) > 1:
        slope = max(0.0, statistics.linear_regression(further, prompts).slope)
    else:
        slope = statistics.fmean(prompts) / (further[0] + 1)
    first = [max(1.0, total - slope * count) for total, count in zip(prompts, further, strict=True)]
    return first, [slope] if any(further) else [], actions


def _sample(values: Iterable[float]) -> Any:
    """The values as a distribution; of many, the means of equally large runs of them in order.

    So the mean stays as it is, and the same values give the same sample.
    """
    ordered = sorted(values)
    if ordered[0] == ordered[-1]:
        return ordered[0]
    count = len(ordered)
    parts = min(count, KEPT)
    bounds = [part * count // parts for part in range(parts + 1)]
    means = [statistics.fmean(ordered[low:high]) for low, high in itertools.pairwise(bounds)]
    return {"sample": [round(mean, 6) for mean in means]}

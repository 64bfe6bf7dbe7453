"""A rough estimate of a run's step time in closed form: what the planner screens thousands of candidates with.

Each hardware class is a queueing network with the means of its domains. With a number of rows in each engine's batch
two times follow for the class's part in a step. What its engines need for the tokens of a batch falls with the rows.
How long its trajectories take rises with them, and with it the time between two batches: the groups of a batch start
together, when the bound on staleness allows it, and are trained alpha + 1 batches later, when the slowest of them has
finished; so alpha + 1 steps are as long as that group, one train step and the way of its weights to the engines. The
engines find the rows at which the two times are equal. How much longer than the mean the slowest group is, is drawn
once from the workload.

The step time is the longest of training and of what the classes take. It knows no aborted trajectories, no failures and
no slow starts, so the planner only ranks by it; the simulator decides.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import msgspec

from rollart.config.draw import mean_of, sampler
from rollart.config.simulation import SimulatedConfig, WorkloadConfig
from rollart.data_plane.generation.emulated_models import SpeedModel
from rollart.resource_plane.hardware import hardware
from rollart.simulation.candidates import Candidate
from rollart.simulation.links import broadcast_seconds, pull_seconds, push_seconds, swap_seconds
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.training_model import train_seconds
from rollart.types import derive_seed

CHUNK = 512
"""Prompt tokens of the step by which the price of a prompt token is taken."""

CACHE_PASSES = 3
"""Times that the share of lost histories is taken anew: the slower it makes an engine, the more waits there."""

DRAWN_GROUPS = 200
"""Groups drawn for a domain's stragglers."""

TOKEN_SECONDS = 0.02
"""Of a generated token, where only the proportion to the environment's latencies matters."""


class Demand(msgspec.Struct, frozen=True):
    """What a trajectory asks for, on average.

    Attributes:
        prompt: Prompt tokens, each counted once: the history is in the engine's cache, if there is room.
        history: Tokens computed once more for each turn, added up, if the cache had lost them every time.
        generated: Tokens generated.
        context: Tokens held while it generates.
        away: Seconds outside of the engine: resets, steps, reward.
        total: Tokens at its end.
    """

    prompt: float
    history: float
    generated: float
    context: float
    away: float
    total: float

    @classmethod
    def of(cls, workload: WorkloadConfig) -> Demand:
        """The means of a workload, cut at its context."""
        turns = max(1.0, mean_of(workload.turns))
        if workload.max_turns is not None:
            turns = min(turns, workload.max_turns)
        first, more, action = (
            mean_of(workload.first_observation),
            mean_of(workload.observation),
            mean_of(workload.action),
        )
        prompt, generated = first + more * (turns - 1), action * turns
        cut = min(1.0, workload.max_context / (prompt + generated))
        away = (
            mean_of(workload.reset_seconds) + turns * mean_of(workload.step_seconds) + mean_of(workload.reward_seconds)
        )
        total = cut * (prompt + generated)
        context = (first + total) / 2
        return cls(cut * prompt, cut * (turns - 1) * context, cut * generated, context, away, total)


class Stragglers(msgspec.Struct, frozen=True):
    """How unequal the trajectories of a domain are, in multiples of a trajectory's mean duration.

    Attributes:
        groups: Durations of groups, ascending; a group ends with the last member that it needs.
        load: What all members of a group take until it ends, redundant ones included, over ``size`` mean durations.
        kept: The same of the members that are trained: less than 1 if the longest are not.
    """

    groups: tuple[float, ...]
    load: float
    kept: float

    def slowest(self, needed: float, started: float) -> float:
        """The last group of a batch that needs so many of those started together."""
        place = needed / (started + 1.0) * len(self.groups)
        return self.groups[min(len(self.groups) - 1, int(place))]

    @classmethod
    def of(cls, workload: WorkloadConfig, size: int, redundant: int) -> Stragglers:
        """Drawn, always the same, for groups of ``size`` members and ``redundant`` more."""
        drawn = _drawn_durations(workload, size + redundant)
        mean = statistics.fmean(duration for group in drawn for duration in group) or 1.0
        ends, load, kept = [], 0.0, 0.0
        for group in map(sorted, drawn):
            ends.append(group[size - 1] / mean)
            trained = sum(group[:size])
            kept += trained
            load += trained + redundant * group[size - 1]
        whole = mean * size * len(drawn)
        return cls(tuple(sorted(ends)), load / whole, kept / whole)


def _drawn_durations(workload: WorkloadConfig, members: int) -> list[list[float]]:
    """Durations of the members of groups, about; turns are a group's, the rest is each member's own."""
    source = random.Random(derive_seed(0, "stragglers"))
    turns, action = sampler(workload.turns), sampler(workload.action)
    reset, step, reward = (
        sampler(each) for each in (workload.reset_seconds, workload.step_seconds, workload.reward_seconds)
    )
    drawn = []
    for _ in range(DRAWN_GROUPS):
        played = max(1, round(turns(source)))
        if workload.max_turns is not None:
            played = min(played, workload.max_turns)
        group = []
        for _ in range(members):
            seconds = sum(TOKEN_SECONDS * action(source) + step(source) for _ in range(played))
            group.append(seconds + reset(source) + reward(source))
        drawn.append(group)
    return drawn


class Estimate(msgspec.Struct, frozen=True):
    """A step's parts.

    Attributes:
        train: Seconds of training, and of what it waits for in an update.
        classes: Least seconds between two batches by hardware class.
        cost: Price of all devices in use for an hour.
        kept: Tokens trained over those of as many mean trajectories.
    """

    train: float
    classes: dict[str, float]
    cost: float
    kept: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return max(self.train, *self.classes.values())

    @property
    def comparable_step(self) -> float:
        """Seconds of a step that trained the tokens of mean trajectories."""
        return self.step / self.kept

    @property
    def comparable_cost(self) -> float:
        """Price of such a step."""
        return self.comparable_step / 3600.0 * self.cost


class Part(msgspec.Struct, frozen=True):
    """A domain's part in a step.

    Attributes:
        demand: Of its trajectories.
        trajectories: Of a batch.
        share: Of a batch.
        load: What is generated over what as many mean trajectories are.
        slowest: Duration of the last group that a batch waits for over a trajectory's mean duration.
    """

    demand: Demand
    trajectories: float
    share: float = 1.0
    load: float = 1.0
    slowest: float = 1.0


class Estimator:
    """Estimates of the candidates of one configuration; what candidates share is computed once.

    Args:
        config: The configuration.
        split: Of its pools.
    """

    def __init__(self, config: SimulatedConfig, split: PoolSplit) -> None:
        self._config = config
        self._split = split
        self._demands = {name: Demand.of(config.simulation.workloads[name]) for name in config.domains}
        self._stragglers: dict[tuple[str, int], Stragglers] = {}
        self._train: dict[int, float] = {}
        self._classes: dict[tuple[object, ...], float] = {}
        self._update, self._exposed = self._update_seconds()

    @property
    def by_intensity(self) -> list[str]:
        """The domains, those first that have the most prompt tokens for each generated one."""
        demands = self._demands
        return sorted(demands, key=lambda name: -demands[name].prompt / demands[name].generated)

    def estimate(self, candidate: Candidate) -> Estimate:
        """The estimate of one candidate."""
        devices = self._config.engine.devices
        cost = self._split.other_cost + candidate.trainer * self._split.trainer_hardware.cost
        cost += sum(count * devices * hardware(name).cost for name, count in candidate.engines)
        classes = {
            name: self._prefill_seconds(candidate, count)
            if name == candidate.prefill
            else self._class_seconds(candidate, name, count)
            for name, count in candidate.engines
        }
        train = self._train_seconds(candidate.trainer) + self._exposed
        return Estimate(train, classes, cost, self._kept(candidate.members))

    def _kept(self, members: int) -> float:
        tokens = {name: share * self._demands[name].total for name, share in self._config.shares.items()}
        return sum(self._straggling(name, members).kept * each for name, each in tokens.items()) / sum(tokens.values())

    def _train_seconds(self, devices: int) -> float:
        if devices not in self._train:
            rollout, shares = self._config.rollout, self._config.shares
            tokens = [
                round(self._demands[name].total)
                for name, share in shares.items()
                for _ in range(round(share * rollout.groups_per_batch * rollout.group_size))
            ]
            split = self._split
            self._train[devices] = train_seconds(split.model, split.trainer_hardware, devices, split.constants, tokens)
        return self._train[devices]

    def _class_seconds(self, candidate: Candidate, name: str, engines: int) -> float:
        domains = candidate.domains_on(name)
        key = (candidate.trainer, name, engines, domains, *candidate.policy[1:])
        if key not in self._classes:
            parts = [self._part(domain, candidate) for domain in domains]
            self._classes[key] = class_seconds(
                self._split.speeds[name],
                parts,
                engines,
                self._config.engine.max_rows,
                candidate.alpha,
                self._train_seconds(candidate.trainer) + self._update,
                self._config.rollout.max_environments * sum(part.share for part in parts),
            )
        return self._classes[key]

    def _prefill_seconds(self, candidate: Candidate, engines: int) -> float:
        """Of a class that computes the prompts of a batch alone, the actions decoded elsewhere among them."""
        parts = [self._part(domain, candidate) for domain, _ in candidate.mapping]
        seconds = (part.load * part.trajectories * self._prompt_seconds(part.demand, candidate) for part in parts)
        return sum(seconds) / engines

    def _prompt_seconds(self, demand: Demand, candidate: Candidate) -> float:
        """Of a trajectory alone on a prefill engine, all its turns."""
        chunk = self._split.speeds[candidate.prefill].mixed(
            0, 1, round(demand.context), CHUNK, round(CHUNK * demand.context)
        )
        return demand.total / CHUNK * chunk

    def _part(self, domain: str, candidate: Candidate) -> Part:
        rollout, share = self._config.rollout, self._config.shares[domain]
        stragglers = self._straggling(domain, candidate.members)
        groups = rollout.groups_per_batch * share
        slowest = stragglers.slowest(groups, groups + candidate.groups * share)
        demand = self._demands[domain]
        if candidate.prefill:
            away = demand.away + self._prompt_seconds(demand, candidate)
            demand = msgspec.structs.replace(demand, prompt=0.0, away=away)
        return Part(demand, groups * rollout.group_size, share, stragglers.load, slowest)

    def _straggling(self, domain: str, members: int) -> Stragglers:
        if (domain, members) not in self._stragglers:
            workload = self._config.simulation.workloads[domain]
            size = self._config.rollout.group_size
            self._stragglers[domain, members] = Stragglers.of(workload, size, members)
        return self._stragglers[domain, members]

    def _update_seconds(self) -> tuple[float, float]:
        """From the end of a train step until engines have its weights, and how much of it training waits for."""
        size, constants = self._split.model.weight_bytes, self._split.constants
        if self._config.simulation.network.same_cluster:
            whole = swap = broadcast_seconds(size, constants)
        else:
            swap = swap_seconds(size, self._config.engine.devices, constants)
            whole = push_seconds(size, constants) + pull_seconds(size, constants) + swap
        return whole, swap if self._config.switches.transfer == "asynchronous" else whole


def class_seconds(
    speed: SpeedModel,
    parts: Sequence[Part],
    engines: int,
    max_rows: int,
    alpha: int,
    train: float,
    environments: float,
) -> float:
    """Least seconds between two batches that a class's engines can generate.

    Args:
        speed: Of one engine.
        parts: Of its domains.
        engines: How many.
        max_rows: Requests that decode together in one of them.
        alpha: Bound on staleness.
        train: Seconds of a train step until its weights are at the engines.
        environments: Trajectories that may be alive at once.
    """
    tokens = sum(part.load * part.trajectories * part.demand.generated for part in parts)
    started = sum(part.load * part.trajectories for part in parts)
    generated = sum(part.demand.generated * part.trajectories for part in parts)
    held = sum(part.demand.context * part.demand.generated * part.trajectories for part in parts) / generated
    most = max_rows if speed.kv_tokens is None else max(1, min(max_rows, int(speed.kv_tokens / held)))

    def at(rows: int, lost: float) -> tuple[float, float, float]:
        token = _token_seconds(speed, parts, rows, held, lost)
        durations = [(part, part.demand.generated * token + part.demand.away) for part in parts]
        slowest = max(part.slowest * duration for part, duration in durations)
        alive = sum(part.load * part.trajectories * duration for part, duration in durations)
        working = tokens * token / rows / engines
        lagging = max((slowest + train) / (alpha + 1), alive / environments)
        return working + (train if alpha == 0 else 0.0), lagging, alive

    def seconds(rows: int) -> tuple[float, float]:
        lost = 0.0
        working, lagging, alive = at(rows, lost)
        for _ in range(CACHE_PASSES if speed.kv_tokens is not None else 0):
            # the groups of a batch start together; what does not fit finds its history gone at its next turn
            waiting = max(alive / max(working, lagging), started)
            lost = max(lost, 1.0 - (speed.kv_tokens or 0) * engines / (waiting * held))
            if lost <= 0:
                break
            working, lagging, alive = at(rows, lost)
        return working, lagging

    low, high = 1, most
    while low < high:
        rows = (low + high) // 2
        working, lagging = seconds(rows)
        low, high = (low, rows) if working <= lagging else (rows + 1, high)
    return max(seconds(high))


def _token_seconds(speed: SpeedModel, parts: Sequence[Part], rows: int, held: float, lost: float) -> float:
    """From one token of a trajectory to its next, if ``rows`` decode: the step, and the prompts computed meanwhile.

    Args:
        held: Tokens of context of a row.
        lost: Share of the turns whose history has to be computed again.
    """
    base, each = speed.decode(rows)
    context = round(rows * held)
    step = base + each * context
    chunk = speed.mixed(rows, 1, context + round(held), CHUNK, round(CHUNK * held)) - step
    prompt = sum((part.demand.prompt + lost * part.demand.history) * part.trajectories for part in parts)
    generated = sum(part.demand.generated * part.trajectories for part in parts)
    return step + rows * prompt / generated * max(0.0, chunk) / CHUNK

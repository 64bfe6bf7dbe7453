"""The numbers of each iteration (architecture, section 9), folded from the event log.

Iteration k ends with ``TrainStepped(k)``. Trained trajectories and staleness belong to the batch that
holds them; everything else (finished trajectories, other outcomes, busy workers, protocol steps) to the
iteration during which it happened. Used by the report, and live by the TensorBoard and W&B sinks, which is
why the fold hands out an iteration as soon as nothing can be added to it any more, and remembers little:
the records of one iteration, and the mix of the last :data:`HISTORY` batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from rollart.events import (
    BatchFormed,
    Envelope,
    Evaluated,
    PoolBusy,
    ProtocolStep,
    RunStarted,
    TrainStepped,
    TrajectoryEnded,
    TrajectoryScored,
    TrajectoryStarted,
    WorkerPlaced,
)
from rollart.observability.intervals import Interval, subtract, total
from rollart.types import Outcome, Purpose

LATENCIES = ("reset", "step", "generate", "reward")
QUANTILES = (0.5, 0.95, 1.0)

HISTORY = 4096
"""Batches that a resumed run may repeat and have counted once; checkpoints are much closer together."""


class DomainIteration(msgspec.Struct, frozen=True):
    """One domain in one iteration.

    Attributes:
        finished: Trajectories scored during the iteration.
        reward: Their mean reward.
        success: Share of successes, ``None`` if none of them has a verdict.
        turns: Their mean number of turns.
        trained_groups: Groups in the batch.
        trained_share: Cumulative share of trained groups up to this batch.
    """

    finished: int
    reward: float | None
    success: float | None
    turns: float | None
    trained_groups: int
    trained_share: float | None


class IterationMetrics(msgspec.Struct, frozen=True):
    """One iteration.

    Attributes:
        index: k.
        end: When ``train_step(k)`` returned, in seconds of the run's clock.
        seconds: Since the end of the iteration before (or the first training trajectory), without evaluation.
        train_seconds: Of ``train_step(k)``.
        protocol_seconds: Of each protocol step.
        wait_seconds: That ``get_batch(k)`` waited.
        trained_tokens: Tokens that entered the loss.
        tokens: Generated tokens of ended trajectories by outcome.
        outcomes: Ended trajectories by outcome.
        failures: Failed ones by kind.
        staleness: Trajectories of the batch by staleness.
        utilisation: Busy share of the workers of each ``pool/role``, in [0, 1]; environment hosts have none.
        running: Mean of what a worker of each ``pool/role`` had running: requests, or environments.
        latency: For reset, step, generate and reward: median, 95th percentile and maximum, in seconds a trajectory.
        domains: By domain.
        training: The trainer's metrics (loss, entropy, logprob_gap, ...).
        alarms: The trainer's alarms.
    """

    index: int
    end: float
    seconds: float
    train_seconds: float
    protocol_seconds: dict[str, float]
    wait_seconds: float
    trained_tokens: int
    tokens: dict[str, int]
    outcomes: dict[str, int]
    failures: dict[str, int]
    staleness: dict[int, int]
    utilisation: dict[str, float]
    running: dict[str, float]
    latency: dict[str, tuple[float, ...]]
    domains: dict[str, DomainIteration]
    training: dict[str, float]
    alarms: tuple[str, ...]

    @property
    def wasted_tokens(self) -> int:
        """Generated tokens of trajectories that ended untrained."""
        return sum(count for outcome, count in self.tokens.items() if outcome != Outcome.TRAINED.value)


def iterations(events: Iterable[Envelope]) -> list[IterationMetrics]:
    """All complete iterations of a merged log; of an iteration that was repeated after a resume, the last."""
    fold = IterationsFold()
    for envelope in events:
        fold.add(envelope)
    return fold.finish()


class IterationsFold:
    """Folds a merged log into its iterations, as :func:`iterations` returns them."""

    def __init__(self) -> None:
        self._fold = MetricsFold()
        self._found: dict[int, IterationMetrics] = {}

    def add(self, envelope: Envelope) -> None:
        """Fold one record."""
        self._found.update((metrics.index, metrics) for metrics in self._fold.add(envelope))

    def finish(self) -> list[IterationMetrics]:
        """The iterations, in order."""
        self._found.update((metrics.index, metrics) for metrics in self._fold.finish())
        return [self._found[index] for index in sorted(self._found)]


class MetricsFold:
    """Folds records in time order and yields each iteration once, when the next batch is formed."""

    def __init__(self) -> None:
        self._domains: dict[str, float] = {}
        self._window = _Window()
        self._batch: BatchFormed | None = None
        self._batch_trained = _Ended()
        self._pending: tuple[TrainStepped, _Window, Interval] | None = None
        self._trainer_pool: str | None = None
        self._formed: dict[int, dict[str, int]] = {}
        self._groups: Counter[str] = Counter()
        self._evaluation: list[Interval] = []
        self._since: float | None = None

    def add(self, envelope: Envelope) -> Iterator[IterationMetrics]:
        """Fold one record."""
        t = envelope.t
        match envelope.e:
            case RunStarted() as start:
                yield from self.finish()
                self._domains = start.domains
                self._window, self._since = _Window(), None
            case BatchFormed() as batch:
                yield from self.finish()
                self._batch, self._batch_trained = batch, _Ended()
                self._form(batch)
            case TrainStepped() as step:
                self._pending = (step, self._window, (self._since if self._since is not None else t, t))
                self._window, self._since = _Window(), t
            case WorkerPlaced(role="train", pool=pool):
                self._trainer_pool = pool
            case Evaluated(seconds=seconds):
                self._evaluation.append((t - seconds, t))
            case TrajectoryEnded(id=id) as ended if id.purpose is Purpose.TRAIN:
                target = self._batch_trained if ended.outcome is Outcome.TRAINED else self._window.ended
                target.add(ended)
            case TrajectoryStarted(id=id) if id.purpose is Purpose.TRAIN:
                self._since = t if self._since is None else self._since
            case event:
                self._window.add(event)

    def finish(self) -> Iterator[IterationMetrics]:
        """The iteration that is complete but not yet handed out, if there is one."""
        if self._pending is None:
            return
        step, window, interval = self._pending
        self._pending = None
        batch = self._batch if self._batch is not None and self._batch.index == step.index else None
        window.ended.merge(self._batch_trained)
        seconds = total(subtract([interval], self._evaluation))
        self._evaluation = [passed for passed in self._evaluation if passed[1] > interval[1]]
        yield IterationMetrics(
            index=step.index,
            end=interval[1],
            seconds=seconds,
            train_seconds=step.seconds,
            protocol_seconds=dict(window.protocol),
            wait_seconds=batch.waited if batch else 0.0,
            trained_tokens=step.tokens,
            tokens=dict(window.ended.tokens),
            outcomes=dict(window.ended.outcomes),
            failures=dict(window.ended.failures),
            staleness=batch.staleness if batch else {},
            utilisation=window.utilisation() | self._trainer_utilisation(step, seconds),
            running=window.running(),
            latency=window.latency(),
            domains={name: self._domain(name, window, batch) for name in self._domains},
            training=step.metrics,
            alarms=step.alarms,
        )

    def _trainer_utilisation(self, step: TrainStepped, seconds: float) -> dict[str, float]:
        """The trainer reports no busy records: its busy time is the optimizer step."""
        if self._trainer_pool is None or seconds <= 0:
            return {}
        return {f"{self._trainer_pool}/train": min(1.0, step.seconds / seconds)}

    def _form(self, batch: BatchFormed) -> None:
        """Count the batch's groups, in place of those that a resumed run forms again."""
        for index in [index for index in self._formed if index >= batch.index]:
            self._groups.subtract(self._formed.pop(index))
        self._formed[batch.index] = batch.groups
        if len(self._formed) > HISTORY:
            del self._formed[min(self._formed)]
        self._groups.update(batch.groups)

    def _domain(self, name: str, window: _Window, batch: BatchFormed | None) -> DomainIteration:
        scored = [event for event in window.scored if event.id.domain == name]
        verdicts = [event.success for event in scored if event.success is not None]
        everything = self._groups.total()
        return DomainIteration(
            finished=len(scored),
            reward=_mean([event.reward for event in scored]),
            success=_mean([float(verdict) for verdict in verdicts]),
            turns=_mean([float(event.turns) for event in scored]),
            trained_groups=batch.groups.get(name, 0) if batch else 0,
            trained_share=self._groups[name] / everything if everything else None,
        )


class _Ended:
    """Ended trajectories and their generated tokens, by outcome."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def add(self, event: TrajectoryEnded) -> None:
        self.outcomes[event.outcome.value] += 1
        self.tokens[event.outcome.value] += event.generated_tokens
        if event.failure is not None:
            self.failures[event.failure.value] += 1

    def merge(self, other: _Ended) -> None:
        self.outcomes.update(other.outcomes)
        self.tokens.update(other.tokens)
        self.failures.update(other.failures)


class _Window:
    """What happened since the last optimizer step."""

    def __init__(self) -> None:
        self.ended = _Ended()
        self.scored: list[TrajectoryScored] = []
        self.protocol: defaultdict[str, float] = defaultdict(float)
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._running: defaultdict[str, float] = defaultdict(float)
        self._watched: defaultdict[str, float] = defaultdict(float)

    def add(self, event: object) -> None:
        match event:
            case TrajectoryScored(id=id) if id.purpose is Purpose.TRAIN:
                self.scored.append(event)
            case ProtocolStep(step=step, seconds=seconds):
                self.protocol[step] += seconds
            case PoolBusy(pool=pool, role=role):
                elapsed = event.until - event.since
                self._busy[f"{pool}/{role}"] += event.busy
                self._running[f"{pool}/{role}"] += event.running * elapsed
                self._watched[f"{pool}/{role}"] += elapsed
            case _:
                pass

    def utilisation(self) -> dict[str, float]:
        return {
            place: min(1.0, self._busy[place] / seen)
            for place, seen in self._watched.items()
            if seen > 0 and not place.endswith("/environment")
        }

    def running(self) -> dict[str, float]:
        return {place: self._running[place] / seen for place, seen in self._watched.items() if seen > 0}

    def latency(self) -> dict[str, tuple[float, ...]]:
        result = {}
        for name in LATENCIES:
            values = sorted(event.seconds[name] for event in self.scored if name in event.seconds)
            if values:
                result[name] = tuple(quantile(values, q) for q in QUANTILES)
        return result


def quantile(ordered: list[float], q: float) -> float:
    """The smallest value that at least the share ``q`` of the ascending, non-empty ``ordered`` does not exceed."""
    position = max(0, -(-len(ordered) * q // 1) - 1)
    return ordered[min(len(ordered) - 1, int(position))]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def scalars(metrics: IterationMetrics) -> dict[str, float]:
    """One iteration as flat ``group/name`` scalars, as TensorBoard and W&B show them."""
    result: dict[str, float | None] = {
        "time/step": metrics.seconds,
        "time/train": metrics.train_seconds,
        "time/get_batch_wait": metrics.wait_seconds,
        "tokens/trained": metrics.trained_tokens,
        "tokens/wasted": metrics.wasted_tokens,
        "staleness/max": max(metrics.staleness, default=0),
        "staleness/mean": _mean([float(s) for s, count in metrics.staleness.items() for _ in range(count)]),
    }
    result |= {f"time/{step}": seconds for step, seconds in metrics.protocol_seconds.items() if step != "get_batch"}
    result |= {f"outcome/{outcome}": count for outcome, count in metrics.outcomes.items()}
    result |= {f"failed/{kind}": count for kind, count in metrics.failures.items()}
    result |= {f"utilisation/{place}": share for place, share in metrics.utilisation.items()}
    result |= {f"running/{place}": count for place, count in metrics.running.items()}
    for name, values in metrics.latency.items():
        result |= {f"latency/{name}_p{round(q * 100)}": value for q, value in zip(QUANTILES, values, strict=True)}
    for name, domain in metrics.domains.items():
        result |= {
            f"success/{name}": domain.success,
            f"reward/{name}": domain.reward,
            f"turns/{name}": domain.turns,
            f"mix/{name}": domain.trained_share,
        }
    result |= {f"training/{name}": value for name, value in metrics.training.items()}
    return {name: float(value) for name, value in result.items() if value is not None}

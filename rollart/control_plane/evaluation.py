"""Evaluation: held-out instances of every domain, played at one fixed version.

Evaluation trajectories share environments, LLMProxy and engines with training but have ids, seeds and a
ledger of their own (``EvaluationEnded`` records); staleness does not apply to them. While a pass runs, new
training requests wait at the LLMProxy's gate and updates are held.

An evaluation trajectory that fails is retried in a fresh environment; one that fails for good is counted
as ``failed`` and is left out of the success rate, never counted as an unsuccessful one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from rollart.control_plane.rollout_scheduler import RolloutScheduler
from rollart.control_plane.waits import Signal
from rollart.events import Evaluated, EvaluationEnded, EventSink
from rollart.types import EpisodeFailure, EpisodeSpec, FailureKind, Purpose, Trajectory, TrajectoryId, derive_seed


class _Tally(msgspec.Struct):
    """One domain's results."""

    scored: int = 0
    verdicts: int = 0
    successes: int = 0
    reward: float = 0.0
    failed: int = 0


class Evaluation:
    """Plays evaluation passes.

    Args:
        seed: Root seed; held-out seeds derive from another label than training seeds.
        domains: Names of the domains.
        instances: Held-out instances of each.
        greedy: Take the most likely token.
        retries: Fresh attempts for a failed trajectory.
        stop_requested: Asked while a pass runs; True ends it without a result.
        passes: Passes that earlier starts of the run have played.
    """

    def __init__(
        self,
        seed: int,
        domains: tuple[str, ...],
        instances: int,
        greedy: bool,
        retries: int,
        scheduler: RolloutScheduler,
        sink: EventSink,
        changed: Signal,
        stop_requested: Callable[[], bool],
        passes: int = 0,
    ) -> None:
        self._seed = seed
        self._domains = domains
        self._instances = instances
        self._greedy = greedy
        self._retries = retries
        self._scheduler = scheduler
        self._sink = sink
        self._changed = changed
        self._stop_requested = stop_requested
        self.passes = passes
        """Passes that have begun."""

    async def play(self, version: int, *, random: bool = False) -> Mapping[str, Evaluated]:
        """One pass over all domains; returns (and emits) the result by domain.

        A pass that a stop interrupts has no result. A domain without a random policy has none of the random
        pass: ``instances`` is 0.
        """
        began = asyncio.get_running_loop().time()
        tallies = {domain: _Tally() for domain in self._domains}
        queue = deque(
            self._spec(domain, instance, random) for domain in self._domains for instance in range(self._instances)
        )
        self.passes += 1
        open_count = len(queue)
        without_policy: set[str] = set()
        host_losses: Counter[tuple[str, int]] = Counter()
        """Attempts by instance that a lost host ended; they use up no retry."""

        def ended(end: Trajectory | EpisodeFailure) -> None:
            nonlocal open_count
            instance = (end.id.domain, end.id.task)
            host_losses[instance] += isinstance(end, EpisodeFailure) and end.kind is FailureKind.HOST_LOST
            retries = self._retries + host_losses[instance]
            if isinstance(end, EpisodeFailure) and end.kind is FailureKind.NO_RANDOM_POLICY:
                without_policy.add(end.id.domain)
                open_count -= 1
            elif isinstance(end, EpisodeFailure) and end.kind.retryable and end.id.attempt < retries:
                queue.append(self._again(end, random))
            else:
                self._count(tallies[end.id.domain], end)
                open_count -= 1
            self._changed.notify()

        def fill() -> bool:
            nonlocal open_count
            while queue and (queue[0].id.domain in without_policy or self._scheduler.play(queue[0], ended)):
                open_count -= queue.popleft().id.domain in without_policy
            return open_count == 0 or self._stop_requested()

        await self._changed.wait_for(fill, "evaluation", lambda: f"{open_count} evaluation trajectories")
        if open_count:
            return {}
        seconds = asyncio.get_running_loop().time() - began
        results = {
            domain: _result(domain, version, random, 0 if domain in without_policy else self._instances, tally, seconds)
            for domain, tally in tallies.items()
        }
        for result in results.values():
            self._sink.emit(result)
        return results

    def _spec(self, domain: str, instance: int, random: bool) -> EpisodeSpec:
        # The pass number keeps ids unique over the run; the seed does not depend on it.
        trajectory = TrajectoryId(domain, instance, self.passes, 0, 0, Purpose.EVAL)
        return EpisodeSpec(trajectory, derive_seed(self._seed, "eval", domain, instance), self._greedy, random)

    def _again(self, failure: EpisodeFailure, random: bool) -> EpisodeSpec:
        trajectory = msgspec.structs.replace(failure.id, attempt=failure.id.attempt + 1)
        seed = derive_seed(self._seed, "eval", failure.id.domain, failure.id.task)
        return EpisodeSpec(trajectory, seed, self._greedy, random)

    def _count(self, tally: _Tally, end: Trajectory | EpisodeFailure) -> None:
        if isinstance(end, EpisodeFailure):
            tally.failed += 1
            self._sink.emit(EvaluationEnded(end.id, None, None, end.kind))
            return
        score = end.score
        success = None if score is None else score.success
        reward = None if score is None else score.value
        tally.scored += 1
        tally.verdicts += success is not None
        tally.successes += bool(success)
        tally.reward += reward or 0.0
        self._sink.emit(EvaluationEnded(end.id, success, reward))


def _result(domain: str, version: int, random: bool, instances: int, tally: _Tally, seconds: float) -> Evaluated:
    return Evaluated(
        domain=domain,
        version=version,
        policy="random" if random else "model",
        instances=instances,
        success=tally.successes / tally.verdicts if tally.verdicts else None,
        reward=tally.reward / tally.scored if tally.scored else None,
        failed=tally.failed,
        seconds=seconds,
    )

"""The planner: which split of the pools, mapping of the domains, alpha and redundancy to expect the most of.

Every candidate is estimated in closed form; the best of each alpha are simulated, then the neighbours of the best one
by one step in one axis, and when none of these is left the next of the screened list, until all that is promising has
been tried or the budget is used. All of that is under one seed. The finalists are chosen under further seeds, and what
is reported of them comes from seeds that nothing was chosen by, so that no winner is one by luck.

Times are compared at equal work: a step's seconds for each token that it trains, times the tokens that the given
configuration's step trains under the same seed. A candidate that only trains shorter trajectories, as redundancy does,
gains nothing by that. A larger alpha and more redundancy have to be notably better: what staleness and the preference
for short trajectories cost in learning is not modelled.

The same budget of simulations gives the same result; a budget of seconds depends on the machine. Called by
``rollart plan --optimize``.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rollart.config.errors import ConfigError
from rollart.config.load import simulated_config
from rollart.config.simulation import SimulatedConfig
from rollart.simulation.candidates import MOST_ALPHA, Candidate, Objective, Space
from rollart.simulation.estimate import Estimator
from rollart.simulation.experiments import Experiment, Point, Workers
from rollart.simulation.pool_split import PoolSplit
from rollart.simulation.proposals import Numbers, Plan, Proposal, Spread, numbers_of, overrides

NOTABLE = 0.03
"""Gain below which a smaller alpha, and then less redundancy, is preferred."""

MEASURED = 4
"""Iterations of a simulation that are measured, of all candidates the same: what comes before is one more than the
largest alpha, and alpha more at the end are not measured."""

SEARCH_SEEDS = (0,)
CHOICE_SEEDS = (1,)
REPORT_SEEDS = (2, 3, 4)

ROUND = 4
"""Candidates that are simulated before the search looks again which is the best."""

SCREENED_ROUNDS = 3
"""Rounds of the screened list before the search moves on from the best."""

HOPELESS = 1.3
"""A candidate that is estimated to be this much worse than the best is not simulated."""

FINALISTS = 4
"""Candidates that the choice is among, besides the given configuration."""

SHOWN = 3
"""Proposals that are reported."""

LAST = FINALISTS * len(CHOICE_SEEDS) + SHOWN * len(REPORT_SEEDS) + len(CHOICE_SEEDS) + len(REPORT_SEEDS)
"""Simulations that are kept for choice and report."""


class Budget(msgspec.Struct, frozen=True):
    """What the search may use; whichever ends first.

    Attributes:
        simulations: Number of simulations, those of choice and report included.
        seconds: Wall time. The search ends in time for choice and report, as far as can be told from earlier
            simulations; the given configuration and one candidate are simulated in any case.
    """

    simulations: int = 200
    seconds: float = math.inf


class Trial:
    """A candidate, or the given configuration, and what its simulations gave by seed."""

    def __init__(self, candidate: Candidate | None, changes: dict[str, Any], config: SimulatedConfig) -> None:
        self.candidate = candidate
        self.changes = changes
        self.config = config
        self.numbers: dict[int, Numbers] = {}

    @property
    def alpha(self) -> int:
        return self.config.alpha

    @property
    def policy(self) -> object:
        """What proposals differ in; the given configuration is like no other if it is no candidate."""
        return None if self.candidate is None else self.candidate.policy


def optimize(
    base: Mapping[str, Any],
    settings: Mapping[str, Any],
    objective: Objective = "time",
    budget: Budget = Budget(),  # noqa: B008 - frozen
    most_alpha: int = MOST_ALPHA,
    jobs: int = 1,
    said: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Search for the best settings.

    Args:
        base: What the configuration's file says, with a section ``simulation``.
        settings: Values by dotted key that hold whatever is proposed, unless they are what is searched.
        objective: What to minimise: ``time`` of a step, or ``cost`` of a million trained tokens.
        budget: What the search may use.
        most_alpha: Largest bound that is proposed, unless the configuration's own is larger.
        jobs: Processes.
        said: Called with a line on the progress.
        clock: Seconds.

    Raises:
        ConfigError: the configuration is wrong.
        PlanError: its workers do not fit its pools, or no split of them holds the model.
        ValueError: the model or a constant is unknown, or the budget is too small.
    """
    with Workers(jobs) as workers:
        return _Search(base, settings, objective, budget, most_alpha, jobs, workers, said, clock).run()


class _Search:
    """One search; see the module docstring."""

    def __init__(
        self,
        base: Mapping[str, Any],
        settings: Mapping[str, Any],
        objective: Objective,
        budget: Budget,
        most_alpha: int,
        jobs: int,
        workers: Workers,
        said: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        least = LAST + 2 * len(SEARCH_SEEDS)
        if budget.simulations < least:
            raise ValueError(f"a budget of {budget.simulations} simulations is too small: give {least} or more")
        self._base = dict(base)
        self._settings = dict(settings) | _ALWAYS
        config = simulated_config(self._base, self._settings)
        self._split = PoolSplit(config)
        self._estimator = Estimator(config, self._split)
        self._space = Space(config, self._split, objective, self._estimator.by_intensity, most_alpha)
        self._objective = objective
        self._skipped = self._space.most_alpha + 1
        self._budget, self._jobs, self._workers, self._said, self._clock = budget, jobs, workers, said, clock
        self._began = clock()
        self._simulations = 0
        self._durations: list[float] = []
        """Seconds for each simulation, of those that were made together."""
        self._given = Trial(self._space.given(), {}, config)
        self._trials: dict[Candidate, Trial] = {}
        """By candidate, in the order in which they were simulated; the given configuration if it is one."""
        self._refused: set[Candidate] = set()

    def run(self) -> Plan:
        """Search, choose, report."""
        self._simulate([self._given], SEARCH_SEEDS)
        if self._given.candidate is not None:
            self._trials[self._given.candidate] = self._given
        screened, queue = self._screened()
        settled = self._search(queue)
        finalists = self._finalists()
        self._simulate([self._given, *finalists], CHOICE_SEEDS)
        chosen = list(itertools.islice(self._by_preference([self._given, *finalists]), SHOWN))
        self._simulate([self._given, *chosen], REPORT_SEEDS)
        return Plan(
            self._objective,
            self._proposal(self._given),
            [self._proposal(trial) for trial in chosen],
            screened,
            self._simulations,
            REPORT_SEEDS,
            settled,
        )

    def _screened(self) -> tuple[int, Iterator[Candidate]]:
        """How many candidates there are, and the best split of each policy, the alphas by turns."""
        best: dict[object, Candidate] = {}
        count = 0
        for candidate in self._space.candidates():
            count += 1
            known = best.get(candidate.policy)
            if known is None or self._estimated(candidate) < self._estimated(known):
                best[candidate.policy] = candidate
        self._said(f"{count:,} candidates estimated")
        ranked = sorted(best.values(), key=self._estimated)
        alphas = sorted({candidate.alpha for candidate in ranked})
        by_alpha = [[candidate for candidate in ranked if candidate.alpha == alpha] for alpha in alphas]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*by_alpha))
        return count, (candidate for candidate in turns if candidate is not None)

    def _search(self, queue: Iterator[Candidate]) -> bool:
        """Simulate candidates until nothing is left to try or the budget is used; whether nothing was left."""
        going = True
        for _ in range(SCREENED_ROUNDS):
            going = going and self._try(self._next(queue))
        while going and (candidates := self._moves() or self._next(queue)):
            going = self._try(candidates)
        return going

    def _next(self, queue: Iterator[Candidate]) -> list[Candidate]:
        """The next of the screened list that are promising."""
        return list(itertools.islice((each for each in queue if self._promising(each)), ROUND))

    def _promising(self, candidate: Candidate) -> bool:
        """Whether it is new and may come near the best, by the estimate and by how that did for the same alpha."""
        if not self._new(candidate):
            return False
        ratios = [
            self._score(trial) / self._estimated(known)
            for known, trial in self._trials.items()
            if known.alpha == candidate.alpha
        ]
        if not ratios:
            return True
        best = min(map(self._score, self._trials.values()))
        return self._estimated(candidate) * statistics.median(ratios) <= HOPELESS * best

    def _moves(self) -> list[Candidate]:
        """The most promising neighbours of the best candidate."""
        best = next(self._by_preference(self._trials.values()), None)
        if best is None or best.candidate is None:
            return []
        limit = HOPELESS * self._estimated(best.candidate)
        near = [each for each in self._space.neighbours(best.candidate) if self._new(each)]
        return sorted((each for each in near if self._estimated(each) <= limit), key=self._estimated)[:ROUND]

    def _new(self, candidate: Candidate) -> bool:
        return candidate not in self._trials and candidate not in self._refused

    def _try(self, candidates: Sequence[Candidate]) -> bool:
        """Simulate candidates; whether the budget allowed it."""
        for start in range(0, len(candidates), self._jobs):
            some = candidates[start : start + self._jobs]
            allowed = self._allowed(len(some))
            trials = [trial for each in some[:allowed] if (trial := self._trial(each)) is not None]
            self._simulate(trials, SEARCH_SEEDS)
            self._trials |= {trial.candidate: trial for trial in trials if trial.candidate is not None}
            if allowed < len(some):
                return False
        return True

    def _trial(self, candidate: Candidate) -> Trial | None:
        """The candidate with its configuration; ``None`` if the configuration's own checks refuse it."""
        try:
            config = simulated_config(self._base, self._settings | self._space.settings(candidate))
        except ConfigError:
            self._refused.add(candidate)
            return None
        return Trial(candidate, self._space.changes(candidate), config)

    def _allowed(self, wanted: int) -> int:
        """How many simulations the search may still make, at most ``wanted``."""
        left = (self._budget.simulations - LAST - self._simulations) // len(SEARCH_SEEDS)
        needed = (LAST + wanted) * statistics.median(self._durations)
        if self._simulations > len(SEARCH_SEEDS) and self._clock() - self._began + needed > self._budget.seconds:
            left = 0
        return max(0, min(wanted, left))

    def _simulate(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        todo = [(trial, seed) for trial in trials for seed in seeds if seed not in trial.numbers]
        if not todo:
            return
        experiment = Experiment(name="plan", title="", base=self._base, skipped=self._skipped)
        work = [(experiment, Point({}, self._point(trial)), seed, None) for trial, seed in todo]
        began = self._clock()
        for (trial, seed), (result, _) in zip(todo, self._workers.results(work), strict=True):
            trial.numbers[seed] = numbers_of(trial.config, result)
            self._simulations += 1
            self._tell(trial, seed)
        self._durations.append((self._clock() - began) / len(work))

    def _point(self, trial: Trial) -> dict[str, Any]:
        own = {} if trial is self._given or trial.candidate is None else self._space.settings(trial.candidate)
        return self._settings | own | {"run.iterations": self._skipped + MEASURED + trial.alpha}

    def _tell(self, trial: Trial, seed: int) -> None:
        numbers = trial.numbers[seed]
        what = "as given" if trial is self._given else overrides(trial.changes)
        self._said(
            f"simulation {self._simulations}, seed {seed}: step {numbers.step_time_s:.1f} s, "
            f"cost {numbers.cost_per_million_tokens:.2f}: {what}"
        )

    def _finalists(self) -> list[Trial]:
        """The best of each policy, and those of a smaller alpha that the choice may prefer."""
        best: dict[object, Trial] = {}
        for trial in sorted(self._trials.values(), key=self._score):
            if trial is not self._given:
                best.setdefault(trial.policy, trial)
        ranked = list(best.values())
        if not ranked:
            return []
        found = ranked[: FINALISTS - 1]
        limit = (1 + 2 * NOTABLE) * self._score(found[0])
        smaller = [trial for trial in ranked if trial.alpha < found[0].alpha and self._score(trial) <= limit]
        return list(dict.fromkeys([*found, *smaller, *ranked]))[:FINALISTS]

    def _by_preference(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Best first, but a larger alpha or more redundancy only where it is notably better."""
        left = sorted(trials, key=self._score)
        while left:
            limit = (1 + NOTABLE) * self._score(left[0])
            best = min((trial for trial in left if self._score(trial) <= limit), key=_restraint)
            left.remove(best)
            yield best

    def _score(self, trial: Trial) -> float:
        """The objective, mean over the seeds under which it was simulated; less is better."""
        return statistics.fmean(self._objective_of(trial, seed) for seed in trial.numbers)

    def _objective_of(self, trial: Trial, seed: int) -> float:
        if self._objective == "cost":
            return trial.numbers[seed].cost_per_million_tokens
        return self._comparable_step(trial, seed)

    def _comparable_step(self, trial: Trial, seed: int) -> float:
        numbers = trial.numbers[seed]
        return numbers.step_time_s / numbers.tokens * self._given.numbers[seed].tokens

    def _estimated(self, candidate: Candidate) -> float:
        estimate = self._estimator.estimate(candidate)
        return estimate.comparable_step if self._objective == "time" else estimate.comparable_cost

    def _proposal(self, trial: Trial) -> Proposal:
        seeds = REPORT_SEEDS
        gains = [1 - self._objective_of(trial, seed) / self._objective_of(self._given, seed) for seed in seeds]
        own = {
            name: Spread.of([getattr(trial.numbers[seed], name) for seed in seeds])
            for name in Numbers.__struct_fields__
        }
        comparable = Spread.of([self._comparable_step(trial, seed) for seed in seeds])
        return Proposal(settings=trial.changes, comparable_step_s=comparable, gain=Spread.of(gains), **own)


def _restraint(trial: Trial) -> tuple[int, int, int]:
    rollout = trial.config.rollout
    return trial.alpha, rollout.redundant_members, rollout.redundant_groups


_ALWAYS = {
    "run.max_train_seconds": None,
    "evaluation.instances": 0,
    "evaluation.every": 0,
    "training.checkpoint.every": 0,
}
"""A simulation of the planner plays nothing but its iterations."""

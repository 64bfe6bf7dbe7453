"""``summary.json``: the numbers of a run in one small, stable file, derived from the event log.

``docs/summary_json.md`` documents every field; the schema number rises when a field changes its meaning
or goes. Written at the end of ``rollart train`` and by ``rollart report``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rollart.events import BatchCommitted, BatchFormed, Envelope, Evaluated, RunStarted, TrainStepped, read_events
from rollart.observability.accounts import Accounts
from rollart.observability.evaluations import HeldOut, held_out
from rollart.observability.intervals import total
from rollart.observability.phases import Phases
from rollart.observability.selection import Selection, SelectionFold
from rollart.types import Outcome

SUMMARY_SCHEMA = 1


class DomainSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One domain: held-out results, and its share of the trained groups beside the configured one."""

    success_random: float | None
    success_before: float | None
    success_after: float | None
    reward_before: float | None
    reward_after: float | None
    trained_share: float | None
    configured_share: float


class Outcomes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Training trajectories by their one outcome; ``failed`` by kind, only kinds that occurred."""

    trained: int
    filtered: int
    withheld: int
    evicted_stale: int
    aborted_stale: int
    surplus: int
    group_lost: int
    abandoned: int
    failed: dict[str, int]

    def total(self) -> int:
        """All ended trajectories."""
        plain = self.trained + self.filtered + self.withheld + self.evicted_stale + self.aborted_stale
        return plain + self.surplus + self.group_lost + self.abandoned + sum(self.failed.values())


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Generated tokens: all, those of trained trajectories, and those of all other outcomes."""

    generated: int
    trained: int
    wasted: int


class Seconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall time by phase over the whole run; phases overlap, so they do not add up to ``train_wall_s``."""

    rollout: float
    train: float
    suspend: float
    update: float
    get_batch_wait: float


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file, field by field as in ``docs/summary_json.md``."""

    schema: int
    run: str
    mode: str
    alpha: int
    seed: int
    iterations: int
    train_wall_s: float
    domains: dict[str, DomainSummary]
    started: int
    in_flight: int
    outcomes: Outcomes
    max_staleness: int | None
    tokens: Tokens
    seconds: Seconds
    selection: dict[str, Selection] = {}


class AccountingError(RuntimeError):
    """The log breaks the rule that every started trajectory has exactly one outcome."""


def summarise(run: str, events: Iterable[Envelope]) -> Summary:
    """The summary of a run's merged log.

    Args:
        run: Name of the run.
        events: As :func:`rollart.events.read_events` yields them.

    Raises:
        ValueError: the log has no ``RunStarted`` record.
        AccountingError: the log breaks the accounting rule; the message names the first trajectories.
    """
    fold = _Fold()
    for envelope in events:
        fold.add(envelope)
    if fold.start is None:
        raise ValueError("the event log has no RunStarted record: the run did not get as far as starting")
    if not fold.accounts.balanced:
        raise AccountingError("; ".join(fold.accounts.problems[:5]))
    return fold.summary(run, fold.start)


class _Fold:
    def __init__(self) -> None:
        self.accounts = Accounts()
        self.phases = Phases()
        self.selection = SelectionFold()
        self.start: RunStarted | None = None
        self.iterations = 0
        self.formed: dict[int, dict[str, int]] = {}
        self.committed: set[int] = set()
        self.evaluations: list[Evaluated] = []

    def add(self, envelope: Envelope) -> None:
        self.accounts.add(envelope.e)
        self.phases.add(envelope)
        self.selection.add(envelope.e)
        match envelope.e:
            case RunStarted() as start:
                self.start = start
            case TrainStepped(version=version):
                self.iterations = version
            case BatchFormed(index=index, groups=groups):
                self.formed[index] = groups
            case BatchCommitted(index=index):
                self.committed.add(index)
            case Evaluated() as result:
                self.evaluations.append(result)
            case _:
                pass

    def summary(self, run: str, start: RunStarted) -> Summary:
        accounts, phases = self.accounts, self.phases
        trained = accounts.tokens[Outcome.TRAINED]
        ended = accounts.tokens.total()
        return Summary(
            schema=SUMMARY_SCHEMA,
            run=run,
            mode=start.mode,
            alpha=start.alpha,
            seed=start.seed,
            iterations=self.iterations,
            train_wall_s=_seconds(total(phases.training())),
            domains=self._domains(start.domains),
            started=accounts.started,
            in_flight=accounts.in_flight,
            outcomes=_outcomes(accounts),
            max_staleness=accounts.max_staleness,
            tokens=Tokens(ended + accounts.tokens_in_flight, trained, ended - trained),
            seconds=Seconds(
                rollout=_seconds(total(phases.rollout())),
                train=_seconds(phases.train_seconds),
                suspend=_seconds(phases.step_seconds.get("suspend", 0.0)),
                update=_seconds(phases.step_seconds.get("update", 0.0)),
                get_batch_wait=_seconds(phases.wait_seconds),
            ),
            selection={domain: self.selection.of(domain) for domain in start.domains},
        )

    def _domains(self, configured: dict[str, float]) -> dict[str, DomainSummary]:
        groups: Counter[str] = Counter()
        for index in self.committed:
            groups.update(self.formed.get(index, {}))
        everything = groups.total()
        results = held_out(self.evaluations, configured)
        return {
            domain: _domain(results[domain], groups[domain] / everything if everything else None, share)
            for domain, share in configured.items()
        }


def _domain(result: HeldOut, trained_share: float | None, configured_share: float) -> DomainSummary:
    return DomainSummary(
        success_random=result.success_random,
        success_before=result.success_before,
        success_after=result.success_after,
        reward_before=result.reward_before,
        reward_after=result.reward_after,
        trained_share=trained_share,
        configured_share=configured_share,
    )


def _outcomes(accounts: Accounts) -> Outcomes:
    counts = {outcome.value: accounts.outcomes[outcome] for outcome in Outcome if outcome is not Outcome.FAILED}
    return Outcomes(**counts, failed={kind.value: count for kind, count in sorted(accounts.failures.items())})


def _seconds(value: float) -> float:
    return round(value, 3)


def write_summary(run_folder: Path) -> Summary:
    """Derive the summary of ``RUN/events`` and write ``RUN/summary.json`` atomically.

    Raises:
        FileNotFoundError, ValueError, AccountingError: as :func:`read_events` and :func:`summarise`.
        OSError: the file cannot be written.
    """
    summary = summarise(run_folder.name, read_events(run_folder / "events"))
    target = run_folder / "summary.json"
    partial = target.with_suffix(".json.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    os.replace(partial, target)
    return summary


def read_summary(run_folder: Path) -> Summary:
    """Read ``RUN/summary.json`` and check it against the schema.

    Raises:
        FileNotFoundError: the run has no summary.
        msgspec.ValidationError: the file does not follow the schema.
    """
    return msgspec.json.decode((run_folder / "summary.json").read_bytes(), type=Summary)

"""How a seeded mutant, a plausible mistake put into the control plane, is shown to be found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from families import Family, any_run, by_seed
from invariants import violations
from virtual_job import play


def caught(kind: str, family: Family = any_run, runs: int = 60, **changes: Any) -> str:
    """The first violation of a kind in random runs, in its words.

    Args:
        kind: How its line begins.
        family: Of the runs.
        runs: How many at most.
        changes: Fields of every scenario.

    Raises:
        AssertionError: no run shows it; the message has the kinds of violations that were seen.
    """
    seen: Counter[str] = Counter()
    for seed in range(runs):
        for violation in violations(play(msgspec.structs.replace(by_seed(family, seed), **changes))):
            if violation.startswith(kind):
                return violation
            seen[violation.partition(":")[0]] += 1
    raise AssertionError(f"no violation of the kind '{kind}' in {runs} runs, but {dict(seen)}")

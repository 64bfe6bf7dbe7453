"""Held-out results by domain: before training, after it, and of a random policy.

*Before* is the first pass with the model, *after* the last one with newer weights; a run that evaluated
once has no *after*. Used by the summary, the final table and the report.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollart.events import Evaluated


class HeldOut(msgspec.Struct, frozen=True):
    """The held-out results of one domain, ``None`` where there was no such pass.

    Attributes:
        instances: Held-out instances of a pass.
        success_random, success_before, success_after: Share of instances solved, unshaped, in [0, 1].
        reward_before, reward_after: Mean reward, shaping included.
    """

    instances: int = 0
    success_random: float | None = None
    success_before: float | None = None
    success_after: float | None = None
    reward_before: float | None = None
    reward_after: float | None = None


def held_out(results: Iterable[Evaluated], domains: Iterable[str]) -> dict[str, HeldOut]:
    """The results by domain, one entry for each of ``domains`` even if nothing was evaluated."""
    by_domain: dict[str, list[Evaluated]] = {domain: [] for domain in domains}
    for result in results:
        by_domain.setdefault(result.domain, []).append(result)
    return {domain: _of_domain(passes) for domain, passes in by_domain.items()}


def _of_domain(passes: list[Evaluated]) -> HeldOut:
    random = [result for result in passes if result.policy == "random"]
    model = [result for result in passes if result.policy == "model"]
    before = model[0] if model else None
    after = model[-1] if model and model[-1].version > model[0].version else None
    return HeldOut(
        instances=max((result.instances for result in passes), default=0),
        success_random=random[-1].success if random else None,
        success_before=before.success if before else None,
        success_after=after.success if after else None,
        reward_before=before.reward if before else None,
        reward_after=after.reward if after else None,
    )

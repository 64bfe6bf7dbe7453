"""Advantages: from the rewards of a group to one number for each of its trajectories. Pure numpy.

Invariants, for the built-in estimator and checked for every other:

* every member of the group counts in the baseline, also those that are withheld;
* equal rewards give advantages of exactly 0;
* an advantage is finite; a missing or non-finite reward is an error and never a zero.

Which members are withheld (``truncated: mask``) was decided when the group was formed, and is recorded in it:
:func:`trained_members` are the others, but for those that generated nothing.

Who calls it: :mod:`rollart.data_plane.training.batching`. A user's own estimator is a function in the
user's module, named ``module:function`` in ``training.algorithm``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rollart.config.training import TrainingConfig
from rollart.registry import Registry
from rollart.types import Group

STD_FLOOR = 1e-4
"""Added to the standard deviation, so that rounding noise in nearly equal rewards is not blown up."""

AdvantageFunction = Callable[[Group, TrainingConfig], np.ndarray]
"""From a scored group to ``float64[len(group.members)]``."""


def rewards_of(group: Group) -> np.ndarray:
    """``float64[n]``: the score of each member.

    Raises:
        ValueError: a member has no score or a score that is not finite; the message names it.
    """
    for member in group.members:
        if member.score is None:
            raise ValueError(f"trajectory {member.id} has no score: only scored trajectories can be trained")
        if not math.isfinite(member.score.value):
            raise ValueError(f"trajectory {member.id} has reward {member.score.value}: rewards must be finite numbers")
    return np.array([member.score.value for member in group.members if member.score is not None], np.float64)


def group_relative(group: Group, config: TrainingConfig) -> np.ndarray:
    """GRPO (arXiv 2402.03300): reward minus the group's mean, divided by its standard deviation.

    With ``advantage_norm: none`` it is not divided (Dr. GRPO, arXiv 2503.20783), with ``domain`` not here
    but by :func:`batch_advantages`. The standard deviation is that of the population, plus :data:`STD_FLOOR`.
    """
    rewards = rewards_of(group)
    if rewards.max() == rewards.min():
        return np.zeros(len(rewards))  # the rounded mean of equal numbers may differ from them
    centred = rewards - rewards.mean()
    scale = float(rewards.std()) + STD_FLOOR if config.advantage_norm == "std" else 1.0
    return np.asarray(centred / scale)


ADVANTAGES: Registry[AdvantageFunction] = Registry("algorithm", {"grpo": group_relative})


def check_algorithm(name: str) -> None:
    """Refuse an algorithm that there is not, before anything starts.

    Raises:
        ValueError: what is wrong with ``training.algorithm`` and what to do.
    """
    if not callable(ADVANTAGES.found(name, "training.algorithm")):
        raise ValueError(f"training.algorithm '{name}' is not a function")  # noqa: TRY004 - a setting


def group_advantages(group: Group, config: TrainingConfig) -> np.ndarray:
    """The advantages by the configured algorithm, ``float64[len(group.members)]``.

    Raises:
        LookupError: ``config.algorithm`` does not exist.
        ValueError: a reward is missing or not finite, or the estimator returned something else than one
            finite number for each member.
    """
    values = np.asarray(ADVANTAGES.get(config.algorithm)(group, config), np.float64)
    if values.shape != (len(group.members),) or not np.isfinite(values).all():
        raise ValueError(
            f"algorithm {config.algorithm!r} returned {values!r} for group {group.domain}/{group.index}: "
            f"it must return {len(group.members)} finite numbers"
        )
    return values


def batch_advantages(groups: Sequence[Group], config: TrainingConfig) -> list[np.ndarray]:
    """The advantages of all groups of a batch, each as of :func:`group_advantages`.

    With ``advantage_norm: domain`` those of a domain are divided by their standard deviation over the whole
    batch, so that domains with large and small rewards weigh alike while groups with hardly any spread stay
    as small as they are.
    """
    values = [group_advantages(group, config) for group in groups]
    if config.advantage_norm != "domain":
        return values
    scales = {
        domain: float(np.sqrt(np.mean(np.square(np.concatenate(_of_domain(domain, groups, values)))))) + STD_FLOOR
        for domain in {group.domain for group in groups}
    }
    return [value / scales[group.domain] for group, value in zip(groups, values, strict=True)]


def _of_domain(domain: str, groups: Sequence[Group], values: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [value for group, value in zip(groups, values, strict=True) if group.domain == domain]


def trained_members(group: Group) -> list[int]:
    """Positions in ``group.members`` whose tokens enter the loss."""
    return [
        position
        for position, member in enumerate(group.members)
        if position not in group.withheld and member.generated_tokens > 0
    ]

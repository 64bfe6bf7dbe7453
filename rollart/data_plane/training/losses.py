"""The policy loss: a clipped surrogate with truncated importance weights.

Three policies meet in it:

* *behaviour*: the weights that sampled a token; its log-probability came with the trajectory;
* *proximal*: the weights at the start of this iteration, the centre of the clip range;
* *target*: the weights whose gradient is taken.

With one optimizer step in an iteration the target *is* the proximal policy, so there is nothing to
recompute: the ratio is target / behaviour, clipped to ``[1 - clip_low, 1 + clip_high]`` as in PPO with
clip-higher (DAPO, arXiv 2503.14476). With more steps (``epochs`` or ``minibatches`` above 1) and
``correction: tis`` the loss is decoupled (arXiv 2110.00641, AReaL 2505.24298): the ratio is
target / proximal, and each token is weighted by ``w = min(correction_cap, proximal / behaviour)``, the
truncated importance weight (TIS). In both cases ``tis`` truncates the factor of a token's gradient at
the cap: a token whose probability rose a thousandfold since it was sampled cannot dominate a step.
``correction: none`` is plain PPO against the behaviour policy, without truncation.

The loss of an entry with advantage A, ratio r (truncated: r' with the gradient ``min(r, cap) * grad
log p``), weight w and coefficient c is::

    c * ( -w * A * (r'  if not clipped else  clip(r))  -  e * H )

where e is the entropy bonus of its domain in this iteration and H the entropy of its distribution.
clipped means (A > 0 and r > 1 + clip_high) or (A < 0 and r < 1 - clip_low); it has no gradient. The
coefficients divide by global counts (see :mod:`rollart.data_plane.training.batching`), so losses of
micro-batches add up to the loss of the batch.

Who calls it: the forward passes of :mod:`rollart.data_plane.training.forward`, through the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rollart.config.training import TrainingConfig

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before ``exp``, far outside every clip range, so that nothing overflows."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Generated tokens, ``[m]`` each.

    Attributes:
        behaviour: Log-probabilities under the behaviour policy.
        proximal: Under the proximal policy, or ``None`` when it is the target or the behaviour policy.
        advantages, coefficients, entropy_weights: As in
            :class:`~rollart.data_plane.training.batching.MicroBatch`.
        on_policy: ``bool``.
    """

    behaviour: Tensor
    proximal: Tensor | None
    advantages: Tensor
    coefficients: Tensor
    entropy_weights: Tensor
    on_policy: Tensor

    def part(self, part: slice) -> Entries:
        """Some of them, as views."""
        return Entries(
            self.behaviour[part],
            None if self.proximal is None else self.proximal[part],
            self.advantages[part],
            self.coefficients[part],
            self.entropy_weights[part],
            self.on_policy[part],
        )


@dataclass(slots=True)
class LossSums:
    """Sums over the entries seen so far, from which the metrics are made."""

    entries: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    ratio: float = 0.0
    ratio_max: float = 0.0
    truncated: int = 0
    gap: float = 0.0
    on_policy: int = 0
    on_policy_gap: float = 0.0
    pending: list[Tensor] = field(default_factory=list)
    """Sums that are still on the device: they are read once an iteration, not once a micro-batch."""

    def add(self, sums: Tensor) -> None:
        self.pending.append(sums)

    def read(self) -> LossSums:
        """Fold in what is pending."""
        for values in torch.stack(self.pending).double().tolist() if self.pending else []:
            self.entries += round(values[0])
            self.loss += values[1]
            self.entropy += values[2]
            self.clipped += round(values[3])
            self.ratio += values[4]
            self.ratio_max = max(self.ratio_max, values[5])
            self.truncated += round(values[6])
            self.gap += values[7]
            self.on_policy += round(values[8])
            self.on_policy_gap += values[9]
        self.pending.clear()
        return self


def token_log_probabilities(
    logits: Tensor, entry_rows: Tensor, targets: Tensor, *, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, in nats.

    Args:
        logits: ``float32[p, vocabulary]``, temperature applied.
        entry_rows: ``int64[m]``, the row of each entry.
        targets: ``int64[m]``, its token.
        entropy_gradient: Whether the entropy is part of the loss.

    Returns:
        ``(float32[m], float32[m])``.
    """
    distributions = torch.log_softmax(logits.float(), dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(distributions.exp() * distributions).sum(-1)  # ``entr`` has no gradient where p underflows
    return distributions[entry_rows, targets], entropies[entry_rows]


def policy_loss(
    log_probabilities: Tensor, entropies: Tensor, entries: Entries, config: TrainingConfig, sums: LossSums
) -> Tensor:
    """The loss of some entries, a scalar to be added to that of the others; ``sums`` is updated."""
    cap = config.correction_cap if config.correction == "tis" else float("inf")
    current = log_probabilities.detach()
    ratio = _ratio(current, entries.behaviour if entries.proximal is None else entries.proximal)
    importance = ratio if entries.proximal is None else _ratio(entries.proximal, entries.behaviour)
    weight = 1.0 if entries.proximal is None else importance.clamp(max=cap)
    clipped = torch.where(entries.advantages > 0, ratio > 1 + config.clip_high, ratio < 1 - config.clip_low)
    clipped &= entries.advantages != 0
    bound = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    # exp(log p - detached log p) is 1 with the gradient of log p, so the truncated ratio stays outside of it.
    moving = ratio.clamp(max=cap) * (log_probabilities - current).exp()
    loss = -(entries.coefficients * weight * torch.where(clipped, bound, moving) * entries.advantages).sum()
    loss = loss - (entries.entropy_weights * entropies).sum()
    sums.add(_sums(loss, entropies, ratio, clipped, importance > cap, current, entries))
    return loss


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@torch.no_grad()
def _sums(
    loss: Tensor,
    entropies: Tensor,
    ratio: Tensor,
    clipped: Tensor,
    truncated: Tensor,
    current: Tensor,
    entries: Entries,
) -> Tensor:
    sampled_by = current if entries.proximal is None else entries.proximal
    gap = (sampled_by - entries.behaviour).abs()
    values = (
        current.new_tensor(len(current)),
        loss.detach(),
        entropies.sum(),
        clipped.sum(),
        ratio.sum(),
        ratio.max() if len(ratio) else current.new_tensor(0.0),
        truncated.sum(),
        gap.sum(),
        entries.on_policy.sum(),
        (gap * entries.on_policy).sum(),
    )
    return torch.stack([value.to(torch.float32) for value in values])


def metrics_of(steps: Sequence[LossSums]) -> dict[str, float]:
    """Means over the entries of an iteration's optimizer steps; nothing for a mean over no entries.

    Keys: ``loss`` (mean over the steps), ``entropy``, ``clip_share``, ``ratio_mean``, ``ratio_max``,
    ``truncated_share`` (of the importance weights), and of the first step, whose target is the proximal
    policy: ``logprob_gap`` (mean |behaviour - trainer| log-probability), ``logprob_gap_on_policy``.
    """
    sums = [step.read() for step in steps]
    entries = sum(step.entries for step in sums)
    metrics = {"loss": sum(step.loss for step in sums) / max(1, len(sums))}
    if entries:
        metrics |= {
            "entropy": sum(step.entropy for step in sums) / entries,
            "clip_share": sum(step.clipped for step in sums) / entries,
            "ratio_mean": sum(step.ratio for step in sums) / entries,
            "ratio_max": max(step.ratio_max for step in sums),
            "truncated_share": sum(step.truncated for step in sums) / entries,
        }
    if sums and sums[0].entries:
        metrics["logprob_gap"] = sums[0].gap / sums[0].entries
    if sums and sums[0].on_policy:
        metrics["logprob_gap_on_policy"] = sums[0].on_policy_gap / sums[0].on_policy
    return metrics

"""Section ``training``: the algorithm and its optimizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollart.config.base import Section
from rollart.config.modes import Transfer


class CheckpointConfig(Section):
    """Section ``checkpoint``."""

    every: int = Field(50, ge=0)
    """Save every so many iterations besides the end; 0 = only at the end."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints kept."""


class TrainingConfig(Section):
    """The trainer."""

    algorithm: str = "grpo"
    """How advantages are estimated: ``grpo`` (relative to the group's mean), or your own ``module:function``."""
    advantage_norm: Literal["std", "domain", "none"] = "std"
    """Divide advantages by their group's standard deviation, by their domain's in the batch, or not (Dr. GRPO)."""
    loss_norm: Literal["token", "sequence", "domain"] = "token"
    """Average the loss over the batch's trained tokens, over sequences, or over each domain's tokens, then domains."""
    clip_low: float = Field(0.2, gt=0)
    """Lower clip of the policy ratio: 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """Upper clip of the policy ratio: 1 + clip_high (clip-higher)."""
    correction: Literal["tis", "none"] = "tis"
    """Off-policy correction: importance weights against the behaviour log-probabilities, truncated."""
    correction_cap: float = Field(2.0, gt=0)
    """Truncation of the importance weights."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Coefficient of the mean token entropy; a domain may set its own."""
    entropy_end: float = Field(1.0, ge=0, le=1)
    """Share of the entropy bonus that is left at the last iteration; it falls linearly."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps in one pass."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's decay of the mean gradient."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """AdamW's decay of the mean squared gradient."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this global norm."""
    warmup: int = Field(0, ge=0)
    """Iterations of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up, down to ``final_learning_rate`` at the last iteration."""
    final_learning_rate: float = Field(0.0, ge=0)
    """Where ``linear`` and ``cosine`` end."""
    micro_batch_tokens: int = Field(2048, ge=1)
    """Tokens of one forward-backward pass, padding included where rows are padded."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that passes compute in (``bfloat16`` is autocast); weights, gradients and optimizer stay ``float32``."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs."""
    devices: int = Field(1, ge=1)
    """Devices of the trainer. The torch trainer runs on one; modelled ones (``rollart simulate``) on any number."""
    threads: int = Field(1, ge=1)
    """Torch threads of the trainer process."""
    entropy_alarm: float = Field(0.02, ge=0)
    """Alarm when the mean token entropy (nats) falls below this."""
    clip_share_alarm: float = Field(0.3, ge=0, le=1)
    """Alarm when more than this share of the trained tokens was clipped."""
    zero_advantage_alarm: float = Field(0.95, ge=0, le=1)
    """Alarm when more than this share of the trained trajectories had advantage 0."""
    logprob_gap_alarm: float = Field(0.05, ge=0)
    """Alarm when mean |behaviour - trainer| log-probability of on-policy tokens exceeds this."""
    checkpoint: CheckpointConfig = CheckpointConfig()


class WeightsConfig(Section):
    """Section ``weights``: how versions travel from the trainer to the engines."""

    store: Literal["shared_memory"] = "shared_memory"
    """The weight store implementation."""
    bucket_bytes: int = Field(1 << 30, ge=1 << 16)
    """Size of a bucket, the unit of push and pull."""
    transfer: Transfer | None = None
    """``asynchronous``: pushed and prefetched while engines generate, only the swap suspends them; ``blocking``: push,
    pull and swap while they are suspended, and the next train step waits too. By the mode: ``asynchronous`` in
    ``rollart``."""

"""What to run: the name, the mode, how long, how stale, and the seed everything derives from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollart.config.base import Section
from rollart.config.modes import Mode, Pace, Stale, Update


class RunConfig(Section):
    """Section ``run``: the name, how long, how stale, and the seed."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run folder under ``dir``."""
    dir: str = "runs"
    """Folder that holds the run folders."""
    seed: int = Field(0, ge=0)
    """Root of every random choice."""
    mode: Mode = "rollart"
    """Preset of the switches that are left out: ``alpha``, ``update``, ``stale``, ``rollout.interaction``,
    ``rollout.scoring`` and ``weights.transfer`` (the table of modes in the architecture page)."""
    alpha: int | None = Field(None, ge=0)
    """Bound on staleness: batch k only trains what was started at version k - alpha or later. By the mode: 1, and 0 in
    ``sync`` and ``sync_plus``."""
    update: Update | None = None
    """When engines take new weights: ``eager``, as soon as there are newer ones, or ``at_batch``, only when a batch is
    ready. By the mode: ``eager``, and ``at_batch`` in ``one_off``."""
    stale: Stale | None = None
    """What becomes of a trajectory that would exceed ``alpha``: ``abort`` it; ``wait`` with the next batch for those
    that would; ``withhold`` it (finish it, count its reward in its group's baseline, train none of its tokens); or
    ``train`` it, so that the bound only limits how much is started. By the mode: ``abort``, ``train`` in ``areal``."""
    iterations: int = Field(100, ge=1)
    """Number of optimizer steps."""
    max_train_seconds: float | None = Field(None, gt=0)
    """Stop after this much training wall time, evaluation not counted, at the end of an iteration."""
    runtime: Literal["ray", "in_process"] = "ray"
    """Where workers live: Ray actors, or this process (debugging, tests)."""
    stall_seconds: float = Field(120.0, gt=0)
    """After this long without progress the watchdog says who waits for whom."""


class RolloutConfig(Section):
    """Section ``rollout``: how trajectories are started and grouped."""

    groups_per_batch: int = Field(16, ge=1)
    """B, the groups in one training batch."""
    group_size: int = Field(8, ge=1)
    """Trajectories of one group, all from the same task instance."""
    redundant_members: int = Field(0, ge=0)
    """Extra members started with each group; the last to finish are surplus."""
    redundant_groups: int = Field(0, ge=0)
    """Extra groups started beyond the admission bound."""
    max_environments: int = Field(256, ge=1)
    """Environments alive at once, over all hosts."""
    hosts: int = Field(1, ge=1)
    """Environment host processes."""
    host_restarts: int = Field(3, ge=0)
    """Times that each environment host is started again after its process was lost, before the run ends."""
    retries: int = Field(2, ge=0)
    """Fresh attempts for a failed member before the group counts it lost."""
    retry_delay: float = Field(0.5, ge=0)
    """Seconds before the first retry; doubles with each further one."""
    starvation_limit: int = Field(8, ge=1)
    """Consecutive failed or filtered groups after which a domain is suspended."""
    mix_tolerance: float = Field(1.0, ge=1.0)
    """Groups by which the cumulative trained mix of a domain may differ from its configured share."""
    filter_zero_variance: bool = False
    """Drop groups whose rewards are all equal (outcome ``filtered``) instead of training them."""
    interaction: Pace | None = None
    """``trajectory``: each takes its turns at its own pace; ``batch``: all in lock-step, every turn as slow as the
    slowest. By the mode: ``trajectory``, and ``batch`` in ``sync``."""
    scoring: Pace | None = None
    """``trajectory``: each is scored when it finishes; ``batch``: when all that run have finished. By the mode:
    ``trajectory``, and ``batch`` in ``sync``."""


class EvaluationConfig(Section):
    """Section ``evaluation``: held-out instances, before, during and after training."""

    instances: int = Field(0, ge=0)
    """Held-out instances of each domain; 0 turns evaluation off."""
    every: int = Field(0, ge=0)
    """Evaluate every so many iterations besides the start and the end; 0 = only these two."""
    greedy: bool = False
    """Take the most likely token instead of sampling."""
    random_policy: bool = True
    """Also play the instances with a random policy, as the floor."""


class LogConfig(Section):
    """Section ``log``: what is kept besides the event log."""

    turns: bool = False
    """Write one record for each turn."""
    utilisation_seconds: float = Field(1.0, gt=0)
    """Period of the records of busy workers."""
    trajectories: int = Field(32, ge=0)
    """Full trajectories kept for ``rollart show``, of each iteration's batch at most this many."""
    trajectory_batches: int = Field(200, ge=1)
    """Newest batches of which trajectories are kept; those of older ones are deleted."""
    tensorboard: bool = False
    """Also write TensorBoard scalars (extra ``tensorboard``)."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (extra ``wandb``)."""

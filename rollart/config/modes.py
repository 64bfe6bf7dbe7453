"""The modes: presets of the switches in which training systems differ.

Every mode is the same machinery with other switches, and each switch can be set alone; what the configuration leaves
out, the mode decides. The presets follow the baselines of the RollArt paper (its evaluation set-up):

* ``sync``: the standard pipeline. All environments of a batch take their turns in lock-step, rewards are computed
  when the last of them has finished, then the policy trains, then the engines take the new weights.
* ``sync_plus``: staleness 0 too, but every trajectory moves at its own pace and is scored when it finishes.
* ``one_off``: the batch of one step is trained while the next one is generated, wholly by the weights of the
  step's start.
* ``areal``: training and rollout overlap, running trajectories go on under new weights; the bound only limits how
  many trajectories are started, so one that takes long is trained however stale it is.
* ``rollart``: the bound holds for every trajectory, and weights travel in the background.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Mode = Literal["sync", "sync_plus", "one_off", "areal", "rollart"]
Update = Literal["eager", "at_batch"]
Stale = Literal["abort", "wait", "withhold", "train"]
Pace = Literal["trajectory", "batch"]
Transfer = Literal["asynchronous", "blocking"]


class Switches(NamedTuple):
    """Every switch of a run, as it is in effect.

    Attributes:
        alpha: Bound on staleness.
        update: When engines take new weights.
        stale: What becomes of a trajectory that would exceed the bound.
        interaction: Whether environments take their turns each for itself or in lock-step.
        scoring: Whether a trajectory is scored when it finishes or when all that run have finished.
        transfer: Whether weights travel while engines generate or while they are suspended.
    """

    alpha: int
    update: Update
    stale: Stale
    interaction: Pace
    scoring: Pace
    transfer: Transfer


PRESETS: dict[Mode, Switches] = {
    "sync": Switches(0, "eager", "abort", "batch", "batch", "blocking"),
    "sync_plus": Switches(0, "eager", "abort", "trajectory", "trajectory", "blocking"),
    "one_off": Switches(1, "at_batch", "abort", "trajectory", "trajectory", "blocking"),
    "areal": Switches(1, "eager", "train", "trajectory", "trajectory", "blocking"),
    "rollart": Switches(1, "eager", "abort", "trajectory", "trajectory", "asynchronous"),
}

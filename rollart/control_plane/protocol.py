"""The training protocol as an explicit state machine (the paper's six steps; architecture, section 6).

Two sides move independently and meet at well-defined points:

* the training side:  ``get_batch -> [hold] -> train_step -> get_batch ...``
* the rollout side:   ``rollout -> suspend -> update -> resume -> recompute -> rollout``

``update: at_batch`` is the paper's order: an update happens only between ``get_batch`` and
``train_step``, and ``train_step`` waits for it. ``update: eager`` (the default) takes a version as soon as
it is announced, also while ``get_batch`` waits or ``train_step`` runs: the data is fresher, alpha = 0 does not
deadlock (batch k needs trajectories that start at W_k), and a trainer that is the bottleneck does not
hold the engines one version back.

``transfer: asynchronous`` announces a version while rollout goes on; an update is due once it is announced.
``transfer: blocking`` makes an update due once a version is trained: it is pushed, announced and taken while rollout is
suspended, and ``train_step`` waits for the push.

Three versions, never confused: ``engines`` (v, the oldest among the engines) <= ``announced`` (in the
weight store) <= ``trained``. ``train_step(k)`` is legal only when ``trained == k``.

Pure: no I/O, no clock. An illegal transition raises :class:`ProtocolError`. Driven by the TrainingLoop.
"""

from __future__ import annotations

from enum import StrEnum

from rollart.config.modes import Transfer, Update


class ProtocolError(AssertionError):
    """A transition that the protocol does not allow: a fault in the control plane."""


class TrainingState(StrEnum):
    GET_BATCH = "get_batch"
    HOLD = "hold"
    """The batch is formed and leased, its training has not begun."""
    TRAIN_STEP = "train_step"
    DONE = "done"


class RolloutState(StrEnum):
    ROLLOUT = "rollout"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    RECOMPUTE = "recompute"


_NEXT = {
    RolloutState.SUSPEND: RolloutState.UPDATE,
    RolloutState.UPDATE: RolloutState.RESUME,
    RolloutState.RESUME: RolloutState.RECOMPUTE,
    RolloutState.RECOMPUTE: RolloutState.ROLLOUT,
}


class TrainingProtocol:
    """See the module docstring.

    Args:
        iterations: Batches to train; the last index is ``iterations - 1``.
        update: When engines take new weights.
        version: Version that trainer and engines hold at the start.
        transfer: When weights travel.
    """

    def __init__(self, iterations: int, update: Update, version: int = 0, transfer: Transfer = "asynchronous") -> None:
        self._iterations = iterations
        self._at_batch = update == "at_batch"
        self.blocking = transfer == "blocking"
        self.engines = version
        self.announced = version
        self.trained = version
        self.training = TrainingState.GET_BATCH if version < iterations else TrainingState.DONE
        self.rollout = RolloutState.ROLLOUT
        self._updating_to: int | None = None
        self._demanded = version

    @property
    def index(self) -> int:
        """Index of the batch that the training side waits for, holds or trains."""
        return self.trained

    def update_due(self) -> int | None:
        """The version that the rollout side should take now, or ``None``."""
        newest = self.trained if self.blocking else self.announced
        if self.rollout is not RolloutState.ROLLOUT or newest <= self.engines:
            return None
        if self._at_batch and self._demanded <= self.engines and not self._batch_wants_update:
            return None
        return newest

    def demand(self, version: int) -> None:
        """Evaluation needs the engines at ``version``: an update is due as soon as it is announced, in either order."""
        self._demanded = max(self._demanded, version)

    @property
    def _batch_wants_update(self) -> bool:
        return self.training is TrainingState.HOLD and (self.blocking or self.announced == self.trained)

    @property
    def may_train(self) -> bool:
        """Whether ``train_step`` may begin: batch held, update made if at_batch, push over if blocking."""
        if self.training is not TrainingState.HOLD or (self.blocking and self.announced < self.trained):
            return False
        return not self._at_batch or (self.engines == self.trained and self.rollout is RolloutState.ROLLOUT)

    def batch_formed(self, index: int) -> None:
        """``get_batch(index)`` returned."""
        self._expect_training(TrainingState.GET_BATCH, f"get_batch({index})")
        if index != self.trained:
            raise ProtocolError(f"batch {index} was formed, but the weights are at version {self.trained}")
        self.training = TrainingState.HOLD

    def train_begins(self) -> None:
        if not self.may_train:
            raise ProtocolError(f"train_step({self.index}) in state {self.describe()}")
        self.training = TrainingState.TRAIN_STEP

    def train_failed(self) -> None:
        """The trainer died or refused: the batch is held again, the weights are unchanged."""
        self._expect_training(TrainingState.TRAIN_STEP, "train_failed")
        self.training = TrainingState.HOLD

    def train_ended(self, version: int) -> None:
        """``train_step(k)`` returned and was committed: the weights are W_{k+1}."""
        self._expect_training(TrainingState.TRAIN_STEP, f"train_step ended at version {version}")
        if version != self.trained + 1:
            raise ProtocolError(f"train_step({self.trained}) returned version {version}")
        self.trained = version
        self.training = TrainingState.GET_BATCH if version < self._iterations else TrainingState.DONE

    def announce(self, version: int) -> None:
        """A version is complete in the weight store."""
        if not self.announced < version <= self.trained:
            raise ProtocolError(
                f"version {version} announced, but {self.announced} was before and {self.trained} trained"
            )
        self.announced = version
        if self.blocking and self._updating_to is not None:
            self._updating_to = version  # the trainer may have gone on since the update began

    def suspend_begins(self, version: int) -> None:
        """Start an update to a version that is due (a newer one may have been announced meanwhile)."""
        due = self.update_due()
        if due is None or not self.engines < version <= due:
            raise ProtocolError(f"suspend for an update to version {version} in state {self.describe()}")
        self._updating_to = version
        self.rollout = RolloutState.SUSPEND

    def rollout_step_ended(self, step: RolloutState) -> RolloutState:
        """One of suspend, update, resume, recompute ended; returns the state that follows."""
        if step is not self.rollout or step not in _NEXT:
            raise ProtocolError(f"{step.value} ended in state {self.describe()}")
        if step is RolloutState.UPDATE:
            if self._updating_to is None or not self.engines < self._updating_to <= self.announced:
                raise ProtocolError(f"update to version {self._updating_to} in state {self.describe()}")
            self.engines = self._updating_to
            self._updating_to = None
        self.rollout = _NEXT[step]
        return self.rollout

    def describe(self) -> str:
        """The whole state in one line, for logs and the watchdog."""
        return (
            f"training={self.training.value}({self.index}) rollout={self.rollout.value} "
            f"versions engines={self.engines} announced={self.announced} trained={self.trained}"
        )

    def _expect_training(self, state: TrainingState, what: str) -> None:
        if self.training is not state:
            raise ProtocolError(f"{what} in state {self.describe()}")

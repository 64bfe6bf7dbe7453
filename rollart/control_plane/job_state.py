"""The control plane's part of a checkpoint: what a run needs, besides the trainer's state, to go on where it stopped.

Invariants:

* the state is that of a moment between two batches: a batch that was formed and not trained counts as not formed;
* the tasks of groups that were alive come first in their queues, so that a resumed run trains what it would have;
* a resumed run has the settings that give seeds, tasks and weights their meaning, or is refused (:func:`mismatches`).

Pure. Called by the wiring (which takes and restores the state), the Checkpoints (which keep it) and ``rollart train``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollart.config.config import Config
from rollart.control_plane.mix import SlotState
from rollart.control_plane.tasks import TaskState

SCHEMA_VERSION = 1
"""Of :class:`JobState`. Layout 0 had neither a number nor the mix."""


class JobState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the control plane needs to continue after W_version; the default is a fresh run's.

    Attributes:
        version: k of W_k; the next batch is k.
        next_group: Index of the next group.
        tasks: Task queue by domain.
        slots: The mix so far, and which domains are suspended; ``None`` in a fresh run.
        train_seconds: Wall time of training so far, evaluation not counted.
        evaluations: Passes of the evaluation so far, which number its trajectories.
        made_with: The settings that must not change, see :func:`fixed_settings`.
        checkpoint: The trainer's folder (filled in when read).
        schema: Version of this layout.
    """

    version: int = 0
    next_group: int = 0
    tasks: dict[str, TaskState] = {}
    slots: SlotState | None = None
    train_seconds: float = 0.0
    evaluations: int = 0
    made_with: dict[str, Any] = {}
    checkpoint: str = ""
    schema: int = SCHEMA_VERSION


def fixed_settings(config: Config) -> dict[str, Any]:
    """The settings that a run keeps for life, by key: the seed, the model, and each domain's environment."""
    model = config.model.model_dump(mode="json")
    tiny = model.pop("tiny")
    settings: dict[str, Any] = {"run.seed": config.run.seed}
    settings |= {f"model.{key}": value for key, value in model.items()}
    if config.model.path is None:
        settings |= {f"model.tiny.{key}": value for key, value in tiny.items()}
    for name, domain in config.domains.items():
        settings |= {f"domains.{name}.env": domain.env, f"domains.{name}.args": _plain(domain.args)}
    return settings


def mismatches(state: JobState, config: Config) -> list[str]:
    """How a configuration differs from what a checkpoint was made with; empty if the run can go on with it."""
    before, now = state.made_with, fixed_settings(config)
    return [
        f"{key} is {_shown(now, key)}, the checkpoint was made with {_shown(before, key)}"
        for key in dict.fromkeys([*now, *before])
        if key not in now or key not in before or now[key] != before[key]
    ]


def _shown(settings: dict[str, Any], key: str) -> str:
    return msgspec.json.encode(settings[key]).decode() if key in settings else "not set"


def _plain(value: Any) -> Any:
    """A value as it is after a journey through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))

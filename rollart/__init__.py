"""RollArt: multi-task agentic reinforcement learning on disaggregated, heterogeneous hardware.

The public API and nothing else. Names are imported when they are first used, so that ``import rollart``
loads neither torch nor ray, and neither do the worker processes that need only some of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollart.config.config import Config as Config
    from rollart.data_plane.cluster import Cluster as Cluster
    from rollart.data_plane.declarations import hw_mapping as hw_mapping
    from rollart.data_plane.declarations import register as register
    from rollart.data_plane.declarations import register_serverless as register_serverless
    from rollart.data_plane.environment.env import Env as Env
    from rollart.data_plane.environment.env import Observation as Observation
    from rollart.data_plane.environment.env import StepResult as StepResult
    from rollart.data_plane.worker import ActorGen as ActorGen
    from rollart.data_plane.worker import ActorTrain as ActorTrain
    from rollart.data_plane.worker import Environment as Environment
    from rollart.data_plane.worker import Reward as Reward
    from rollart.data_plane.worker import Worker as Worker
    from rollart.types import GenerationRequest as GenerationRequest
    from rollart.types import GenerationResult as GenerationResult
    from rollart.types import Group as Group
    from rollart.types import Outcome as Outcome
    from rollart.types import SamplingParams as SamplingParams
    from rollart.types import Score as Score
    from rollart.types import TokenSpan as TokenSpan
    from rollart.types import TrainBatch as TrainBatch
    from rollart.types import TrainReport as TrainReport
    from rollart.types import Trajectory as Trajectory
    from rollart.types import TrajectoryId as TrajectoryId
    from rollart.types import Turn as Turn

_HOMES = {
    "rollart.config.config": ("Config",),
    "rollart.data_plane.cluster": ("Cluster",),
    "rollart.data_plane.declarations": ("hw_mapping", "register", "register_serverless"),
    "rollart.data_plane.environment.env": ("Env", "Observation", "StepResult"),
    "rollart.data_plane.worker": ("ActorGen", "ActorTrain", "Environment", "Reward", "Worker"),
    "rollart.types": (
        "GenerationRequest",
        "GenerationResult",
        "Group",
        "Outcome",
        "SamplingParams",
        "Score",
        "TokenSpan",
        "TrainBatch",
        "TrainReport",
        "Trajectory",
        "TrajectoryId",
        "Turn",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

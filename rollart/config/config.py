"""The whole configuration of a run, and nothing that needs torch or ray."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rollart.config.base import Section
from rollart.config.domains import DomainConfig
from rollart.config.engine import EngineConfig
from rollart.config.model import ModelConfig
from rollart.config.modes import PRESETS, Switches
from rollart.config.resources import PlacementConfig, PoolConfig, RayConfig
from rollart.config.run import EvaluationConfig, LogConfig, RolloutConfig, RunConfig
from rollart.config.training import TrainingConfig, WeightsConfig


class Config(Section):
    """Root of the configuration file."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    domains: dict[str, DomainConfig] = Field(min_length=1)
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    training: TrainingConfig = TrainingConfig()
    weights: WeightsConfig = WeightsConfig()
    pools: dict[str, PoolConfig] = {"local": PoolConfig(devices=16)}
    placement: PlacementConfig = PlacementConfig()
    ray: RayConfig = RayConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _group_baseline_needs_a_group(self) -> Config:
        if self.training.algorithm == "grpo" and self.rollout.group_size < 2:
            raise ValueError(
                "rollout.group_size is 1, but training.algorithm 'grpo' takes its baseline from the group, "
                "so every advantage would be 0: set rollout.group_size to 2 or more"
            )
        return self

    @property
    def alpha(self) -> int:
        """The effective staleness bound."""
        return self.switches.alpha

    @property
    def switches(self) -> Switches:
        """Every switch as it is in effect: as set, else as the mode has it."""
        given = {
            "alpha": self.run.alpha,
            "update": self.run.update,
            "stale": self.run.stale,
            "interaction": self.rollout.interaction,
            "scoring": self.rollout.scoring,
            "transfer": self.weights.transfer,
        }
        own: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return PRESETS[self.run.mode]._replace(**own)

    @property
    def engines(self) -> int:
        """Number of engines."""
        by_pool = self.engines_by_pool
        return self.engine.count if by_pool is None else sum(by_pool.values())

    @property
    def engines_by_pool(self) -> dict[str, int] | None:
        """Engines in each of the pools that ``placement.generate`` lists; ``None`` if it does not list pools."""
        generate = self.placement.generate
        if isinstance(generate, list):
            return {name: self.pools[name].devices // self.engine.devices for name in generate if name in self.pools}
        return generate if isinstance(generate, dict) else None

    @property
    def shares(self) -> dict[str, float]:
        """Configured share of trained groups by domain, summing to 1, in the file's order."""
        total = sum(domain.weight for domain in self.domains.values())
        return {name: domain.weight / total for name, domain in self.domains.items()}

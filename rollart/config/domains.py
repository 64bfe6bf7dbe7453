"""Section ``domains``: the task families that one policy learns at once."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from rollart.config.base import Section


class RewardConfig(Section):
    """How a finished trajectory is scored."""

    function: str = "environment"
    """``environment`` sums what ``step`` paid; else ``module:function`` from a Trajectory to a Score or number."""
    url: str = "inline://"
    """Where it runs; ``inline://`` is the environment's own host."""
    timeout: float = Field(30.0, gt=0)
    """Seconds for one try."""
    retries: int = Field(2, ge=0)
    """Further tries before the trajectory ends as failed(reward); never a reward of 0."""


class DomainConfig(Section):
    """One domain."""

    env: str
    """A registered environment (``rollart check-env`` lists them) or ``module:factory``."""
    args: dict[str, Any] = {}
    """Keyword arguments of the environment's factory."""
    weight: float = Field(1.0, gt=0)
    """Share of trained groups, relative to the other domains."""
    system_prompt: str = ""
    """Text before the first observation."""
    max_turns: int = Field(16, ge=1)
    """Turns after which the trajectory is cut."""
    max_context: int = Field(512, ge=8)
    """Tokens of prompt and actions after which the trajectory is cut."""
    max_new_tokens: int = Field(8, ge=1)
    """Generated tokens in one turn."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass."""
    top_k: int = Field(0, ge=0)
    """0 turns it off."""
    entropy_bonus: float | None = Field(None, ge=0)
    """Coefficient of this domain's token entropy instead of ``training.entropy_bonus``."""
    truncated: Literal["train", "mask"] = "train"
    """Whether a trajectory that a limit cut is trained, or only counts in its group's baseline."""
    isolation: Literal["inline", "process"] | None = None
    """``process`` gives each live environment its own process; default: inline for built-ins, process for users'."""
    reset_timeout: float = Field(60.0, gt=0)
    """Seconds for ``reset``."""
    step_timeout: float = Field(30.0, gt=0)
    """Seconds for one ``step``."""
    reward: RewardConfig = RewardConfig()

    @field_validator("env")
    @classmethod
    def _has_a_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("name an environment, e.g. 'frozen_lake' or 'my_package.envs:make_env'")
        return value

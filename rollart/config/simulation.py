"""Section ``simulation``: what a simulated run is made of besides the run's own configuration.

The domains of a :class:`SimulatedConfig` follow from its workloads: one for each, played by the environment
``emulated``. The section ``domains`` may be left out, or override single keys of them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from rollart.config.base import Section
from rollart.config.config import Config
from rollart.config.domains import DomainConfig, RewardConfig
from rollart.config.draw import Draw, mean_of, upper_end
from rollart.config.run import RolloutConfig, RunConfig
from rollart.config.workloads import BUILT_IN, values_of

SLACK = 1.5
"""A derived deadline over the largest latency of its distribution: only what hangs passes it."""


LONGEST = 1e6
"""Seconds of a call at most, more than eleven days: longer ones are slips of the pen."""


class IncidentConfig(Section):
    """What makes the resets of many environments slow at once, e.g. a saturated image registry."""

    probability: float = Field(0.1, ge=0, le=1)
    """That it strikes the tasks of one batch."""
    seconds: Draw = {"median": 60.0, "sigma": 0.7, "max": 900.0}
    """By how much longer each struck reset takes."""
    share: float = Field(1.0, ge=0, le=1)
    """Of the environments of these tasks, how many are struck."""
    tasks: int | None = Field(None, ge=1)
    """Consecutive tasks that are struck together; by default as many as the domain has in a batch."""


class WorkloadConfig(Section):
    """What the trajectories of one domain are like."""

    like: str | None = None
    """A built-in workload whose values hold for the keys that are left out: swe_bench, webshop, frozen_lake,
    gem_math, gem_game, or production_t1 to production_t8."""
    turns: Draw = 4
    """Turns until the environment terminates; the same for all members of a group."""
    first_observation: Draw = 64
    """Tokens of the first prompt; the same for all members of a group."""
    observation: Draw = 16
    """Tokens of each further observation."""
    action: Draw = 32
    """Tokens that the policy generates in each turn."""
    reset_seconds: Draw = 0.0
    """Latency of ``reset``."""
    step_seconds: Draw = 0.0
    """Latency of each ``step``."""
    reset_slow: IncidentConfig | None = None
    """Incidents that strike the resets of many environments at once."""
    reset_error: float = Field(0.0, ge=0, le=1)
    """Probability that ``reset`` fails."""
    reset_hang: float = Field(0.0, ge=0, le=1)
    """Probability that ``reset`` never returns: it ends at the domain's ``reset_timeout``."""
    step_error: float = Field(0.0, ge=0, le=1)
    """Probability, for each step, that it fails."""
    step_hang: float = Field(0.0, ge=0, le=1)
    """Probability, for each step, that it never returns: it ends at the domain's ``step_timeout``."""
    reward_seconds: Draw = 0.0
    """How long a reward instance works on one trajectory."""
    reward_error: float = Field(0.0, ge=0, le=1)
    """Probability, for each call, that the reward fails."""
    success: float = Field(0.5, ge=0, le=1)
    """Probability that an episode succeeds, which pays 1."""
    max_turns: int | None = Field(None, ge=1)
    """Turns after which a trajectory is cut; by default as many as ``turns`` can give."""
    max_context: int = Field(32768, ge=8)
    """Tokens of prompt and actions after which a trajectory is cut."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Generated tokens after which a turn is cut; by default as many as ``action`` can give."""
    weight: float = Field(1.0, gt=0)
    """Share of trained groups, relative to the other domains."""

    @model_validator(mode="before")
    @classmethod
    def _take_the_built_in_values(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(name := data.get("like"), str):
            return data
        if name not in BUILT_IN:
            near = difflib.get_close_matches(name, BUILT_IN, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(BUILT_IN)}"
            raise ValueError(f"like: no built-in workload '{name}': {hint}")
        return values_of(name) | data

    @model_validator(mode="after")
    def _fails_at_most_always(self) -> WorkloadConfig:
        for call in ("reset", "step"):
            error, hang = getattr(self, f"{call}_error"), getattr(self, f"{call}_hang")
            if error + hang > 1:
                raise ValueError(f"{call}_error {error} and {call}_hang {hang} are more than 1 together: lower one")
        return self

    @model_validator(mode="after")
    def _ends_some_day(self) -> WorkloadConfig:
        for key in ("reset_seconds", "step_seconds", "reward_seconds"):
            if (longest := upper_end(getattr(self, key))) > LONGEST:
                raise ValueError(f"{key} reaches {longest:g} s, more than {LONGEST:g}: give it a smaller maximum")
        if (tokens := upper_end(self.first_observation)) >= self.max_context:
            raise ValueError(
                f"first_observation reaches {tokens:g} tokens and leaves no room in max_context {self.max_context}: "
                "give it a maximum, or raise max_context"
            )
        return self


class RewardCapacityConfig(Section):
    """Who computes rewards: functions that scale with the load, GPUs of their own, or nobody who is ever short."""

    kind: Literal["serverless", "dedicated", "free"] = "serverless"
    """``serverless``: instances start when calls wait and vanish when idle. ``dedicated``: ``replicas`` are always
    there. ``free``: every call is served at once, at no cost."""
    calls_per_instance: int = Field(1, ge=1)
    """Calls that one instance or replica works on at once, without slowing each other down (a batching judge)."""
    overhead: Draw = {"median": 0.005, "sigma": 1.2, "max": 2.1}
    """Seconds that a call travels. By default as the paper measured it for serverless rewards (0.01 s on average,
    2.1 s at most)."""
    concurrency: int = Field(256, ge=1)
    """``serverless``: most instances at once, over all environment hosts."""
    cold_start: Draw = {"median": 2.0, "sigma": 0.5, "max": 30.0}
    """``serverless``: seconds until a new instance takes calls (assumed: a container and a small program)."""
    keep_alive: float = Field(60.0, ge=0)
    """``serverless``: seconds that an idle instance lives on (assumed)."""
    instance_cost: float = Field(0.05, ge=0)
    """``serverless``: price of an hour of an instance relative to a GPU-hour of an H20. By default that of the hardware
    class ``serverless``, a virtual CPU; a judge on a share of a GPU costs that share of its GPU's price."""
    replicas: int = Field(4, ge=1)
    """``dedicated``: GPUs that only compute rewards."""
    hardware: str = "H800"
    """``dedicated``: their class, for the price."""


class NetworkConfig(Section):
    """How the trainer and the engines are connected."""

    same_cluster: bool = False
    """True: one cluster, weights are broadcast over its fast links. False: two, weights travel through the store."""


class SimulationConfig(Section):
    """Section ``simulation``: the modelled model, workloads, rewards and links of ``rollart simulate``."""

    model: str = "qwen3-8b"
    """Shape of the trained model, by name."""
    workloads: dict[str, WorkloadConfig] = Field(min_length=1)
    """By the name of the domain."""
    reward: RewardCapacityConfig = RewardCapacityConfig()
    network: NetworkConfig = NetworkConfig()
    constants: dict[str, float] = {}
    """Constants of the performance model that are to have another value, by name."""


class SimulatedConfig(Config):
    """Root of the configuration of a simulated run: a run's own, with the section ``simulation``."""

    simulation: SimulationConfig

    @model_validator(mode="before")
    @classmethod
    def _derive_the_domains(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = data.get("domains", {})
        workloads = _workloads_in(data.get("simulation"))
        if not workloads or not isinstance(given, Mapping):
            return data
        return data | {"domains": _merged(_derived_domains(data, workloads), given)}

    @model_validator(mode="after")
    def _every_domain_has_a_workload(self) -> SimulatedConfig:
        for name, domain in self.domains.items():
            if name not in self.simulation.workloads:
                raise ValueError(
                    f"domains.{name}: there is no workload of that name: add simulation.workloads.{name}, or remove it"
                )
            played = {"env": "emulated", "isolation": None, "reward.function": "environment", "reward.url": "inline://"}
            for key, only in played.items():
                value = getattr(domain.reward if "." in key else domain, key.removeprefix("reward."))
                if value != only:
                    raise ValueError(f"domains.{name}.{key} is {value!r}, but a simulation plays a model: leave it out")
        return self

    @model_validator(mode="after")
    def _every_host_has_rewards(self) -> SimulatedConfig:
        reward, hosts = self.simulation.reward, self.rollout.hosts
        key = {"serverless": "concurrency", "dedicated": "replicas"}.get(reward.kind)
        if key is not None and getattr(reward, key) < hosts:
            raise ValueError(
                f"simulation.reward.{key} is {getattr(reward, key)}, which {hosts} environment hosts cannot share: "
                "raise it, or lower rollout.hosts"
            )
        return self


def _workloads_in(simulation: Any) -> dict[str, WorkloadConfig | None]:
    """The workloads of a section that has not been validated; ``None`` for one that is wrong and will be refused."""
    if isinstance(simulation, SimulationConfig):
        return dict(simulation.workloads)
    workloads = simulation.get("workloads") if isinstance(simulation, Mapping) else None
    return {str(name): _valid(WorkloadConfig, given) for name, given in _mapping(workloads).items()}


def _valid(model: type[Any], given: Any) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError:
        return None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _derived_domains(data: dict[str, Any], workloads: Mapping[str, WorkloadConfig | None]) -> dict[str, dict[str, Any]]:
    run = _valid(RunConfig, data.get("run", {})) or RunConfig()
    rollout = _valid(RolloutConfig, data.get("rollout", {})) or RolloutConfig()
    own = {name: _mapping(_mapping(data.get("domains")).get(name)).get("weight") for name in workloads}
    weights = {
        name: number if isinstance(number := own[name], int | float) else workload.weight if workload else 1.0
        for name, workload in workloads.items()
    }
    total = sum(weights.values()) or 1.0
    domains: dict[str, dict[str, Any]] = {}
    for name, workload in workloads.items():
        tasks = max(1, round(rollout.groups_per_batch * weights[name] / total))
        domains[name] = {"env": "emulated"} if workload is None else domain_of(workload, run.seed, tasks)
    return domains


def domain_of(workload: WorkloadConfig, seed: int, tasks: int) -> dict[str, Any]:
    """The settings of the domain that plays a workload.

    Args:
        seed: Of the run; decides which batches an incident strikes.
        tasks: Of the domain in one batch.
    """
    args: dict[str, Any] = {name: getattr(workload, name) for name in _ENVIRONMENT}
    slowest_reset = upper_end(workload.reset_seconds)
    if (slow := workload.reset_slow) is not None:
        args["reset_slow"] = slow.model_dump() | {"tasks": slow.tasks or tasks, "seed": seed}
        slowest_reset += upper_end(slow.seconds)
    longest_action = max(1, min(math.ceil(upper_end(workload.action)), workload.max_context - 1))
    return {
        "env": "emulated",
        "args": args,
        "weight": workload.weight,
        "max_turns": workload.max_turns or max(1, math.ceil(upper_end(workload.turns))),
        "max_context": workload.max_context,
        "max_new_tokens": workload.max_new_tokens or longest_action,
        "reset_timeout": max(_default(DomainConfig, "reset_timeout"), SLACK * slowest_reset),
        "step_timeout": max(_default(DomainConfig, "step_timeout"), SLACK * upper_end(workload.step_seconds)),
        "reward": {"timeout": max(_default(RewardConfig, "timeout"), SLACK * upper_end(workload.reward_seconds))},
    }


_ENVIRONMENT = (
    *("turns", "first_observation", "observation", "reset_seconds", "step_seconds"),
    *("reset_error", "reset_hang", "step_error", "step_hang", "success"),
)
"""Fields of a workload that the environment takes as they are."""


def _default(model: type[Section], field: str) -> float:
    return float(model.model_fields[field].default)


def _merged(derived: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``derived`` with the single values of ``given`` in their place."""
    merged = dict(derived)
    for key, value in given.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def mean_tokens(workload: WorkloadConfig) -> float:
    """Expected tokens of a trajectory that nothing cuts: prompts and actions of all its turns."""
    turns = mean_of(workload.turns)
    observed = mean_of(workload.first_observation) + (turns - 1) * mean_of(workload.observation)
    return observed + turns * mean_of(workload.action)

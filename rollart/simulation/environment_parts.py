"""The environment hosts of a simulated run: the real EnvHost and EnvManagers with modelled parts.

Sessions are those of a real run around the environment ``emulated``, prompts are lengths, and a scorer gives the
environment's own verdict after a call of the host's :class:`~rollart.simulation.serverless.RewardCapacity`, which all
domains of the host share. Placed by the simulator.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from rollart.config.domains import DomainConfig, RewardConfig
from rollart.config.draw import sampler
from rollart.config.simulation import WorkloadConfig
from rollart.control_plane.domain_parts import FAULTS
from rollart.control_plane.env_host import EnvHost
from rollart.control_plane.env_manager import DomainParts, HostParts, Session
from rollart.data_plane.environment.registry import check_domain
from rollart.data_plane.environment.session import open_session
from rollart.data_plane.rendering.lengths import LengthRenderer
from rollart.data_plane.reward.score import FIRST_PAUSE, EnvironmentScorer, RewardError
from rollart.simulation.crossing import configuration
from rollart.simulation.serverless import RewardCapacity, RewardStats
from rollart.types import EpisodeSpec, FailureKind, Score, Trajectory, derive_seed

PARTS = f"{__name__}:build_parts"
"""The parts factory that :class:`SimulatedEnvHost` takes, with the JSON of the configuration and its number."""


class SimulatedParts(HostParts, frozen=True, kw_only=True):
    """The parts of a simulated host, with what computes its rewards."""

    capacity: RewardCapacity


class SimulatedEnvHost(EnvHost):
    """An environment host that tells what its rewards took; made with :data:`PARTS`."""

    async def reward_stats(self) -> RewardStats:
        """What the host's reward capacity has done until now.

        Raises:
            TypeError: the host was made with other parts than :func:`build_parts` gives.
        """
        if not isinstance(self._parts, SimulatedParts):
            raise TypeError(f"a simulated host has the parts of '{PARTS}', not {type(self._parts).__name__}")
        return self._parts.capacity.stats(asyncio.get_running_loop().time())


class CapacityScorer:
    """Scores by the environment's verdict; how long that takes and whether it fails is drawn.

    The deadline of a try covers the reward's work, not its wait for an instance: that is the capacity's fault, not the
    function's.

    Args:
        capacity: Of the host.
        workload: Its ``reward_seconds`` and ``reward_error``.
        config: Deadline and retries.
        seed: Of the run.
    """

    def __init__(self, capacity: RewardCapacity, workload: WorkloadConfig, config: RewardConfig, seed: int) -> None:
        self._capacity = capacity
        self._seconds = sampler(workload.reward_seconds)
        self._error = workload.reward_error
        self._timeout = config.timeout
        self._tries = config.retries + 1
        self._seed = seed
        self._verdict = EnvironmentScorer()

    async def score(self, trajectory: Trajectory, success: bool | None) -> Score:
        source = random.Random(derive_seed(self._seed, "reward", str(trajectory.id)))
        pause = FIRST_PAUSE
        for attempt in range(1, self._tries + 1):
            failure = await self._try(source)
            if failure is None:
                return await self._verdict.score(trajectory, success)
            if attempt == self._tries:
                what = "did not return within its deadline" if failure is FailureKind.REWARD_TIMEOUT else "failed"
                raise RewardError(failure, f"the emulated reward {what} ({attempt} tries)")
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _try(self, source: random.Random) -> FailureKind | None:
        seconds, fate = self._seconds(source), source.random()
        await self._capacity.call(min(seconds, self._timeout), source)
        if seconds > self._timeout:
            return FailureKind.REWARD_TIMEOUT
        return FailureKind.REWARD_ERROR if fate < self._error else None


def build_parts(config_json: str, number: str) -> SimulatedParts:
    """The parts of every domain of one simulated environment host.

    Args:
        config_json: The simulated run.
        number: Which of the ``rollout.hosts`` hosts it is, from 0; decides its part of the reward capacity.

    Raises:
        ValueError: a domain's arguments, or the reward's hardware class, are wrong; the message says what to do.
    """
    config = configuration(config_json)
    simulation = config.simulation
    capacity = RewardCapacity(simulation.reward, int(number), config.rollout.hosts)
    domains = {}
    for name, domain in config.domains.items():
        check_domain(domain)
        domains[name] = DomainParts(
            config=domain,
            open_session=partial(_open, domain),
            renderer=LengthRenderer(),
            scorer=CapacityScorer(capacity, simulation.workloads[name], domain.reward, config.run.seed),
            faults=FAULTS,
        )
    switches = config.switches
    return SimulatedParts(
        domains=domains,
        close=_nothing_to_close,
        stages="batch" in (switches.interaction, switches.scoring),
        capacity=capacity,
    )


def _open(domain: DomainConfig, spec: EpisodeSpec) -> Session:
    return open_session(domain, purpose=spec.id.purpose, episode=derive_seed(spec.seed, str(spec.id)))


async def _nothing_to_close() -> None:
    """The environments live on the host's loop and hold nothing."""

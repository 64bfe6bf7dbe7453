"""Builds what the EnvManagers of each domain need: sessions, renderer, scorer. Runs in the environment host."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rollart.config.config import Config
from rollart.config.domains import DomainConfig
from rollart.control_plane.env_manager import DomainParts, HostParts, Session
from rollart.data_plane.environment.process import ProcessPool
from rollart.data_plane.environment.session import EnvironmentFailure, open_session
from rollart.data_plane.rendering.build import build_renderer
from rollart.data_plane.reward.score import RewardError, make_scorer
from rollart.types import EpisodeSpec, derive_seed

FAULTS = (EnvironmentFailure, RewardError)
"""What sessions and scorers raise for a fault of one trajectory."""


def build_parts(config_json: str, model_folder: str) -> HostParts:
    """The parts of every domain of one environment host.

    Args:
        config_json: The configuration.
        model_folder: Where the tokenizer is; empty for emulated engines.

    Raises:
        RenderingError, ValueError: a domain cannot be rendered or scored; the message says what to do.
    """
    config = Config.model_validate_json(config_json)
    folder = Path(model_folder) if model_folder else None
    # Training and evaluation have permits of their own, hence twice as many episodes at most.
    pool = ProcessPool(2 * config.rollout.max_environments)
    domains = {
        name: DomainParts(
            config=domain,
            open_session=partial(_open, domain, pool),
            renderer=build_renderer(folder, config.model.rendering, domain),
            scorer=make_scorer(domain.reward),
            faults=FAULTS,
        )
        for name, domain in config.domains.items()
    }
    switches = config.switches
    return HostParts(domains, pool.close, stages="batch" in (switches.interaction, switches.scoring))


def _open(domain: DomainConfig, pool: ProcessPool, spec: EpisodeSpec) -> Session:
    episode = derive_seed(spec.seed, str(spec.id))
    return open_session(domain, purpose=spec.id.purpose, episode=episode, pool=pool)

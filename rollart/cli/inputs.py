"""Reads a command's configuration and refuses, before anything starts, what could not run.

On top of the configuration's own checks: the environments must exist and take their arguments, rewards, the engine
and the algorithm must be found, a model folder's tokenizer must be able to render the domains, and the pools must be
able to hold the roles. Shared by ``train``, ``eval`` and ``plan``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.config.config import Config
from rollart.config.errors import ConfigError
from rollart.config.load import load_config

if TYPE_CHECKING:
    from rollart.resource_plane.binding import Binding


def load_checked(parsed: argparse.Namespace) -> Config:
    """The configuration of ``CONFIG.yaml [section.key=value ...]``, checked as far as possible without starting.

    Raises:
        ConfigError: one line for each problem.
    """
    add_import_paths(parsed.config)
    config = load_config(parsed.config, parsed.overrides)
    checks = (_environments, _rewards, _engine, _algorithm, _packages, _pools)
    found = tuple(problem for check in checks for problem in check(config))
    # Rendering asks the environments for their words: what is wrong with them has been said already.
    found = found or tuple(_rendering(config))
    problems = [f"{parsed.config}: {problem}" for problem in found]
    if problems:
        raise ConfigError(problems)
    return config


def add_import_paths(config: Path | None) -> None:
    """Let import paths name a user's modules in the working folder and beside the configuration."""
    folders = [Path.cwd()] if config is None else [Path.cwd(), config.resolve().parent]
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def bindings_of(config: Config) -> list[Binding]:
    """Where the workers of a run would go on the configured pools, all of them free.

    Raises:
        PlanError: they cannot run there; the message says which setting to change.
    """
    from rollart.data_plane.worker import ActorGen, ActorTrain, Environment, Reward
    from rollart.resource_plane.binding import bind
    from rollart.resource_plane.planning import worker_requests
    from rollart.resource_plane.pools import pools_of

    affinities = {role.role: role.hardware_affinity for role in (ActorTrain, ActorGen, Environment, Reward)}
    bindings, _ = bind(pools_of(config.pools), worker_requests(config, affinities))
    return bindings


def _pools(config: Config) -> Iterator[str]:
    from rollart.resource_plane.pools import PlanError

    try:
        bindings_of(config)
    except PlanError as error:
        yield str(error)


def _packages(config: Config) -> Iterator[str]:
    """Optional packages that the configuration needs and this installation lacks."""
    wanted = {
        "tensorboard": ("log.tensorboard", config.log.tensorboard),
        "wandb": ("log.wandb", config.log.wandb is not None),
        "ray": ("run.runtime 'ray'", config.run.runtime == "ray"),
    }
    for package, (key, needed) in wanted.items():
        if needed and importlib.util.find_spec(package) is None:
            yield f"{key}: the package '{package}' is not installed: pip install 'rollart[{package}]'"


def _environments(config: Config) -> list[str]:
    from rollart.data_plane.environment.registry import check_domain

    problems = []
    for name, domain in config.domains.items():
        try:
            check_domain(domain)
        except ValueError as error:
            problems.append(f"domains.{name}: {error}")
    return problems


def _rewards(config: Config) -> Iterator[str]:
    from rollart.data_plane.reward.score import make_scorer

    for name, domain in config.domains.items():
        try:
            make_scorer(domain.reward)
        except ValueError as error:
            yield f"domains.{name}: {error}"


def _engine(config: Config) -> Iterator[str]:
    from rollart.data_plane.generation.registry import check_engine

    try:
        check_engine(config.engine.kind)
    except ValueError as error:
        yield str(error)
    if config.engine.kind == "torch" and config.engine.devices > 1:
        yield f"engine.devices: is {config.engine.devices}, but the torch engine runs on one device: leave it out"
    if config.training.devices > 1:
        yield f"training.devices: is {config.training.devices}, but the torch trainer runs on one: leave it out"


def _algorithm(config: Config) -> Iterator[str]:
    from rollart.data_plane.training.advantages import check_algorithm

    try:
        check_algorithm(config.training.algorithm)
    except ValueError as error:
        yield str(error)


def _rendering(config: Config) -> Iterator[str]:
    """What a model of this machine cannot render, once if several domains have the same problem."""
    from rollart.data_plane.rendering.build import build_renderer
    from rollart.data_plane.rendering.renderer import RenderingError
    from rollart.data_plane.rendering.words import vocabulary_of

    model = config.model
    if model.path is None:
        try:
            vocabulary_of(config.domains)
        except RenderingError as error:
            yield str(error)
        return
    folder = Path(model.path).expanduser()
    problems: dict[str, str] = {}
    for name, domain in config.domains.items() if folder.is_dir() else ():
        try:
            build_renderer(folder, model.rendering, domain)
        except RenderingError as error:
            problems.setdefault(str(error), name)
    for problem, name in problems.items():
        yield f"domains.{name}: {problem}"

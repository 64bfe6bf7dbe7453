"""How a simulated run's configuration reaches its workers: as JSON, since nothing else crosses a process border."""

from __future__ import annotations

from functools import lru_cache

from rollart.config.simulation import SimulatedConfig


@lru_cache(maxsize=4)
def configuration(config_json: str) -> SimulatedConfig:
    """The configuration, read once a process: a simulation has thousands of workers in one.

    Raises:
        pydantic.ValidationError: the text is not a :class:`SimulatedConfig`.
    """
    return SimulatedConfig.model_validate_json(config_json)

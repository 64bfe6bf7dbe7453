"""Loads, overrides and validates a configuration. The only door from a file to a :class:`Config`, or to a
:class:`SimulatedConfig` for a simulated run.

Every problem becomes one line: where (file and line, or the override), which key, what is wrong, what to
do. Called by the command line and by users' scripts; imports neither torch nor ray.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rollart.config.checks import meaningless_settings
from rollart.config.config import Config
from rollart.config.errors import ConfigError
from rollart.config.overrides import apply_overrides, where
from rollart.config.schema import unknown_keys
from rollart.config.simulation import SimulatedConfig
from rollart.config.yaml_file import KeyPath, read_yaml

C = TypeVar("C", bound=Config)

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The validated configuration of a file with ``section.key=value`` overrides.

    Raises:
        ConfigError: the file or an override cannot be read, has unknown keys or wrong values, or asks
            for something meaningless; one line a problem.
    """
    file = read_yaml(path)
    data, origins = apply_overrides(file.data, overrides, Config)
    return _validated(data, Config, _Source(str(path), file.lines, origins))


def load_simulation(path: Path, overrides: Sequence[str] = ()) -> SimulatedConfig:
    """The validated configuration of a simulated run; the domains follow from its workloads.

    Raises:
        ConfigError: as :func:`load_config`.
    """
    file = read_yaml(path)
    data, origins = apply_overrides(_with_domains(file.data), overrides, SimulatedConfig)
    return _validated(data, SimulatedConfig, _Source(str(path), file.lines, origins))


def simulated_config(data: Mapping[str, Any], settings: Mapping[str, Any] = NO_SETTINGS) -> SimulatedConfig:
    """The validated configuration of a simulated run from plain data, as an experiment has it.

    Args:
        data: What a file would say; it is not changed.
        settings: Values by dotted key that take the place of the data's, e.g. ``{"run.mode": "sync"}``. Unlike an
            override, a setting may name a workload, or a part of a distribution, that the data does not have.

    Raises:
        ConfigError: as :func:`load_config`; a problem is named by its key alone.
    """
    whole = copy.deepcopy(dict(data))
    for dotted, value in settings.items():
        *above, last = dotted.split(".")
        target = whole
        for key in above:
            if not isinstance(target.get(key), dict):
                target[key] = {}
            target = target[key]
        target[last] = copy.deepcopy(value)
    return _validated(whole, SimulatedConfig, _Source("", {}, {}))


def _with_domains(data: dict[str, Any]) -> dict[str, Any]:
    """The file's data with a domain for each workload, so that overrides can set the domains' keys."""
    simulation, domains = data.get("simulation"), data.get("domains", {})
    workloads = simulation.get("workloads") if isinstance(simulation, dict) else None
    if not isinstance(workloads, dict) or not isinstance(domains, dict):
        return data
    return data | {"domains": {name: {} for name in workloads} | domains}


def _validated(data: dict[str, Any], root: type[C], source: _Source) -> C:
    problems = [source.line(key, what) for key, what in unknown_keys(data, root, root)]
    if problems:
        raise ConfigError(problems)
    try:
        config = root.model_validate(data)
    except ValidationError as error:
        raise ConfigError([_problem(source, details) for details in error.errors()]) from error
    problems = [source.line(tuple(key.split(".")), what) for key, what in meaningless_settings(config)]
    if problems:
        raise ConfigError(problems)
    return config


class _Source:
    """Knows where each value came from."""

    def __init__(self, name: str, lines: Mapping[KeyPath, int], origins: Mapping[KeyPath, str]) -> None:
        self._name = name
        self._lines = lines
        self._origins = origins

    def line(self, key: KeyPath, what: str) -> str:
        """One problem in one line; the nearest enclosing key that the file has gives the line number."""
        dotted = ".".join(key)
        for length in range(len(key), 0, -1):
            if override := self._origins.get(key[:length]):
                return f"{where(override)}: {dotted}: {what}"
        for length in range(len(key), 0, -1):
            if number := self._lines.get(key[:length]):
                return f"{self._name}:{number}: {dotted}: {what}"
        return ": ".join(part for part in (self._name, dotted, what) if part)


def _problem(source: _Source, details: ErrorDetails) -> str:
    key = tuple(str(part) for part in details["loc"] if part != "[key]")
    return source.line(key, _what(details))


def _what(details: ErrorDetails) -> str:
    """A validation error in the words of the configuration."""
    context: dict[str, Any] = details.get("ctx", {})
    got = f", not {_shown(details['input'])}"
    match details["type"]:
        case "missing":
            return "is required, add it"
        case "literal_error" | "enum":
            return f"must be {context['expected']}{got}"
        case "greater_than_equal":
            return f"must be {context['ge']} or more{got}"
        case "greater_than":
            return f"must be more than {context['gt']}{got}"
        case "less_than_equal":
            return f"must be {context['le']} or less{got}"
        case "less_than":
            return f"must be less than {context['lt']}{got}"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}{got}"
        case "too_short":
            return "must have at least one entry, add one"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a mapping of keys to values{got}"
        case kind if kind.startswith(("int_", "float_", "bool_", "string_")):
            return f"must be {_TYPE_NAMES[kind.split('_')[0]]}{got}"
        case _:
            return details["msg"].removeprefix("Value error, ")


_TYPE_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text"}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Loads, overrides and validates a configuration. The only door from a file to a :class:`Config`.

Every problem becomes one line: where (file and line, or the override), which key, what is wrong, what to
do. Called by the command line and by users' scripts; imports neither torch nor ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rollart.config.checks import meaningless_settings
from rollart.config.config import Config
from rollart.config.errors import ConfigError
from rollart.config.overrides import apply_overrides, where
from rollart.config.schema import unknown_keys
from rollart.config.yaml_file import KeyPath, YamlFile, read_yaml


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The validated configuration of a file with ``section.key=value`` overrides.

    Raises:
        ConfigError: the file or an override cannot be read, has unknown keys or wrong values, or asks
            for something meaningless; one line a problem.
    """
    file = read_yaml(path)
    data, origins = apply_overrides(file.data, overrides, Config)
    source = _Source(path, file, origins)
    problems = [source.line(key, what) for key, what in unknown_keys(data, Config, Config)]
    if problems:
        raise ConfigError(problems)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError([_problem(source, details) for details in error.errors()]) from error
    problems = [source.line(tuple(key.split(".")), what) for key, what in meaningless_settings(config)]
    if problems:
        raise ConfigError(problems)
    return config


class _Source:
    """Knows where each value came from."""

    def __init__(self, path: Path, file: YamlFile, origins: Mapping[KeyPath, str]) -> None:
        self._path = path
        self._lines = file.lines
        self._origins = origins

    def line(self, key: KeyPath, what: str) -> str:
        """One problem in one line; the nearest enclosing key that the file has gives the line number."""
        dotted = ".".join(key)
        for length in range(len(key), 0, -1):
            if override := self._origins.get(key[:length]):
                return f"{where(override)}: {dotted}: {what}"
        for length in range(len(key), 0, -1):
            if number := self._lines.get(key[:length]):
                return f"{self._path}:{number}: {dotted}: {what}"
        return f"{self._path}: {dotted}: {what}" if key else f"{self._path}: {what}"


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

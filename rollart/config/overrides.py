"""Overrides ``section.key=value`` from the command line, applied to the file's data before validation.

The value is YAML, typed as in a file. An override changes one value of an existing place: unknown keys,
and names (a domain, a pool) that the file does not have, are refused with the nearest that exists.
Called by the loader only.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rollart.config.base import Section
from rollart.config.errors import ConfigError
from rollart.config.schema import leaf_paths, place_of
from rollart.config.yaml_file import KeyPath, parse_value


def apply_overrides(
    data: Mapping[str, Any], overrides: Iterable[str], root: type[Section]
) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The file's data with the overrides, and the override that set each path.

    Raises:
        ConfigError: one line for each override that cannot be applied.
    """
    result = copy.deepcopy(dict(data))
    origins: dict[KeyPath, str] = {}
    problems: list[str] = []
    for override in overrides:
        try:
            path = _apply(result, override, root)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            origins[path] = override
    if problems:
        raise ConfigError(problems)
    return result, origins


def _apply(data: dict[str, Any], override: str, root: type[Section]) -> KeyPath:
    dotted, equals, text = override.partition("=")
    path = tuple(dotted.split("."))
    if not equals or not all(path):
        raise _refused(override, "write it as section.key=value, e.g. rollout.group_size=8")
    value = parse_value(text, where(override))
    annotation: Any = root
    target: dict[str, Any] = data
    for depth, key in enumerate(path):
        place = place_of(annotation)
        if place.section is not None:
            field = place.section.model_fields.get(key)
            if field is None:
                raise _refused(override, f"unknown key '{dotted}', {_nearest(path, data, root)}")
            annotation = field.annotation
            present = _default_names(field.default) if place_of(annotation).values is not None else {}
        elif place.values is not None:
            _check_name(override, path[: depth + 1], target, place.values)
            annotation, present = place.values, {}
        else:
            raise _refused(override, f"'{'.'.join(path[:depth])}' is a single value and has no key '{key}'")
        if depth == len(path) - 1:
            break
        if not isinstance(target.get(key), dict):
            target[key] = dict(present)
        target = target[key]
    if place_of(annotation).section is not None:
        keys = ", ".join(sorted(place_of(annotation).section.model_fields))  # type: ignore[union-attr]
        raise _refused(override, f"'{dotted}' is a section, set one of its keys: {keys}")
    target[path[-1]] = value
    return path


def _default_names(default: Any) -> dict[str, Any]:
    """The names that a mapping has when the file leaves it out, with their settings as plain data."""
    if not isinstance(default, Mapping):
        return {}
    return {
        name: entry.model_dump(exclude_unset=True) if isinstance(entry, Section) else entry
        for name, entry in default.items()
    }


def _check_name(override: str, path: KeyPath, names: Mapping[str, Any], values: Any) -> None:
    """Entries that are sections cannot be created by an override; free values (``args``) can."""
    if path[-1] in names or place_of(values).section is None:
        return
    kind = path[-2].removesuffix("s")
    near = difflib.get_close_matches(path[-1], list(names), n=1)
    remedy = f"did you mean '{'.'.join((*path[:-1], near[0]))}'?" if near else f"the file has: {', '.join(names)}"
    raise _refused(override, f"no {kind} '{path[-1]}' in the file, {remedy}")


def _nearest(path: KeyPath, data: Mapping[str, Any], root: type[Section]) -> str:
    """The nearest dotted path of the whole configuration, with the file's own names filled in."""
    candidates: list[KeyPath] = []
    for leaf in leaf_paths(root):
        if "<name>" in leaf:
            candidates += [(leaf[0], name, *leaf[2:]) for name in data.get(leaf[0], {})]
        else:
            candidates.append(leaf)
    same_key = [candidate for candidate in candidates if candidate[-1] == path[-1]]
    dotted = [".".join(candidate) for candidate in same_key or candidates]
    near = difflib.get_close_matches(".".join(path), dotted, n=1, cutoff=0.0 if same_key else 0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"sections: {', '.join(root.model_fields)}"


def where(override: str) -> str:
    """How messages call an override."""
    return f"command line '{override}'"


def _refused(override: str, what: str) -> ConfigError:
    return ConfigError([f"{where(override)}: {what}"])

"""What may stand at each place of the configuration, read off the section models.

The loader uses it to refuse unknown keys of files and overrides before values are validated, and the
reference page is generated from it. Pure functions over the models.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from rollart.config.base import Section
from rollart.config.yaml_file import KeyPath


class Place(NamedTuple):
    """What may stand at a path.

    Attributes:
        section: The section model whose keys are valid here, or ``None``.
        values: For a mapping with names that the user chooses: the annotation of its values, else ``None``.
    """

    section: type[Section] | None
    values: Any


def place_of(annotation: Any) -> Place:
    """Classify a field's annotation; ``X | None`` counts as ``X``."""
    if annotation is Any:
        return Place(None, Any)
    origin = get_origin(annotation)
    if origin is Annotated:
        return place_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        options = [option for option in get_args(annotation) if option is not NoneType]
        return place_of(options[0]) if len(options) == 1 else Place(None, None)
    if origin is dict:
        return Place(None, get_args(annotation)[1])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Place(annotation, None)
    return Place(None, None)


def unknown_keys(data: Any, annotation: Any, root: type[Section], path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Each key of ``data`` that the models do not have, with the message that names the nearest one.

    Args:
        data: What the file says at ``path``.
        annotation: What may stand there.
        root: The model of the whole configuration, where a misplaced key's home is looked up.
        path: Where ``data`` stands.
    """
    if not isinstance(data, Mapping):
        return
    place = place_of(annotation)
    for key, value in data.items():
        if place.section is not None:
            field = place.section.model_fields.get(key)
            if field is None:
                yield (*path, key), f"unknown key, {hint(key, path, place.section, root)}"
            else:
                yield from unknown_keys(value, field.annotation, root, (*path, key))
        elif place.values is not None:
            yield from unknown_keys(value, place.values, root, (*path, key))


def hint(key: str, path: KeyPath, section: type[Section], root: type[Section]) -> str:
    """What the wrong ``key`` of ``section``, which stands at ``path``, was probably meant to be."""
    near = difflib.get_close_matches(key, list(section.model_fields), n=1)
    if near:
        return f"did you mean '{'.'.join((*path, near[0]))}'?"
    homes = [home for home in leaf_paths(root) if home[-1] == key]
    if homes:
        return f"did you mean '{'.'.join(homes[0])}'?"
    return f"valid keys: {', '.join(sorted(section.model_fields))}"


def leaf_paths(section: type[Section], path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all values, with ``<name>`` where the user chooses a name."""
    for name, field in section.model_fields.items():
        place = place_of(field.annotation)
        if place.section is not None:
            yield from leaf_paths(place.section, (*path, name))
        elif isinstance(place.values, type) and issubclass(place.values, Section):
            yield from leaf_paths(place.values, (*path, name, "<name>"))
        else:
            yield (*path, name)

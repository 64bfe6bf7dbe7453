"""Small registries: a name, what stands behind it, and the user's own code by import path.

Wherever the configuration names an implementation (an environment, a verifier, an engine), a
:class:`Registry` turns the name into the object. A registered name is short; anything with a colon is an
import path ``module:attribute``, so a user's own implementation lives in the user's module and needs no
registration. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """A registered name.

    Attributes:
        name: What the configuration says.
        target: The object itself, or the import path of it.
        description: One line for the user.
    """

    name: str
    target: T | str
    description: str


class Registry(Generic[T]):
    """Name to object, or to the import path that is followed when the name is used."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def add(self, name: str, target: T | str, description: str = "") -> None:
        """Register a name.

        Raises:
            ValueError: the name is taken, or could be read as an import path.
        """
        if name in self._entries or ":" in name or not name:
            raise ValueError(f"{self._kind} name '{name}' is taken or malformed")
        self._entries[name] = Entry(name, target, description)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def resolve(self, name: str) -> T:
        """The object behind a registered name or an import path.

        Raises:
            LookupError: no such name, module or attribute; the message names the nearest valid one.
        """
        if ":" in name:
            return import_path(name)  # type: ignore[no-any-return]
        entry = self._entries.get(name)
        if entry is None:
            raise LookupError(f"unknown {self._kind} '{name}': {self._hint(name)}")
        if isinstance(entry.target, str):
            return import_path(entry.target)  # type: ignore[no-any-return]
        return entry.target

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._entries, n=1)
        if near:
            return f"did you mean '{near[0]}'?"
        return f"use one of {', '.join(sorted(self._entries))}, or an import path 'module:attribute'"


def import_path(path: str) -> object:
    """Follow ``module:attribute`` (the attribute may be dotted).

    Raises:
        LookupError: the path is malformed, the module cannot be imported, or the attribute is missing.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise LookupError(f"'{path}' is not an import path: write 'module:attribute'")
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise LookupError(f"cannot import '{module_name}' for '{path}': {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f": did you mean '{near[0]}'?" if near else ""
            raise LookupError(f"module '{module_name}' has no '{attribute}'{hint}")
        found = getattr(found, part)
    return found

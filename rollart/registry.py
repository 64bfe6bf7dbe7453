"""Named extension points: a short name of ours, or ``module:attribute`` of the user's own code.

Every place where a user may bring something (environments, rewards, advantages, ...) is one
:class:`Registry`. Built-in entries may be given as import paths too, so that naming a variant in a
configuration imports nothing until it is used.
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to objects.

    Args:
        kind: What the entries are, in the singular, for messages: ``environment``.
        entries: The built-in ones: name to object, or to its import path.
    """

    def __init__(self, kind: str, entries: dict[str, T | str]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def register(self, name: str, entry: T | str) -> None:
        """Add an entry.

        Raises:
            ValueError: the name is taken, or could not be told from an import path.
        """
        if ":" in name or not name:
            raise ValueError(f"a registered {self._kind} needs a name without ':', not {name!r}")
        if name in self._entries:
            raise ValueError(f"there is already {_article(self._kind)} named {name!r}")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The entry of that name, or what the import path ``module:attribute`` leads to.

        Raises:
            LookupError: there is no such name, module or attribute; the message says which, and what is near.
        """
        if name in self._entries:
            entry = self._entries[name]
            return import_path(entry, self._kind) if isinstance(entry, str) else entry
        if ":" in name:
            found: T = import_path(name, self._kind)
            return found
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(self._entries))}"
        raise LookupError(f"no {self._kind} named {name!r}: {hint} (or give 'module:attribute' for your own)")

    def found(self, name: str, setting: str) -> T:
        """The entry that a setting names, for the checks before anything starts.

        Raises:
            ValueError: what is wrong with the setting and what to do, errors inside the user's module included.
        """
        try:
            return self.get(name)
        except Exception as error:
            cause = str(error) if type(error) is LookupError else f"cannot be imported: {first_cause(error)}"
            raise ValueError(f"{setting} '{name}': {cause}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def import_path(path: str, kind: str) -> Any:
    """Import ``module:attribute``; ``attribute`` may be dotted.

    Raises:
        LookupError: the module or the attribute does not exist, or the module exits. Errors inside the
            module pass through.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise LookupError(f"{kind} {path!r} is not of the form 'module:attribute'")
    try:
        found: Any = importlib.import_module(module_name)
    except SystemExit as error:
        raise LookupError(f"{kind} {path!r}: importing {module_name!r} ended with SystemExit({error.code})") from error
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise LookupError(
            f"{kind} {path!r}: no module named {error.name!r}; install its package or put its folder on PYTHONPATH"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise LookupError(f"{kind} {path!r}: {module_name!r} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def first_cause(error: BaseException) -> str:
    """The root of an exception chain and where it was raised: ``ValueError: bad map (lake.py:42 in reset)``."""
    root = error
    while (earlier := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = earlier
    frames = traceback.extract_tb(root.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(root).__name__}: {root}{where}"


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

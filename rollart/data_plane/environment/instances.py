"""What the procedurally generated families share: held-out instances, and reading one word of an action.

Train and held-out instances never meet: an instance belongs to one of the two by a hash of its own content,
and a family draws from its seed until the instance belongs to the split it was asked for. So the split
holds whatever the seeds are, also where the instance space is small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from rollart.data_plane.environment.env import Split
from rollart.types import derive_seed

T = TypeVar("T")

HELD_OUT_ONE_IN = 5
"""One of so many instances is held out."""

_TRIES = 1000


def instance_of(split: Split | None, seed: int, make: Callable[[int], T], content: Callable[[T], str]) -> T:
    """The instance of a seed that belongs to ``split``; of either if that is ``None``.

    Args:
        seed: Equal seeds give equal instances.
        make: An instance from a seed.
        content: What makes two instances the same task.

    Raises:
        ValueError: the family has no instance of that split.
    """
    for attempt in range(_TRIES):
        instance = make(derive_seed(seed, attempt))
        if split is None or (split == "held_out") == is_held_out(content(instance)):
            return instance
    raise ValueError(f"no {split} instance in {_TRIES} draws: the arguments leave too few different instances")


def is_held_out(content: str) -> bool:
    """Whether the instance of this content is a held-out one."""
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def interval(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """An argument that is a number or ``[smallest, largest]``, as both ends.

    Raises:
        ValueError: it is something else.
    """
    ends = (value, value) if isinstance(value, int) else tuple(value)
    if len(ends) != 2 or not all(isinstance(end, int) for end in ends) or ends[0] > ends[1]:
        raise ValueError(f"{name} is {value!r}: give a whole number or [smallest, largest]")
    return ends


def chosen_word(action: str, words: Collection[str], *, strict: bool) -> str | None:
    """The one of ``words`` that an action says, ignoring case; ``None`` if it says none.

    Args:
        strict: The action must be that word and nothing else; otherwise the last of the words in it counts.
    """
    said = action.split()
    if strict:
        said = said if len(said) == 1 else []
    for word in reversed(said):
        plain = word.strip(".,;:!?\"'`*()[]{}<>").lower()
        if plain in words:
            return plain
    return None

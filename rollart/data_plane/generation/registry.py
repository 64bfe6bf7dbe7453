"""Engines by name: ``engine.kind`` of the configuration.

An entry is called as :data:`Factory` and returns the function that builds the core, which loads the
model and so runs off the event loop. Torch and transformers are imported only when an engine that
needs them is built. A user's own is named by its import path.

Who calls it: the generation Worker, when it is placed; ``rollart plan`` to refuse a bad name.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollart.config.engine import EngineConfig
from rollart.data_plane.generation.core import EngineCore
from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.weights.store import WeightReader
from rollart.registry import Registry
from rollart.types import EngineAddress


class EngineSetup(msgspec.Struct, frozen=True):
    """What an engine is built from, besides its section of the configuration.

    Attributes:
        address: Identity and incarnation.
        model: Folder or hub id.
        seed: Of the sampling noise; the same for all engines of a run, so that it does not matter which one generates.
        version: Of the weights in ``model``.
        bucket_bytes: Of the weight store.
        context: Longest history that will be asked for; ``None`` if that is not known.
    """

    address: EngineAddress
    model: str
    seed: int
    version: int = 0
    bucket_bytes: int = 1 << 30
    context: int | None = None


Factory = Callable[[EngineConfig, EngineSetup], EngineCore]
"""Builds a core. Blocking. Raises with the remedy if the model cannot be loaded."""

ENGINES: Registry[Factory] = Registry(
    "engine",
    {"torch": "rollart.data_plane.generation.torch_factory:build_torch_core"},
)


def check_engine(kind: str) -> None:
    """Refuse an engine that there is not, before anything starts. Built-in ones are not imported for it.

    Raises:
        ValueError: what is wrong with ``engine.kind`` and what to do.
    """
    if kind in ENGINES:
        return
    if not callable(ENGINES.found(kind, "engine.kind")):
        raise ValueError(f"engine.kind '{kind}' is not a class or function")  # noqa: TRY004 - a setting


def build_engine(config: EngineConfig, setup: EngineSetup, reader: WeightReader) -> Engine:
    """The engine that ``config.kind`` names; ``start`` loads its model.

    Raises:
        LookupError: there is no such kind; the message says what is near.
    """
    factory = ENGINES.get(config.kind)
    return EngineShell(lambda: factory(config, setup), reader)

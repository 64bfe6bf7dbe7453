"""The one Ray actor that hosts any worker class. Imported in the worker's process: it stays light.

The environment variables are set before the worker's module is imported, hence before torch is. That
serves the same purpose as Ray's ``runtime_env`` without its agent, and lets Ray reuse a started process.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from typing import Any

import msgspec

from rollart.codec import encode
from rollart.runtime.host import WorkerHost, failure_reply
from rollart.runtime.methods import method_table
from rollart.runtime.processes import die_with_parent


class ActorSpec(msgspec.Struct, frozen=True):
    """What a new actor is told.

    Attributes:
        module, name: Where the worker class is: its module and its qualified name.
        search_path: Folders of the caller's ``sys.path``; those that exist are added.
        folder: The caller's working folder, which becomes the worker's if its machine has it: relative paths of a
            configuration mean the same in every process, also on a cluster that was started elsewhere.
        environment: Environment variables of the process.
        args: Encoded constructor arguments.
    """

    module: str
    name: str
    search_path: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    args: bytes


class ActorPlace(msgspec.Struct, frozen=True):
    """Where an actor came to live."""

    host: str
    pid: int


class WorkerActor:
    """An asyncio actor: every method runs on its event loop."""

    def __init__(self) -> None:
        self._host: WorkerHost | None = None
        self._created: bytes = b""

    async def locate(self) -> bytes:
        """The encoded :class:`ActorPlace`; answers as soon as the process runs, which from then on ends with Ray's."""
        die_with_parent()
        return encode(ActorPlace(socket.gethostname(), os.getpid()))

    async def create(self, data: bytes) -> bytes:
        """Import the class and construct the worker, once; a failure is a reply, never a dead actor."""
        if self._host is None:
            self._created = self._create(data)
        return self._created

    def _create(self, data: bytes) -> bytes:
        spec = msgspec.msgpack.decode(data, type=ActorSpec)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.update(spec.environment)
        _extend_search_path(spec.search_path)
        if os.path.isdir(spec.folder):
            os.chdir(spec.folder)
        try:
            target: Any = importlib.import_module(spec.module)
            for part in spec.name.split("."):
                target = getattr(target, part)
            self._host = WorkerHost(target, method_table(target))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code is imported here; the caller gets the cause
            return failure_reply(error)
        return self._host.create(spec.args)

    async def invoke(self, call: int, method: str, payload: bytes) -> bytes:
        assert self._host is not None, "callers create before they invoke"
        return await self._host.invoke(call, method, payload)

    async def cancel(self, call: int) -> None:
        if self._host is not None:
            self._host.cancel(call)


def _extend_search_path(folders: tuple[str, ...]) -> None:
    sys.path.extend(folder for folder in folders if folder not in sys.path and os.path.isdir(folder))

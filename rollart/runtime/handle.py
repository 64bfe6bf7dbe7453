"""The caller's end of a call, common to both runtimes: encoding, deadline, bound on calls in flight.

A subclass only moves bytes. Invariants: every wait has a deadline; a caller that gives up (deadline or
cancellation) cancels the method in the worker, and the worker itself lives on; at most ``max_calls``
calls are in flight and further ones wait for their turn within their own deadline; after the worker is
lost or stopped every call raises :class:`WorkerLost` at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from abc import abstractmethod
from typing import Any

from rollart.runtime.host import Failure, read_reply
from rollart.runtime.methods import MethodTable
from rollart.runtime.runtime import CallTimeout, WorkerError, WorkerHandle, WorkerInfo, WorkerLost

MAX_CALLS = 256
"""Default bound on the calls in flight at one worker: far above a few long polls and batches."""

KILL_DEADLINE = 10.0
"""Seconds that ending a worker's process may take."""

_log = logging.getLogger(__name__)


def describe(info: WorkerInfo) -> str:
    """A worker as messages name it."""
    return f"worker {info.worker} (role {info.role}, pool {info.pool}, host {info.host}, pid {info.pid})"


def result_of(info: WorkerInfo, method: str, reply: bytes | memoryview) -> memoryview:
    """The encoded result of a reply.

    Raises:
        WorkerError: the reply is a failure.
    """
    answer = read_reply(reply)
    if isinstance(answer, Failure):
        raise WorkerError(info, method, answer.cause_type, answer.cause, answer.remote_traceback)
    return answer


class EncodingHandle(WorkerHandle):
    """See the module docstring."""

    def __init__(self, info: WorkerInfo, table: MethodTable, max_calls: int) -> None:
        self.info = info
        self._table = table
        self._max_calls = max_calls
        self._slots = asyncio.Semaphore(max_calls)
        # Several clients may call one detached worker; their calls need different numbers.
        self._numbers = itertools.count(secrets.randbits(62))
        self._lost: str | None = None
        self._stopping = asyncio.Lock()

    @abstractmethod
    async def _send(self, call: int, method: str, payload: bytes) -> bytes:
        """Deliver one call and await its reply.

        Raises:
            WorkerLost: the process is gone.
        """

    @abstractmethod
    def _cancel(self, call: int) -> None:
        """Cancel a call's method in the worker, without waiting for it."""

    @abstractmethod
    async def _end(self) -> None:
        """End the worker's process at once."""

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        bound = self._table.method(method)
        payload = bound.encode(args)
        waiting = True
        try:
            async with asyncio.timeout(timeout), self._slots:
                waiting = False
                reply = await self._exchange(method, payload)
        except TimeoutError:
            reason = f", spent waiting for one of {self._max_calls} calls in flight to end" if waiting else ""
            raise CallTimeout(f"{describe(self.info)}: {method} gave no answer in {timeout:g} s{reason}") from None
        return bound.decode_result(result_of(self.info, method, reply))

    async def _exchange(self, method: str, payload: bytes) -> bytes:
        self._check_alive()
        call = next(self._numbers)
        try:
            return await self._send(call, method, payload)
        except asyncio.CancelledError:
            if self._lost is None:
                self._cancel(call)
            raise

    async def stop(self, grace: float) -> None:
        async with self._stopping:
            if self._lost is not None:
                return
            try:
                if "stop" in self._table.methods:
                    await self.call("stop", timeout=grace)
            except (WorkerError, WorkerLost, CallTimeout) as error:
                _log.warning("%s did not stop by itself and is ended: %s", describe(self.info), error)
            finally:
                await self._lose("it has been stopped")

    async def kill(self) -> None:
        await self._lose("it has been killed")

    async def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            await self._end()

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise WorkerLost(f"{describe(self.info)} is gone: {self._lost}")

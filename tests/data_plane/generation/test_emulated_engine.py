"""The emulated engine: the conformance suite's semantics in virtual time, and its model of time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from engine_client import Client
from engine_conformance import Bench, EngineSemantics, T

from rollart.data_plane.generation.emulated import EmulatedCore, EmulatedLengths, EmulatedSpeed
from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.weights.store import Manifest
from rollart.simulation import virtual_loop
from rollart.types import EngineAddress, LengthSpan

SPEED = EmulatedSpeed(step_seconds=0.0625, row_seconds=0.015625, prefill_token_seconds=0.03125)


class EmulatedBench(Bench):
    """Emulated engines; a decode step of two requests takes 3/32 s."""

    def engine(
        self,
        *,
        max_rows: int = 4,
        max_sessions: int = 8,
        max_context: int = 128,
        prefill_chunk: int = 64,
        seed: int = 0,
        version: int = 0,
    ) -> Engine:
        lengths = EmulatedLengths(mean=24, spread=0.3)
        core = EmulatedCore(
            EngineAddress(0),
            seed,
            SPEED,
            lengths,
            max_rows=max_rows,
            max_sessions=max_sessions,
            max_context=max_context,
            version=version,
        )
        return EngineShell(lambda: core)

    def manifest(self, version: int) -> Manifest:
        return Manifest(version, (), (), 0, f"checksum-{version}")

    def span(self, length: int, salt: int = 0) -> LengthSpan:
        return LengthSpan(length)

    async def generate(self, client: Client, tokens: int) -> None:
        # an emulated engine accounts for its steps when something happens, so time is all there is to wait for
        await asyncio.sleep(14 * SPEED.prefill_token_seconds + tokens * 0.09375)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return virtual_loop.run(main)


@pytest.fixture
def bench() -> EmulatedBench:
    return EmulatedBench()


class TestEmulatedEngine(EngineSemantics):
    """The suite's semantics."""

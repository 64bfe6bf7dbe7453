"""The misbehaving environments of ``modules/`` can be named by import path, here and in child processes."""

import asyncio
from pathlib import Path

import pytest

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.process import ProcessPool

MODULES = Path(__file__).parent / "modules"


@pytest.fixture(autouse=True)
def _modules_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(MODULES))


@pytest.fixture
def domain():
    """A domain of one of the odd environments."""

    def make(name: str, **settings) -> DomainConfig:
        return DomainConfig(env=f"odd_envs:{name}", **{"step_timeout": 20.0, "reset_timeout": 20.0, **settings})

    return make


@pytest.fixture
def with_pool():
    """Runs ``body(pool)`` with a pool of processes that is closed and empty afterwards."""

    def run(body, limit: int = 2, **settings):
        async def main():
            pool = ProcessPool(limit, **settings)
            try:
                return await body(pool)
            finally:
                await pool.close()
                assert pool.alive == 0

        return asyncio.run(main())

    return run

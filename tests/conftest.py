"""What holds for every test: one thread a process, no downloads, reproducible examples, no silent skip.

Under pytest-xdist all tests marked ``ray`` run on one worker, so that a run starts one Ray cluster. A test
that is skipped for a reason not listed in :data:`EXPECTED_SKIPS` counts as failed: a check that never runs
is worse than none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator

# Before any test module imports torch or transformers, which read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

from rollart.runtime.ray_cluster import RayCluster
from rollart.runtime.runtime import pool_resource

EXPECTED_SKIPS = (
    r"needs a CUDA device",
    r"needs the optional package [\w-]+",
    r"needs the data set [\w-]+",
    r"needs the model [\w.-]+",
)
"""Reasons, as regular expressions, for which a test may be skipped: what a machine may lack."""

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))


def refuse_unexpected_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip for an unlisted reason into a failure that names the reason."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(re.search(expected, reason) for expected in EXPECTED_SKIPS):
        return
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: unexpected skip ({reason}); the reasons allowed are in tests/conftest.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_unexpected_skip(report)
    return report


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """The one private Ray cluster of a test session: pools ``local`` and ``small`` of 64 devices, ``single`` of 1.

    A test places workers on it through ``RayRuntime(ray_cluster, keep_cluster=True)`` and stops that runtime.
    """
    pools = {"local": 64.0, "small": 64.0, "single": 1.0}
    cluster = RayCluster.start({pool_resource(name): devices for name, devices in pools.items()}, 2, 128 << 20)
    yield cluster
    cluster.stop()

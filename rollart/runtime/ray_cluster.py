"""A Ray cluster to place workers on: a private one on this machine, or an existing one by address.

A private cluster listens on the loopback address only, with a token of its own that never touches the
disk, in a private temporary folder; pools are custom resources, so a laptop has as many pools as it likes.
Whatever way it ends (``stop``, a failed start, Ctrl-C half-way), every process it started is gone
afterwards, checked by process id, and nothing that others started is touched.

Ray is imported here and nowhere earlier, because it reads its settings from the environment on import. They
stay set: a process that had a private cluster does not join others' afterwards.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rollart.runtime.interrupts import ParkedThread, held_back
from rollart.runtime.processes import Process, children, descendants, end, process
from rollart.runtime.runtime import PlacementError

START_SECONDS = 180.0
"""Seconds that a private cluster may take to start; a busy two-core machine takes 30."""

CONNECT_SECONDS = 60.0
"""Seconds that connecting to a running cluster may take."""

SHUTDOWN_SECONDS = 5.0
"""Seconds that Ray's own shutdown may take (it takes 1.5); a whole stop stays below ten, as after Ctrl-C."""

ABANDON_SECONDS = 1.0
"""Seconds for a start to give up after its processes were killed. It may hang longer, in a thread that no
longer matters: without them it starts no more."""

END_SECONDS = 2.0
"""Seconds that processes get after that to end by themselves before they are killed."""

_SHORT = 24
"""Longest folder name under which Ray's socket paths stay below the limit of the kernel (107 bytes)."""

_FOLDER_PREFIX = "ra-"

_ERROR_LINES = 8

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Despite its name, "0" makes Ray on Linux use 127.0.0.1; the address given to its start alone is replaced by
the machine's own, and every port is then open to the network."""

_PRIVATE = {
    _LOOPBACK: "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers of logical pools take no GPU from Ray, and would otherwise see none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayCluster:
    """A connection of this process to a cluster; one a process, as Ray has it.

    Attributes:
        private: Whether this object started the cluster.
        resources: Custom resources of a private cluster.
    """

    def __init__(self, ray: Any, resources: Mapping[str, float], private: bool) -> None:
        self.ray = ray
        self.private = private
        self.resources = dict(resources)
        self._folder: Path | None = None
        self._others: Collection[Process] = ()
        self._spawned: set[Process] = set()
        self._starter: ParkedThread | None = None
        self._stopped = False

    @classmethod
    def start(cls, resources: Mapping[str, float], prestart: int, object_store_bytes: int) -> RayCluster:
        """Start a private cluster. Blocking, about 6-14 s; Ctrl-C ends it at once.

        Args:
            resources: Custom resources and their amounts.
            prestart: Worker processes started ahead of need.
            object_store_bytes: Size of Ray's object store.

        Raises:
            PlacementError: Ray did not start; the message says why and what to do.
        """
        others = children(os.getpid())
        cluster = cls(_import_ray(_PRIVATE), resources, private=True)
        cluster._others = others
        cluster._folder = _temporary_folder()
        cluster._guarded_init(
            START_SECONDS,
            address="local",
            num_cpus=prestart,
            num_gpus=0,
            resources=dict(resources),
            object_store_memory=object_store_bytes,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(cluster._folder),
        )
        return cluster

    @classmethod
    def connect(cls, address: str, seconds: float = CONNECT_SECONDS) -> RayCluster:
        """Connect to a running cluster. Blocking.

        Args:
            address: As Ray takes it: ``host:port``, or ``auto``.
            seconds: When to give up; Ray itself tries again for minutes, also when it is refused.

        Raises:
            PlacementError: there is no cluster, or it refuses.
        """
        mode = os.environ.get("RAY_AUTH_MODE", "token" if os.environ.get("RAY_AUTH_TOKEN") else "disabled")
        cluster = cls(_import_ray({"RAY_AUTH_MODE": mode}), {}, private=False)
        cluster._others = children(os.getpid())
        cluster._guarded_init(seconds, address=address)
        return cluster

    def _guarded_init(self, seconds: float, **options: Any) -> None:
        """Run Ray's own start in a thread that lives as long as the cluster: see :class:`ParkedThread`."""
        options |= {"log_to_driver": False, "logging_level": "ERROR"}
        if self.private:
            options["include_dashboard"] = False
        self._starter = ParkedThread(partial(self.ray.init, **options), "ray-start")
        try:
            self._starter.wait(seconds)
        except BaseException as error:
            logs = self._last_errors("gcs_server.err") or self._last_errors("raylet.err")
            with held_back():
                self._abandon_start()
                self.stop(grace=0.0)
            if not isinstance(error, Exception):
                raise
            if self.private:
                what = f"a private Ray cluster did not start: {error}{logs}; check free memory and disk space"
            else:
                what = (
                    f"no connection to a Ray cluster at {options['address']}: {error}; check ray.address, and that "
                    "RAY_AUTH_MODE and RAY_AUTH_TOKEN are the cluster's"
                )
            raise PlacementError(f"{what}, or set run.runtime=in_process to run without Ray") from error

    def _abandon_start(self) -> None:
        """Kill what was started and what is still being started, until Ray's start gives up."""
        deadline = time.monotonic() + ABANDON_SECONDS
        while time.monotonic() < deadline:
            if self.private:
                end(self._started(), 0.0)
            if self._starter is None or self._starter.finished(0.05):
                return

    def _started(self) -> set[Process]:
        """The processes that Ray started for this cluster, and theirs."""
        roots = children(os.getpid()) - set(self._others)
        return roots.union(*(descendants(root.pid) for root in roots))

    def totals(self) -> dict[str, float]:
        """All resources of the cluster. Blocking for an existing cluster."""
        return self.resources if self.private else dict(self.ray.cluster_resources())

    def free(self) -> dict[str, float]:
        """Resources that are not taken. Blocking."""
        return dict(self.ray.available_resources())

    def adopt(self, worker: Process | None) -> None:
        """Remember a worker's process, to be ended with the cluster even if Ray loses sight of it."""
        if worker is not None:
            self._spawned.add(worker)

    def worker_errors(self, pid: int) -> str:
        """The last lines that a worker's process wrote to its error stream, for messages."""
        return self._last_errors(f"worker-*-{pid}.err")

    def _last_errors(self, pattern: str) -> str:
        if self._folder is None:
            return ""
        for path in self._folder.glob(f"session_latest/logs/{pattern}"):
            lines = [line for line in path.read_text(errors="replace").splitlines() if line and line[0] != ":"]
            if lines:
                return "; its last words:\n  " + "\n  ".join(lines[-_ERROR_LINES:])
        return ""

    def stop(self, grace: float = END_SECONDS) -> None:
        """End the cluster if it is private, else leave it. Blocking, with a bound. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        with held_back():
            started = self._started()
            self._shut_down()
            if self.private:
                end(started | self._spawned, grace)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._starter is not None:
                self._starter.release()

    def _shut_down(self) -> None:
        """Ray's own shutdown, in a thread: should it hang, its processes are ended all the same."""
        if self._starter is None or not self._starter.finished(0.0):
            return
        thread = threading.Thread(target=self.ray.shutdown, name="ray-shutdown", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)


def _import_ray(settings: Mapping[str, str]) -> Any:
    """Import Ray under these environment variables, which stay for the life of the process.

    They are not taken back at the end, because Ray's threads may read them until the process exits, and abort
    it when they do not fit what they know.

    Raises:
        PlacementError: it is not installed, or this process is connected already.
    """
    os.environ.update(settings)
    try:
        import ray
        import ray._private.ray_constants as ray_constants
        import ray._private.worker as ray_worker
    except ImportError as error:
        raise PlacementError(
            f"run.runtime is 'ray', but Ray cannot be imported ({error}): pip install 'rollart[ray]', "
            "or set run.runtime=in_process"
        ) from error
    if ray.is_initialized():
        raise PlacementError("this process is connected to a Ray cluster already: call ray.shutdown() first")
    # What Ray read on import, for the case that somebody imported it before us.
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(_LOOPBACK) != "0"
    core: Any = importlib.import_module("ray._raylet")
    if hasattr(core, "AuthenticationTokenLoader"):  # earlier releases have no token authentication
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()
    # A worker's death reaches the caller as an error; Ray's own notice of it would go to standard output,
    # where a run's table or JSON is.
    ray_worker._worker_logs_enabled = False
    return ray


def _temporary_folder() -> Path:
    """A new private folder; those that a killed process of this user left are removed."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _SHORT:
        base = Path("/tmp")
    for folder in base.glob(f"{_FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and process(int(owner)) is None and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-", dir=base))

"""A Ray cluster to place workers on: a private one on this machine, or an existing one by address.

A private cluster listens on the loopback address only, with a token of its own that never touches the
disk, in a private temporary folder; pools are custom resources, so a laptop has as many pools as it likes.
Whatever way it ends (``stop``, a failed start, Ctrl-C half-way), every process it started is gone
afterwards, checked by process id, and nothing that others started is touched.

Ray is imported here and nowhere earlier, because it reads its settings from the environment on import.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollart.runtime.processes import Process, children, descendants, end, process
from rollart.runtime.runtime import PlacementError

SHUTDOWN_SECONDS = 5.0
"""Seconds that Ray's own shutdown may take (it takes 1.5); a whole stop stays below ten, as after Ctrl-C."""

END_SECONDS = 2.0
"""Seconds that processes get after that to end by themselves before they are killed."""

_SHORT = 24
"""Longest folder name under which Ray's socket paths stay below the limit of the kernel (107 bytes)."""

_FOLDER_PREFIX = "ra-"

_ERROR_LINES = 8

_PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Despite its name this makes Ray on Linux use 127.0.0.1; the address given to init alone is replaced by
    # the machine's own, and every port is then open to the network.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
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
        self._environment: dict[str, str | None] = {}
        self._others: Collection[Process] = ()
        self._spawned: set[Process] = set()
        self._stopped = False

    @classmethod
    def start(cls, resources: Mapping[str, float], prestart: int, object_store_bytes: int) -> RayCluster:
        """Start a private cluster. Blocking, about 6-14 s; call it in the main thread.

        The kernel kills Ray's processes when the *thread* that started them ends, which is what cleans up
        after a killed driver; so it must be a thread that lives as long as the cluster.

        Args:
            resources: Custom resources and their amounts.
            prestart: Worker processes started ahead of need.
            object_store_bytes: Size of Ray's object store.

        Raises:
            PlacementError: Ray did not start; the message says why and what to do.
        """
        others = children(os.getpid())
        settings = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_MODE": "token", **_PRIVATE}
        replaced = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            cluster = cls(_import_ray(), resources, private=True)
        except PlacementError:
            _restore(replaced)
            raise
        cluster._others, cluster._environment = others, replaced
        cluster._folder = _temporary_folder()
        cluster._guarded_init(
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
    def connect(cls, address: str) -> RayCluster:
        """Connect to a running cluster. Blocking.

        Raises:
            PlacementError: there is no cluster, or it refuses.
        """
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        cluster = cls(_import_ray(), {}, private=False)
        cluster._others = children(os.getpid())
        cluster._guarded_init(address=address)
        return cluster

    def _guarded_init(self, **options: Any) -> None:
        try:
            self.ray.init(
                include_dashboard=False if self.private else None,
                log_to_driver=False,
                logging_level="WARNING",
                **options,
            )
        except BaseException as error:
            logs = self._last_errors("gcs_server.err") or self._last_errors("raylet.err")
            self.stop(grace=0.0)
            if not isinstance(error, Exception):
                raise
            place = "a private Ray cluster did not start" if self.private else f"no Ray cluster at {options['address']}"
            raise PlacementError(
                f"{place}: {error}{logs}; check free memory and disk space under {tempfile.gettempdir()}, "
                "or set run.runtime=in_process to run without Ray"
            ) from error

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
        with _without_interrupts():
            started: set[Process] = set()
            for root in children(os.getpid()) - set(self._others):
                started |= {root} | descendants(root.pid)
            self._shut_down()
            if self.private:
                end(started | self._spawned, grace)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            _restore(self._environment)

    def _shut_down(self) -> None:
        """Ray's own shutdown, in a thread: should it hang, its processes are ended all the same."""
        thread = threading.Thread(target=self.ray.shutdown, name="ray-shutdown", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)


def _import_ray() -> Any:
    """Import Ray, which must not be connected yet.

    Raises:
        PlacementError: it is not installed, or this process is connected already.
    """
    try:
        import ray
        import ray._private.worker as ray_worker
    except ImportError as error:
        raise PlacementError(
            f"run.runtime is 'ray', but Ray cannot be imported ({error}): pip install 'rollart[ray]', "
            "or set run.runtime=in_process"
        ) from error
    if ray.is_initialized():
        raise PlacementError("this process is connected to a Ray cluster already: call ray.shutdown() first")
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


def _restore(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C in this thread; it is delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

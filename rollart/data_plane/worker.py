"""Worker: one execution unit bound to a pool, and the four roles that users subclass.

A worker's public methods are its interface across the process border, so they are annotated (the runtime
refuses a class that is not). A synchronous method runs on the worker's event loop and must not block; work
that does is an ``async`` method around ``rollart.runtime.offload``. What a role prefers to run on is a
default: a pool named in the configuration comes first.
"""

from __future__ import annotations

from typing import ClassVar

from rollart.data_plane.declarations import check_declarations
from rollart.data_plane.serverless import connect
from rollart.resource_plane.hardware import LOCAL

TRAIN = "train"
GENERATE = "generate"
ENVIRONMENT = "environment"
REWARD = "reward"
ROLES = (TRAIN, GENERATE, ENVIRONMENT, REWARD)


class Worker:
    """Base of all workers.

    Attributes:
        role: What it does in the pipeline; a key of section ``placement``.
        hardware_affinity: Hardware class that it prefers.

    A subclass whose declarations make no sense is refused when the class is created.
    """

    role: ClassVar[str] = "worker"
    hardware_affinity: ClassVar[str] = LOCAL

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_declarations(cls)

    def connect_serverless(self, urls: dict[str, str]) -> None:
        """Set each attribute to an awaitable call of its URL. Called by the Cluster once the worker is placed.

        Raises:
            ServerlessError: a URL cannot be served.
            LookupError: an ``inline://`` function does not exist.
        """
        for attribute, url in urls.items():
            setattr(self, attribute, connect(url))

    async def stop(self) -> None:
        """Free what the worker holds. Called once before its process ends; override as needed."""


class ActorTrain(Worker):
    """Trains the policy. Prefers the compute-optimised class."""

    role = TRAIN
    hardware_affinity = "H800"


class ActorGen(Worker):
    """Generates actions. Prefers the bandwidth-optimised class."""

    role = GENERATE
    hardware_affinity = "H20"


class Environment(Worker):
    """Hosts environments. Prefers CPUs."""

    role = ENVIRONMENT
    hardware_affinity = "CPU"


class Reward(Worker):
    """Scores trajectories. Stays on the cluster's own machines unless it is declared serverless."""

    role = REWARD
    hardware_affinity = LOCAL

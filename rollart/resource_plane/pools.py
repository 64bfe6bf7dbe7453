"""Pools: named sets of devices of one hardware class, and the live view of who holds which device.

Values only, immutable; the resource manager keeps them in the metadata store.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollart.config.resources import PoolConfig
from rollart.resource_plane.hardware import CATALOGUE, Hardware, Kind, hardware, unknown_class


class PlanError(ValueError):
    """What was asked for can never run on these pools; the message says which setting to change."""


class PoolView(msgspec.Struct, frozen=True):
    """A pool at one moment.

    Attributes:
        name: As in section ``pools``.
        hardware_class: A class of the catalogue.
        devices: How many devices it has; their ids are ``0 .. devices - 1``.
        logical: Whether it is a share of one machine instead of devices of a real cluster.
        holders: Worker by device id, for the devices that are taken.
    """

    name: str
    hardware_class: str
    devices: int
    logical: bool
    holders: dict[int, str] = {}

    @property
    def hardware(self) -> Hardware:
        return hardware(self.hardware_class)

    @property
    def hosts_workers(self) -> bool:
        """A serverless pool runs functions and holds no worker."""
        return self.hardware.kind is not Kind.SERVERLESS

    @property
    def free(self) -> tuple[int, ...]:
        """Ids of the devices that nobody holds, ascending."""
        return tuple(device for device in range(self.devices) if device not in self.holders)

    def take(self, worker: str, count: int) -> tuple[PoolView, tuple[int, ...]]:
        """The view after ``worker`` has taken ``count`` devices, and their ids.

        Raises:
            ValueError: there are not as many free.
        """
        taken = self.free[:count]
        if len(taken) < count:
            raise ValueError(f"pool {self.name!r} has {len(taken)} free devices, not {count}")
        holders = {**self.holders, **dict.fromkeys(taken, worker)}
        return msgspec.structs.replace(self, holders=holders), taken

    def release(self, worker: str) -> PoolView:
        """The view after ``worker`` has given back whatever it holds."""
        return msgspec.structs.replace(
            self, holders={device: holder for device, holder in self.holders.items() if holder != worker}
        )


def pools_of(configs: Mapping[str, PoolConfig]) -> dict[str, PoolView]:
    """The pools that a configuration declares, all devices free.

    Raises:
        PlanError: a hardware class is not in the catalogue; the message names the nearest.
    """
    for name, config in configs.items():
        if config.hardware not in CATALOGUE:
            raise PlanError(f"pools.{name}.hardware: {unknown_class(config.hardware)}")
    return {name: PoolView(name, config.hardware, config.devices, config.logical) for name, config in configs.items()}

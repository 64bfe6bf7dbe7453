"""The devices of the pools, and how a split of them between training and generation is written as settings.

Pools of one hardware class are one stock: the trainer's pool takes what the trainer needs, and the other pools of its
class take the engines, in proportion to their sizes; a class whose only pool is the trainer's holds both in it. The
trainer stays in the class that it has, other roles keep their devices, and what nobody uses is released. Called by the
planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rollart.config.simulation import SimulatedConfig
from rollart.resource_plane.binding import bind
from rollart.resource_plane.hardware import Hardware, hardware
from rollart.resource_plane.planning import apportion, worker_requests
from rollart.resource_plane.pools import PlanError, pools_of
from rollart.simulation.constants import Constants
from rollart.simulation.engine_model import EngineModel
from rollart.simulation.shapes import ModelShape, shape
from rollart.simulation.simulator import AFFINITIES

TRAINER_BYTES = 16
"""Of each parameter on the trainer's devices: weight and gradient in bfloat16, master weight and AdamW's two moments in
float32. Activations share the rest."""


class PoolSplit:
    """What a configuration's pools can be split into.

    Attributes:
        model: The trained model.
        constants: Of the performance model.
        speeds: Engine model by hardware class, for the classes that can generate, in the order of the pools.
        trainer_class: Of the trainer's devices.
        given: Devices of the trainer, and engines by class, as the configuration has them.
        least_trainer, most_trainer: Devices that the trainer can have.

    Raises:
        PlanError: the workers of the configuration do not fit its pools, or no split of them holds the model.
        ValueError: the model or a constant has an unknown name.
    """

    def __init__(self, config: SimulatedConfig) -> None:
        self._config = config
        self.model: ModelShape = shape(config.simulation.model)
        self.constants = Constants.with_overrides(config.simulation.constants)
        bindings, _ = bind(pools_of(config.pools), worker_requests(config, AFFINITIES))
        trainer = next(binding for binding in bindings if binding.role == "train")
        engines = [binding.hardware_class for binding in bindings if binding.role == "generate"]
        self._trainer_pool = trainer.pool
        self.trainer_class = trainer.hardware_class
        self.given = (len(trainer.devices), Counter(engines))
        self._others = Counter[str]()
        for binding in bindings:
            if binding.role not in ("train", "generate"):
                self._others[binding.pool] += len(binding.devices)
        self._pools: dict[str, list[str]] = {}
        for name, pool in config.pools.items():
            if hardware(pool.hardware).is_gpu or pool.hardware in engines or name == trainer.pool:
                self._pools.setdefault(pool.hardware, []).append(name)
        self.speeds = self._engine_models()
        self.least_trainer, self.most_trainer = self._trainer_bounds()

    @property
    def trainer_hardware(self) -> Hardware:
        return hardware(self.trainer_class)

    @property
    def other_cost(self) -> float:
        """Price of an hour of the devices that no split changes."""
        fixed = Counter(self._others)
        for name, pool in self._config.pools.items():
            if name not in self._pools.get(pool.hardware, ()):
                fixed[name] = pool.devices
        return sum(count * hardware(self._config.pools[name].hardware).cost for name, count in fixed.items())

    def stock(self, hardware_class: str) -> int:
        """Devices of a class that training and generation share."""
        pools = self._pools.get(hardware_class, ())
        return sum(self._config.pools[name].devices - self._others[name] for name in pools)

    def room(self, hardware_class: str, trainer: int) -> int:
        """Engines that a class has devices for beside a trainer of so many."""
        free = self.stock(hardware_class) - (trainer if hardware_class == self.trainer_class else 0)
        return max(0, free) // self._config.engine.devices

    def settings(self, trainer: int, engines: Mapping[str, int]) -> dict[str, Any]:
        """A split as values by dotted key.

        Args:
            trainer: Devices of the trainer.
            engines: By hardware class, each at least 1.
        """
        generate: dict[str, int] = {}
        sizes = Counter(self._others)
        sizes[self._trainer_pool] += trainer
        for name, count in engines.items():
            for pool, share in self._over_pools(name, count).items():
                if share:
                    generate[pool] = share
                    sizes[pool] += share * self._config.engine.devices
        found: dict[str, Any] = {"training.devices": trainer, "placement.train": self._trainer_pool}
        found |= self._pool_settings(sizes)
        found["placement.generate"] = generate
        if "count" in self._config.engine.model_fields_set:
            found["engine.count"] = sum(engines.values())
        return found

    def generating(self, hardware_class: str, engines: int) -> list[str]:
        """The pools that so many engines of a class are spread over."""
        return [pool for pool, share in self._over_pools(hardware_class, engines).items() if share]

    def current(self) -> dict[str, Any]:
        """What the configuration has for the keys of :meth:`settings`."""
        config = self._config
        found: dict[str, Any] = {f"pools.{name}.devices": pool.devices for name, pool in config.pools.items()}
        found |= {"training.devices": config.training.devices, "placement.train": config.placement.train}
        return found | {"placement.generate": config.engines_by_pool, "engine.count": config.engine.count}

    def _over_pools(self, hardware_class: str, engines: int) -> dict[str, int]:
        pools = self._pools[hardware_class]
        pools = [name for name in pools if name != self._trainer_pool] or pools
        sizes = {name: self._config.pools[name].devices for name in pools}
        whole = sum(sizes.values())
        return apportion(engines, {name: size / whole for name, size in sizes.items()})

    def _pool_settings(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The pools' sizes one by one, or all pools if one of them is left out."""
        config = self._config
        kept = {name for name in (config.placement.environment, config.placement.reward) if name is not None}
        split = [name for pools in self._pools.values() for name in pools]
        now = {name: max(sizes.get(name, 0), int(name in kept)) for name in split}
        if all(now.values()):
            return {f"pools.{name}.devices": size for name, size in now.items()}
        pools = {name: pool.model_dump(exclude_unset=True) for name, pool in config.pools.items()}
        return {
            "pools": {
                name: pool | ({"devices": now[name]} if name in now else {})
                for name, pool in pools.items()
                if now.get(name, 1)
            }
        }

    def _engine_models(self) -> dict[str, EngineModel]:
        models: dict[str, EngineModel] = {}
        problems: list[str] = []
        for name in self._pools:
            if self.stock(name) < self._config.engine.devices:
                continue
            try:
                models[name] = EngineModel(self.model, hardware(name), self._config.engine.devices, self.constants)
            except ValueError as error:
                problems.append(str(error))
        if not models:
            raise PlanError(
                problems[0]
                if problems
                else f"no class of the pools has the {self._config.engine.devices} devices of one engine "
                "(engine.devices): raise pools.<name>.devices"
            )
        return models

    def _trainer_bounds(self) -> tuple[int, int]:
        device = self.trainer_hardware.memory * self.constants.kv_memory_fraction
        least = int(TRAINER_BYTES * self.model.parameters / device) + 1
        most = self.stock(self.trainer_class)
        if all(name == self.trainer_class for name in self.speeds):
            most -= self._config.engine.devices
        if most < least:
            raise PlanError(
                f"training {self.model.name} needs at least {least} {self.trainer_class} for weights, gradients and "
                f"AdamW, and the pools have {max(0, most)} for it beside one engine: raise "
                f"pools.{self._trainer_pool}.devices"
            )
        return least, most

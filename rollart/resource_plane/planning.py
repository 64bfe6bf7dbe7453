"""What a configuration asks of the resource plane: one request a worker.

Pure; called by ``rollart plan`` and by whoever starts a run, before anything is started.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollart.config.config import Config
from rollart.resource_plane.binding import WorkerRequest
from rollart.resource_plane.hardware import CATALOGUE, LOCAL, unknown_class
from rollart.resource_plane.pools import PlanError


def worker_requests(config: Config, affinities: Mapping[str, str]) -> list[WorkerRequest]:
    """The workers of a run: one trainer, the engines, the environment hosts, and the rewards within these.

    Engines go to the pools that ``placement.generate`` lists. Without that they are spread over the hardware
    classes that ``placement.affinity`` names by the shares of the domains that prefer each, with at least one each as
    far as they go.

    Args:
        config: The configuration.
        affinities: Hardware class that each role prefers by declaration.

    Raises:
        PlanError: ``placement.affinity`` names an unknown class or domain.
    """
    placement = config.placement
    devices = config.training.devices
    setting = "training.devices" if devices > 1 else ""
    requests = [WorkerRequest("train-0", "train", affinities["train"], placement.train, devices, setting)]
    requests += [
        WorkerRequest(f"generate-{index}", "generate", name, pool, config.engine.devices, setting)
        for index, (name, pool, setting) in enumerate(_engine_places(config, affinities["generate"]))
    ]
    requests += [
        WorkerRequest(
            f"environment-{index}",
            "environment",
            affinities["environment"],
            placement.environment,
            setting="rollout.hosts",
        )
        for index in range(config.rollout.hosts)
    ]
    requests.append(
        WorkerRequest("reward-0", "reward", affinities["reward"], placement.reward, devices=0, within="environment")
    )
    return requests


def _engine_places(config: Config, declared: str) -> list[tuple[str, str | None, str]]:
    """Hardware class, pool and setting of each engine."""
    classes = _generation_classes(config, declared)
    by_pool = config.engines_by_pool
    if by_pool is not None:
        return [(declared, pool, f"placement.generate.{pool}") for pool, count in by_pool.items() for _ in range(count)]
    pool = config.placement.generate
    return [(name, pool if isinstance(pool, str) else None, "engine.count") for name in classes]


def _generation_classes(config: Config, declared: str) -> list[str]:
    """The hardware class of each engine, in the order of the configuration's domains."""
    affinity = {"default": declared, **config.placement.affinity}
    for domain, name in affinity.items():
        if name not in CATALOGUE and name != LOCAL:
            raise PlanError(f"placement.affinity.{domain}: {unknown_class(name)}")
        if domain not in config.domains and domain != "default":
            raise PlanError(
                f"placement.affinity.{domain}: there is no domain of that name (domains: {', '.join(config.domains)})"
            )
    shares: dict[str, float] = {}
    for domain, share in config.shares.items():
        name = affinity.get(domain, affinity["default"])
        shares[name] = shares.get(name, 0.0) + share
    counts = apportion(config.engine.count, shares)
    return [name for name, count in counts.items() for _ in range(count)]


def apportion(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Split ``total`` by shares: one each, largest share first, as far as it goes, the rest to whoever lags most.

    Args:
        total: What to split.
        shares: Positive, summing to 1.
    """
    counts = dict.fromkeys(shares, 0)
    for name in sorted(shares, key=lambda each: -shares[each])[:total]:
        counts[name] = 1
    for _ in range(total - sum(counts.values())):
        counts[max(shares, key=lambda each: shares[each] * total - counts[each])] += 1
    return counts

"""What the planner chooses from: settings of a run that change how fast it is, and not what it trains.

A candidate is one combination of the axes: devices of the trainer, engines by hardware class, hardware class by domain,
alpha, redundancy, and a class whose engines only compute prompts. A further axis is a field of :class:`Candidate`, its
values and its moves in :class:`Space`, and its settings. Pure; called by the planner.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Literal

import msgspec

from rollart.config.modes import PRESETS
from rollart.config.simulation import SimulatedConfig
from rollart.resource_plane.hardware import hardware
from rollart.simulation.pool_split import PoolSplit

Objective = Literal["time", "cost"]

MOST_ALPHA = 2
"""Largest bound, if nobody says otherwise: more staleness is always faster, and what it costs is not modelled."""

SPLITS = 24
"""Sizes of the trainer that are screened, at most about as many; moves go by the same step."""

MOST_MAPPINGS = 64
"""Mappings up to which all are screened; of more only those that give the domains with the most prompt tokens for each
generated one to the classes with the most operations for each byte."""

ENGINE_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of a class's free devices that are screened for engines where unused devices are worth something."""


class Candidate(msgspec.Struct, frozen=True, order=True):
    """One combination.

    Attributes:
        trainer: Devices of the trainer.
        engines: Engines by hardware class, those of at least one.
        mapping: Hardware class by domain, in the order of the configuration; each has an engine.
        alpha: Bound on staleness.
        members: Redundant members of a group.
        groups: Redundant groups.
        prefill: Class whose engines compute prompts only, and no domain is on; "" if every engine does both.
    """

    trainer: int
    engines: tuple[tuple[str, int], ...]
    mapping: tuple[tuple[str, str], ...]
    alpha: int
    members: int
    groups: int
    prefill: str = ""

    @property
    def policy(self) -> tuple[Any, ...]:
        """All but the numbers of devices."""
        return self.mapping, self.alpha, self.members, self.groups, self.prefill

    def domains_on(self, hardware_class: str) -> tuple[str, ...]:
        """The domains of a class."""
        return tuple(domain for domain, name in self.mapping if name == hardware_class)


class Space:
    """All candidates of a configuration.

    Args:
        config: The configuration.
        split: Of its pools.
        objective: Whether devices are better left unused than idle.
        by_intensity: The domains, those first that have the most prompt tokens for each generated one.
        most_alpha: Largest bound, unless the configuration's own is larger.
    """

    def __init__(
        self,
        config: SimulatedConfig,
        split: PoolSplit,
        objective: Objective,
        by_intensity: Sequence[str],
        most_alpha: int = MOST_ALPHA,
    ) -> None:
        self._config = config
        self._split = split
        self._objective = objective
        self._by_intensity = list(by_intensity)
        self._step = max(1, split.stock(split.trainer_class) // SPLITS)
        self._alphas = range(_least_alpha(config), _most_alpha(config, most_alpha) + 1)
        rollout = config.rollout
        spare = rollout.max_environments - rollout.group_size
        self._most_members = 0 if config.engine.deterministic else max(0, min(rollout.group_size, spare))
        self._most_groups = 0 if config.engine.deterministic else rollout.groups_per_batch
        self._group_step = max(1, rollout.groups_per_batch // 8)

    @property
    def most_alpha(self) -> int:
        """Largest bound of a candidate."""
        return self._alphas[-1]

    def candidates(self) -> Iterator[Candidate]:
        """Those that are screened. A class for prompts alone is only a move: its estimate knows no handovers."""
        rollout = self._config.rollout
        members = sorted({0, 1, rollout.redundant_members} & set(range(self._most_members + 1)))
        groups = sorted({0, self._group_step, rollout.redundant_groups} & set(range(self._most_groups + 1)))
        for trainer, mapping in itertools.product(self._trainers(), list(self._mappings())):
            for engines in self._engines(trainer, {name for _, name in mapping}):
                for alpha, more, extra in itertools.product(self._alphas, members, groups):
                    yield Candidate(trainer, engines, mapping, alpha, more, extra)

    def given(self) -> Candidate | None:
        """The configuration as a candidate; ``None`` if it is none: a domain takes any class, or pools only prefill."""
        trainer, engines = self._split.given
        mapping = _mapping_of(self._config)
        if self._config.placement.prefill or any(engines[name] == 0 for _, name in mapping):
            return None
        used = {name for _, name in mapping}
        rollout = self._config.rollout
        return Candidate(
            trainer,
            tuple((name, engines[name]) for name in self._split.speeds if name in used),
            mapping,
            self._config.alpha,
            rollout.redundant_members,
            rollout.redundant_groups,
        )

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """The candidates that differ in one axis by one step (the trainer also by three)."""
        found: list[Candidate | None] = []
        for step in (-3, -1, 1, 3):
            found.append(self._with(candidate, trainer=candidate.trainer + step * self._step))
        for index, (domain, name) in enumerate(candidate.mapping):
            for other in self._split.speeds:
                if other != name:
                    moved = (*candidate.mapping[:index], (domain, other), *candidate.mapping[index + 1 :])
                    found.append(self._with(candidate, mapping=moved))
        for name in ("", *self._split.speeds):
            if name != candidate.prefill:
                found.append(self._with_prefill(candidate, name))
        for step in (-1, 1):
            found.append(self._with(candidate, alpha=candidate.alpha + step))
            found.append(self._with(candidate, members=candidate.members + step))
            found.append(self._with(candidate, groups=candidate.groups + step * self._group_step))
        if self._objective == "cost":
            for name, count in candidate.engines:
                step = max(1, self._split.room(name, candidate.trainer) // 8)
                found += [self._with(candidate, engines={name: count + sign * step}) for sign in (-1, 1)]
        return [each for each in dict.fromkeys(found) if each is not None and each != candidate]

    def settings(self, candidate: Candidate) -> dict[str, Any]:
        """The candidate as values by dotted key."""
        return self._split.settings(candidate.trainer, dict(candidate.engines)) | {
            "placement.prefill": self._prefill_pools(candidate),
            "placement.affinity": _affinity(candidate.mapping),
            "run.alpha": candidate.alpha,
            "rollout.redundant_members": candidate.members,
            "rollout.redundant_groups": candidate.groups,
        }

    def changes(self, candidate: Candidate) -> dict[str, Any]:
        """The settings in which the candidate differs from the configuration."""
        config = self._config
        now = self._split.current() | {
            "placement.prefill": config.placement.prefill,
            "placement.affinity": _affinity(_mapping_of(config)),
            "run.alpha": config.alpha,
            "rollout.redundant_members": config.rollout.redundant_members,
            "rollout.redundant_groups": config.rollout.redundant_groups,
        }
        return {key: value for key, value in self.settings(candidate).items() if value != now.get(key)}

    def _prefill_pools(self, candidate: Candidate) -> list[str]:
        if not candidate.prefill:
            return []
        return self._split.generating(candidate.prefill, dict(candidate.engines)[candidate.prefill])

    def _trainers(self) -> list[int]:
        least, most = self._split.least_trainer, self._split.most_trainer
        sizes = {least, *range(self._step, most + 1, self._step), self._split.given[0]}
        return sorted(size for size in sizes if least <= size <= most)

    def _mappings(self) -> Iterator[tuple[tuple[str, str], ...]]:
        classes, domains = list(self._split.speeds), list(self._config.domains)
        if len(classes) ** len(domains) <= MOST_MAPPINGS:
            for names in itertools.product(classes, repeat=len(domains)):
                yield tuple(zip(domains, names, strict=True))
            return
        classes.sort(key=lambda name: -hardware(name).flops / hardware(name).bandwidth)
        count = len(domains)
        for cuts in itertools.combinations_with_replacement(range(count + 1), len(classes) - 1):
            bounds = itertools.pairwise((0, *cuts, count))
            parts = [self._by_intensity[low:high] for low, high in bounds]
            of = {domain: name for name, part in zip(classes, parts, strict=True) for domain in part}
            yield tuple((domain, of[domain]) for domain in domains)

    def _engines(self, trainer: int, used: Set[str]) -> Iterator[tuple[tuple[str, int], ...]]:
        """Engines by class for a trainer and the classes in use; none if one of these has no room."""
        classes = [name for name in self._split.speeds if name in used]
        rooms = [self._split.room(name, trainer) for name in classes]
        if not all(rooms):
            return
        shares = ENGINE_SHARES if self._objective == "cost" else (1.0,)
        options = [sorted({max(1, round(share * room)) for share in shares}) for room in rooms]
        for counts in itertools.product(*options):
            yield tuple(zip(classes, counts, strict=True))

    def _with_prefill(self, candidate: Candidate, name: str) -> Candidate | None:
        """The candidate with prompts computed on a class alone, whose domains go to another."""
        others = [each for each in self._split.speeds if each != name]
        if not others:
            return None
        mapping = tuple((domain, others[0] if taken == name else taken) for domain, taken in candidate.mapping)
        return self._with(candidate, mapping=mapping, prefill=name)

    def _with(self, candidate: Candidate, engines: Mapping[str, int] | None = None, **changes: Any) -> Candidate | None:
        """The candidate with changes and the engines that go with them; ``None`` if it is not allowed."""
        made = msgspec.structs.replace(candidate, **changes)
        allowed = (
            self._split.least_trainer <= made.trainer <= self._split.most_trainer
            and made.alpha in self._alphas
            and 0 <= made.members <= self._most_members
            and 0 <= made.groups <= self._most_groups
        )
        if not allowed:
            return None
        used = {name for _, name in made.mapping}
        if made.prefill in used:
            return None
        used |= {made.prefill} - {""}
        wanted = dict(candidate.engines) | dict(engines or {})
        counts = []
        for name in self._split.speeds:
            if name in used:
                room = self._split.room(name, made.trainer)
                wish = room if self._objective == "time" else wanted.get(name, max(1, room // 2))
                counts.append((name, min(room, wish)))
        if any(count < 1 for _, count in counts):
            return None
        return msgspec.structs.replace(made, engines=tuple(counts))


def _least_alpha(config: SimulatedConfig) -> int:
    """Modes that overlap training with rollout by definition, and updates that wait for a batch, need 1."""
    preset = PRESETS[config.run.mode]
    return int(preset.alpha > 0 and (config.run.mode != "rollart" or config.switches.update == "at_batch"))


def _most_alpha(config: SimulatedConfig, wanted: int) -> int:
    return max(wanted, config.alpha) if PRESETS[config.run.mode].alpha > 0 else 0


def _mapping_of(config: SimulatedConfig) -> tuple[tuple[str, str], ...]:
    """Hardware class by domain as the configuration has it; "" takes any."""
    affinity = config.placement.affinity
    return tuple((domain, affinity.get(domain, affinity.get("default", ""))) for domain in config.domains)


def _affinity(mapping: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The mapping as ``placement.affinity``: the most frequent class is the default."""
    (default, _), *_ = Counter(name for _, name in mapping).most_common()
    return {domain: name for domain, name in mapping if name != default} | {"default": default}

"""The slot schedule: which domain each group slot of each batch belongs to.

Batch k owns the slots ``k * B .. (k + 1) * B - 1``. Slots go to domains by the chairman-assignment rule
(Tijdeman 1980): the next slot goes to the domain with the earliest deadline among those entitled to it,
which keeps every domain's cumulative count within one of its share at every slot. Admission and batch
forming read the same schedule, so what is started is what batches will need.

A batch may borrow a slot from a later batch (``swap``) when the group it waits for is late and another
is ready, as long as no domain's cumulative count leaves ``tolerance`` groups of its share at that
batch's end. Swapping permutes slots, it never changes how many groups of a domain the horizon holds,
so a started group always has a slot.

Invariant (architecture, invariant 5): after every batch, |trained - share * slots| <= tolerance for
every active domain, counted from the last change of the active set. Pure; called by the
RolloutScheduler and, through it, by batch forming; its state is part of a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec


class SlotState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule as a checkpoint has it, between two batches.

    Attributes:
        next_batch: Index of the next batch.
        groups_per_batch: B.
        shares: Share by active domain; the others are suspended.
        base: Slots used up so far.
        origin: Slots used up when the present count began.
        formed: Groups by domain in the batches since then.
        slots: Slots that are dealt and not used up, swaps included.
    """

    next_batch: int
    groups_per_batch: int
    shares: dict[str, float]
    base: int
    origin: int
    formed: dict[str, int]
    slots: tuple[str, ...]


class SlotSchedule:
    """See the module docstring.

    Args:
        shares: Share by domain, positive, summing to 1.
        groups_per_batch: B.
        tolerance: At least 1.
        state: Where a resumed run goes on. If shares or B have changed, the mix is counted anew from there.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        groups_per_batch: int,
        tolerance: float = 1.0,
        state: SlotState | None = None,
    ) -> None:
        self._configured = dict(shares)
        self._batch_size = groups_per_batch
        self._tolerance = tolerance
        self._shares = dict(shares)
        self._origin = 0
        self._base = 0
        self._slots: list[str] = []
        self._assigned: Counter[str] = Counter()
        self._formed: Counter[str] = Counter()
        self._next_batch = 0
        if state is not None:
            self._restore(state)

    @property
    def active(self) -> tuple[str, ...]:
        """Domains that own slots, in the order of the configuration."""
        return tuple(self._shares)

    @property
    def next_batch(self) -> int:
        return self._next_batch

    @property
    def suspended(self) -> tuple[str, ...]:
        """Domains that were taken out."""
        return tuple(name for name in self._configured if name not in self._shares)

    def state(self, formed: Mapping[str, int] | None = None) -> SlotState:
        """The schedule's state.

        Args:
            formed: Groups by domain of the newest batch if that was formed but not trained: it counts as not formed.
        """
        state = SlotState(
            self._next_batch,
            self._batch_size,
            dict(self._shares),
            self._base,
            self._origin,
            dict(self._formed),
            tuple(self._slots),
        )
        if not formed:
            return state
        state = msgspec.structs.replace(state, next_batch=self._next_batch - 1, base=self._base - self._batch_size)
        if self._base == self._origin:  # a suspension since then began a new count, which the batch is no part of
            return msgspec.structs.replace(state, origin=state.base)
        back = tuple(domain for domain, count in formed.items() for _ in range(count))
        return msgspec.structs.replace(state, formed=dict(self._formed - Counter(formed)), slots=back + state.slots)

    def _restore(self, state: SlotState) -> None:
        for domain in [name for name in self._shares if name not in state.shares]:
            self.suspend(domain)
        self._next_batch = state.next_batch
        self._base = self._origin = state.base
        if state.shares == self._shares and state.groups_per_batch == self._batch_size:
            self._origin = state.origin
            self._formed = Counter(state.formed)
            self._slots = list(state.slots)
            self._assigned = self._formed + Counter(self._slots)

    def horizon(self, groups: int) -> Counter[str]:
        """Groups by domain in the next ``groups`` slots."""
        return Counter(self.upcoming(groups))

    def upcoming(self, groups: int) -> list[str]:
        """The domains of the next ``groups`` slots, first needed first."""
        self._extend(groups)
        return self._slots[:groups]

    def try_form(
        self,
        ready: Mapping[str, int],
        swap_horizon: int,
        rather_wait: Callable[[Sequence[str], Sequence[str]], bool] | None = None,
    ) -> Counter[str] | None:
        """The groups by domain that batch ``next_batch`` takes, or ``None`` if they are not all ready.

        Borrows slots within the next ``swap_horizon`` slots when that stays within tolerance. On success
        the batch's slots are used up and ``next_batch`` moves on.

        Args:
            ready: Groups ready by domain.
            swap_horizon: See above.
            rather_wait: Asked before a batch is formed of ready groups, with the coming slots as they would then be
                used and as they are without borrowing; True forms none.
        """
        size = self._batch_size
        if sum(ready.values()) < size:
            return None
        dealt = self.upcoming(max(swap_horizon, size))
        slots = list(dealt)
        need = Counter(slots[:size])
        if any(ready.get(domain, 0) < count for domain, count in need.items()):
            if not self._borrow(slots, need, ready, swap_horizon):
                return None
            need = Counter(slots[:size])
        if rather_wait is not None and rather_wait(slots, dealt):
            return None
        self._slots[: len(slots)] = slots
        del self._slots[:size]
        self._base += size
        self._formed.update(need)
        self._next_batch += 1
        return need

    def suspend(self, domain: str) -> None:
        """Take a domain out; its share goes to the others and the mix is counted anew from here.

        Raises:
            ValueError: it is the last active domain.
        """
        if domain not in self._shares:
            return
        if len(self._shares) == 1:
            raise ValueError(f"domain '{domain}' is the last one: nothing is left to train")
        remaining = {name: self._configured[name] for name in self._shares if name != domain}
        total = sum(remaining.values())
        self._shares = {name: share / total for name, share in remaining.items()}
        self._origin = self._base
        self._slots.clear()
        self._assigned = Counter()
        self._formed = Counter()

    def _extend(self, groups: int) -> None:
        while len(self._slots) < groups:
            domain = self._assign()
            self._slots.append(domain)
            self._assigned[domain] += 1

    def _assign(self) -> str:
        """Tijdeman's rule for the next slot."""
        slot = self._base - self._origin + len(self._slots) + 1
        slack = 1.0 / (2 * len(self._shares) - 2) if len(self._shares) > 1 else 0.0
        best: tuple[float, str] | None = None
        for domain, share in self._shares.items():
            entitled = share * slot - self._assigned[domain]
            if entitled < slack - 1e-9:
                continue
            deadline = (1.0 - slack - entitled) / share
            if best is None or deadline < best[0] - 1e-12:
                best = (deadline, domain)
        if best is None:
            raise AssertionError("some domain is always entitled: entitlements sum to one")
        return best[1]

    def _borrow(self, slots: list[str], need: Counter[str], ready: Mapping[str, int], swap_horizon: int) -> bool:
        """Swap this batch's late slots with later slots of ready domains; False if that is not possible for all."""
        size = self._batch_size
        late = [domain for domain, count in need.items() for _ in range(count - ready.get(domain, 0))]
        spare = {domain: ready.get(domain, 0) - need[domain] for domain in self._shares}
        later = iter(range(size, min(swap_horizon, len(slots))))
        for domain in late:
            position = next((p for p in later if spare[slots[p]] > 0), None)
            if position is None:
                return False
            first = slots.index(domain, 0, size)
            spare[slots[position]] -= 1
            slots[first], slots[position] = slots[position], slots[first]
        return self._within_tolerance(slots)

    def _within_tolerance(self, slots: list[str]) -> bool:
        """Whether every batch end among ``slots`` stays within the tolerance."""
        formed = Counter(self._formed)
        done = self._base - self._origin
        for position, domain in enumerate(slots, start=1):
            formed[domain] += 1
            if position % self._batch_size == 0 and any(
                abs(formed[name] - share * (done + position)) > self._tolerance + 1e-9
                for name, share in self._shares.items()
            ):
                return False
        return True

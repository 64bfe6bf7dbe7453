"""The barrier: everyone who arrives leaves exactly once, and nobody waits for no one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rollart.control_plane.barrier import Barrier

KEYS = st.integers(0, 5)


class BarrierMachine(RuleBasedStateMachine):
    """Drives a barrier beside a model: who is expected, and who of them has arrived."""

    barrier_class = Barrier

    def __init__(self) -> None:
        super().__init__()
        self.expected: set[int] = set()
        self.inside: dict[int, int] = {}
        """Visit by key: a key may come again after it left."""
        self.visits = 0
        self.left: Counter[int] = Counter()
        self.going: set[int] = set()
        """Visits that a release has announced."""
        self.excusing: int | None = None

    @initialize(lasting=st.booleans())
    def begin(self, lasting: bool) -> None:
        self.lasting = lasting
        self.barrier: Barrier[int] = self.barrier_class(lasting, self.released)

    def released(self, keys: Collection[int]) -> None:
        """The barrier says who is about to go, before anybody does."""
        assert list(keys) == list(self.inside), "all, in the order of arrival"
        assert set(keys) == self.expected, "everyone who was expected has arrived"
        self.going.update(self.inside.values())
        if not self.lasting:
            self.expected.clear()

    def go(self, key: int, visit: int, expected: bool) -> None:
        assert visit in self.going or not expected, f"{key} goes without a release"
        self.leave(key, visit)

    def excused(self, key: int, visit: int) -> None:
        assert key == self.excusing, "only who is excused leaves by excuse"
        self.leave(key, visit)

    def leave(self, key: int, visit: int) -> None:
        self.left[visit] += 1
        assert self.inside.pop(key, None) == visit, f"{key} left without being inside"

    @rule(key=KEYS)
    def expect(self, key: int) -> None:
        self.barrier.expect(key)
        self.expected.add(key)

    @rule(key=KEYS)
    def arrive(self, key: int) -> None:
        if key in self.inside:
            return
        self.visits += 1
        self.inside[key] = self.visits
        expected = key in self.expected
        self.barrier.arrive(key, partial(self.go, key, self.visits, expected), partial(self.excused, key, self.visits))
        assert expected or key not in self.inside, "nobody expects it: it goes at once"

    @rule(key=KEYS)
    def excuse(self, key: int) -> None:
        self.excusing = key
        inside = key in self.inside
        self.expected.discard(key)
        self.barrier.excuse(key)
        self.excusing = None
        assert not (inside and key in self.inside)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def the_last_one_comes(self, data: st.DataObject) -> None:
        """Everyone who is missing arrives or is excused: all must be gone afterwards."""
        for key in list(self.barrier.missing):
            if key in self.expected:
                (self.arrive if data.draw(st.booleans()) else self.excuse)(key)
        assert not self.inside

    @invariant()
    def nobody_waits_for_no_one(self) -> None:
        if not hasattr(self, "barrier"):
            return
        assert self.barrier.waiting == len(self.inside)
        assert set(self.barrier.missing) == self.expected - set(self.inside)
        assert not self.inside or self.barrier.missing
        assert set(self.left.values()) <= {1}, "somebody left twice"
        assert len(self.left) + len(self.inside) == self.visits, "somebody has vanished"


TestBarrier = BarrierMachine.TestCase
TestBarrier.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class ForgetsToCheckAfterAnExcuse(Barrier[int]):
    def excuse(self, key: int) -> None:
        self._expected.pop(key, None)
        held = self._arrived.pop(key, None)
        if held is not None:
            held[1]()


class ExcusesWithoutLettingGo(Barrier[int]):
    def excuse(self, key: int) -> None:
        if self._expected.pop(key, self) is not self:
            self._arrived.pop(key, None)
            self._release()


class ReleasesOneEarly(Barrier[int]):
    def _release(self) -> None:
        if len(self._arrived) + 1 == len(self._expected) and len(self._arrived) > 2:
            released, self._arrived = self._arrived, {}
            for go, _ in released.values():
                go()
        else:
            super()._release()


class KeepsWhoWent(Barrier[int]):
    def _release(self) -> None:
        arrived = dict(self._arrived)
        super()._release()
        if not self._arrived and len(arrived) > 1:
            self._arrived = dict(list(arrived.items())[:1])


@pytest.mark.parametrize(
    "mutant", [ForgetsToCheckAfterAnExcuse, ExcusesWithoutLettingGo, ReleasesOneEarly, KeepsWhoWent]
)
def test_mutants_of_the_barrier_are_caught(mutant: type[Barrier[int]]) -> None:
    class Machine(BarrierMachine):
        barrier_class = mutant

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Machine,
            settings=settings(
                max_examples=300,
                stateful_step_count=30,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )

"""Stages: lock-step turns and stage-wise scoring, each a switch of its own."""

from __future__ import annotations

from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rollart.control_plane.stages import Stages
from rollart.types import TrajectoryId

A, B, C = (TrajectoryId("d", 0, 0, member) for member in range(3))


class Log(list[str]):
    """What the stages let through."""

    def note(self, what: str) -> partial[None]:
        return partial(self.append, what)

    def take(self) -> list[str]:
        taken = list(self)
        self.clear()
        return taken


def request(stages: Stages, log: Log, id: TrajectoryId) -> None:
    stages.requested(id, log.note(f"request {id.member}"), log.note(f"excused {id.member}"))


def answer(stages: Stages, log: Log, id: TrajectoryId) -> None:
    stages.answered(id, log.note(f"action {id.member}"))


def test_without_stages_nobody_waits() -> None:
    stages, log = Stages("trajectory", "trajectory"), Log()
    stages.started(A)
    stages.started(B)
    request(stages, log, A)
    answer(stages, log, A)
    stages.played(A, log.note("scored 0"))
    stages.ended(A)
    assert log == ["request 0", "action 0", "scored 0"]
    assert stages.describe() == ""


def test_requests_leave_together_and_actions_return_together() -> None:
    stages, log = Stages("batch", "trajectory"), Log()
    for id in (A, B):
        stages.started(id)
    request(stages, log, B)
    assert log == []
    assert stages.describe() == f"1 requests wait for 1 others, first {A}"
    request(stages, log, A)
    assert log.take() == ["request 1", "request 0"]
    answer(stages, log, A)
    assert log == []
    assert stages.describe() == f"1 actions wait for 1 others, first {B}"
    answer(stages, log, B)
    assert log.take() == ["action 0", "action 1"]
    request(stages, log, A)
    assert log == [], "the barrier of turns lasts"


def test_one_that_has_played_is_waited_for_no_more_and_is_scored_at_once() -> None:
    stages, log = Stages("batch", "trajectory"), Log()
    for id in (A, B):
        stages.started(id)
    request(stages, log, A)
    stages.played(B, log.note("scored 1"))
    assert sorted(log) == ["request 0", "scored 1"]


def test_one_that_ends_while_its_request_waits_gets_it_excused() -> None:
    stages, log = Stages("batch", "trajectory"), Log()
    for id in (A, B, C):
        stages.started(id)
    request(stages, log, A)
    request(stages, log, B)
    stages.ended(A)
    assert log.take() == ["excused 0"]
    stages.ended(C)
    assert log.take() == ["request 1"]


def test_one_that_ends_while_its_action_waits_gets_it() -> None:
    stages, log = Stages("batch", "trajectory"), Log()
    for id in (A, B):
        stages.started(id)
    for id in (A, B):
        request(stages, log, id)
    log.take()
    answer(stages, log, A)
    stages.ended(A)
    assert log.take() == ["action 0"]
    answer(stages, log, B)
    assert log.take() == ["action 1"], "nobody waits for the one that ended"


def test_one_that_starts_later_is_waited_for() -> None:
    stages, log = Stages("batch", "trajectory"), Log()
    stages.started(A)
    request(stages, log, A)
    stages.started(B)
    answer(stages, log, A)
    assert log.take() == ["request 0", "action 0"]
    request(stages, log, A)
    assert log == []
    request(stages, log, B)
    assert log.take() == ["request 0", "request 1"]


def test_nobody_is_scored_before_all_that_run_have_played() -> None:
    stages, log = Stages("trajectory", "batch"), Log()
    for id in (A, B, C):
        stages.started(id)
    request(stages, log, A)
    assert log.take() == ["request 0"], "turns have a switch of their own"
    stages.played(A, log.note("scored 0"))
    stages.played(B, log.note("scored 1"))
    assert log == []
    assert stages.describe() == f"2 scores wait for 1 others, first {C}"
    stages.ended(B)
    assert log == [], "one that is cancelled while it waits is not scored"
    stages.ended(C)
    assert log.take() == ["scored 0"]
    assert stages.describe() == ""


@given(st.integers(1, 5), st.lists(st.integers(1, 4), min_size=5, max_size=5), st.randoms(use_true_random=False))
def test_every_trajectory_plays_to_its_end_in_any_order(count: int, turns: list[int], random: Random) -> None:
    """Whatever moves next, lock-step and stage-wise scoring together never get stuck, and turns never overlap."""
    stages = Stages("batch", "batch")
    ids = [TrajectoryId("d", 0, 0, member) for member in range(count)]
    state = dict.fromkeys(ids, "thinking")
    turn = dict.fromkeys(ids, 0)

    def move(id: TrajectoryId, to: str) -> None:
        state[id] = to

    for id in ids:
        stages.started(id)
    while any(where != "scored" for where in state.values()):
        generating = {turn[id] for id in ids if state[id] in ("generating", "answered")}
        assert len(generating) <= 1, f"turns {generating} run at once"
        movable = [id for id in ids if state[id] in ("thinking", "generating")]
        assert movable, f"stuck: {stages.describe()}"
        id = random.choice(movable)
        if state[id] == "generating":
            state[id] = "answered"
            stages.answered(id, partial(move, id, "thinking"))
        elif turn[id] < turns[id.member]:
            turn[id] += 1
            state[id] = "asking"
            stages.requested(id, partial(move, id, "generating"), partial(move, id, "excused"))
        else:
            state[id] = "played"
            stages.played(id, partial(move, id, "scored"))
    assert stages.describe() == ""

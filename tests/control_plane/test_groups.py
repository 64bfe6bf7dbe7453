"""The group book: forming, surplus, retries, stale and lost groups."""

from __future__ import annotations

from builders import trajectory

from rollart.config.modes import Stale
from rollart.control_plane.groups import GroupBook, Retry
from rollart.types import EpisodeFailure, EpisodeSpec, FailureKind, Limit, Outcome, TrajectoryId


def book(
    size: int = 2,
    redundant: int = 0,
    retries: int = 1,
    masked: frozenset[str] = frozenset(),
    stale: Stale = "abort",
) -> GroupBook:
    return GroupBook(7, size, redundant, retries, masked, stale)


def start_all(groups: GroupBook) -> list[EpisodeSpec]:
    specs = []
    while (spec := groups.next_start()) is not None:
        specs.append(spec)
    return specs


def failure(id: TrajectoryId, kind: FailureKind = FailureKind.STEP_ERROR) -> EpisodeFailure:
    return EpisodeFailure(id, kind, "broken")


def test_members_share_the_instance_and_start_oldest_group_first() -> None:
    groups = book()
    groups.open("a", 3)
    groups.open("b", 0)
    specs = start_all(groups)
    assert [str(spec.id) for spec in specs] == ["a/3/0/0/0", "a/3/0/1/0", "b/0/1/0/0", "b/0/1/1/0"]
    assert specs[0].seed == specs[1].seed != specs[2].seed


def test_the_first_finished_members_form_the_group_and_the_others_are_surplus() -> None:
    groups = book(size=2, redundant=1)
    groups.open("a", 0)
    specs = start_all(groups)
    assert groups.finished(trajectory(specs[2].id, start=4)) is None
    resolution = groups.finished(trajectory(specs[0].id, start=3))
    assert resolution is not None
    assert resolution.ready is not None
    assert [member.id.member for member in resolution.ready.members] == [0, 2], "canonical order"
    assert resolution.ready.start_version == 3
    assert resolution.cancel == [specs[1].id]
    assert groups.take_cancelled(specs[1].id) is Outcome.SURPLUS
    assert groups.take_cancelled(specs[1].id) is None, "confirmed once"
    assert len(groups) == 0


def test_a_failed_member_is_retried_in_a_fresh_attempt_and_then_lost_with_its_group() -> None:
    groups = book(retries=1)
    groups.open("a", 0)
    first, second = start_all(groups)
    retry = groups.failed(failure(first.id))
    assert isinstance(retry, Retry)
    assert retry.id.attempt == 1
    assert groups.next_start() is None, "not before its delay is over"
    groups.retry_due(retry)
    again = groups.next_start()
    assert again is not None
    assert (again.id.member, again.id.attempt, again.seed) == (0, 1, first.seed)
    groups.finished(trajectory(second.id))
    lost = groups.failed(failure(again.id))
    assert not isinstance(lost, Retry)
    assert lost is not None
    assert lost.how == "lost"
    assert [(member.id, outcome) for member, outcome in lost.ended] == [(second.id, Outcome.GROUP_LOST)]


def test_a_lost_host_uses_up_no_retry() -> None:
    groups = book(size=1, retries=1)
    groups.open("a", 0)
    used = []
    for kind in (FailureKind.HOST_LOST, FailureKind.STEP_ERROR, FailureKind.HOST_LOST):
        (spec,) = start_all(groups)
        retry = groups.failed(failure(spec.id, kind))
        assert isinstance(retry, Retry)
        assert retry.id.attempt == spec.id.attempt + 1
        used.append(retry.attempt)
        groups.retry_due(retry)
    assert used == [0, 1, 1]
    (spec,) = start_all(groups)
    resolution = groups.failed(failure(spec.id))
    assert resolution is not None
    assert not isinstance(resolution, Retry)
    assert resolution.how == "lost"


def test_a_redundant_member_replaces_a_lost_one() -> None:
    groups = book(size=2, redundant=1, retries=0)
    groups.open("a", 0)
    specs = start_all(groups)
    assert groups.failed(failure(specs[0].id)) is None
    groups.finished(trajectory(specs[1].id))
    resolution = groups.finished(trajectory(specs[2].id))
    assert resolution is not None
    assert resolution.how == "ready"


def test_a_deterministic_failure_is_not_retried() -> None:
    groups = book(retries=5)
    groups.open("a", 0)
    specs = start_all(groups)
    lost = groups.failed(failure(specs[0].id, FailureKind.PROMPT_TOO_LONG))
    assert lost is not None
    assert not isinstance(lost, Retry)
    assert lost.cancel == [specs[1].id]


def test_a_stale_group_is_resolved_whole() -> None:
    groups = book()
    groups.open("a", 0)
    groups.open("a", 1)
    specs = start_all(groups)
    groups.first_token(specs[0].id, 0)
    groups.finished(trajectory(specs[0].id, start=0))
    groups.first_token(specs[2].id, 2)
    resolved = groups.resolve_stale(oldest=1)
    assert [resolution.group.index for resolution in resolved] == [0]
    assert [(member.id, outcome) for member, outcome in resolved[0].ended] == [(specs[0].id, Outcome.EVICTED_STALE)]
    assert groups.take_cancelled(specs[1].id) is Outcome.ABORTED_STALE
    assert groups.is_running(specs[2].id)


def test_a_member_waiting_for_its_retry_does_not_start_after_its_group_is_gone() -> None:
    groups = book(size=2, redundant=1, retries=1)
    groups.open("a", 0)
    specs = start_all(groups)
    retry = groups.failed(failure(specs[0].id))
    assert isinstance(retry, Retry)
    groups.finished(trajectory(specs[1].id))
    groups.finished(trajectory(specs[2].id))
    groups.retry_due(retry)
    assert groups.next_start() is None


def test_limit_cut_members_of_a_masked_domain_are_withheld() -> None:
    groups = book(masked=frozenset({"a"}))
    groups.open("a", 0)
    specs = start_all(groups)
    groups.finished(trajectory(specs[0].id))
    resolution = groups.finished(trajectory(specs[1].id, limit=Limit.TURNS))
    assert resolution is not None
    assert resolution.ready is not None
    assert resolution.ready.withheld == (1,)


def test_abandoning_resolves_everything_that_is_open() -> None:
    groups = book()
    groups.open("a", 0)
    groups.open("b", 0)
    specs = start_all(groups)
    groups.finished(trajectory(specs[0].id))
    resolved = groups.resolve_all()
    ended = [member.id for resolution in resolved for member, _ in resolution.ended]
    cancelled = [id for resolution in resolved for id in resolution.cancel]
    assert sorted(ended + cancelled) == sorted(spec.id for spec in specs)
    assert groups.cancelling == 3


def test_policy_withhold_resolves_a_group_once_no_member_is_young_enough() -> None:
    groups = book(stale="withhold")
    groups.open("a", 0)
    first, second = (spec.id for spec in start_all(groups))
    groups.first_token(first, 0)
    assert groups.resolve_stale(oldest=1) == [], "the other one has not begun"
    groups.first_token(second, 1)
    assert groups.resolve_if_stale(first, oldest=1) is None, "the other one can be trained"
    groups.finished(trajectory(first, start=0))
    (resolution,) = groups.resolve_stale(oldest=2)
    assert [(member.id, outcome) for member, outcome in resolution.ended] == [(first, Outcome.EVICTED_STALE)]
    assert groups.take_cancelled(second) is Outcome.ABORTED_STALE


def test_policy_withhold_lets_a_member_that_is_too_old_finish_and_count() -> None:
    groups = book(stale="withhold")
    groups.open("a", 0)
    first, second = (spec.id for spec in start_all(groups))
    groups.first_token(first, 0)
    groups.finished(trajectory(second, start=3))
    resolution = groups.finished(trajectory(first, start=0))
    assert resolution is not None
    assert resolution.ready is not None
    assert resolution.ready.start_version == 0
    assert len(resolution.ready.members) == 2


def test_policy_train_never_resolves_a_group_as_stale() -> None:
    groups = book(stale="train")
    groups.open("a", 0)
    for spec in start_all(groups):
        groups.first_token(spec.id, 0)
        assert groups.resolve_if_stale(spec.id, oldest=99) is None
    assert groups.resolve_stale(oldest=99) == []
    assert len(groups) == 1

"""The emulated engine's time and KV: closed forms, and a whole engine against one that does step after step."""

from __future__ import annotations

import heapq
import statistics
from typing import NamedTuple

import pytest
from engine_client import Episode
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_engine import Row, SlowEngine

from rollart.data_plane.generation.emulated import EmulatedCore, seconds_of, steps_within
from rollart.data_plane.generation.emulated_models import DrawnLengths, EmulatedLengths, EmulatedSpeed
from rollart.types import EngineAddress, LengthSpan, ResultStatus, SamplingParams, TrajectoryId

CONTEXT, ROWS, CAPACITY = 64, 5, 150
UNLIMITED = EmulatedSpeed(0.5, 0.03125, 0.0625, 0.0009765625, step_tokens=16)
LIMITED = EmulatedSpeed(0.5, 0.03125, 0.0625, 0.0009765625, kv_tokens=CAPACITY, step_tokens=16)
LENGTHS = EmulatedLengths(mean=12, spread=0.8)

Scripts = list[list[tuple[float, int]]]
"""For each trajectory its turns: the pause before a turn, and the tokens of its observation."""


PAUSES = st.integers(0, 4000).map(lambda hundredths: hundredths / 100)
"""Never so close to the end of a step that the engine takes the two for the same time."""


def scripts_of(pauses: st.SearchStrategy[float]) -> st.SearchStrategy[Scripts]:
    turns = st.lists(st.tuples(pauses, st.integers(1, 30)), min_size=1, max_size=5)
    return st.lists(turns, min_size=1, max_size=12)


class Played(NamedTuple):
    """Of each (trajectory, turn): when its answer came, and how many tokens it has. And the engine's preemptions."""

    times: dict[tuple[int, int], float]
    tokens: dict[tuple[int, int], int]
    preemptions: int


def engine(speed: EmulatedSpeed, max_sessions: int = 16) -> EmulatedCore:
    sizes = {"max_rows": ROWS, "max_sessions": max_sessions, "max_context": CONTEXT}
    return EmulatedCore(EngineAddress(0), 0, speed, LENGTHS, **sizes)


def observation(episode: Episode, tokens: int) -> LengthSpan:
    """As much of an observation as leaves room for an action."""
    return LengthSpan(min(tokens, CONTEXT - 1 - len(episode.history)))


def play(scripts: Scripts, core: EmulatedCore) -> Played:
    """Play all trajectories on an engine; whenever one acts, the engine's wait is cut short."""
    played = Played({}, {}, 0)
    episodes = [Episode(number) for number in range(len(scripts))]
    due = sorted((script[0][0], number) for number, script in enumerate(scripts))
    now = 0.0
    while due or core.has_work:
        if not core.has_work:
            now = max(now, due[0][0])
        while due and due[0][0] <= now:
            episode, script = episodes[due[0][1]], scripts[heapq.heappop(due)[1]]
            core.add(episode.request(observation(episode, script[episode.turn][1]), SamplingParams(99)))
        # with nothing to compute, the answers of requests that missed their session are there at once
        end = now + core.step() if core.has_work else now
        then = min(end, due[0][0]) if due else end
        for answer in core.settle(then - now):
            number = answer.trajectory.member
            episode, script = episodes[number], scripts[number]
            new = observation(episode, script[answer.turn][1])
            if answer.status is ResultStatus.MISS:
                core.add(episode.resend(new, SamplingParams(99)))
                continue
            sent = episode.resend if answer.attempt else episode.request
            episode.take(sent(new, SamplingParams(99)), answer)
            assert (number, answer.turn) not in played.times, "answered twice"
            played.times[number, answer.turn], played.tokens[number, answer.turn] = then, len(answer.action)
            if episode.turn < len(script) and len(episode.history) < CONTEXT - 1:
                heapq.heappush(due, (then + script[episode.turn][0], number))
        now = then
        assert core.stats().kv_tokens <= core.kv_capacity
    stats = core.stats()
    assert stats.generated_tokens == sum(played.tokens.values())
    assert (stats.running, stats.waiting) == (0, 0)
    return played._replace(preemptions=stats.preemptions)


def play_slowly(scripts: Scripts, slow: SlowEngine) -> Played:
    """The same, step after step: who acts during a step joins at its end."""
    played = Played({}, {}, 0)
    history, turn = [0] * len(scripts), [0] * len(scripts)
    due = sorted((script[0][0], number) for number, script in enumerate(scripts))
    now = 0.0
    while due or slow.busy:
        if not slow.busy:
            now = max(now, due[0][0])
        while due and due[0][0] <= now + 1e-9:
            _, number = heapq.heappop(due)
            prompt = history[number] + min(scripts[number][turn[number]][1], CONTEXT - 1 - history[number])
            target = min(LENGTHS.draw(0, Episode(number).id, prompt), CONTEXT - prompt)
            slow.queue.append(Row(number, prompt, target))
        seconds, over = slow.step()
        now += seconds
        for row in over:
            number = row.who
            history[number] = row.length
            played.times[number, turn[number]], played.tokens[number, turn[number]] = now, row.generated
            turn[number] += 1
            if turn[number] < len(scripts[number]) and row.length < CONTEXT - 1:
                heapq.heappush(due, (now + scripts[number][turn[number]][0], number))
    return played._replace(preemptions=slow.preemptions)


@settings(max_examples=150, deadline=None)
@given(scripts_of(PAUSES))
def test_cut_and_joined_steps_take_the_time_of_an_engine_that_does_step_after_step(scripts: Scripts) -> None:
    fast, slow = play(scripts, engine(UNLIMITED)), play_slowly(scripts, SlowEngine(UNLIMITED, ROWS))
    assert fast.tokens == slow.tokens
    assert fast.times == pytest.approx(slow.times, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(scripts_of(st.just(0.0)))
def test_preemption_and_eviction_are_those_of_an_engine_that_does_step_after_step(scripts: Scripts) -> None:
    fast, slow = play(scripts, engine(LIMITED)), play_slowly(scripts, SlowEngine(LIMITED, ROWS))
    assert fast.preemptions == slow.preemptions
    assert fast.tokens == slow.tokens
    assert fast.times == pytest.approx(slow.times, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(scripts_of(PAUSES), st.sampled_from([5, 16]))
def test_under_any_load_capacity_holds_and_lengths_stay(scripts: Scripts, max_sessions: int) -> None:
    """``play`` asserts after every step that no more KV is held than there is, and at the end that no token is lost."""
    limited = play(scripts, engine(LIMITED, max_sessions))
    assert limited.tokens == play(scripts, engine(UNLIMITED)).tokens


def test_the_youngest_gives_way_and_comes_back_before_those_that_wait() -> None:
    core = EmulatedCore(EngineAddress(0), 0, LIMITED, EmulatedLengths(30, 0.0), max_rows=5, max_context=CONTEXT)
    for number in range(5):
        core.add(Episode(number).request(LengthSpan(34), SamplingParams(99)))
    order = []
    while core.has_work:
        order += [answer.trajectory.member for answer in core.settle(core.step())]
    assert order == [0, 1, 2, 3, 4]
    assert core.stats().preemptions > 0


def test_a_preempted_request_can_be_aborted_with_its_tokens() -> None:
    core = EmulatedCore(EngineAddress(0), 0, LIMITED, EmulatedLengths(30, 0.0), max_rows=5, max_context=CONTEXT)
    for number in range(6):
        core.add(Episode(number).request(LengthSpan(24), SamplingParams(99)))
    answers = []
    while not core.stats().preemptions:
        answers += core.settle(core.step())
    assert answers == []
    core.abort(Episode(4).id)
    core.abort(Episode(5).id)
    preempted, waiting = sorted(core.settle(0.0), key=lambda answer: -len(answer.action))
    assert 0 < len(preempted.action) < 30
    assert [run.length for run in preempted.versions] == [len(preempted.action)]
    assert len(waiting.action) == 0
    while core.has_work:
        answers += core.settle(core.step())
    assert [len(answer.action) for answer in answers] == [30, 30, 30, 30]


def test_kept_kv_goes_least_recently_used_first() -> None:
    core = EmulatedCore(EngineAddress(0), 0, LIMITED, EmulatedLengths(10, 0.0), max_rows=1, max_context=128)
    episodes = [Episode(number) for number in range(3)]

    def turn(episode: Episode) -> int:
        request = episode.request(LengthSpan(16), SamplingParams(99))
        core.add(request)
        while not (answers := core.settle(core.step())):
            pass
        episode.take(request, answers[0])
        return answers[0].cached_tokens

    assert [turn(episode) for episode in episodes] == [0, 0, 0]
    # each keeps 25 of its 26 tokens: the last one generated has not been computed
    assert [turn(episodes[0]), turn(episodes[2])] == [25, 25]
    # 25 of the second, 51 of the first and third: the first one's third turn needs 78 of 150, and the second one's
    # tokens go first, the end of its history before the start
    assert turn(episodes[0]) == 51
    assert core.stats().kv_tokens == 150
    assert turn(episodes[1]) == 22


def test_a_cache_that_cannot_hold_one_history_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds 150 tokens, less than one history of 200.*engine\.devices"):
        EmulatedCore(EngineAddress(0), 0, LIMITED, LENGTHS, max_context=200)


@given(st.floats(1e-4, 10), st.floats(0, 1), st.integers(1, 2000))
def test_closed_forms_equal_sums_of_steps(base: float, growth: float, steps: int) -> None:
    first = base + growth
    assert seconds_of(first, growth, steps) == pytest.approx(sum(first + growth * step for step in range(steps)))
    assert steps_within(first, growth, seconds_of(first, growth, steps)) == steps
    between = seconds_of(first, growth, steps) + 0.5 * (first + growth * steps)
    assert steps_within(first, growth, between) == steps


def test_lengths_by_domain_follow_their_distributions() -> None:
    lengths = DrawnLengths({"math": {"median": 800, "sigma": 0.7, "max": 4000}, "lake": [10, 20]})

    def drawn(domain: str, length: int = 7, seed: int = 0) -> list[int]:
        ids = [TrajectoryId(domain, task, task, member) for task in range(500) for member in range(8)]
        return [lengths.draw(seed, each, length) for each in ids]

    math, lake = drawn("math"), drawn("lake")
    assert statistics.median(math) == pytest.approx(800, rel=0.05)
    assert statistics.quantiles(math, n=100)[83] == pytest.approx(800 * 2.7182818**0.7, rel=0.07)
    assert max(math) == 4000
    assert statistics.mean(lake) == pytest.approx(15, rel=0.01)
    assert (min(lake), max(lake)) == (10, 20)
    assert drawn("math") == math
    for other in (drawn("math", length=8), drawn("math", seed=1)):
        assert abs(statistics.correlation(math, other)) < 0.05

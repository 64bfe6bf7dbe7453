"""The two phases of a request, against real engine cores: sessions fit, keys and values are used, nothing is mixed."""

from __future__ import annotations

from engine_client import Episode
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.control_plane.prefill import PrefillPhases
from rollart.data_plane.generation.emulated import EmulatedCore
from rollart.data_plane.generation.emulated_models import EmulatedLengths, EmulatedSpeed
from rollart.data_plane.training.emulated import emulated_manifest
from rollart.types import (
    EngineAddress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LengthSpan,
    Phase,
    ResultStatus,
    SamplingParams,
)

SAMPLING = SamplingParams(64)


def engine(number: int) -> EmulatedCore:
    return EmulatedCore(EngineAddress(number), 0, EmulatedSpeed(), EmulatedLengths(9, 0.5), max_context=4096)


class Pair:
    """A prefill and a decode engine."""

    def __init__(self) -> None:
        self.prefill, self.decode = engine(0), engine(1)
        self.phases = PrefillPhases([self.prefill])

    def turn(self, request: GenerationRequest, update: int = 0) -> GenerationResult:
        """Both phases of a request; the decode engine is updated to version ``update`` between them, if not 0."""
        first = self.phases.first(request)
        if first is None:
            return answer(self.decode, request)
        core, sent = first
        prefilled = answer(core, sent)
        assert (prefilled.status, len(prefilled.action), prefilled.versions) == (ResultStatus.DONE, 0, ())
        if update:
            self.decode.update(emulated_manifest(update), None)
        result = answer(self.decode, self.phases.second(request, prefilled))
        self.phases.decoded(result)
        return result


def answer(core: EmulatedCore, request: GenerationRequest) -> GenerationResult:
    core.add(request)
    while not (answers := core.settle(core.step() if core.has_work else 0.0)):
        pass
    return answers[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["", "resend", "lost"])), min_size=1, max_size=12))
def test_both_engines_hold_every_turn_and_the_decode_engine_computes_no_prompt(turns: list[tuple[int, str]]) -> None:
    pair, episode, alone, lonely = Pair(), Episode(0), engine(1), Episode(0)
    for tokens, trouble in turns:
        new = LengthSpan(tokens)
        if trouble == "lost":
            pair.prefill.release(episode.id)
            pair.decode.release(episode.id)
        sent = episode.resend if trouble else episode.request
        request = sent(new, SAMPLING)
        result = pair.turn(request)
        assert result.status is ResultStatus.DONE
        assert result.cached_tokens == request.prefix_length + len(request.new) - 1
        episode.take(request, result)
        request = lonely.request(new, SAMPLING)
        expected = answer(alone, request)
        lonely.take(request, expected)
        assert len(result.action) == len(expected.action)
    assert pair.prefill.stats().generated_tokens == 0
    assert pair.decode.stats().prefill_tokens == len(turns)


def test_a_prefill_engine_computes_each_token_once() -> None:
    pair, episode = Pair(), Episode(0)
    for _ in range(5):
        request = episode.request(LengthSpan(20), SAMPLING)
        episode.take(request, pair.turn(request))
    last_action = len(episode.spans[-1])
    assert pair.prefill.stats().prefill_tokens == len(episode.history) - last_action


def test_keys_and_values_of_an_older_version_are_not_used() -> None:
    pair, episode = Pair(), Episode(0)
    request = episode.request(LengthSpan(20), SAMPLING)
    result = pair.turn(request, update=1)
    assert result.cached_tokens == 0
    assert [run.version for run in result.versions] == [1]


def test_a_session_that_the_prefill_engine_lost_is_a_miss_for_the_caller() -> None:
    pair, episode = Pair(), Episode(0)
    request = episode.request(LengthSpan(20), SAMPLING)
    episode.take(request, pair.turn(request))
    pair.prefill.release(episode.id)
    core, sent = pair.phases.first(episode.request(LengthSpan(5), SAMPLING)) or (None, None)
    assert core is not None
    assert sent is not None
    assert answer(core, sent).status is ResultStatus.MISS


def test_a_history_that_does_not_match_is_decoded_without_a_prefill() -> None:
    pair, episode = Pair(), Episode(0)
    request = episode.request(LengthSpan(20), SAMPLING)
    assert pair.phases.first(request) is not None
    assert pair.phases.forget(episode.id) is pair.prefill
    assert pair.phases.forget(episode.id) is None
    episode.take(request, answer(pair.decode, request))
    assert pair.phases.first(episode.request(LengthSpan(5), SAMPLING)) is None


def test_trajectories_are_spread_over_the_prefill_engines() -> None:
    cores = [engine(number) for number in range(3)]
    phases = PrefillPhases(cores)
    chosen = [phases.first(Episode(number).request(LengthSpan(20), SAMPLING)) for number in range(7)]
    counts = [sum(each is not None and each[0] is core for each in chosen) for core in cores]
    assert counts == [3, 2, 2]
    phases.forget(Episode(1).id)
    again = phases.first(Episode(9).request(LengthSpan(20), SAMPLING))
    assert again is not None
    assert again[0] is cores[1]


def test_an_aborted_prefill_has_no_tokens() -> None:
    core, episode = engine(0), Episode(0)
    core.add(GenerationRequest(episode.id, 0, 0, 0, 0, LengthSpan(20), SAMPLING, Phase.PREFILL))
    core.step()
    core.abort(episode.id)
    (result,) = core.settle(0.0)
    assert (result.finish_reason, len(result.action)) == (FinishReason.ABORT, 0)

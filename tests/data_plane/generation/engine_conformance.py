"""What every generation engine must do. A test module inherits a class and provides the fixture ``bench``.

:class:`EngineSemantics` needs no tokens and holds for emulated engines too; :class:`EngineTokens` says
what an engine with a model must generate, against plain forward passes of the model. An engine with a model must
pass both, and the second with every model family and code path that it has.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from engine_client import DEADLINE, Client, Episode

from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.weights.store import Manifest
from rollart.types import (
    FinishReason,
    GenerationResult,
    LengthSpan,
    ResultStatus,
    SamplingParams,
    Span,
    TokenSpan,
    VersionRun,
)

T = TypeVar("T")


class Bench(ABC):
    """What a test module provides: engines of one kind, and weights for them."""

    @abstractmethod
    def engine(
        self,
        *,
        max_rows: int = 4,
        max_sessions: int = 8,
        max_context: int = 128,
        prefill_chunk: int = 64,
        seed: int = 0,
        version: int = 0,
    ) -> Engine:
        """A new engine that has not been started, with the weights of ``version``."""

    @abstractmethod
    def manifest(self, version: int) -> Manifest:
        """Weights of ``version``, published where the engines read."""

    @abstractmethod
    def span(self, length: int, salt: int = 0) -> Span:
        """Some observation."""

    async def generate(self, client: Client, tokens: int) -> None:
        """Let the engine generate at least ``tokens`` more tokens, and not many more."""
        goal = client.engine.stats().generated_tokens + tokens
        async with asyncio.timeout(DEADLINE):
            while client.engine.stats().generated_tokens < goal:  # noqa: ASYNC110 - progress has no event
                await asyncio.sleep(0)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(main)


class TokenBench(Bench):
    """A bench whose engines have a model."""

    vocabulary: int

    @abstractmethod
    def logits(self, tokens: np.ndarray, version: int = 0) -> np.ndarray:
        """``float32[n, vocabulary]``: the plain full forward over a history."""

    def span(self, length: int, salt: int = 0) -> TokenSpan:
        ids = np.random.default_rng([length, salt]).integers(0, self.vocabulary, length, dtype=np.int32)
        return TokenSpan.of(ids)


class Started:
    """An engine that runs inside ``async with``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __aenter__(self) -> Client:
        await self._engine.start()
        return Client(self._engine)

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()


LONG = SamplingParams(max_new_tokens=24)
SHORT = SamplingParams(max_new_tokens=3)


async def update(client: Client, manifest: Manifest) -> None:
    await client.engine.prefetch(manifest)
    await client.engine.suspend()
    await client.engine.update(manifest.version)
    await client.engine.resume()


def lengths(result: GenerationResult) -> list[tuple[int, int]]:
    return [(run.version, run.length) for run in result.versions]


class EngineSemantics:
    """Sessions, answers, versions: the contract in ``rollart.data_plane.generation.engine``."""

    def test_every_request_is_answered_once_also_beyond_the_rows(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_rows=2, max_sessions=3)) as client:
                requests = [Episode(i).request(bench.span(3 + i), SHORT) for i in range(9)]
                answers = await client.ask(*requests)
                assert all(answer.status is ResultStatus.DONE for answer in answers)
                assert all(1 <= len(answer.action) <= 3 for answer in answers)
                assert all(lengths(answer) == [(0, len(answer.action))] for answer in answers)
                assert await client.engine.results(0.0) == []
                stats = client.engine.stats()
                assert (stats.running, stats.waiting, stats.sessions) == (0, 0, 3)
                assert stats.generated_tokens == sum(len(answer.action) for answer in answers)

        bench.run(main())

    def test_turns_reuse_the_session(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                episode = Episode(0)
                first = await client.play(episode, bench.span(10), SHORT)
                assert first.cached_tokens == 0
                held = len(episode.history)
                second = await client.play(episode, bench.span(4), SHORT)
                # the last generated token has no KV yet
                assert second.cached_tokens == held - 1

        bench.run(main())

    def test_unknown_prefix_is_missed_and_the_full_history_taken(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                episode = Episode(0)
                await client.play(episode, bench.span(10), SHORT)
                episode.hash ^= 1
                request = episode.request(bench.span(4), SHORT)
                missed = await client.one(request)
                assert (missed.status, len(missed.action)) == (ResultStatus.MISS, 0)
                again = episode.resend(bench.span(4), SHORT)
                result = await client.one(again)
                assert (result.status, result.attempt) == (ResultStatus.DONE, 1)
                episode.take(again, result)
                third = await client.play(episode, bench.span(4), SHORT)
                assert third.cached_tokens > 0
                stranger = Episode(1)
                stranger.spans = [bench.span(5)]
                assert (await client.one(stranger.request(bench.span(4), SHORT))).status is ResultStatus.MISS

        bench.run(main())

    def test_submitting_again_changes_nothing(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                request = Episode(0).request(bench.span(10), SHORT)
                client.engine.submit([request, request])
                (first,) = await client.answers(1)
                generated = client.engine.stats().generated_tokens
                second = await client.one(request)
                assert client.engine.stats().generated_tokens == generated
                assert same_action(first, second)
                assert await client.engine.results(0.0) == []

        bench.run(main())

    def test_a_new_attempt_returns_to_the_start_of_the_turn(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                episode = Episode(0)
                await client.play(episode, bench.span(10), SHORT)
                first, second, third = (episode.request(bench.span(4), LONG, attempt) for attempt in range(3))
                done = await client.one(first)
                repeated = await client.one(second)
                assert_close(done, repeated)
                client.engine.submit([third])
                client.engine.submit([episode.request(bench.span(4), LONG, 3)])
                superseded, last = await client.answers(2)
                assert (superseded.attempt, superseded.finish_reason) == (2, FinishReason.ABORT)
                assert_close(last, done)

        bench.run(main())

    def test_abort_returns_the_partial_tokens_and_drops_the_session(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_rows=1)) as client:
                engine, episode, waiting = client.engine, Episode(0), Episode(1)
                request = episode.request(bench.span(10), LONG)
                engine.submit([request, waiting.request(bench.span(10), LONG)])
                await bench.generate(client, 5)
                engine.abort([episode.id, waiting.id, Episode(2).id])
                partial, nothing = await client.answers(2)
                assert (partial.status, partial.finish_reason) == (ResultStatus.DONE, FinishReason.ABORT)
                assert 5 <= len(partial.action) < 24
                assert lengths(partial) == [(0, len(partial.action))]
                assert (nothing.finish_reason, len(nothing.action)) == (FinishReason.ABORT, 0)
                assert engine.stats().sessions == 0
                episode.take(request, partial)
                missed = await client.one(episode.request(bench.span(4), SHORT))
                assert missed.status is ResultStatus.MISS

        bench.run(main())

    def test_release_forgets_the_session(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                episode = Episode(0)
                await client.play(episode, bench.span(10), SHORT)
                client.engine.release([episode.id])
                missed = await client.one(episode.request(bench.span(4), SHORT))
                assert missed.status is ResultStatus.MISS
                assert client.engine.stats().sessions == 0

        bench.run(main())

    def test_the_least_recently_used_session_gives_way(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_rows=2, max_sessions=3)) as client:
                episodes = [Episode(i) for i in range(4)]
                for episode in episodes[:3]:
                    await client.play(episode, bench.span(10), SHORT)
                await client.play(episodes[0], bench.span(4), SHORT)
                await client.play(episodes[3], bench.span(10), SHORT)
                statuses = []
                for episode in (episodes[1], episodes[0], episodes[2], episodes[3]):
                    statuses.append((await client.one(episode.request(bench.span(4), SHORT))).status)
                done, miss = ResultStatus.DONE, ResultStatus.MISS
                assert statuses == [miss, done, done, done]

        bench.run(main())

    def test_sessions_in_use_are_not_evicted_and_nothing_deadlocks(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_rows=1, max_sessions=2)) as client:
                old = [Episode(0), Episode(1)]
                for episode in old:
                    await client.play(episode, bench.span(10), SHORT)
                fresh = [Episode(i).request(bench.span(10), SHORT) for i in range(2, 5)]
                later = [episode.request(bench.span(4), SHORT) for episode in old]
                answers = await client.ask(*fresh, *later)
                assert all(answer.status is ResultStatus.DONE for answer in answers)
                assert all(answer.cached_tokens > 0 for answer in answers[3:])

        bench.run(main())

    def test_what_can_never_run_is_rejected_with_the_reason(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_context=64)) as client:
                long, empty, other, odd = (
                    Episode(0).request(bench.span(64), SHORT),
                    Episode(1).request(bench.span(0), SHORT),
                    Episode(2).request(other_kind(bench), SHORT),
                    Episode(3).request(bench.span(5), SamplingParams(5, top_p=0.0)),
                )
                answers = await client.ask(long, empty, other, odd)
                assert all(answer.status is ResultStatus.REJECTED for answer in answers)
                causes = ["context of 64", "history is empty", "engine needs", "sampling parameters"]
                assert all(cause in answer.error for cause, answer in zip(causes, answers, strict=True))
                assert "lake/0/0/0/0, turn 0" in answers[0].error
                full = await client.one(Episode(4).request(bench.span(60), LONG))
                assert len(full.action) <= 4
                assert client.engine.stats().waiting == 0

        bench.run(main())

    def test_a_rejected_turn_leaves_the_session(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_context=64)) as client:
                episode = Episode(0)
                await client.play(episode, bench.span(20), SHORT)
                rejected = await client.one(episode.request(bench.span(60), SHORT))
                assert rejected.status is ResultStatus.REJECTED
                retried = await client.one(episode.request(bench.span(4), SHORT, attempt=1))
                assert retried.status is ResultStatus.DONE

        bench.run(main())

    def test_suspend_stops_tokens_and_keeps_requests(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                engine = client.engine
                engine.submit([Episode(0).request(bench.span(10), LONG)])
                await bench.generate(client, 5)
                await engine.suspend()
                await engine.suspend()
                generated = engine.stats().generated_tokens
                engine.submit([Episode(1).request(bench.span(10), LONG)])
                engine.submit([Episode(2).request(bench.span(10), LONG)])
                for _ in range(20):
                    await asyncio.sleep(0)
                engine.abort([Episode(2).id])
                (aborted,) = await client.answers(1)
                assert aborted.finish_reason is FinishReason.ABORT
                assert engine.stats().generated_tokens == generated
                assert await engine.results(0.0) == []
                await engine.resume()
                first, second = await client.answers(2)
                assert (first.status, second.status) == (ResultStatus.DONE, ResultStatus.DONE)
                assert len(first.action) > 5

        bench.run(main())

    def test_update_in_mid_generation_switches_versions_at_one_token(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                engine, turns = client.engine, [Episode(0), Episode(1)]
                await client.play(turns[1], bench.span(10), SHORT)
                await engine.prefetch(bench.manifest(1))
                before = engine.stats().generated_tokens
                engine.submit([turns[0].request(bench.span(10), LONG), turns[1].request(bench.span(4), LONG)])
                await bench.generate(client, 10)
                await engine.suspend()
                generated = engine.stats().generated_tokens - before
                report = await engine.update(1)
                assert (report.version, report.in_flight) == (1, 2)
                assert report.started == ((turns[0].id, 0),)
                assert report.checksum == bench.manifest(1).checksum
                await engine.resume()
                answers = await client.answers(2)
                assert [run.version for answer in answers for run in answer.versions] == [0, 1, 0, 1]
                assert sum(answer.versions[0].length for answer in answers) == generated
                for answer in answers:
                    assert sum(run.length for run in answer.versions) == len(answer.action)
                prefilled = engine.stats().prefill_tokens
                after = turns[1].request(bench.span(4), LONG)
                turns[1].take(after, answers[1])
                third = await client.play(turns[1], bench.span(4), SHORT)
                assert third.cached_tokens == len(turns[1].history) - len(third.action) - 4 - 1
                assert lengths(third) == [(1, len(third.action))]
                assert engine.stats().prefill_tokens > prefilled

        bench.run(main())

    def test_sessions_outlive_an_update_but_their_kv_does_not(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                episode = Episode(0)
                await client.play(episode, bench.span(10), SHORT)
                await update(client, bench.manifest(1))
                result = await client.play(episode, bench.span(4), SHORT)
                assert result.cached_tokens == 0
                assert lengths(result) == [(1, len(result.action))]

        bench.run(main())

    def test_updates_out_of_order_are_refused(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine(version=1)) as client:
                engine = client.engine
                with pytest.raises(RuntimeError, match="not suspended"):
                    await engine.update(2)
                await engine.suspend()
                with pytest.raises(RuntimeError, match="not prefetched"):
                    await engine.update(2)
                with pytest.raises(RuntimeError, match="already holds version 1"):
                    await engine.update(0)
                older = bench.manifest(2)
                await engine.prefetch(bench.manifest(3))
                await engine.prefetch(older)
                assert (await engine.update(3)).version == 3
                assert (await engine.update(3)).version == 3
                with pytest.raises(RuntimeError, match="already holds version 3"):
                    await engine.update(2)
                assert (await engine.start()).version == 3

        bench.run(main())

    def test_the_long_poll_returns_empty_handed_after_its_wait(self, bench: Bench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                assert await client.engine.results(0.01) == []

        bench.run(main())

    def test_repeats_under_a_seed(self, bench: Bench) -> None:
        async def actions(seed: int) -> list[GenerationResult]:
            async with Started(bench.engine(seed=seed)) as client:
                return await client.ask(*(Episode(i).request(bench.span(5), SamplingParams(24)) for i in range(4)))

        first, again, other = (bench.run(actions(seed)) for seed in (0, 0, 1))
        assert all(map(same_action, first, again))
        assert not all(map(same_action, first, other))


class EngineTokens:
    """Tokens and log-probabilities equal those of the model's plain forward."""

    def test_greedy_tokens_equal_a_plain_forward(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_rows=3)) as client:
                sampling = SamplingParams(12, temperature=0.0)
                episodes = [Episode(i) for i in range(7)]
                requests = [episode.request(bench.span(3 + 4 * i), sampling) for i, episode in enumerate(episodes)]
                for request, result in zip(requests, await client.ask(*requests), strict=True):
                    logits = action_logits(bench, request.new, result)
                    assert np.array_equal(ids(result), logits.argmax(-1))
                    assert_logprobs(result, log_softmax(logits))

        bench.run(main())

    @pytest.mark.parametrize(
        "sampling",
        [
            SamplingParams(12),
            SamplingParams(12, temperature=0.7),
            SamplingParams(12, top_k=5),
            SamplingParams(12, temperature=1.5, top_p=0.8),
            SamplingParams(12, temperature=0.8, top_p=0.9, top_k=20),
        ],
        ids=["plain", "temperature", "top_k", "top_p", "all"],
    )
    def test_logprobs_equal_a_plain_forward(self, bench: TokenBench, sampling: SamplingParams) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                mixed = [sampling, SamplingParams(12), SamplingParams(12, temperature=0.0)]
                for i in range(2):
                    requests = [Episode(j, i).request(bench.span(7 + j), mixed[j]) for j in range(3)]
                    for request, result in zip(requests, await client.ask(*requests), strict=True):
                        logits = action_logits(bench, request.new, result)
                        assert_logprobs(result, processed(logits, request.sampling))

        bench.run(main())

    def test_turns_on_a_session_equal_turns_from_scratch(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client, Started(bench.engine()) as scratch:
                episode = Episode(0)
                for turn in range(4):
                    request = episode.request(bench.span(6, turn), SHORT)
                    whole = episode.resend(bench.span(6, turn), SHORT)
                    result = await client.one(request)
                    fresh = await scratch.one(whole)
                    assert (result.cached_tokens > 0, fresh.cached_tokens) == (turn > 0, 0)
                    assert_close(result, fresh)
                    episode.take(request, result)

        bench.run(main())

    def test_a_stop_token_ends_the_action_and_belongs_to_it(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                free = await client.one(Episode(0).request(bench.span(6), SamplingParams(20)))
                stop = int(ids(free)[4])
                end = ids(free).tolist().index(stop) + 1
                client.engine.release([Episode(0).id])
                sampling = SamplingParams(20, stop_token_ids=(bench.vocabulary + 5, stop))
                stopped = await client.one(Episode(0).request(bench.span(6), sampling))
                assert stopped.finish_reason is FinishReason.STOP
                assert np.array_equal(ids(stopped), ids(free)[:end])
                limited = await client.one(Episode(1).request(bench.span(6), SamplingParams(2)))
                assert (limited.finish_reason, len(limited.action)) == (FinishReason.LENGTH, 2)

        bench.run(main())

    def test_chunked_prefill_equals_unchunked(self, bench: TokenBench) -> None:
        async def actions(chunk: int) -> list[GenerationResult]:
            async with Started(bench.engine(prefill_chunk=chunk)) as client:
                return await client.ask(*(Episode(i).request(bench.span(40 + i), SHORT) for i in range(3)))

        for small, large in zip(bench.run(actions(7)), bench.run(actions(512)), strict=True):
            assert_close(small, large)

    def test_the_context_limits_the_action(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine(max_context=64)) as client:
                full = await client.one(Episode(0).request(bench.span(60), LONG))
                assert (full.finish_reason, len(full.action)) == (FinishReason.LENGTH, 4)
                assert_logprobs(full, log_softmax(action_logits(bench, bench.span(60), full)))

        bench.run(main())

    def test_an_updated_engine_equals_a_fresh_one(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as updated, Started(bench.engine(version=1)) as fresh:
                info = await fresh.engine.start()
                assert info.checksum == bench.manifest(1).checksum
                await updated.one(Episode(5).request(bench.span(6), SHORT))
                await update(updated, bench.manifest(1))
                assert (await updated.engine.start()).checksum == info.checksum
                requests = [Episode(i).request(bench.span(6 + i), SHORT) for i in range(3)]
                for one, other in zip(await updated.ask(*requests), await fresh.ask(*requests), strict=True):
                    assert_close(one, other)
                    assert one.versions == other.versions == (VersionRun(1, len(one.action)),)

        bench.run(main())

    def test_after_an_update_generation_goes_on_as_under_the_new_weights(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client, Started(bench.engine(version=1)) as fresh:
                engine, prompt = client.engine, bench.span(10)
                await engine.prefetch(bench.manifest(1))
                engine.submit([Episode(0).request(prompt, LONG)])
                await bench.generate(client, 10)
                await engine.suspend()
                await engine.update(1)
                await engine.resume()
                (result,) = await client.answers(1)
                (old, switch), (new, rest) = lengths(result)
                assert (old, new) == (0, 1)
                tokens = ids(result)
                before = action_logits(bench, prompt, result)[:switch]
                after = action_logits(bench, prompt, result, version=1)[switch:]
                assert_logprobs(result, log_softmax(np.concatenate([before, after])))
                history = TokenSpan.of(np.concatenate([prompt.ids, tokens[:switch]]))
                continued = await fresh.one(Episode(0).request(history, SamplingParams(rest)))
                assert np.array_equal(ids(continued), tokens[switch:])

        bench.run(main())

    def test_weights_that_do_not_fit_are_refused_before_the_update(self, bench: TokenBench) -> None:
        async def main() -> None:
            async with Started(bench.engine()) as client:
                manifest = bench.manifest(1)
                first = msgspec.structs.replace(manifest.tensors[0], name="someone.else")
                wrong = msgspec.structs.replace(manifest, tensors=(first, *manifest.tensors[1:]))
                with pytest.raises(ValueError, match=r"someone\.else"):
                    await client.engine.prefetch(wrong)
                assert (await client.one(Episode(0).request(bench.span(6), SHORT))).status is ResultStatus.DONE

        bench.run(main())


def other_kind(bench: Bench) -> Span:
    """A span of the kind that the bench's engines do not take."""
    return LengthSpan(5) if isinstance(bench.span(1), TokenSpan) else TokenSpan.of(np.arange(5, dtype=np.int32))


def same_action(one: GenerationResult, other: GenerationResult) -> bool:
    """Equal to the bit."""
    if isinstance(one.action, LengthSpan):
        return one.action == other.action
    return np.array_equal(ids(one), ids(other)) and np.array_equal(logprobs(one), logprobs(other))


def ids(result: GenerationResult) -> np.ndarray:
    assert isinstance(result.action, TokenSpan)
    return result.action.ids


def logprobs(result: GenerationResult) -> np.ndarray:
    assert isinstance(result.action, TokenSpan)
    assert result.action.logprobs is not None
    return result.action.logprobs


def action_logits(bench: TokenBench, prompt: Span, result: GenerationResult, version: int = 0) -> np.ndarray:
    """The plain forward's logits of each token of the action."""
    assert isinstance(prompt, TokenSpan)
    history = np.concatenate([prompt.ids, ids(result)])
    return bench.logits(history, version)[len(prompt) - 1 : -1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def processed(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Log-probabilities after temperature, top-k and top-p, one row at a time, from the definition."""
    if sampling.temperature == 0:
        return log_softmax(logits)
    rows = []
    for row in logits.astype(np.float64) / sampling.temperature:
        order = np.argsort(-row, kind="stable")
        kept = order[: sampling.top_k] if sampling.top_k else order
        mass = np.exp(log_softmax(row[None, kept]))[0]
        count = int(np.searchsorted(np.cumsum(mass), sampling.top_p)) + 1 if sampling.top_p < 1 else len(kept)
        allowed = np.full_like(row, -np.inf)
        allowed[kept[:count]] = row[kept[:count]]
        rows.append(log_softmax(allowed[None])[0])
    return np.stack(rows)


def assert_logprobs(result: GenerationResult, expected: np.ndarray) -> None:
    """The action's log-probabilities are those of its tokens in ``expected``, within 1e-4."""
    wanted = expected[np.arange(len(expected)), ids(result)]
    assert np.abs(logprobs(result) - wanted).max() < 1e-4


def assert_close(one: GenerationResult, other: GenerationResult) -> None:
    """Equal actions, up to float error in the log-probabilities."""
    if isinstance(one.action, LengthSpan):
        assert one.action == other.action
    else:
        assert np.array_equal(ids(one), ids(other))
        assert np.abs(logprobs(one) - logprobs(other)).max() < 1e-4

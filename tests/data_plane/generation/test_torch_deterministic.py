"""Deterministic mode: a trajectory's tokens and log-probabilities, to the bit, depend on nothing but itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from engine_client import Episode
from engine_conformance import log_softmax, same_action
from torch_bench import VOCABULARY, Build, core, llama, plain_logits, qwen3

from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.types import GenerationResult, SamplingParams, TokenSpan, TrajectoryId

TURNS, EPISODES = 2, 4
Actions = dict[tuple[TrajectoryId, int], GenerationResult]


def observation(member: int, turn: int) -> TokenSpan:
    rng = np.random.default_rng([member, turn])
    return TokenSpan.of(rng.integers(0, VOCABULARY, int(rng.integers(2, 24)), dtype=np.int32))


def sampling(member: int) -> SamplingParams:
    kinds = [{}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 4}]
    return SamplingParams(2 + member % 5, stop_token_ids=(3,), **kinds[member % len(kinds)])


def drain(engine: TorchEngineCore) -> list[GenerationResult]:
    answers = engine.settle(0.0)
    while engine.has_work:
        engine.step()
        answers += engine.settle(0.0)
    return answers


def alone(build: Build, rows: int, fused: bool) -> Actions:
    """Each trajectory by itself, on an engine of its own."""
    actions: Actions = {}
    for member in range(EPISODES):
        engine, episode = core(build(0), max_rows=rows, deterministic=True, fused=fused), Episode(member)
        for turn in range(TURNS):
            request = episode.request(observation(member, turn), sampling(member))
            engine.add(request)
            (result,) = drain(engine)
            episode.take(request, result)
            actions[episode.id, turn] = result
    return actions


def together(build: Build, rows: int, fused: bool, seed: int, **options: int) -> Actions:
    """All trajectories on one engine; turns arrive at random times, now and then with the full history."""
    rng, actions = random.Random(seed), {}
    engine = core(build(0), max_rows=rows, deterministic=True, fused=fused, **options)
    episodes = {episode.id: episode for episode in map(Episode, range(EPISODES))}
    pending = [(episode.id, False) for episode in episodes.values()]
    requests = {}
    while pending or engine.has_work:
        rng.shuffle(pending)
        for _ in range(rng.randint(0, len(pending))):
            identity, missed = pending.pop()
            episode = episodes[identity]
            new, how = observation(identity.member, episode.turn), sampling(identity.member)
            resend = missed or (episode.turn > 0 and rng.random() < 0.3)
            requests[identity] = episode.resend(new, how) if resend else episode.request(new, how)
            engine.add(requests[identity])
        engine.step()
        for result in engine.settle(0.0):
            episode = episodes[result.trajectory]
            if result.status == "done":
                actions[result.trajectory, result.turn] = result
                episode.take(requests[result.trajectory], result)
            if episode.turn < TURNS:
                pending.append((episode.id, result.status == "miss"))
    return actions


@pytest.mark.parametrize(("build", "rows", "fused"), [(qwen3, 5, True), (llama, 4, True), (qwen3, 4, False)])
def test_bits_do_not_depend_on_what_else_runs(build: Build, rows: int, fused: bool) -> None:
    expected = alone(build, rows, fused)
    crowds: list[Callable[[], Actions]] = [
        lambda: together(build, rows, fused, seed=1),
        lambda: together(build, rows, fused, seed=2, prefill_chunk=5),
        lambda: together(build, rows, fused, seed=3, max_sessions=rows),
    ]
    for crowd in crowds if fused else crowds[1:2]:
        found = crowd()
        assert found.keys() == expected.keys()
        assert all(same_action(found[key], expected[key]) for key in expected)


def test_bits_do_depend_on_the_batch_otherwise() -> None:
    """The reason for the mode; were this to fail, the test above would show nothing."""
    members = range(6)
    single = []
    for member in members:
        engine = core(qwen3(0), max_rows=6)
        engine.add(Episode(member).request(observation(member, 0), SamplingParams(8)))
        single += drain(engine)
    engine = core(qwen3(0), max_rows=6)
    for member in members:
        engine.add(Episode(member).request(observation(member, 0), SamplingParams(8)))
    crowd = sorted(drain(engine), key=lambda result: result.trajectory)
    assert not all(map(same_action, single, crowd))


def test_log_probabilities_are_those_of_the_plain_forward() -> None:
    engine = core(qwen3(0), deterministic=True)
    requests = {}
    for member in range(6):
        request = Episode(member).request(observation(member, 0), SamplingParams(8))
        requests[request.trajectory] = request
        engine.add(request)
    for result in drain(engine):
        prompt = requests[result.trajectory].new
        assert isinstance(prompt, TokenSpan)
        assert isinstance(result.action, TokenSpan)
        history = np.concatenate([prompt.ids, result.action.ids])
        expected = log_softmax(plain_logits(qwen3(0), history)[len(prompt) - 1 : -1])
        wanted = expected[np.arange(len(expected)), result.action.ids]
        assert np.abs(result.action.logprobs - wanted).max() < 1e-4

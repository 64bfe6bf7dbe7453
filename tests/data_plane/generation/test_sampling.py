"""Sampling: noise from counters, the distribution that is drawn from, and the log-probabilities reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_conformance import log_softmax, processed

from rollart.data_plane.generation.sampling import RowParameters, noise_key, sample, uniforms
from rollart.types import SamplingParams, TrajectoryId

VOCABULARY = 50


def rows(*params: SamplingParams) -> RowParameters:
    return RowParameters(
        np.array([each.temperature for each in params], np.float32),
        np.array([each.top_p for each in params], np.float32),
        np.array([each.top_k for each in params], np.int64),
    )


def logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def test_noise_is_a_pure_function_of_key_and_position() -> None:
    keys = np.array([noise_key(0, TrajectoryId("lake", 0, 0, member)) for member in range(100)], np.uint64)
    positions = np.arange(100)
    all_at_once = uniforms(keys, positions)
    one_by_one = [uniforms(keys[i : i + 1], positions[i : i + 1])[0] for i in range(100)]
    assert np.array_equal(all_at_once, one_by_one)
    assert len(set(keys.tolist())) == 100
    assert noise_key(1, TrajectoryId("lake", 0, 0, 0)) != keys[0]


def test_noise_is_uniform_and_independent() -> None:
    keys = np.repeat(np.arange(200, dtype=np.uint64), 500)
    positions = np.tile(np.arange(500), 200)
    noise = uniforms(keys, positions)
    assert 0 <= noise.min() <= noise.max() < 1
    counts, _ = np.histogram(noise, bins=64, range=(0, 1))
    expected = len(noise) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-square, 63 degrees: p = 2e-4
    table = noise.reshape(200, 500)
    neighbours = [
        np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel()),
        np.corrcoef(table[:-1].ravel(), table[1:].ravel()),
    ]
    assert max(abs(matrix[0, 1]) for matrix in neighbours) < 0.015


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1),
        SamplingParams(1, temperature=0.5),
        SamplingParams(1, top_k=3),
        SamplingParams(1, top_p=0.7),
        SamplingParams(1, temperature=2.0, top_p=0.6, top_k=9),
    ],
)
def test_draws_follow_the_processed_distribution(params: SamplingParams) -> None:
    count = 4000
    row = logits(1)
    expected = np.exp(processed(row.numpy(), params))[0]
    noise = uniforms(np.arange(count, dtype=np.uint64), np.full(count, 17))
    tokens, logprobs = sample(row.expand(count, -1).contiguous(), rows(*[params] * count), noise)
    assert np.abs(np.exp(logprobs) - expected[tokens]).max() < 1e-5
    assert expected[tokens].min() > 0
    likely = expected * count >= 5
    counts = np.bincount(tokens, minlength=VOCABULARY)
    statistic = ((counts - expected * count)[likely] ** 2 / (expected * count)[likely]).sum()
    assert statistic < 2.5 * max(10, likely.sum())


def test_rows_of_all_kinds_do_not_disturb_each_other() -> None:
    params = [
        SamplingParams(1),
        SamplingParams(1, temperature=0.0),
        SamplingParams(1, top_k=1),
        SamplingParams(1, temperature=0.0, top_k=3, top_p=0.5),
        SamplingParams(1, top_p=1e-6),
        SamplingParams(1, temperature=0.3, top_k=5, top_p=0.9),
        SamplingParams(1, top_k=1000),
    ]
    scores = logits(len(params))
    noise = uniforms(np.arange(len(params), dtype=np.uint64), np.arange(len(params)))
    tokens, logprobs = sample(scores, rows(*params), noise)
    for i, each in enumerate(params):
        token, logprob = sample(scores[i : i + 1], rows(each), noise[i : i + 1])
        assert (token[0], logprob[0]) == (tokens[i], logprobs[i])
        assert abs(logprobs[i] - processed(scores[i : i + 1].numpy(), each)[0, tokens[i]]) < 1e-5
    best = scores.argmax(-1).numpy()
    assert (tokens[1:5] == best[1:5]).all()
    assert abs(logprobs[1] - log_softmax(scores[1:2].numpy()).max()) < 1e-5
    assert logprobs[2] == logprobs[4] == 0


def test_the_plain_path_equals_the_general_one() -> None:
    scores, noise = logits(20), uniforms(np.arange(20, dtype=np.uint64), np.arange(20))
    plain, general = sample(scores, None, noise), sample(scores, rows(*[SamplingParams(1)] * 20), noise)
    assert np.array_equal(plain[0], general[0])
    assert np.array_equal(plain[1], general[1])


def test_impossible_tokens_are_never_drawn_at_the_edges() -> None:
    scores = torch.full((2, 6), float("-inf"))
    scores[:, 2:4] = 0.0
    tokens, logprobs = sample(scores, None, np.array([0.0, 1 - 2.0**-52]))
    assert tokens.tolist() == [2, 3]
    assert np.allclose(logprobs, np.log(0.5))


def test_what_is_not_finite_shows_in_the_log_probability() -> None:
    scores = logits(2)
    scores[1, 3] = float("nan")
    tokens, logprobs = sample(scores, None, np.array([0.5, 0.5]))
    assert np.isfinite(logprobs).tolist() == [True, False]
    assert tokens.max() < VOCABULARY

"""The torch engine beyond the conformance suite: what it refuses, contains, and how it reaches its slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_client import Episode
from engine_conformance import assert_close, log_softmax
from torch_bench import VOCABULARY, Build, core, llama, plain_logits, qwen3
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3ForCausalLM,
)

from rollart.data_plane.generation.decoder import UnsupportedModel
from rollart.data_plane.generation.model_runner import ModelRunner
from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.types import EngineAddress, GenerationResult, ResultStatus, SamplingParams, TokenSpan


def span(length: int, salt: int = 0) -> TokenSpan:
    return TokenSpan.of(np.random.default_rng([length, salt]).integers(0, VOCABULARY, length, dtype=np.int32))


def drain(engine: TorchEngineCore) -> list[GenerationResult]:
    answers = engine.settle(0.0)
    while engine.has_work:
        engine.step()
        answers += engine.settle(0.0)
    return sorted(answers, key=lambda answer: answer.trajectory)


def check_logprobs(build: Build, prompt: TokenSpan, result: GenerationResult) -> None:
    assert isinstance(result.action, TokenSpan)
    history = np.concatenate([prompt.ids, result.action.ids])
    expected = log_softmax(plain_logits(build(0), history)[len(prompt) - 1 : -1])
    wanted = expected[np.arange(len(expected)), result.action.ids]
    assert np.abs(result.action.logprobs - wanted).max() < 1e-4


@pytest.mark.parametrize("build", [qwen3, llama])
def test_scattered_slots(build: Build) -> None:
    """Sessions of an earlier task lie between those that run, and slots are used again."""
    engine = core(build(0), max_rows=8, max_sessions=12)
    for member in range(12):
        engine.add(Episode(member).request(span(4 + 3 * member, member), SamplingParams(1)))
    drain(engine)
    for member in (1, 2, 5, 9):
        engine.release(Episode(member).id)
    fresh = [span(5 + member, 50 + member) for member in range(6)]
    for member, prompt in enumerate(fresh):
        engine.add(Episode(member, task=1).request(prompt, SamplingParams(10)))
    for prompt, result in zip(fresh, drain(engine), strict=True):
        check_logprobs(build, prompt, result)


def gpt2() -> PreTrainedModel:
    """Learned positions and no key-value groups: served, since it honours the interface."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    return GPT2LMHeadModel(config).eval()


def test_another_family_that_honours_the_interface_is_served() -> None:
    engine = core(gpt2(), fused=False)
    engine.add(Episode(0).request(span(9), SamplingParams(10)))
    (result,) = drain(engine)
    check_logprobs(lambda _: gpt2(), span(9), result)


def test_a_window_shorter_than_the_context_is_refused() -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=64,
    )
    with pytest.raises(UnsupportedModel, match=r"window of 64 tokens.*lower the context to at most 64"):
        ModelRunner(MistralForCausalLM(config), 4, 128)


def test_a_model_that_differs_from_its_plain_forward_is_refused() -> None:
    class Scaled(Qwen3ForCausalLM):
        """Its logits depend on how the forward is called."""

        def forward(
            self,
            input_ids: torch.Tensor,
            position_ids: torch.Tensor | None = None,
            logits_to_keep: int | torch.Tensor = 0,
            **kwargs: object,
        ) -> object:
            output = super().forward(input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **kwargs)
            if position_ids is not None:
                output.logits = output.logits * 2
            return output

    model = qwen3(0)
    model.__class__ = Scaled
    with pytest.raises(UnsupportedModel, match="differ by"):
        ModelRunner(model, 4, 64, fused=False)


def test_logits_that_are_not_finite_end_only_their_request() -> None:
    model = qwen3(0)
    engine = core(model, max_rows=4)
    good, bad = span(6), TokenSpan.of([7, 98, 7])
    with torch.no_grad():
        model.get_input_embeddings().weight[98] = float("nan")
        model.lm_head.weight = torch.nn.Parameter(qwen3(0).lm_head.weight.detach())
    assert 98 not in good.ids
    greedy = SamplingParams(12, temperature=0.0)
    engine.add(Episode(0).request(good, greedy))
    engine.add(Episode(1).request(bad, greedy))
    first, second = drain(engine)
    assert (first.status, second.status) == (ResultStatus.DONE, ResultStatus.REJECTED)
    assert "not finite" in second.error
    check_logprobs(qwen3, good, first)
    # the slot that held the broken values is used again
    engine.add(Episode(2).request(span(5), SamplingParams(12)))
    engine.add(Episode(3).request(span(9), SamplingParams(12)))
    for prompt, result in zip((span(5), span(9)), drain(engine), strict=True):
        check_logprobs(qwen3, prompt, result)


def test_token_ids_outside_the_vocabulary_are_rejected() -> None:
    engine = core(qwen3(0))
    engine.add(Episode(0).request(TokenSpan.of([1, VOCABULARY]), SamplingParams(3)))
    engine.add(Episode(1).request(TokenSpan.of([-1]), SamplingParams(3)))
    answers = drain(engine)
    assert [answer.status for answer in answers] == [ResultStatus.REJECTED] * 2
    assert f"[0, {VOCABULARY})" in answers[0].error


def test_seeds_and_trajectories_have_their_own_noise() -> None:
    def actions(seed: int) -> list[tuple[int, ...]]:
        engine = core(qwen3(0), max_rows=8, seed=seed)
        for member in range(8):
            engine.add(Episode(member).request(span(6), SamplingParams(10)))
        return [tuple(result.action.ids) for result in drain(engine) if isinstance(result.action, TokenSpan)]

    assert len(set(actions(0) + actions(1))) == 16


def test_sessions_must_suffice_for_the_rows() -> None:
    with pytest.raises(ValueError, match=r"max_sessions \(2\) must be at least engine\.max_rows \(4\)"):
        core(qwen3(0), max_rows=4, max_sessions=2)


def test_bfloat16_serves_within_its_precision() -> None:
    model = qwen3(0).to(torch.bfloat16)
    engine = TorchEngineCore(
        ModelRunner(model, 4, 64), EngineAddress(0), 0, max_rows=4, prefill_chunk=64, bucket_bytes=1 << 20
    )
    one = core(qwen3(0))
    for each in (engine, one):
        each.add(Episode(0).request(span(6), SamplingParams(1, temperature=0.0)))
    (half,), (full,) = drain(engine), drain(one)
    assert isinstance(half.action, TokenSpan)
    assert isinstance(full.action, TokenSpan)
    assert np.abs(half.action.logprobs - full.action.logprobs).max() < 0.2


def test_half_precision_of_a_confident_model_is_accepted() -> None:
    """Its unlikely tokens differ from the plain forward by far more than those it would ever sample."""
    config = LlamaConfig(
        vocab_size=5000,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    assert ModelRunner(model.to(torch.bfloat16), 4, 64).decoder == "modules"


def test_a_resubmitted_request_costs_no_step() -> None:
    engine = core(qwen3(0))
    request = Episode(0).request(span(6), SamplingParams(3))
    engine.add(request)
    (first,) = drain(engine)
    steps = engine.stats().steps
    engine.add(request)
    (second,) = drain(engine)
    assert_close(first, second)
    assert engine.stats().steps == steps

"""The torch engine's core: continuous batching over sessions, for any causal LM the runner takes.

Each step computes one token of every decoding request and up to ``prefill_chunk`` prompt tokens of the
others, first come first served; a request whose prompt is complete samples in the same step. Invariants,
beyond those of :class:`~rollart.data_plane.generation.requests.RequestCore`:

* every token is sampled from logits under the engine's present weights, over a history whose keys and
  values were all computed under these weights: after ``update`` they are computed anew, in chunks;
* bookkeeping for a token is numpy over all rows; Python work is for each request, not for each token;
* logits that are not finite end their request as ``rejected`` and reach no other session.

Who calls it: the engine shell, and the plain synchronous loop of the tests.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from rollart.data_plane.generation.composing import compose
from rollart.data_plane.generation.engine import EngineInfo, EngineStats
from rollart.data_plane.generation.model_runner import ModelRunner
from rollart.data_plane.generation.requests import RequestCore
from rollart.data_plane.generation.sampling import noise_key, sample, uniforms
from rollart.data_plane.generation.sessions import Session
from rollart.data_plane.generation.slots import Slots
from rollart.data_plane.weights.store import Manifest
from rollart.types import EngineAddress, FinishReason, GenerationRequest, GenerationResult, TokenSpan


class TorchEngineCore(RequestCore):
    """See the module docstring.

    Args:
        runner: The model with its KV cache.
        address: Identity of the engine, stamped on its answers.
        seed: Of the sampling noise.
        max_rows: Requests that run together.
        prefill_chunk: Prompt tokens of one step.
        bucket_bytes: Of the weight store, which the checksum depends on.
        version: Of the weights that the model has.
        checksum: Of the trainer's weights of this version, if the model's were converted from them; by default
            computed from the model's own.
    """

    def __init__(
        self,
        runner: ModelRunner,
        address: EngineAddress,
        seed: int,
        *,
        max_rows: int,
        prefill_chunk: int,
        bucket_bytes: int,
        version: int = 0,
        checksum: str | None = None,
    ) -> None:
        super().__init__(
            address,
            max_rows=max_rows,
            max_sessions=runner.slots,
            max_context=runner.max_context,
            version=version,
        )
        self._runner = runner
        self._seed = seed
        self._prefill_chunk = prefill_chunk
        self._checksum = checksum or runner.checksum(bucket_bytes)
        self._slots = Slots(runner.slots, runner.max_context)
        self._rows = np.empty(0, np.int64)
        """Slots of the running requests, in the order of admission."""
        self._steps = self._prefill_tokens = self._cached_tokens = self._generated_tokens = 0
        self._busy_seconds = 0.0

    def info(self) -> EngineInfo:
        return EngineInfo(
            self._address, self._version, self._checksum, self._max_rows, self._max_sessions, self._max_context
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            busy_seconds=self._busy_seconds,
            running=len(self._running),
            waiting=len(self._waiting),
            sessions=len(self._sessions),
        )

    def step(self) -> float:
        began = time.perf_counter()
        if self._waiting:
            self._start_admitted()
        if self._running:
            self._advance()
            self._steps += 1
        self._busy_seconds += time.perf_counter() - began
        return 0.0

    def settle(self, elapsed: float) -> list[GenerationResult]:
        return self._take_answers()

    def check(self, manifest: Manifest) -> None:
        self._runner.check(manifest)

    def update(self, manifest: Manifest, flat: np.ndarray | None) -> None:
        if flat is None:
            raise ValueError(f"version {manifest.version}: the torch engine needs the weights' bytes, not only lengths")
        self._checksum = self._runner.load(manifest, flat)
        self._renew(manifest.version)
        self._slots.kv_length[:] = 0

    def _misfit(self, request: GenerationRequest) -> str:
        new = request.new
        if not isinstance(new, TokenSpan):
            return "the torch engine needs token ids, not lengths"
        if len(new) and (int(new.ids.min()) < 0 or int(new.ids.max()) >= self._runner.vocabulary):
            return f"token ids must lie in [0, {self._runner.vocabulary}): do tokenizer and model belong together?"
        return ""

    def _generated(self, session: Session) -> int:
        return int(self._slots.length[session.slot]) - session.prompt_length

    def _withdraw(self, session: Session) -> TokenSpan:
        self._rows = self._rows[self._rows != session.slot]
        return self._action(session)

    def _start_admitted(self) -> None:
        """Give the next requests rows, and write their tokens to their sessions' slots."""
        slots, admitted = self._slots, self._admit()
        for session, request in admitted:
            slot, end = session.slot, session.prompt_length
            assert isinstance(request.new, TokenSpan)
            slots.tokens[slot, request.prefix_length : end] = request.new.ids
            slots.length[slot] = end
            slots.kv_length[slot] = session.cached_tokens
            limit = min(end + request.sampling.max_new_tokens, self._max_context)
            slots.configure(slot, request.sampling, limit, noise_key(self._seed, session.trajectory))
            self._cached_tokens += session.cached_tokens
        added = np.array([session.slot for session, _ in admitted], np.int64)
        self._rows = np.concatenate([self._rows, added])

    def _advance(self) -> None:
        """Compute one step, and sample where a history is complete."""
        slots = self._slots
        batch, sampled, prefill_tokens = compose(slots, self._rows, self._prefill_chunk)
        logits = self._runner.forward(batch)
        slots.kv_length[batch.slots[: batch.singles]] += 1
        for chunk in batch.chunks:
            slots.kv_length[chunk.slot] += chunk.size
        self._prefill_tokens += prefill_tokens
        if len(sampled):
            self._sample(sampled, logits)

    def _sample(self, rows: np.ndarray, logits: torch.Tensor) -> None:
        """Append a token to each of these slots' histories, and end the requests that are complete."""
        slots = self._slots
        positions = slots.length[rows]
        noise = uniforms(slots.key[rows], positions)
        tokens, logprobs = sample(logits, slots.sampling_of(rows), noise)
        slots.tokens[rows, positions] = tokens
        slots.logprobs[rows, positions] = logprobs
        slots.length[rows] = positions + 1
        self._generated_tokens += len(rows)
        broken = ~np.isfinite(logprobs)
        stopped = (slots.stops[rows] == tokens[:, None]).any(1)
        ended = stopped | (positions + 1 >= slots.limit[rows]) | broken
        if ended.any():
            self._rows = self._rows[~np.isin(self._rows, rows[ended])]
            for row in np.flatnonzero(ended).tolist():
                self._end(int(rows[row]), bool(stopped[row]), bool(broken[row]))
        if broken.any():
            self._runner.clear()
            self._sessions.forget_kv()
            slots.kv_length[:] = 0

    def _end(self, slot: int, stopped: bool, broken: bool) -> None:
        """Answer a request that has left the rows."""
        session = self._running[slot]
        request = session.request
        assert request is not None
        if broken:
            error = f"the weights of version {self._version} give logits that are not finite: check the training"
            self._reject_running(session, request, error)
        else:
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            self._finish(session, request, self._action(session), reason)

    def _action(self, session: Session) -> TokenSpan:
        """What the request in flight has generated so far."""
        slots, slot, begin = self._slots, session.slot, session.prompt_length
        end = int(slots.length[slot])
        session.kv_length = int(slots.kv_length[slot])
        return TokenSpan.of(slots.tokens[slot, begin:end].copy(), slots.logprobs[slot, begin:end].copy())

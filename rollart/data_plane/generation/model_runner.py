"""Runs a Hugging Face causal LM over a step's mixed tokens, with the KV cache in session slots.

A decoder computes the tokens: a fused one for small models of the Llama / Qwen family, or the model's own modules for
every model that honours transformers' attention interface. Two ways to run a step:

* normally, all tokens in one forward ``[1, T]``;
* deterministic: in forwards of a fixed number of tokens, padded, each token attending as a row of its
  own over the full slot. A token's bits then depend on its session's history alone: neither on the other rows, nor
  on chunk borders, nor on whether its history came from decode steps, prefill or a rebuild. Kernels
  whose bits depend on the row's position are found at start-up, where the number of rows is chosen.

At start-up the runner compares its logits with the model's plain forward, so that a model whose attention
or head does something else is refused instead of sampled wrongly.

Who calls it: the torch engine core.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from rollart.data_plane.generation.attention import Piece, StepPlan, TokenRun
from rollart.data_plane.generation.decoder import REMEDY, Decoder, ModulesDecoder, UnsupportedModel
from rollart.data_plane.generation.fused_decoder import FusedDecoder, fusable
from rollart.data_plane.generation.kv_cache import KVCache
from rollart.data_plane.generation.planning import Planner
from rollart.data_plane.generation.weight_loading import check_manifest, load_weights, model_checksum
from rollart.data_plane.weights.store import Manifest

_log = logging.getLogger(__name__)

PROBE_LENGTH = 12
"""Tokens of the start-up check: a chunk, a chunk with history, and single tokens."""

PROBE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest mean difference of log-probabilities between the engine's forward and the plain one. The mean is over what
the model would sample: rounding to half precision moves unlikely tokens of a real model by more than a nat, and likely
ones by 0.1 (measured with 135 M parameters)."""


class Batch(NamedTuple):
    """The tokens of one step.

    Attributes:
        tokens, positions, slots: ``int64[T]``, flattened; first the single tokens, by rising slot, then the chunks.
        singles: How many of them are single tokens of different sessions.
        chunks: The other tokens, in order, by rising size.
        sample: ``int64[S]``, indices of the tokens whose logits are wanted, by rising slot, one of a session.
    """

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    singles: int
    chunks: list[TokenRun]
    sample: np.ndarray


class ModelRunner:
    """Owns the model and its KV cache.

    Args:
        model: A causal LM; its attention implementation is replaced.
        slots: Sessions.
        max_context: Tokens of a session.
        rows: Tokens of one deterministic forward; ``None`` runs normally.
        fused: Whether the fused decoder may be chosen.

    Raises:
        UnsupportedModel: it does not honour the attention interface, or its forward differs from the plain one.
    """

    def __init__(
        self, model: PreTrainedModel, slots: int, max_context: int, rows: int | None = None, *, fused: bool = True
    ) -> None:
        self.model = model.eval()
        self.slots = slots
        self.max_context = max_context
        self._device = model.device
        self._name = type(model).__name__
        self.vocabulary: int = model.config.get_text_config().vocab_size
        layers, kv_heads, head_dim = kv_shape(model)
        # the last slot is where padding tokens write
        self._cache = KVCache(layers, slots + 1, max_context, kv_heads, head_dim, model.dtype, self._device)
        self._padding_slot = slots
        self._planner = Planner(self._cache, model.config.get_text_config().num_attention_heads)
        self._rows: int | None = None
        self._decoder = self._choose_decoder(rows, fused)
        _log.info("%s runs on the %s decoder", self._name, self._decoder.name)

    @property
    def decoder(self) -> str:
        """Name of the decoder in use."""
        return self._decoder.name

    @property
    def rows(self) -> int | None:
        """Tokens of one deterministic forward."""
        return self._rows

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits ``float32[S, vocabulary]`` of the sampled tokens; keys and values of all are stored."""
        with torch.inference_mode():
            return self._one_forward(batch) if self._rows is None else self._fixed_forwards(batch, self._rows)

    def check(self, manifest: Manifest) -> None:
        """As :meth:`EngineCore.check`."""
        check_manifest(self.model, manifest)

    def load(self, manifest: Manifest, flat: np.ndarray) -> str:
        """Take new weights in place; returns their checksum."""
        with torch.no_grad():
            checksum = load_weights(self.model, manifest, flat)
        self._decoder.refresh()
        return checksum

    def checksum(self, bucket_bytes: int) -> str:
        """Checksum of the present weights, as a manifest of them has."""
        return model_checksum(self.model, bucket_bytes)

    def clear(self) -> None:
        """Forget stored values that are not finite."""
        with torch.inference_mode():
            self._cache.clear()

    def _one_forward(self, batch: Batch) -> torch.Tensor:
        planner, first = self._planner, batch.singles
        pieces = planner.rows(0, batch.slots[:first], batch.positions[:first] + 1) if first else []
        if not batch.chunks:
            return self._run(batch.tokens, batch.positions, batch.slots, pieces, [], None)
        pieces += planner.chunks(first, batch.chunks)
        sample, sampled = batch.sample, []
        if len(sample):
            sampled = planner.rows(0, batch.slots[sample], batch.positions[sample] + 1)
        return self._run(batch.tokens, batch.positions, batch.slots, pieces, sampled, sample)

    def _fixed_forwards(self, batch: Batch, rows: int) -> torch.Tensor:
        total = len(batch.tokens)
        logits, order = [], []
        for start in range(0, total, rows):
            end = min(start + rows, total)
            tokens, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
            slots = np.full(rows, self._padding_slot, np.int64)
            tokens[: end - start] = batch.tokens[start:end]
            positions[: end - start] = batch.positions[start:end]
            slots[: end - start] = batch.slots[start:end]
            pieces = [
                self._planner.tokens(first, run)
                for first, run in _runs(batch.slots[start:end], batch.positions[start:end])
            ]
            block = self._run(tokens, positions, slots, pieces, [], None)
            here = np.flatnonzero((batch.sample >= start) & (batch.sample < end))
            order.append(here)
            logits.append(block[self._tensor(batch.sample[here] - start)])
        return torch.cat(logits)[self._tensor(np.argsort(np.concatenate(order)))]

    def _run(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        pieces: list[Piece],
        sampled: list[Piece],
        sample: np.ndarray | None,
    ) -> torch.Tensor:
        index = self._tensor(self._cache.write_index(slots, positions))
        plan = StepPlan(self._cache, index, pieces, sampled)
        wanted = None if sample is None else self._tensor(sample)
        return self._decoder.forward(self._tensor(tokens), self._tensor(positions), plan, wanted)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _choose_decoder(self, rows: int | None, fused: bool) -> Decoder:
        """The fastest decoder that gives the model's own log-probabilities."""
        reference = self._plain_logprobs()
        if fused and fusable(self.model):
            self._decoder = FusedDecoder(self.model, self.max_context)
            try:
                self._prove(reference, rows)
                return self._decoder
            except UnsupportedModel as error:
                _log.warning("falling back to the modules' decoder: %s", error)
        self._decoder = ModulesDecoder(self.model)
        self._prove(reference, rows)
        return self._decoder

    def _prove(self, reference: torch.Tensor, rows: int | None) -> None:
        self._rows = None
        self._compare(reference)
        if rows is not None:
            self._rows = self._stable_rows(rows)
            self._compare(reference)

    def _plain_logprobs(self) -> torch.Tensor:
        """The plain forward's log-probabilities of the probe."""
        tokens = self._tensor(self._probe_tokens())[None]
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits[0]
            return torch.log_softmax(logits.float(), -1)

    def _probe_tokens(self) -> np.ndarray:
        length = min(PROBE_LENGTH, self.max_context)
        return np.arange(length, dtype=np.int64) * 7919 % self.vocabulary

    def _compare(self, reference: torch.Tensor) -> None:
        """Run the probe as chunk, chunk with history and single tokens, and compare with the plain forward."""
        tokens = self._probe_tokens()
        third = len(tokens) // 3
        sizes = [third, third] + [1] * (len(tokens) - 2 * third)
        logits, start = [], 0
        for size in sizes:
            positions = np.arange(start, start + size)
            chunks = [] if size == 1 else [TokenRun(0, start, size)]
            slots, last = np.zeros(size, np.int64), np.array([size - 1])
            logits.append(self.forward(Batch(tokens[positions], positions, slots, int(size == 1), chunks, last)))
            start += size
        expected = reference[np.cumsum(sizes) - 1]
        gaps = (torch.log_softmax(torch.cat(logits), -1) - expected).abs()
        gap = float((expected.exp() * gaps).sum(-1).mean())
        if not gap <= PROBE_TOLERANCE.get(self.model.dtype, 1e-4):
            raise UnsupportedModel(
                f"{self._name}: the engine's log-probabilities differ by {gap:.2g} from the model's own forward "
                f"(its attention or its head does more than the torch engine's): {REMEDY}"
            )

    def _stable_rows(self, rows: int) -> int:
        """The smallest number of rows >= ``rows`` for which equal rows give equal bits; 1 always does."""
        candidates = sorted({-(-rows // step) * step for step in (1, 4, 8, 16, 32, 64)})
        for count in candidates:
            self._rows = count
            if self._rows_agree(count):
                return count
        return 1

    def _rows_agree(self, rows: int) -> bool:
        """Whether all positions in a block of identical tokens get the same bits."""
        for position, token in enumerate(self._probe_tokens()[1:5].tolist()):
            # the rows overwrite each other's keys and values with equal ones
            tokens, positions = np.full(rows, token), np.full(rows, position)
            batch = Batch(tokens, positions, np.zeros(rows, np.int64), rows, [], np.arange(rows))
            logits = self.forward(batch)
            if not torch.equal(logits, logits[:1].expand_as(logits)):
                return False
        return True


def kv_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Layers, key-value heads and head dimension of a model's attention."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, kv_heads, head_dim


def _runs(slots: np.ndarray, positions: np.ndarray) -> Iterator[tuple[int, TokenRun]]:
    """Consecutive tokens of one session as (first token, run)."""
    borders = np.flatnonzero((np.diff(slots) != 0) | (np.diff(positions) != 1)) + 1
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(slots)], strict=True):
        yield start, TokenRun(int(slots[start]), int(positions[start]), end - start)

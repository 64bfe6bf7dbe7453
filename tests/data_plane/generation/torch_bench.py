"""Torch engines over small random models, and their weights in a shared-memory store under a test's folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from engine_conformance import TokenBench
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rollart.data_plane.generation.engine import Engine
from rollart.data_plane.generation.model_runner import ModelRunner
from rollart.data_plane.generation.shell import EngineShell
from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.data_plane.generation.weight_loading import named_bytes
from rollart.data_plane.weights.shared_memory import SharedMemoryReader, SharedMemoryWriter
from rollart.data_plane.weights.store import Manifest
from rollart.types import EngineAddress

torch.set_num_threads(1)

VOCABULARY = 99
BUCKET_BYTES = 1 << 16
Build = Callable[[int], PreTrainedModel]


def qwen3(version: int) -> PreTrainedModel:
    """A Qwen3 with tied embeddings, grouped heads of a dimension of their own, and random weights."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.15,
        tie_word_embeddings=True,
    )
    torch.manual_seed(version)
    return Qwen3ForCausalLM(config).eval()


def llama(version: int) -> PreTrainedModel:
    """A Llama with an output head of its own, three query heads to a key head, and random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    torch.manual_seed(version)
    return LlamaForCausalLM(config).eval()


def core(
    model: PreTrainedModel,
    *,
    max_rows: int = 4,
    max_sessions: int = 8,
    max_context: int = 128,
    prefill_chunk: int = 64,
    seed: int = 0,
    version: int = 0,
    deterministic: bool = False,
    fused: bool = True,
) -> TorchEngineCore:
    """A core over a model."""
    runner = ModelRunner(model, max_sessions, max_context, max_rows if deterministic else None, fused=fused)
    assert runner.decoder == ("fused" if fused else "modules")
    return TorchEngineCore(
        runner,
        EngineAddress(0),
        seed,
        max_rows=max_rows,
        prefill_chunk=prefill_chunk,
        bucket_bytes=BUCKET_BYTES,
        version=version,
    )


def plain_logits(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """``float32[n, vocabulary]`` of a full forward over a history."""
    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    return logits


class TorchBench(TokenBench):
    """See the module docstring."""

    vocabulary = VOCABULARY

    def __init__(self, build: Build, folder: Path, fused: bool = True) -> None:
        self._build = build
        self._fused = fused
        self._writer = SharedMemoryWriter("bench", BUCKET_BYTES, folder, folder)
        self._reader = SharedMemoryReader("bench", folder, folder)
        self._manifests: dict[int, Manifest] = {}
        self._plain = lru_cache(maxsize=None)(build)

    def core(self, *, version: int = 0, **options: int) -> TorchEngineCore:
        return core(self._build(version), version=version, fused=self._fused, **options)

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
        build = partial(
            self.core,
            max_rows=max_rows,
            max_sessions=max_sessions,
            max_context=max_context,
            prefill_chunk=prefill_chunk,
            seed=seed,
            version=version,
        )
        return EngineShell(build, self._reader)

    def manifest(self, version: int) -> Manifest:
        if version not in self._manifests:
            self._manifests[version] = self._writer.publish(version, named_bytes(self._build(version)))
        return self._manifests[version]

    def logits(self, tokens: np.ndarray, version: int = 0) -> np.ndarray:
        return plain_logits(self._plain(version), tokens)

    def close(self) -> None:
        self._writer.close()

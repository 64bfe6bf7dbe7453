"""Section ``model``: the policy. Either a path or hub id, or a tiny model built from this section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollart.config.base import Section


class TinyModelConfig(Section):
    """A Qwen3-architecture model with random weights and a word-level tokenizer of its own."""

    hidden: int = Field(128, ge=8)
    """Size of the hidden states."""
    layers: int = Field(3, ge=1)
    """Decoder layers."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    kv_heads: int = Field(2, ge=1)
    """Heads of keys and values, a divisor of ``heads``."""
    head_dim: int = Field(32, ge=4)
    """Size of one head, an even number."""
    intermediate: int = Field(256, ge=8)
    """Size of the feed-forward layers."""
    max_length: int = Field(512, ge=16)
    """Longest token history."""
    initializer_range: float = Field(0.08, gt=0)
    """Standard deviation of the initial weights."""


class ModelConfig(Section):
    """The policy."""

    path: str | None = None
    """A local Hugging Face model folder or a hub id; ``None`` builds ``tiny``."""
    tiny: TinyModelConfig = TinyModelConfig()
    rendering: Literal["auto", "words", "chat"] = "auto"
    """``words`` feeds texts as they are, ``chat`` uses the tokenizer's chat template; auto picks by its presence."""

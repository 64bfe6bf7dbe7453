"""The sizes that follow from a configuration: what one batch holds, what may be in flight, what it costs in memory.

Pure arithmetic for ``rollart plan``; the control plane applies the same formulas to the live state.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from rollart.config.config import Config
from rollart.config.model import ModelConfig

FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

TINY_VOCABULARY = 256
"""Entries assumed for a tiny model's word-level tokenizer, whose real size depends on the environments."""

LOGIT_COPIES = 3
"""Copies of the logits alive at once in a training pass: logits, log-probabilities and their gradient."""

MOMENTS = 2
"""Running means that AdamW keeps of each weight's gradient."""

TRAINER_COPIES = 2 + MOMENTS + 2
"""Numbers for each weight in the trainer: the weight, its gradient, AdamW's moments, and two snapshots (the last
version's while the next one's is taken)."""

ACTIVATIONS = 16
"""Saved values of hidden size for each token and layer in a training pass, about, without recomputation."""


class Sizes(NamedTuple):
    """Derived sizes of a run.

    Attributes:
        trajectories_per_batch: B groups of ``group_size``.
        groups_by_domain: Mean groups of each domain in a batch.
        group_bound: Most groups started or buffered at once: (alpha + 1) * B plus redundant ones.
        trajectory_bound: Most trajectories in flight or buffered at once.
        environments: Most environments alive at once.
        environments_per_host: Of them on one host.
        total_trajectories: Trained over the whole run.
        optimizer_steps: In one iteration.
        tokens_per_batch: Most tokens of a batch, if every trajectory filled its context.
        longest_context: Over the domains.
    """

    trajectories_per_batch: int
    groups_by_domain: dict[str, float]
    group_bound: int
    trajectory_bound: int
    environments: int
    environments_per_host: int
    total_trajectories: int
    optimizer_steps: int
    tokens_per_batch: int
    longest_context: int


def derived_sizes(config: Config) -> Sizes:
    """The sizes of a run."""
    rollout = config.rollout
    batch = rollout.groups_per_batch * rollout.group_size
    groups = (config.alpha + 1) * rollout.groups_per_batch + rollout.redundant_groups
    trajectories = groups * (rollout.group_size + rollout.redundant_members)
    environments = min(rollout.max_environments, trajectories)
    tokens = sum(config.shares[name] * domain.max_context for name, domain in config.domains.items())
    return Sizes(
        trajectories_per_batch=batch,
        groups_by_domain={name: share * rollout.groups_per_batch for name, share in config.shares.items()},
        group_bound=groups,
        trajectory_bound=trajectories,
        environments=environments,
        environments_per_host=math.ceil(environments / rollout.hosts),
        total_trajectories=batch * config.run.iterations,
        optimizer_steps=config.training.epochs * config.training.minibatches,
        tokens_per_batch=round(batch * tokens),
        longest_context=max(domain.max_context for domain in config.domains.values()),
    )


class ModelShape(NamedTuple):
    """What the memory estimate needs of a decoder-only transformer with gated feed-forward layers."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Weights, without the biases and norms that do not matter for an estimate."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + embeddings

    @property
    def kv_values(self) -> int:
        """Cached values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def model_shape(model: ModelConfig) -> ModelShape | None:
    """The shape of the configured model; ``None`` for a hub id or a folder whose configuration says too little."""
    if model.path is None:
        tiny = model.tiny
        return ModelShape(
            tiny.hidden, tiny.layers, tiny.heads, tiny.kv_heads, tiny.head_dim, tiny.intermediate, TINY_VOCABULARY, True
        )
    file = Path(model.path).expanduser() / "config.json"
    try:
        return _shape_of(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _shape_of(settings: dict[str, Any]) -> ModelShape:
    heads = int(settings["num_attention_heads"])
    hidden = int(settings["hidden_size"])
    return ModelShape(
        hidden=hidden,
        layers=int(settings["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(settings.get("num_key_value_heads") or heads),
        head_dim=int(settings.get("head_dim") or hidden // heads),
        intermediate=int(settings["intermediate_size"]),
        vocabulary=int(settings["vocab_size"]),
        tied=bool(settings.get("tie_word_embeddings", False)),
    )


class Memory(NamedTuple):
    """Estimated bytes by process, at their largest.

    Attributes:
        trainer: Weights, gradients, two AdamW moments, the snapshots that are published, and one micro-batch's
            activations; with several optimizer steps an iteration also what a failed one goes back to.
        engine: Weights, and a KV cache of ``max_sessions`` full contexts (at most what can be in flight).
        store: The versions that the weight store holds while engines change over.
    """

    trainer: int
    engine: int
    store: int

    def total(self, engines: int) -> int:
        """On one machine that holds all roles."""
        return self.trainer + self.engine * engines + self.store


def estimated_memory(config: Config, shape: ModelShape) -> Memory:
    """Estimate, within a factor of about two, what the processes need beyond their libraries (0.5 GB each)."""
    sizes = derived_sizes(config)
    # Whatever the passes compute in, the trainer keeps and publishes float32.
    weight_bytes = FLOAT_BYTES["float32"] * shape.parameters
    states = (TRAINER_COPIES + (MOMENTS if sizes.optimizer_steps > 1 else 0)) * weight_bytes
    if config.training.dtype != "float32":
        states += FLOAT_BYTES[config.training.dtype] * shape.parameters  # autocast's copy of the weights
    tokens = min(config.training.micro_batch_tokens, sizes.tokens_per_batch)
    logits = LOGIT_COPIES * tokens * shape.vocabulary * 4
    activations = ACTIVATIONS * tokens * shape.hidden * shape.layers * FLOAT_BYTES[config.training.dtype]
    kind = FLOAT_BYTES[config.engine.dtype]
    sessions = min(config.engine.max_sessions, math.ceil(sizes.trajectory_bound / config.engines))
    cache = sessions * sizes.longest_context * shape.kv_values * kind
    return Memory(
        trainer=states + logits + activations,
        engine=kind * shape.parameters + cache,
        store=2 * weight_bytes,
    )

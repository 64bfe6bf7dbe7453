"""Builds the torch engine's core from the configuration: device, threads, context and memory.

Who calls it: the engine registry, in a thread of the engine's process.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from rollart.config.engine import EngineConfig
from rollart.data_plane.generation.decoder import UnsupportedModel
from rollart.data_plane.generation.kv_cache import KVCache
from rollart.data_plane.generation.model_runner import ModelRunner, kv_shape
from rollart.data_plane.generation.registry import EngineSetup
from rollart.data_plane.generation.torch_engine import TorchEngineCore
from rollart.data_plane.generation.weight_loading import model_checksum
from rollart.data_plane.training.models import load_model

CACHE_SHARE = 0.8
"""Share of an accelerator's free memory that the KV cache may take; the rest is for activations."""

TRAINED_DTYPE = "float32"
"""The dtype of the trainer's weights, and so of the versions that it publishes."""


def build_torch_core(config: EngineConfig, setup: EngineSetup) -> TorchEngineCore:
    """Load the model and reserve the KV cache.

    Raises:
        ModelError: the model cannot be loaded.
        UnsupportedModel: the engine cannot run it, or its KV cache does not fit.
    """
    torch.set_num_threads(config.threads)
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    checksum = None if config.dtype == TRAINED_DTYPE else _trained_checksum(setup)
    model = load_model(setup.model, config.dtype, device)
    context = max_context(config, model, setup)
    sessions = config.max_sessions
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        sessions = fitting_sessions(config, model, context, int(free * CACHE_SHARE))
    rows = config.max_rows if config.deterministic else None
    return TorchEngineCore(
        ModelRunner(model, sessions, context, rows),
        setup.address,
        setup.seed,
        max_rows=min(config.max_rows, sessions),
        prefill_chunk=config.prefill_chunk,
        bucket_bytes=setup.bucket_bytes,
        version=setup.version,
        checksum=checksum,
    )


def _trained_checksum(setup: EngineSetup) -> str:
    """The checksum of the model's weights as the trainer loads them, before this engine's dtype rounds them."""
    return model_checksum(load_model(setup.model, TRAINED_DTYPE), setup.bucket_bytes)


def max_context(config: EngineConfig, model: PreTrainedModel, setup: EngineSetup) -> int:
    """Longest history: the configuration's, else what will be asked for, else the model's.

    Raises:
        UnsupportedModel: the configuration or the domains ask for more than the model has, or nothing sets a limit.
    """
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    key, wanted = "engine.max_context", config.max_context
    if wanted is None:
        key, wanted = "the longest domains.NAME.max_context", setup.context
    if wanted is None and limit is None:
        raise UnsupportedModel(f"model {setup.model} names no longest sequence: set engine.max_context")
    if wanted is not None and limit is not None and wanted > limit:
        raise UnsupportedModel(f"{key} is {wanted}, but model {setup.model} ends at {limit}: lower it")
    return wanted or limit or 0


def fitting_sessions(config: EngineConfig, model: PreTrainedModel, context: int, memory: int) -> int:
    """Sessions whose KV cache fits in ``memory`` bytes, at most ``max_sessions``.

    Raises:
        UnsupportedModel: not one fits.
    """
    layers, kv_heads, head_dim = kv_shape(model)
    one = KVCache.slot_bytes(layers, context, kv_heads, head_dim, model.dtype)
    sessions = min(config.max_sessions, memory // one - 1)  # one more slot is padding's
    if sessions < 1:
        raise UnsupportedModel(
            f"the KV cache of one session of {context} tokens takes {one >> 20} MiB and {memory >> 20} MiB are free: "
            "lower engine.max_context, or use a smaller dtype"
        )
    return sessions

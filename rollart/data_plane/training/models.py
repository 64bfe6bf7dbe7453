"""Models as Hugging Face folders: build a tiny one, load any, and say how large one is without loading it.

Invariants:

* a tiny model's folder is a function of its configuration, its vocabulary and the seed, to the byte;
* a tied tensor is counted, saved and published once, under its first name;
* a folder whose weights do not fill the whole model is refused: nothing is silently left at random;
* models are made one at a time in a process: the library replaces functions of ``torch.nn.init`` meanwhile, and two
  engines that load at once would both get a wrong model.

Who calls them: the driver (build), trainer and engines (load), ``rollart plan`` (sizes).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.utils import logging as transformers_logging

from rollart.config.checks import looks_local
from rollart.config.model import TinyModelConfig

PAD, BOS, EOS, UNKNOWN = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
"""The first four token ids of a tiny model, in this order."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_MAKING = threading.RLock()
"""Held while a model is made or loaded."""

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


class ModelError(ValueError):
    """A model cannot be built or loaded; the message says which, why, and what to do."""


def build_tiny_model(config: TinyModelConfig, vocabulary: Sequence[str], seed: int, folder: Path) -> None:
    """Write a Qwen3-architecture model with random weights, and its tokenizer, as a Hugging Face folder.

    Args:
        config: The shape.
        vocabulary: The words, besides :data:`SPECIAL_TOKENS`. A text is cut into the longest words that fit, from
            left to right; white space separates, unless it is a word; anything else becomes ``<unk>``.
        seed: Of the weights.
        folder: Created if need be; files of the same names are overwritten.

    Raises:
        ModelError: the vocabulary has a word twice, an empty or a special one; or the shape is impossible.
        OSError: the folder cannot be written.
    """
    words = [*SPECIAL_TOKENS, *vocabulary]
    repeated = sorted({word for word in words if words.count(word) > 1})
    if repeated or not all(words):
        raise ModelError(f"the vocabulary must be distinct words that are not empty or special; remove {repeated!r}")
    folder.mkdir(parents=True, exist_ok=True)
    with _MAKING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _from_config(tiny_config(config, len(words)))
    write_model(model, folder)
    _write_tokenizer(words, config.max_length, folder)


def tiny_config(config: TinyModelConfig, vocabulary_size: int) -> PretrainedConfig:
    """The Hugging Face configuration of a tiny model."""
    if config.heads % config.kv_heads:
        raise ModelError(f"model.tiny.kv_heads {config.kv_heads} does not divide heads {config.heads}")
    return Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_length,
        initializer_range=config.initializer_range,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )


def _write_tokenizer(words: list[str], max_length: int, folder: Path) -> None:
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    longest_first = sorted(words[len(SPECIAL_TOKENS) :], key=lambda word: (-len(word), word))
    pattern = "|".join([*map(re.escape, longest_first), r"\S"])
    tokenizer.pre_tokenizer = Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_model(model: PreTrainedModel, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``, each tied tensor once.

    Raises:
        OSError: the folder cannot be written or the disk is full.
    """
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights_of(model)}
    write_tensors(tensors, folder / "model.safetensors", {"format": "pt"})


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """``safetensors`` with its write errors as :class:`OSError`."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def weights_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters by their Hugging Face names in a fixed order, tied ones once."""
    yield from model.named_parameters()


def load_model(model: str | Path, dtype: str = "float32", device: str | torch.device = "cpu") -> PreTrainedModel:
    """Load a causal language model from a folder or by its hub id.

    Args:
        model: Local folder, or hub id ``owner/name``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: Torch device.

    Raises:
        ModelError: there is no such model, it is not a causal language model, or its weights are damaged or incomplete.
    """
    name = _checked_name(model)
    try:
        with _MAKING:
            loaded, info = AutoModelForCausalLM.from_pretrained(
                name, dtype=_DTYPES[dtype], attn_implementation="sdpa", output_loading_info=True
            )
    except SafetensorError as error:
        raise ModelError(f"the weights of model {name} are damaged ({error}): copy or download them again") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"model {name} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing or info["mismatched_keys"]:
        what = ", ".join(missing[:3]) or str(next(iter(info["mismatched_keys"])))
        raise ModelError(
            f"the weights of model {name} do not fill the model its config.json describes "
            f"({len(missing) + len(info['mismatched_keys'])} tensors, e.g. {what}): use matching files"
        )
    result: PreTrainedModel = loaded.to(device)
    return result


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model takes.

    Attributes:
        parameters: Tied tensors counted once.
        layers, hidden: Of the decoder.
        cache_values: Numbers in the KV cache for each token.
        vocabulary: Token ids.
        context: Longest sequence, 0 if unlimited.
    """

    parameters: int
    layers: int
    hidden: int
    cache_values: int
    vocabulary: int
    context: int

    def weight_bytes(self, dtype: str = "float32") -> int:
        return self.parameters * _DTYPES[dtype].itemsize

    def cache_bytes(self, tokens: int, dtype: str = "float32") -> int:
        """KV cache of ``tokens`` tokens."""
        return self.cache_values * tokens * _DTYPES[dtype].itemsize

    def trainer_bytes(self, micro_batch_tokens: int) -> int:
        """A trainer's memory: float32 weights, gradients, two Adam moments, the published snapshot and working
        copies (seven of them), and the activations of one micro-batch, about 20 hidden vectors a layer and token.
        """
        activations = 20 * self.layers * self.hidden * micro_batch_tokens + 3 * self.vocabulary * 1024
        return 4 * (7 * self.parameters + activations)


def model_size(model: str | Path | PretrainedConfig) -> ModelSize:
    """The size of a model from its configuration alone; no weights are read or allocated.

    Raises:
        ModelError: as :func:`load_model`.
    """
    if isinstance(model, PretrainedConfig):
        config = model
    else:
        name = _checked_name(model)
        try:
            config = AutoConfig.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"the configuration of model {name} cannot be read: {_first_line(error)}") from error
    with torch.device("meta"):
        shell = _from_config(config)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return ModelSize(
        parameters=sum(tensor.numel() for _, tensor in weights_of(shell)),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        cache_values=2 * config.num_hidden_layers * kv_heads * head_dim,
        vocabulary=config.vocab_size,
        context=getattr(config, "max_position_embeddings", None) or 0,
    )


def _from_config(config: PretrainedConfig) -> PreTrainedModel:
    try:
        with _MAKING:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError as error:
        raise ModelError(f"{type(config).__name__} is not a causal language model: {_first_line(error)}") from error
    model.tie_weights()
    return model


def _checked_name(model: str | Path) -> str:
    name = str(model)
    if isinstance(model, Path) or looks_local(name):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise ModelError(f"model folder {folder} not found: give an existing folder, or a hub id owner/name")
        if not (folder / "config.json").is_file():
            raise ModelError(f"model folder {folder} has no config.json: give a Hugging Face model folder")
        return str(folder)
    return name


def _first_line(error: BaseException) -> Any:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

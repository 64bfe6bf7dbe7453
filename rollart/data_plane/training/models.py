"""Models as Hugging Face folders: find or fetch one, build a tiny one, load any.

Invariants:

* a tiny model's folder is a function of its configuration, its vocabulary and the seed, to the byte;
* a tied tensor is counted, saved and published once, under its first name;
* a folder whose weights do not fill the whole model is refused: nothing is silently left at random;
* models are made one at a time in a process: the library replaces functions of ``torch.nn.init`` meanwhile, and two
  engines that load at once would both get a wrong model.

Who calls them: the training Worker (find, build), trainer and engines (load).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.utils import logging as transformers_logging

from rollart.config.checks import looks_local
from rollart.config.model import TinyModelConfig

PAD, BOS, EOS, UNKNOWN = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
"""The first four token ids of a tiny model, in this order."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_OTHER_FORMATS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.tflite", "original/*")
"""Files of a hub repository that are of no use here, and may be larger than the model."""

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


def model_folder(model: str | Path) -> Path:
    """The absolute folder of a model; one of the hub is fetched first, unless the cache has it.

    Args:
        model: A local folder (``~`` is the home folder), or a hub id ``owner/name``. The hub's own environment
            variables apply: ``HF_HOME`` and ``HF_HUB_CACHE`` (the cache), ``HF_HUB_OFFLINE``, ``HF_TOKEN``.

    Raises:
        ModelError: there is no such folder, it holds no model, or the hub does not give it.
    """
    name = str(model)
    folder = Path(name).expanduser().absolute()
    if not folder.is_dir():
        if isinstance(model, Path) or looks_local(name):
            raise ModelError(f"model folder {folder} not found: give an existing folder, or a hub id owner/name")
        folder = _fetched(name)
    if not (folder / "config.json").is_file():
        raise ModelError(f"model folder {folder} has no config.json: give a Hugging Face model folder")
    return folder


def _fetched(name: str) -> Path:
    try:
        return Path(snapshot_download(name, ignore_patterns=list(_OTHER_FORMATS)))
    except Exception as error:
        # Of the HTTP library's errors, too, none has a type that could be named here without depending on it.
        raise ModelError(
            f"model {name} is no local folder, not in the hub's cache, and cannot be fetched ({_first_line(error)}): "
            "check the name and the network (HF_HUB_OFFLINE must not be set), or set model.path to a model folder"
        ) from error


def load_model(model: str | Path, dtype: str = "float32", device: str | torch.device = "cpu") -> PreTrainedModel:
    """Load a causal language model from a folder or by its hub id.

    Args:
        model: As :func:`model_folder` takes it.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: Torch device.

    Raises:
        ModelError: there is no such model, it is not a causal language model, or its weights are damaged or incomplete.
    """
    name = str(model_folder(model))
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


def _from_config(config: PretrainedConfig) -> PreTrainedModel:
    try:
        with _MAKING:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError as error:
        raise ModelError(f"{type(config).__name__} is not a causal language model: {_first_line(error)}") from error
    model.tie_weights()
    return model


def _first_line(error: BaseException) -> Any:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

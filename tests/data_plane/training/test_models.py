"""Tiny models and their tokenizer, loading with clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from rollart.config.model import TinyModelConfig
from rollart.data_plane.training.models import (
    SPECIAL_TOKENS,
    ModelError,
    build_tiny_model,
    load_model,
    weights_of,
)

SHAPE = TinyModelConfig(hidden=16, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=24)
WORDS = ["left", "right", ".", "#", "1", "12", "go left", "\n"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_tiny_model_is_a_function_of_shape_vocabulary_and_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        state = torch.get_rng_state()
        build_tiny_model(SHAPE, WORDS, seed, tmp_path / name)
        assert torch.equal(state, torch.get_rng_state()), "the caller's random state is left alone"
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    different = {name for name, data in files_of(tmp_path / "a").items() if files_of(tmp_path / "c")[name] != data}
    assert different == {"model.safetensors"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("left right", ["left", "right"]),
        (".#.", [".", "#", "."]),
        ("go left left", ["go left", "left"]),
        ("121", ["12", "1"]),
        ("left\n#", ["left", "\n", "#"]),
        ("left ?", ["left", "<unk>"]),
        ("<bos>left<eos>", ["<bos>", "left", "<eos>"]),
    ],
)
def test_texts_are_cut_into_the_longest_words(tmp_path: Path, text: str, tokens: list[str]) -> None:
    build_tiny_model(SHAPE, WORDS, 0, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("words", [["a", "a"], ["a", ""], ["<eos>"]])
def test_a_vocabulary_of_other_than_distinct_words_is_refused(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(ModelError, match="distinct words"):
        build_tiny_model(SHAPE, words, 0, tmp_path)


def test_heads_that_do_not_share_keys_evenly_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="kv_heads 3 does not divide heads 4"):
        build_tiny_model(SHAPE.model_copy(update={"kv_heads": 3}), WORDS, 0, tmp_path)


def test_loading_gives_what_was_built_with_tied_tensors_once(model_folder: Path) -> None:
    model = load_model(model_folder)
    saved = load_file(model_folder / "model.safetensors")
    found = dict(weights_of(model))
    assert set(found) == set(saved)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    assert "lm_head.weight" not in found
    assert load_model(model_folder, dtype="bfloat16").dtype == torch.bfloat16


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def torn_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def other_shape(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"intermediate_size": 32}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, "has no config.json"),
        (broken_config, "cannot be loaded"),
        (no_weights, "cannot be loaded"),
        (torn_weights, "the weights of model .* are damaged"),
        (missing_tensor, r"do not fill the model .*model\.layers\.1\.mlp\.up_proj\.weight"),
        (other_shape, "cannot be loaded|do not fill the model"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_named_with_the_cause(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    build_tiny_model(SHAPE, WORDS, 0, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(ModelError, match=message) as error:
        load_model(tmp_path / "m")
    assert str(tmp_path / "m") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there() -> None:
    for name in ("/no/such/folder", Path("nowhere")):
        with pytest.raises(ModelError, match=r"model folder .* not found"):
            load_model(name)

"""Checkpoints: usable by others, bit-exact to continue from, whole or absent, and no more than asked for."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollart.config.config import Config
from rollart.data_plane.training import checkpoint
from rollart.data_plane.training.models import ModelError, load_model
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.types import TrainBatch

MakeBatch = Callable[..., TrainBatch]
MakeConfig = Callable[..., Config]
MakeTrainer = Callable[..., TorchTrainer]
SETTINGS = {"warmup": 3, "schedule": "cosine", "minibatches": 2, "weight_decay": 0.01}


def trained(
    make_trainer: MakeTrainer, config: Config, make_batch: MakeBatch, first: int, last: int, **more: Path
) -> TorchTrainer:
    trainer = make_trainer(config, **more)
    for index in range(first, last):
        trainer.train_step(make_batch(100 + index, index=index))
    return trainer


def test_two_and_two_steps_with_a_save_between_are_four_steps(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    config = make_config(**SETTINGS)
    straight = trained(make_trainer, config, make_batch, 0, 4)
    half = trained(make_trainer, config, make_batch, 0, 2)
    half.save(tmp_path / "step-2")
    before = half.info()
    torch.rand(7)  # the random state is part of the checkpoint
    resumed = make_trainer(config, resume=tmp_path / "step-2")
    assert resumed.info() == before
    for index in (2, 3):
        report = resumed.train_step(make_batch(100 + index, index=index))
    assert report.version == 4
    assert resumed.info() == straight.info()


def test_a_resumed_trainer_outlives_the_checkpoint_it_came_from(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    config = make_config(**SETTINGS)
    trained(make_trainer, config, make_batch, 0, 1).save(tmp_path / "step-1")
    resumed = make_trainer(config, resume=tmp_path / "step-1")
    shutil.rmtree(tmp_path / "step-1")
    resumed.train_step(make_batch(101, index=1))
    resumed.save(tmp_path / "step-2")
    assert make_trainer(config, resume=tmp_path / "step-2").info() == resumed.info()


def test_a_checkpoint_is_a_model_folder_for_any_tool(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = trained(make_trainer, make_config(), make_batch, 0, 1)
    trainer.save(tmp_path / "final")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final")
    ids = tokenizer("w3 w7", return_tensors="pt").input_ids
    assert ids.tolist() == [[7, 11]]
    assert model(ids).logits.shape == (1, 2, 29)
    assert make_trainer(make_config(), model=tmp_path / "final").info().checksum == trainer.info().checksum
    names = set(load_file(tmp_path / "final" / "model.safetensors"))
    assert "lm_head.weight" not in names, "the tied matrix is saved once"
    assert not list((tmp_path / "final").rglob("*.bin")) + list((tmp_path / "final").rglob("*.pt"))


def test_the_newest_are_kept(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = make_trainer(make_config(checkpoint={"keep": 2}))
    for name in ("other-1", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-0").mkdir()  # of the series by name, but no checkpoint
    for number in (9, 10, 11, 100):
        trainer.save(tmp_path / f"step-{number}")
    trainer.save(tmp_path / "final")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("store")) == [
        "final",
        "notes",
        "other-1",
        "step-0",
        "step-100",
        "step-11",
    ]


def test_saving_again_replaces_the_folder(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = make_trainer(make_config())
    trainer.save(tmp_path / "last")
    (tmp_path / "last" / "old file").touch()
    trainer.train_step(make_batch(0))
    trainer.save(tmp_path / "last")
    assert checkpoint.load_state(tmp_path / "last")[0].version == 1
    assert not (tmp_path / "last" / "old file").exists()
    assert [path.name for path in tmp_path.iterdir() if ".last" in path.name] == []


def test_a_full_disk_leaves_the_previous_checkpoint(
    make_trainer: MakeTrainer,
    make_config: MakeConfig,
    make_batch: MakeBatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make_trainer(make_config(checkpoint={"keep": 1}))
    trainer.save(tmp_path / "step-0")
    trainer.train_step(make_batch(0))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for function in ("write_tensors", "_sync"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, function, full)
            for name in ("step-1", "step-0"):
                with pytest.raises(OSError, match=rf"{name} was not saved: the disk is full; earlier .* untouched"):
                    trainer.save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("store")) == ["step-0"]
    assert checkpoint.load_state(tmp_path / "step-0")[0].version == 0
    trainer.save(tmp_path / "step-1")


def test_a_disk_that_takes_no_more_bytes_leaves_the_previous_checkpoint(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = make_trainer(make_config())
    trainer.save(tmp_path / "last")
    trainer.train_step(make_batch(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"last was not saved: .*File too large.*earlier checkpoints are untouched"):
            trainer.save(tmp_path / "last")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.load_state(tmp_path / "last")[0].version == 0
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("store")] == ["last"]


def test_a_folder_that_cannot_be_written(make_trainer: MakeTrainer, make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="was not saved"):
        make_trainer(make_config()).save(tmp_path / "file" / "step-1")
    if os.geteuid() != 0:  # root may write anywhere
        sealed = tmp_path / "sealed"
        sealed.mkdir(mode=0o500)
        with pytest.raises(OSError, match="the folder cannot be written"):
            make_trainer(make_config()).save(sealed / "step-1")


@pytest.fixture
def saved(make_trainer: MakeTrainer, make_config: MakeConfig, tmp_path: Path) -> Path:
    make_trainer(make_config()).save(tmp_path / "step-1")
    return tmp_path / "step-1"


def damage_state(folder: Path) -> None:
    (folder / "trainer" / "state.json").write_text('{"schema": 1, ')


def damage_optimizer(folder: Path) -> None:
    file = folder / "trainer" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def drop_a_moment(folder: Path) -> None:
    file = folder / "trainer" / "optimizer.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight.exp_avg"]
    save_file(tensors, file)


def other_layout(folder: Path) -> None:
    file = folder / "trainer" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 99}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "trainer"), "cannot be resumed from: it has no state.json"),
        (lambda folder: shutil.rmtree(folder), "model folder .* not found"),
        (damage_state, "is damaged .*: resume from an older one"),
        (damage_optimizer, "is damaged"),
        (drop_a_moment, "does not fit: the optimizer state lacks 'model.norm.weight.exp_avg'"),
        (other_layout, "has layout 99, this version reads 1"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_says_why(
    saved: Path,
    make_trainer: MakeTrainer,
    make_config: MakeConfig,
    change: Callable[[Path], None],
    message: str,
) -> None:
    change(saved)
    with pytest.raises(ModelError, match=message):
        make_trainer(make_config(), resume=saved)


def test_weights_are_those_of_the_version(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, saved: Path
) -> None:
    weights = load_file(saved / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, saved / "model.safetensors", {"format": "pt"})
    assert load_model(saved) is not None
    with pytest.raises(ModelError, match="its weights are not those it was saved with"):
        make_trainer(make_config(), resume=saved)

"""The trainer through its interface: versions, determinism, failures, publishing, learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from rollart.config.config import Config
from rollart.data_plane.training.models import load_model, weights_of, write_model
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.data_plane.weights.shared_memory import SharedMemoryReader, SharedMemoryWriter
from rollart.data_plane.weights.store import Manifest, NamedBytes, WeightWriter, views
from rollart.types import (
    Group,
    Score,
    Segment,
    TokenSpan,
    TrainBatch,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)

MakeBatch = Callable[..., TrainBatch]
MakeConfig = Callable[..., Config]
MakeTrainer = Callable[..., TorchTrainer]


def test_a_step_turns_version_k_into_k_plus_1_and_refuses_any_other_batch(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    trainer = make_trainer(make_config())
    before = trainer.info()
    with pytest.raises(ValueError, match="batch 1 comes too early: the trainer holds version 0"):
        trainer.train_step(make_batch(0, index=1))
    report = trainer.train_step(make_batch(0))
    assert (report.index, report.version, trainer.info().version) == (0, 1, 1)
    assert trainer.info().checksum != before.checksum
    with pytest.raises(ValueError, match="batch 0 was trained already"):
        trainer.train_step(make_batch(0))


def turned(group: Group) -> Group:
    """The group with its members in the opposite order."""
    last = len(group.members) - 1
    withheld = tuple(last - place for place in group.withheld)
    return msgspec.structs.replace(group, members=tuple(reversed(group.members)), withheld=withheld)


def test_the_weights_do_not_depend_on_the_order_of_groups_and_members(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    batch = make_batch(3, groups=4)
    shuffled = TrainBatch(0, tuple(turned(group) for group in reversed(batch.groups)))
    checksums = set()
    for variant in (batch, batch, shuffled):
        trainer = make_trainer(make_config(micro_batch_tokens=64))
        trainer.train_step(variant)
        checksums.add(trainer.info().checksum)
    assert len(checksums) == 1


def with_rewards(batch: TrainBatch, value: float) -> TrainBatch:
    groups = tuple(
        msgspec.structs.replace(
            group, members=tuple(msgspec.structs.replace(member, score=Score(value)) for member in group.members)
        )
        for group in batch.groups
    )
    return TrainBatch(batch.index, groups)


def test_equal_rewards_leave_the_weights_as_they_are(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    trainer = make_trainer(make_config())
    before = trainer.info().checksum
    report = trainer.train_step(with_rewards(make_batch(0), 0.1))
    assert trainer.info().checksum == before
    assert report.metrics["zero_advantage_share"] == 1.0
    assert report.metrics["grad_norm"] == 0.0
    assert any(alarm.startswith("zero advantage") for alarm in report.alarms)


def with_logprob(batch: TrainBatch, value: float) -> TrainBatch:
    """Every behaviour log-probability is ``value``."""

    def changed(group: Group) -> Group:
        members = []
        for member in group.members:
            turns = []
            for turn in member.turns():
                assert isinstance(turn.action, TokenSpan)
                action = TokenSpan.of(turn.action.ids, np.full(len(turn.action), value, np.float32))
                turns.append(msgspec.structs.replace(turn, action=action))
            segment = msgspec.structs.replace(member.segments[0], turns=tuple(turns))
            members.append(msgspec.structs.replace(member, segments=(segment,)))
        return msgspec.structs.replace(group, members=tuple(members))

    return TrainBatch(batch.index, tuple(changed(group) for group in batch.groups))


@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "minibatches": 3}])
def test_a_gradient_that_is_not_finite_changes_nothing(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, settings: dict[str, int]
) -> None:
    config = make_config(**settings, advantage_norm="none")
    healthy, trainer = make_trainer(config), make_trainer(config)
    for each in (healthy, trainer):
        each.train_step(make_batch(1))
    before = trainer.info()
    huge = make_batch(2, index=1, groups=3)
    last = huge.groups[-1]  # the last minibatch fails, after others were applied
    members = (msgspec.structs.replace(last.members[0], score=Score(2e38)), *last.members[1:])
    broken = TrainBatch(1, (*huge.groups[:-1], msgspec.structs.replace(last, members=members)))
    with pytest.raises(FloatingPointError, match="in iteration 1: the weights are unchanged"):
        trainer.train_step(broken)
    assert trainer.info() == before
    for each in (healthy, trainer):
        each.train_step(make_batch(4, index=1))
    assert trainer.info() == healthy.info()


def with_own_logprobs(folder: Path, batch: TrainBatch, config: Config) -> TrainBatch:
    """Behaviour log-probabilities as the model itself has them, at each domain's temperature."""
    model = load_model(folder)

    def member_of(member: Trajectory) -> Trajectory:
        history: list[int] = []
        turns = []
        for turn in member.turns():
            assert isinstance(turn.observation, TokenSpan)
            assert isinstance(turn.action, TokenSpan)
            history.extend(turn.observation.ids.tolist())
            values = []
            for token in turn.action.ids.tolist():
                logits = model(torch.tensor([history])).logits[0, -1] / config.domains[member.id.domain].temperature
                values.append(float(torch.log_softmax(logits, -1)[token]))
                history.append(token)
            turns.append(msgspec.structs.replace(turn, action=TokenSpan.of(turn.action.ids, values)))
        return msgspec.structs.replace(member, segments=(Segment(tuple(turns)),))

    with torch.no_grad():
        return TrainBatch(
            batch.index,
            tuple(
                msgspec.structs.replace(group, members=tuple(member_of(member) for member in group.members))
                for group in batch.groups
            ),
        )


def test_on_policy_data_has_ratio_one_and_no_gap(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, model_folder: Path
) -> None:
    config = make_config()
    batch = with_own_logprobs(model_folder, make_batch(0), config)
    report = make_trainer(config).train_step(batch)
    assert report.metrics["logprob_gap_on_policy"] < 1e-5
    assert report.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert report.metrics["clip_share"] == 0.0
    assert not any("gap" in alarm for alarm in report.alarms)
    wrong = make_trainer(config).train_step(with_logprob(make_batch(0), -9.0))
    assert any(alarm.startswith("log-probability gap") for alarm in wrong.alarms)


def test_reports_say_what_was_trained(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    config = make_config(warmup=4)
    batch = make_batch(2, groups=4)
    report = make_trainer(config).train_step(batch)
    trained = [
        member
        for group in batch.groups
        for member in group.members
        if group.domain == "a" or member.limit is None  # domain b withholds what was cut
    ]
    assert report.tokens == sum(member.generated_tokens for member in trained)
    assert report.metrics["tokens"] == report.tokens
    assert report.metrics["learning_rate"] == pytest.approx(0.0025)
    assert {"reward/a", "reward/b", "loss", "entropy", "grad_norm", "truncated_share"} <= report.metrics.keys()


def test_published_weights_are_those_of_the_version(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, model_folder: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(make_config())
    first = trainer.publish()
    assert (first.version, first.checksum) == (0, trainer.info().checksum)
    flat = SharedMemoryReader("test", tmp_path / "unused", tmp_path / "store-0").pull(first)
    expected = load_file(model_folder / "model.safetensors")
    assert [entry.name for entry, _ in views(first, flat)] == [name for name, _ in weights_of(load_model(model_folder))]
    for entry, data in views(first, flat):
        assert (data == expected[entry.name].reshape(-1).view(torch.uint8).numpy()).all()
    trainer.train_step(make_batch(0))
    assert trainer.publish().checksum == trainer.info().checksum != first.checksum
    trainer.retain(1)


class Meanwhile(WeightWriter):
    """A real store whose ``publish`` lets something happen before it reads the tensors."""

    def __init__(self, store: SharedMemoryWriter, happens: Callable[[], object]) -> None:
        self._store, self._happens = store, happens

    def publish(self, version: int, tensors: Sequence[NamedBytes]) -> Manifest:
        self._happens()
        return self._store.publish(version, tensors)

    def retain(self, oldest: int) -> None:
        self._store.retain(oldest)

    def close(self) -> None:
        self._store.close()


def test_a_publication_that_overlaps_the_next_step_is_not_torn(
    make_config: MakeConfig, make_batch: MakeBatch, model_folder: Path, tmp_path: Path
) -> None:
    store = SharedMemoryWriter("test", 1 << 16, tmp_path / "fallback", tmp_path)
    trainer = TorchTrainer(make_config(), model_folder, Meanwhile(store, lambda: trainer.train_step(make_batch(0))))
    checksum = trainer.start(None).checksum
    manifest = trainer.publish()
    assert trainer.info().version == 1
    assert (manifest.version, manifest.checksum) == (0, checksum)
    trainer.stop()


def test_several_steps_an_iteration_are_decoupled(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, model_folder: Path, tmp_path: Path
) -> None:
    settings = {"epochs": 2, "minibatches": 2, "learning_rate": 0.05, "correction_cap": 1e9}
    config = make_config(**settings)
    batch = with_own_logprobs(model_folder, make_batch(0, groups=4), config)
    decoupled = make_trainer(config)
    report = decoupled.train_step(batch)
    assert decoupled.info().version == 1
    assert report.metrics["ratio_max"] > 1.0, "later steps move away from the proximal policy"
    assert report.metrics["logprob_gap_on_policy"] < 1e-5, "the gap is that of the first step"
    plain = make_trainer(make_config(**settings, correction="none"))
    plain.train_step(batch)
    assert "ratio to the proximal policy" in decoupled.info().description
    assert "ratio to the behaviour policy" in plain.info().description
    decoupled.save(tmp_path / "decoupled")
    plain.save(tmp_path / "plain")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("decoupled", "plain"))
    for name, weights in one.items():  # where behaviour and proximal policy are equal, both are the same algorithm
        assert torch.allclose(weights, other[name], atol=2e-3), name


def test_a_token_of_another_vocabulary_is_an_error(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch
) -> None:
    batch = make_batch(0, groups=1)
    member = batch.groups[0].members[0]
    turn = Turn(TokenSpan.of([5]), TokenSpan.of([99], [-1.0]), (VersionRun(0, 1),))
    strange = msgspec.structs.replace(member, segments=(Segment((turn,)),))
    group = msgspec.structs.replace(batch.groups[0], members=(strange, *batch.groups[0].members[1:]))
    with pytest.raises(ValueError, match="trajectory a/0/0/0/0 has token 99, the model knows 29"):
        make_trainer(make_config()).train_step(TrainBatch(0, (group,)))


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}])
def test_other_architectures_and_types_train_on_padded_rows(
    make_trainer: MakeTrainer, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, settings: dict[str, str]
) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "gpt2"
    model = GPT2LMHeadModel(GPT2Config(vocab_size=29, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    folder.mkdir()
    write_model(model, folder)
    trainer = make_trainer(make_config(**settings), model=folder)
    assert trainer.info().forward == "padded"
    before = trainer.info().checksum
    report = trainer.train_step(make_batch(0))
    assert report.metrics["grad_norm"] > 0
    assert trainer.info().checksum != before
    manifest = trainer.publish()
    assert "lm_head.weight" not in [entry.name for entry in manifest.tensors]
    assert {entry.dtype for entry in manifest.tensors} == {"float32"}


def test_a_policy_learns_which_action_is_paid(
    make_trainer: MakeTrainer, make_config: MakeConfig, model_folder: Path, tmp_path: Path
) -> None:
    """Two situations with a right answer each; data is sampled from what the trainer publishes."""
    trainer = make_trainer(make_config(learning_rate=0.01))
    reader = SharedMemoryReader("test", tmp_path / "unused", tmp_path / "store-0")
    actor = load_model(model_folder)
    answers = {10: 5, 11: 20}
    draw = torch.Generator().manual_seed(0)
    rewards = []
    for index in range(30):
        manifest = trainer.publish()
        with torch.no_grad():
            parameters = dict(weights_of(actor))
            for entry, data in views(manifest, reader.pull(manifest)):
                parameters[entry.name].copy_(torch.from_numpy(data).view(torch.float32).view(entry.shape))
            logprobs = torch.log_softmax(actor(torch.tensor([[4, place] for place in answers])).logits[:, -1], -1)
        groups = []
        for number in range(8):
            place = list(answers)[number % 2]
            row = logprobs[number % 2]
            members = []
            for member, token in enumerate(torch.multinomial(row.exp(), 8, True, generator=draw).tolist()):
                action = TokenSpan.of([token], [float(row[token])])
                turn = Turn(TokenSpan.of([4, place]), action, (VersionRun(index, 1),))
                reward = Score(1.0 - abs(token - answers[place]) / 29)
                members.append(Trajectory(TrajectoryId("a", number, number, member), 0, (Segment((turn,)),), reward))
            groups.append(Group("a", number, number, tuple(members), index))
        rewards.append(trainer.train_step(TrainBatch(index, tuple(groups))).metrics["reward"])
        trainer.retain(index)
    assert np.mean(rewards[:3]) < 0.75
    assert np.mean(rewards[-3:]) > 0.95

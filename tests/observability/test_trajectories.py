from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from rollart.observability.trajectory_log import TrajectoryLog, find, read_all
from rollart.observability.transcript import Decoder, token_lines, transcript
from rollart.types import (
    Group,
    LengthSpan,
    Limit,
    Score,
    Segment,
    TokenSpan,
    TrainBatch,
    Trajectory,
    TrajectoryId,
    Turn,
    VersionRun,
)


def _span(*ids: int, logprobs: tuple[float, ...] | None = None) -> TokenSpan:
    values = None if logprobs is None else np.array(logprobs, np.float32)
    return TokenSpan.of(np.array(ids, np.int32), values)


def _trajectory(group: int, member: int) -> Trajectory:
    turns = (
        Turn(_span(1, 2), _span(3, 4, logprobs=(-0.5, -1.5)), (VersionRun(6, 1), VersionRun(7, 1)), reward=0.25),
        Turn(_span(2), _span(4, logprobs=(-0.1,)), (VersionRun(7, 1),), reward=1.0),
    )
    score = Score(1.25, True, {"format": 0.25})
    id = TrajectoryId("lake", group, group, member)
    return Trajectory(id, 99, (Segment(turns),), score, Limit.TURNS, {"steps": 2.0}, {"reset": 0.5})


def _batch(index: int, groups: int = 2, size: int = 2) -> TrainBatch:
    made = [
        Group("lake", g, g, tuple(_trajectory(g, member) for member in range(size)), start_version=6)
        for g in range(groups)
    ]
    return TrainBatch(index, tuple(made))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    words = {"<pad>": 0, "you": 1, "are": 2, "go": 3, "<end>": 4}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path


def test_a_bounded_sample_of_each_batch_comes_back_as_it_was(tmp_path: Path) -> None:
    log = TrajectoryLog(tmp_path, limit=3, batches=20)
    log.write(_batch(0))
    log.write(_batch(12))

    kept = [(batch, str(trajectory.id)) for batch, trajectory in read_all(tmp_path)]
    assert kept == [(batch, id) for batch in (0, 12) for id in ("lake/0/0/0/0", "lake/0/0/1/0", "lake/1/1/0/0")]
    batch, trajectory = find(tmp_path, TrajectoryId("lake", 1, 1, 0))
    assert batch == 12
    assert [turn.action.ids.tolist() for turn in trajectory.turns()] == [[3, 4], [4]]  # type: ignore[union-attr]
    assert trajectory.score == Score(1.25, True, {"format": 0.25})
    assert sorted(file.name for file in (tmp_path / "trajectories").iterdir()) == ["000000.msgpack", "000012.msgpack"]


def test_a_long_run_keeps_the_samples_of_its_newest_batches(tmp_path: Path) -> None:
    for session in (range(5), range(2, 12)):  # the second is a resumed run that repeats some
        log = TrajectoryLog(tmp_path, limit=1, batches=3)
        for index in session:
            log.write(_batch(index))
            assert len(list((tmp_path / "trajectories").iterdir())) <= 5

    assert [batch for batch, _ in read_all(tmp_path)] == [9, 10, 11]


def test_a_run_that_keeps_none(tmp_path: Path) -> None:
    TrajectoryLog(tmp_path, limit=0, batches=20).write(_batch(0))

    with pytest.raises(FileNotFoundError, match=r"set log.trajectories above 0"):
        list(read_all(tmp_path))


def test_an_id_that_was_not_kept(tmp_path: Path) -> None:
    TrajectoryLog(tmp_path, limit=4, batches=20).write(_batch(0))

    with pytest.raises(KeyError):
        find(tmp_path, TrajectoryId("lake", 5, 5, 0))


def test_a_transcript_shows_what_was_trained(run_folder: Path) -> None:
    assert list(transcript(8, _trajectory(0, 1), Decoder.of_run(run_folder))) == [
        "lake/0/0/1/0",
        "batch 8, start version 6, staleness 2, seed 99",
        "reward 1.250, success yes, format 0.250",
        "6 tokens, 3 generated, cut by max_turns",
        "seconds: reset 0.500",
        "metrics: steps 2",
        "",
        "turn 0: observation, 2 tokens, masked",
        "| you are",
        "turn 0: action, 2 tokens (1 by version 6, 1 by version 7), ended by stop, mean log-probability -1.000, "
        "reward 0.25",
        "> go <end>",
        "",
        "turn 1: observation, 1 tokens, masked",
        "| are",
        "turn 1: action, 1 tokens (1 by version 7), ended by stop, mean log-probability -0.100, reward 1",
        "> <end>",
    ]


def test_every_token_with_mask_version_and_logprob(run_folder: Path) -> None:
    lines = [line.split() for line in token_lines(_trajectory(0, 0), Decoder.of_run(run_folder))][2:]

    assert lines == [
        ["0", "1", "0", "-", "-", "'you'"],
        ["1", "2", "0", "-", "-", "'are'"],
        ["2", "3", "1", "6", "-0.5000", "'go'"],
        ["3", "4", "1", "7", "-1.5000", "'<end>'"],
        ["4", "2", "0", "-", "-", "'are'"],
        ["5", "4", "1", "7", "-0.1000", "'<end>'"],
    ]


def test_spans_without_a_tokenizer_or_without_tokens(tmp_path: Path) -> None:
    decoder = Decoder.of_run(tmp_path)

    assert decoder.text(_span(1, 2)) == "(no tokenizer in the run folder) ids [1, 2]"
    assert decoder.text(LengthSpan(7)) == "(7 tokens, lengths only)"

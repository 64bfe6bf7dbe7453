"""Batches of random trajectories, a very small model, and trainers with a real weight store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollart.config.config import Config
from rollart.config.model import TinyModelConfig
from rollart.data_plane.training.models import build_tiny_model
from rollart.data_plane.training.torch_trainer import TorchTrainer
from rollart.data_plane.weights.shared_memory import SharedMemoryReader, SharedMemoryWriter
from rollart.types import (
    Group,
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

VOCABULARY = 29
SHAPE = TinyModelConfig(hidden=16, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=24, initializer_range=0.3)


def make_trajectory(
    draw: np.random.Generator, identity: TrajectoryId, first: np.ndarray, reward: float, version: int
) -> Trajectory:
    """One to four turns; actions of one to three tokens, as if sampled with about the right log-probabilities."""
    turns = []
    for turn in range(int(draw.integers(1, 5))):
        observation = first if turn == 0 else draw.integers(4, VOCABULARY, int(draw.integers(1, 6)))
        action = draw.integers(4, 8, int(draw.integers(1, 4)))
        logprobs = np.log(draw.uniform(0.01, 0.3, len(action))).astype(np.float32)
        turns.append(
            Turn(
                TokenSpan.of(observation.astype(np.int32)),
                TokenSpan.of(action.astype(np.int32), logprobs),
                (VersionRun(version, len(action)),),
                reward=reward,
            )
        )
    limit = Limit.TURNS if draw.random() < 0.2 else None
    return Trajectory(identity, identity.task, (Segment(tuple(turns)),), Score(reward), limit)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., TrainBatch]:
    """``make_batch(seed, index=0, groups=3, size=4)``: groups that share their first observation."""

    def make(seed: int, index: int = 0, groups: int = 3, size: int = 4, domains: tuple[str, ...] = ("a", "b")) -> Any:
        draw = np.random.default_rng(seed)
        result = []
        for number in range(groups):
            domain = domains[number % len(domains)]
            first = draw.integers(4, VOCABULARY, int(draw.integers(2, 9)))
            members = tuple(
                make_trajectory(
                    draw,
                    TrajectoryId(domain, number, number, member),
                    first,
                    float(draw.integers(0, 3)),
                    max(0, index - int(draw.integers(0, 2))),
                )
                for member in range(size)
            )
            start = min(m.start_version or 0 for m in members)
            withheld = tuple(place for place, m in enumerate(members) if domain == "b" and m.limit is not None)
            result.append(Group(domain, number, number, members, start, withheld))
        return TrainBatch(index, tuple(result))

    return make


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """``make_config(training_key=value, ...)`` with two domains, the second of which withholds cut trajectories."""

    def make(**training: Any) -> Config:
        return Config.model_validate(
            {
                "run": {"iterations": 10, "runtime": "in_process"},
                "domains": {
                    "a": {"env": "frozen_lake"},
                    "b": {"env": "math_tool", "truncated": "mask", "temperature": 0.7},
                },
                "training": {"device": "cpu", "learning_rate": 0.01, **training},
                "weights": {"bucket_bytes": 1 << 16},
            }
        )

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of 29 token ids."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    build_tiny_model(SHAPE, [f"w{index}" for index in range(VOCABULARY - 4)], seed=1, folder=folder)
    return folder


class Store:
    """A real weight store in a folder of the test."""

    def __init__(self, root: Path) -> None:
        self.writer = SharedMemoryWriter("test", 1 << 16, root / "fallback", root)
        self.reader = SharedMemoryReader("test", root / "fallback", root)


@pytest.fixture
def make_trainer(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., TorchTrainer]]:
    """``make_trainer(config, resume=None, model=None)``, started."""
    trainers: list[TorchTrainer] = []

    def make(config: Config, resume: Path | None = None, model: Path | None = None) -> TorchTrainer:
        root = tmp_path / f"store-{len(trainers)}"
        root.mkdir()
        trainer = TorchTrainer(config, model or model_folder, Store(root).writer)
        trainers.append(trainer)
        trainer.start(resume)
        return trainer

    yield make
    for trainer in trainers:
        trainer.stop()

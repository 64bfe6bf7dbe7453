"""Invariant 6: after every update every engine holds the trainer's weights; anything else ends the run, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import whole_job

from rollart.config.config import Config
from rollart.data_plane.generation import weight_loading
from rollart.data_plane.weights.shared_memory import SHARED_MEMORY, store_folder
from rollart.data_plane.weights.store import Manifest, TensorEntry
from rollart.events import (
    BatchCommitted,
    EngineUpdated,
    Event,
    MemorySink,
    RunEnded,
    Tee,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionPublished,
)
from rollart.runtime.in_process import InProcessRuntime
from rollart.runtime.runtime import WorkerError

ENGINES = 2
DAMAGED = 2
"""The version that does not arrive as it was published."""


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config(engine={"count": ENGINES, "deterministic": False})


def of(sink: MemorySink, kind: type) -> list[Any]:
    return [event for event in sink.events if isinstance(event, kind)]


def assert_ended_at_the_damage(sink: MemorySink, error: BaseException) -> None:
    """Batches before the damaged version are trained, none after; nothing is left without an outcome."""
    assert [event.index for event in of(sink, BatchCommitted)] == list(range(DAMAGED))
    assert {event.version for event in of(sink, EngineUpdated)} == {1}
    (ended,) = of(sink, RunEnded)
    assert ended.reason == f"failed: {error}"
    started, outcomes = of(sink, TrajectoryStarted), of(sink, TrajectoryEnded)
    assert sorted(event.id for event in started) == sorted(event.id for event in outcomes)


def test_every_engine_has_the_trainers_checksum(config: Config, tmp_path: Path) -> None:
    record = whole_job.play(config, tmp_path, InProcessRuntime())
    published = {event.version: event.checksum for event in record.of(VersionPublished)}
    taken = {(event.engine.engine, event.version): event.checksum for event in record.of(EngineUpdated)}
    last = config.run.iterations - 1
    assert set(taken) >= {(engine, version) for engine in range(ENGINES) for version in range(1, last + 1)}
    assert all(checksum == published[version] for (_, version), checksum in taken.items())


class Corruptor:
    """Changes one byte of the last bucket in the store between its publication and the first read."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self.file = ""

    def emit(self, event: Event) -> None:
        if isinstance(event, VersionPublished) and event.version == DAMAGED:
            (path,) = [path for folder in self._folders for path in folder.glob(f"*.v{DAMAGED}")]
            with path.open("r+b") as file:
                file.seek(event.bytes - 1)
                (last,) = file.read(1)
                file.seek(event.bytes - 1)
                file.write(bytes([last ^ 1]))
            self.file = path.name


def test_a_corrupt_bucket_ends_the_run(config: Config, tmp_path: Path) -> None:
    sink = MemorySink()
    run, fallback = whole_job.store_of(tmp_path)
    corruptor = Corruptor([store_folder(SHARED_MEMORY, run), store_folder(Path(fallback), run)])
    with pytest.raises(WorkerError) as raised:
        whole_job.play(config, tmp_path, InProcessRuntime(), sink=Tee(sink, corruptor))
    message = str(raised.value)
    assert f"version {DAMAGED}, bucket 1 of 2 ({corruptor.file}/1)" in message
    assert "damaged bytes are not used" in message
    assert "generate-" in message
    assert_ended_at_the_damage(sink, raised.value)


def test_an_engine_with_other_weights_ends_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that forgets one tensor of one version is noticed by its checksum."""
    whole = weight_loading.views

    def forgetful(manifest: Manifest, flat: Any) -> Iterator[tuple[TensorEntry, Any]]:
        entries = whole(manifest, flat)
        if manifest.version == DAMAGED:
            next(entries)
        yield from entries

    monkeypatch.setattr(weight_loading, "views", forgetful)
    sink = MemorySink()
    with pytest.raises(RuntimeError, match=f"after the update to version {DAMAGED}, the trainer's is") as raised:
        whole_job.play(config, tmp_path, InProcessRuntime(), sink=sink)
    assert "engine 0 holds weights with checksum" in str(raised.value)
    assert_ended_at_the_damage(sink, raised.value)

"""An engine that computes in half precision plays for a trainer that keeps float32 weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollart.cli.launch import launch
from rollart.config.config import Config
from rollart.events import EngineUpdated, MemorySink, VersionPublished


def test_a_half_precision_engine_trains(make_config: Callable[..., Config], tmp_path: Path) -> None:
    engine = {"dtype": "bfloat16", "device": "cpu", "deterministic": False}
    run = {"name": "half", "iterations": 2}
    config = make_config(run=run, engine=engine, training={"device": "cpu"}, evaluation={"instances": 0})
    sink = MemorySink()

    result = launch(config, tmp_path, sink)

    assert result.version == 2
    published = {event.version: event.checksum for event in sink.events if isinstance(event, VersionPublished)}
    taken = {event.version: event.checksum for event in sink.events if isinstance(event, EngineUpdated)}
    assert taken[1] == published[1]

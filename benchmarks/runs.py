"""Runs a configuration for a benchmark and gives back what the event log says of it."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rollart.cli.launch import launch
from rollart.config.config import Config
from rollart.events import Envelope, MemorySink, ProtocolStep, read_events


def run(settings: dict[str, Any]) -> list[Envelope]:
    """Train ``settings`` in a temporary run folder; returns the merged event log."""
    with tempfile.TemporaryDirectory() as folder:
        launch(Config.model_validate(settings), Path(folder), MemorySink())
        return list(read_events(Path(folder) / "events"))


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with the keys of ``changes`` replaced, section by section."""
    result = {name: dict(section) if isinstance(section, dict) else section for name, section in settings.items()}
    for name, section in changes.items():
        result[name] = {**result.get(name, {}), **section}
    return result


def step_seconds(events: list[Envelope], step: str, skip: int) -> list[float]:
    """Seconds of each protocol step of that name, without the first ``skip`` iterations."""
    return [
        envelope.e.seconds
        for envelope in events
        if isinstance(envelope.e, ProtocolStep) and envelope.e.step == step and envelope.e.index >= skip
    ]


def iteration_seconds(events: list[Envelope], skip: int) -> list[float]:
    """Seconds between the ends of consecutive train steps, without the first ``skip`` iterations."""
    ends = [
        envelope.t
        for envelope in events
        if isinstance(envelope.e, ProtocolStep) and envelope.e.step == "train_step" and envelope.e.index >= skip
    ]
    return [after - before for before, after in itertools.pairwise(ends)]


def spread(values: list[float]) -> str:
    """Median and quartiles, for display."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} s (quartiles {low:.3f}-{high:.3f})"

"""Live scalars of each iteration to TensorBoard or Weights & Biases; both packages are extras.

Each sink folds the records as the report does and hands over an iteration when it is complete, one batch
later; ``close`` hands over the last one. Made by ``rollart train`` from section ``log``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollart.events import Envelope, Evaluated, Event
from rollart.observability.metrics import IterationMetrics, MetricsFold, scalars


class MissingPackage(RuntimeError):
    """An optional package is not installed; the message names the extra."""


class ScalarSink(ABC):
    """An event sink that turns records into scalars by iteration."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._fold = MetricsFold()
        self._now = now
        self._origin = now()
        self._sequence = 0

    def emit(self, event: Event) -> None:
        """Fold one record, and hand over what it completes."""
        if isinstance(event, Evaluated):
            self._held_out(event)
        envelope = Envelope(self._sequence, self._now() - self._origin, event)  # type: ignore[arg-type]
        self._sequence += 1
        for metrics in self._fold.add(envelope):
            self._iteration(metrics)

    def close(self) -> None:
        """Hand over the last iteration and end the connection. Idempotent."""
        for metrics in self._fold.finish():
            self._iteration(metrics)
        self._end()

    def _iteration(self, metrics: IterationMetrics) -> None:
        self._write(metrics.index + 1, scalars(metrics))

    def _held_out(self, event: Evaluated) -> None:
        kind = "random" if event.policy == "random" else "held_out"
        values = {f"{kind}_success/{event.domain}": event.success, f"{kind}_reward/{event.domain}": event.reward}
        self._write(event.version, {name: value for name, value in values.items() if value is not None})

    @abstractmethod
    def _write(self, version: int, values: Mapping[str, float]) -> None:
        """Write scalars at the step ``version``."""

    @abstractmethod
    def _end(self) -> None: ...


class TensorBoardSink(ScalarSink):
    """Scalars as TensorBoard event files in ``folder``.

    Raises:
        MissingPackage: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now)
        try:
            from tensorboard.compat.proto.event_pb2 import Event as Record
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingPackage(
                "log.tensorboard: the package 'tensorboard' is not installed: pip install 'rollart[tensorboard]', "
                "or set log.tensorboard to false"
            ) from error
        self._record, self._summary = Record, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventFileWriter(str(folder))

    def _write(self, version: int, values: Mapping[str, float]) -> None:
        entries = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        summary = self._summary(value=entries)
        self._writer.add_event(self._record(wall_time=time.time(), step=version, summary=summary))

    def _end(self) -> None:
        self._writer.close()


class WandbSink(ScalarSink):
    """Scalars to a Weights & Biases project.

    Args:
        project: Name of the project.
        run: Name of the run.
        folder: Where the package keeps its files.
        config: The run's configuration.

    Raises:
        MissingPackage: the package ``wandb`` is not installed.
    """

    def __init__(
        self,
        project: str,
        run: str,
        folder: Path,
        config: Mapping[str, Any],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(now)
        try:
            import wandb
        except ImportError as error:
            raise MissingPackage(
                "log.wandb: the package 'wandb' is not installed: pip install 'rollart[wandb]', or leave log.wandb out"
            ) from error
        self._run: Any = wandb.init(project=project, name=run, dir=str(folder), config=dict(config))

    def _write(self, version: int, values: Mapping[str, float]) -> None:
        # Held-out results come with a step of their own and may be behind; an own axis allows that.
        self._run.log({**values, "version": version})

    def _end(self) -> None:
        self._run.finish()

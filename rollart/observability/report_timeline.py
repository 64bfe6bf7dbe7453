"""The report's timeline: what every worker did, over the whole run and close up. Called by the report only."""

from __future__ import annotations

from rollart.events import Envelope, Evaluated, PoolBusy, ProtocolStep, TrainStepped, VersionPublished, WorkerPlaced
from rollart.observability.charts import Lane, timeline
from rollart.observability.metrics import IterationMetrics
from rollart.observability.report_charts import Figure

CLOSE_UP = 4
"""Iterations of the close-up."""

Block = tuple[float, float, float]

_COLOURS = {"train": 0, "generate": 1, "environment": 2, "reward": 6}
_PROTOCOL = ("suspend", "update", "resume", "recompute")


class TimelineFold:
    """Folds a merged log into the blocks of each lane."""

    def __init__(self) -> None:
        self._end: float | None = None
        self._placed: dict[str, WorkerPlaced] = {}
        self._blocks: dict[str, list[Block]] = {}
        self._training: list[Block] = []
        self._hosts: dict[str, list[tuple[float, float, int]]] = {}
        self._steps: dict[str, list[Block]] = {
            name: [] for name in ("get_batch wait", "update", "publish", "evaluation")
        }

    def add(self, envelope: Envelope) -> None:
        """Fold one record."""
        t = self._end = envelope.t
        steps = self._steps
        match envelope.e:
            case WorkerPlaced(worker=worker) as where:
                self._placed[worker] = where
            case PoolBusy(worker=worker, role="environment") as busy:
                self._hosts.setdefault(worker, []).append((t - (busy.until - busy.since), t, busy.running))
            case PoolBusy(worker=worker) as busy:
                elapsed = busy.until - busy.since
                share = busy.busy / elapsed if elapsed > 0 else 0.0
                self._blocks.setdefault(worker, []).append((t - elapsed, t, share))
            case TrainStepped(seconds=seconds):
                self._training.append((t - seconds, t, 1.0))
            case ProtocolStep(step="get_batch", seconds=seconds):
                steps["get_batch wait"].append((t - seconds, t, 1.0))
            case ProtocolStep(step=step, seconds=seconds) if step in _PROTOCOL:
                steps["update"].append((t - seconds, t, 1.0))
            case VersionPublished(seconds=seconds):
                steps["publish"].append((t - seconds, t, 1.0))
            case Evaluated(seconds=seconds):
                steps["evaluation"].append((t - seconds, t, 1.0))
            case _:
                pass

    def figures(self, series: list[IterationMetrics]) -> list[Figure]:
        """The whole run, and a few iterations in its middle."""
        if self._end is None:
            return []
        lanes = self._lanes()
        whole = Figure(
            "The whole run",
            "A row a worker, then the protocol. The darker, the busier; environment hosts: relative to their peak.",
            timeline(lanes, 0.0, self._end),
        )
        if len(series) <= CLOSE_UP:
            return [whole]
        middle = len(series) // 2
        begin, end = series[middle - 1].end, series[min(len(series), middle + CLOSE_UP) - 1].end
        first, last = series[middle].index, series[min(len(series), middle + CLOSE_UP) - 1].index
        caption = f"Iterations {first} to {last}: training beside rollout, with the updates between."
        return [whole, Figure("Close up", caption, timeline(lanes, begin, end))]

    def _lanes(self) -> list[Lane]:
        placed = self._placed
        blocks: dict[str, list[Block]] = {worker: [] for worker, where in placed.items() if where.role != "reward"}
        blocks.update(self._blocks)
        trainers = [worker for worker, where in placed.items() if where.role == "train"]
        if self._training:
            blocks.update((worker, self._training) for worker in trainers or ["train"])
        for worker, spans in self._hosts.items():
            peak = max(running for *_, running in spans) or 1
            blocks[worker] = [(since, until, running / peak) for since, until, running in spans]
        lanes = [
            Lane(f"{worker} ({placed[worker].pool})" if worker in placed else worker, spans, _colour(worker, placed))
            for worker, spans in blocks.items()
        ]
        steps = enumerate(self._steps.items())
        return lanes + [Lane(name, spans, 4 + number) for number, (name, spans) in steps if spans]


def _colour(worker: str, placed: dict[str, WorkerPlaced]) -> int:
    role = placed[worker].role if worker in placed else "train"
    return _COLOURS.get(role, 8)

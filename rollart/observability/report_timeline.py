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


def timelines(events: list[Envelope], series: list[IterationMetrics]) -> list[Figure]:
    """The whole run, and a few iterations in its middle."""
    if not events:
        return []
    lanes = _lanes(events)
    whole = Figure(
        "The whole run",
        "A row a worker, then the protocol. The darker, the busier; environment hosts: relative to their peak.",
        timeline(lanes, 0.0, max(envelope.t for envelope in events)),
    )
    if len(series) <= CLOSE_UP:
        return [whole]
    middle = len(series) // 2
    begin, end = series[middle - 1].end, series[min(len(series), middle + CLOSE_UP) - 1].end
    first, last = series[middle].index, series[min(len(series), middle + CLOSE_UP) - 1].index
    caption = f"Iterations {first} to {last}: training beside rollout, with the updates between."
    return [whole, Figure("Close up", caption, timeline(lanes, begin, end))]


def _lanes(events: list[Envelope]) -> list[Lane]:
    placed = {e.e.worker: e.e for e in events if isinstance(e.e, WorkerPlaced)}
    blocks: dict[str, list[Block]] = {worker: [] for worker in placed}
    steps: dict[str, list[Block]] = {name: [] for name in ("get_batch wait", "update", "publish", "evaluation")}
    trainers = [worker for worker, where in placed.items() if where.role == "train"]
    hosts: dict[str, list[tuple[float, float, int]]] = {}
    for envelope in events:
        t = envelope.t
        match envelope.e:
            case PoolBusy(worker=worker, role="environment") as busy:
                hosts.setdefault(worker, []).append((t - (busy.until - busy.since), t, busy.running))
            case PoolBusy(worker=worker) as busy:
                elapsed = busy.until - busy.since
                blocks.setdefault(worker, []).append((t - elapsed, t, busy.busy / elapsed if elapsed > 0 else 0.0))
            case TrainStepped(seconds=seconds):
                for worker in trainers or ["train"]:
                    blocks.setdefault(worker, []).append((t - seconds, t, 1.0))
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
    for worker, spans in hosts.items():
        peak = max(running for *_, running in spans) or 1
        blocks[worker] = [(since, until, running / peak) for since, until, running in spans]
    lanes = [
        Lane(f"{worker} ({placed[worker].pool})" if worker in placed else worker, spans, _colour(worker, placed))
        for worker, spans in blocks.items()
    ]
    return lanes + [Lane(name, spans, 4 + number) for number, (name, spans) in enumerate(steps.items()) if spans]


def _colour(worker: str, placed: dict[str, WorkerPlaced]) -> int:
    role = placed[worker].role if worker in placed else "train"
    return _COLOURS.get(role, 8)

"""The emulated engine written down step by step: no closed forms, no heap, no plan. What it says is the reference."""

from __future__ import annotations

from dataclasses import dataclass

from rollart.data_plane.generation.emulated_models import EmulatedSpeed


@dataclass
class Row:
    """A request; ``computed`` tokens of its history have keys and values, and once all of them have it is ready."""

    who: int
    prompt: int
    target: int
    generated: int = 0
    computed: int = 0
    ready: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.generated


class SlowEngine:
    """One step a call.

    Attributes:
        queue: Requests that wait.
        preemptions: So far.
    """

    def __init__(self, speed: EmulatedSpeed, max_rows: int) -> None:
        self._speed, self._max_rows = speed, max_rows
        self._capacity = speed.kv_tokens or 10**9
        self._watermark = self._capacity // 100 if speed.kv_tokens else 0
        self._active: list[Row] = []
        self._cached: dict[int, int] = {}
        self.queue: list[Row] = []
        self.preemptions = 0

    @property
    def busy(self) -> bool:
        return bool(self.queue or self._active)

    def step(self) -> tuple[float, list[Row]]:
        """Seconds of a step, and the requests that end with it."""
        while self._held() + len(self._active) > self._capacity and len(self._active) > 1:
            row = self._active.pop()
            row.computed, row.ready = 0, False
            self.queue.insert(0, row)
            self.preemptions += 1
        self._admit()
        decoding = [row for row in self._active if row.ready]
        context = sum(row.length for row in decoding)
        left = max(1, (self._speed.step_tokens or 10**9) - len(decoding))
        chunks = tokens = 0
        for row in self._active:
            if not row.ready and left:
                size = min(left, row.length - row.computed)
                row.computed += size
                row.ready = row.computed == row.length
                chunks, tokens, left, context = chunks + 1, tokens + size, left - size, context + row.computed
        for row in self._active:
            row.computed += row in decoding
            row.generated += row.ready
        over = [row for row in self._active if row.generated == row.target]
        for row in over:
            self._active.remove(row)
            self._cached[row.who] = row.computed
        self._trim()
        return self._speed.mixed(len(decoding), chunks, context, tokens, 0), over

    def _admit(self) -> None:
        while self.queue and len(self._active) < self._max_rows:
            row = self.queue[0]
            need = self._held() + row.length + len(self._active) + 1 + self._watermark
            if self._active and need > self._capacity:
                return
            self._active.append(self.queue.pop(0))
            row.computed = min(self._cached.pop(row.who, 0), row.length - 1)
            self._trim()

    def _held(self) -> int:
        return sum(row.length for row in self._active)

    def _trim(self) -> None:
        while self._cached and (excess := sum(self._cached.values()) + self._held() - self._capacity) > 0:
            first = next(iter(self._cached))
            self._cached[first] -= excess
            if self._cached[first] <= 0:
                del self._cached[first]

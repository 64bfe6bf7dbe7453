"""What an emulated engine takes as given: how long its steps last, and how many tokens its actions have.

Both are protocols with simple implementations; a simulator brings models of real hardware and of real workloads.
Called by :class:`~rollart.data_plane.generation.emulated.EmulatedCore`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Protocol

import msgspec

from rollart.config.draw import Draw, Sampler, sampler
from rollart.types import TrajectoryId, derive_seed


class SpeedModel(Protocol):
    """How long the steps of an engine take, and how much it holds.

    A step computes the next token of each request that decodes, and beside them a part of the prompts that wait
    (a chunk of one or more requests).
    """

    @property
    def kv_tokens(self) -> int | None:
        """Tokens whose keys and values the engine holds together; ``None`` if it never runs out."""

    @property
    def step_tokens(self) -> int | None:
        """Most tokens that one step computes, decoding requests and prompts together; ``None`` without a limit."""

    def decode(self, rows: int) -> tuple[float, float]:
        """A step of ``rows`` requests that decode: its seconds without context, and more for each token of it.

        The context is the number of tokens in the histories of all rows together. Seconds are above 0.
        """

    def mixed(self, rows: int, chunks: int, context: int, tokens: int, attended: int) -> float:
        """Seconds of a step that also computes prompts.

        Args:
            rows: Requests that decode.
            chunks: Requests of whose prompt the step computes a part.
            context: Tokens whose keys and values are read, of all requests together.
            tokens: Prompt tokens computed.
            attended: Tokens attended to, summed over the prompt tokens computed.
        """


class LengthSource(Protocol):
    """How many tokens actions have."""

    def draw(self, seed: int, trajectory: TrajectoryId, length: int) -> int:
        """Tokens that the trajectory generates after ``length`` tokens of history, at least 1; drawn from these only.

        Args:
            seed: Of the run.
        """


class EmulatedSpeed(msgspec.Struct, frozen=True):
    """A linear model of durations, in seconds.

    Attributes:
        step_seconds: One step.
        row_seconds: More for each running request.
        prefill_token_seconds: More for each prompt token computed.
        context_token_seconds: More for each token whose keys and values are read.
        kv_tokens, step_tokens: As of :class:`SpeedModel`.

    Raises:
        ValueError: a step takes no time, so that virtual time would stand still.
    """

    step_seconds: float = 0.02
    row_seconds: float = 0.0
    prefill_token_seconds: float = 1e-5
    context_token_seconds: float = 0.0
    kv_tokens: int | None = None
    step_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.step_seconds <= 0:
            raise ValueError(f"step_seconds must be positive, not {self.step_seconds}")

    def decode(self, rows: int) -> tuple[float, float]:
        return self.step_seconds + self.row_seconds * rows, self.context_token_seconds

    def mixed(self, rows: int, chunks: int, context: int, tokens: int, attended: int) -> float:
        base = self.step_seconds + self.row_seconds * (rows + chunks)
        return base + self.context_token_seconds * context + self.prefill_token_seconds * tokens


class EmulatedLengths(msgspec.Struct, frozen=True):
    """How many tokens an action has: log-normal, at least 1.

    Attributes:
        mean: Mean number of tokens before the request's limits cut it.
        spread: Standard deviation of the logarithm; 0 gives ``mean`` always, 1 a long tail.
    """

    mean: float = 32.0
    spread: float = 0.5

    def draw(self, seed: int, trajectory: object, length: int) -> int:
        """As :class:`LengthSource`; any object with a text of its own is a trajectory."""
        if self.spread == 0:
            return max(1, round(self.mean))
        uniform = (derive_seed(seed, "length", str(trajectory), length) + 0.5) * 2.0**-63
        normal = _NORMAL.inv_cdf(min(uniform, 1 - 2.0**-53))
        return max(1, round(self.mean * math.exp(self.spread * normal - self.spread**2 / 2)))


class DrawnLengths:
    """Action lengths from a distribution for each domain; some microseconds a draw.

    Args:
        draws: By domain.

    Raises:
        ValueError: one of them is not a distribution.
    """

    def __init__(self, draws: Mapping[str, Draw]) -> None:
        self._samplers: dict[str, Sampler] = {domain: sampler(draw) for domain, draw in draws.items()}
        self._salts: dict[tuple[int, str, str], int] = {}

    def draw(self, seed: int, trajectory: TrajectoryId, length: int) -> int:
        """As :class:`LengthSource`.

        Raises:
            KeyError: there is no distribution for the trajectory's domain.
        """
        key = (seed, trajectory.domain, trajectory.purpose)
        salt = self._salts.get(key)
        if salt is None:
            salt = self._salts[key] = derive_seed(seed, "length", trajectory.domain, trajectory.purpose)
        state = _mixed(salt ^ trajectory.task)
        state = _mixed(state ^ (trajectory.group << 20 | trajectory.member << 8 | trajectory.attempt))
        return max(1, round(self._samplers[trajectory.domain](_Numbers(state ^ length))))


class _Numbers:
    """Random numbers of one draw, from a seed of 64 bits: cheap to make, which ``random.Random`` is not."""

    __slots__ = ("_state",)

    def __init__(self, state: int) -> None:
        self._state = state

    def random(self) -> float:
        """Uniform between 0 and 1, neither of them."""
        self._state = state = (self._state + _GOLDEN) & _MASK
        return ((_mixed(state) >> 12) + 0.5) * 2.0**-52

    def gauss(self, mu: float, sigma: float) -> float:
        return mu + sigma * _NORMAL.inv_cdf(self.random())


def _mixed(state: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit depends on all."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NORMAL = NormalDist()

"""Rendering: observations to token ids and actions back to text. Token in, token out.

A renderer appends; it never decodes and re-encodes what a trajectory already holds. For a chat model
it renders the messages between two generations with the model's own template and checks at start-up
that the template has the prefix property, i.e. that the tokens of a conversation are a prefix of the
tokens of a longer one.
"""

from __future__ import annotations

from typing import Protocol

from rollart.data_plane.environment.env import Observation
from rollart.types import Span


class RenderingError(ValueError):
    """A text cannot be rendered token-exactly; the message says what to change."""


class Renderer(Protocol):
    """One renderer serves all trajectories of a domain; it keeps no state between calls.

    Renderers of texts give and take token spans; emulated ones give and take length spans.
    """

    stop_token_ids: tuple[int, ...]
    """Generation of an action ends with one of these, which belongs to the action."""

    def begin(self, observation: Observation) -> Span:
        """Tokens of the system prompt, the first observation, and the opening of the first action."""
        ...

    def observe(self, observation: Observation, *, stopped: bool) -> Span:
        """Tokens to append after an action: its closing if it did not end with a stop token
        (``stopped`` is False), the observation, and the opening of the next action."""
        ...

    def parse(self, action: Span) -> str:
        """The text of an action, without its stop token."""
        ...

    def decode(self, tokens: Span) -> str:
        """All tokens as text, specials included, for display only."""
        ...

"""What an environment's child process and its parent say to each other.

Every message is a frame: four bytes of length, big-endian, and a :mod:`rollart.codec` value. The parent
sends one request and waits for its one answer, so there is never more than one frame in flight each way.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from rollart import codec
from rollart.data_plane.environment.env import Message
from rollart.types import Purpose

MAX_FRAME = 64 * 1024 * 1024
"""Bytes. A longer observation is refused in the child, a longer announcement ends the child."""

HEADER = struct.Struct(">I")

TextObservation = str | list[Message]


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Make an environment and start an instance."""

    env: str
    args: dict[str, Any]
    purpose: Purpose
    episode: int
    seed: int
    task: int
    import_paths: tuple[str, ...]
    """Where the parent's imports come from, so that the child finds the same modules."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    action: str


class Random(msgspec.Struct, frozen=True, tag="random"):
    """Ask for a random action."""

    seed: int


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End the episode; the child stays for another one."""


Request = Reset | Step | Random | Close


class Started(msgspec.Struct, frozen=True, tag="started"):
    observation: TextObservation


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """A checked result of ``step``."""

    observation: TextObservation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Action(msgspec.Struct, frozen=True, tag="action"):
    text: str


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """``problem`` says why ``close`` failed; empty if it did not."""

    problem: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The environment raised, or returned what it may not return: ``problem`` in words for the user.

    ``no_random_policy``: it merely has no ``random_action``, and is as good as before.
    """

    problem: str
    no_random_policy: bool = False


Answer = Started | Stepped | Action | Closed | Failed


def frame(message: Request | Answer) -> bytes:
    """A message as bytes for the pipe.

    Raises:
        ValueError: it is longer than ``MAX_FRAME``.
        TypeError: a part of it cannot cross a process border.
    """
    data = codec.encode(message)
    if len(data) > MAX_FRAME:
        raise ValueError(f"message of {len(data)} bytes, more than the {MAX_FRAME} that one may have")
    return HEADER.pack(len(data)) + data

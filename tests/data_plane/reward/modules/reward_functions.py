"""Reward functions as a user would bring them."""

import asyncio
import time

import numpy as np

from rollart.types import Score

calls = 0


def turns(trajectory):
    return sum(1 for _ in trajectory.turns())


async def last_action(trajectory):
    await asyncio.sleep(1)
    return list(trajectory.turns())[-1].action_text == "right"


def full(trajectory):
    return Score(0.25, False, {"format": 0.25})


def numpy_verdict(trajectory):
    return np.bool_(True)


def numpy_number(trajectory):
    return np.float32(0.5)


class Judge:
    async def __call__(self, trajectory):
        return 2


judge = Judge()


def coroutine_from_sync(trajectory):
    return last_action(trajectory)


def raises(trajectory):
    raise KeyError("rubric")


def nothing(trajectory):
    return None


def not_a_number(trajectory):
    return float("nan")


def sometimes(trajectory):
    """Works at the third call."""
    global calls
    calls += 1
    if calls < 3:
        raise ConnectionError("busy")
    return 1.0


async def waits(trajectory):
    await asyncio.sleep(3600)


def blocks(trajectory):
    time.sleep(0.3)


number = 3

"""Environments that misbehave in one way each, imported by path in this process and in children."""

import asyncio
import ctypes
import os
import subprocess
import sys
import time

created = 0


class Polite:
    """Counts its steps; three of them end the episode."""

    def __init__(self, split="?", episode=0, goal=3):
        global created
        created += 1
        self.split, self.episode, self.goal, self.steps = split, episode, goal, 0

    def reset(self, seed, task):
        return f"seed {seed} task {task} split {self.split} episode {self.episode}"

    def step(self, action):
        self.steps += 1
        done = self.steps == self.goal
        info = {"success": done, "metrics": {"steps": self.steps}, "is_action_valid": action != ""}
        return f"{self.steps} {action}", 0.5, done, False, info

    def close(self):
        pass

    def random_action(self, seed):
        return f"random {seed}"


class DeclinesRandom(Polite):
    """Like :class:`~rollart.data_plane.environment.env.Env` without a random policy of its own."""

    def random_action(self, seed):
        raise LookupError("DeclinesRandom declares no random policy")


class RaisesInRandomAction(Polite):
    def random_action(self, seed):
        return {}["left"]


class Process(Polite):
    """Tells about the process it lives in."""

    def step(self, action):
        return f"{os.getpid()} {created}", 0.0, False, False, {}


class Chat(Polite):
    def reset(self, seed, task):
        return [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]


class Asynchronous(Polite):
    """Its background task goes on between calls."""

    async def reset(self, seed, task):
        self.ticks = 0
        self.task = asyncio.get_running_loop().create_task(self._tick())
        await asyncio.sleep(0)
        return "ready"

    async def _tick(self):
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    async def step(self, action):
        return f"{self.ticks}", 0.0, False, False, {}

    async def close(self):
        self.task.cancel()


class NoRunningLoop(Polite):
    """Like libraries that refuse to run inside an event loop."""

    def step(self, action):
        asyncio.run(asyncio.sleep(0))
        return super().step(action)


class RaisesInConstructor:
    def __init__(self):
        raise OSError("no display")


class RaisesInReset(Polite):
    def reset(self, seed, task):
        try:
            raise KeyError("map")
        except KeyError as error:
            raise RuntimeError("could not build the instance") from error


class RaisesInStep(Polite):
    def step(self, action):
        raise ZeroDivisionError("by zero")


class Exits(Polite):
    """``sys.exit`` in a step."""

    def step(self, action):
        sys.exit("bye")


class RaisesInClose(Polite):
    def close(self):
        raise ValueError("cannot close")


class HangsInReset(Polite):
    def reset(self, seed, task):
        time.sleep(3600)


class HangsInStep(Polite):
    def step(self, action):
        print("about to wait for ever")
        time.sleep(3600)


class HangsInClose(Polite):
    def close(self):
        time.sleep(3600)


class WaitsInStep(Polite):
    async def step(self, action):
        await asyncio.sleep(3600)


class Segfaults(Polite):
    def step(self, action):
        ctypes.string_at(0)


class Vanishes(Polite):
    def step(self, action):
        print("last words", flush=True)
        os._exit(7)


class Prints(Polite):
    """Writes to the standard output in every way there is."""

    def step(self, action):
        print("\x00\xff garbage" * 1000)
        os.write(1, b"\xff\xff\xff\xff raw bytes\n")
        subprocess.run(["echo", "from a child"], check=True)
        return super().step(action)


class Huge(Polite):
    def step(self, action):
        return "x" * int(action), 0.0, False, False, {}


class LeavesProcess(Polite):
    """Starts a process of its own and forgets it."""

    def step(self, action):
        child = subprocess.Popen(["sleep", "3600"])
        return str(child.pid), 0.0, False, False, {}


class Returns(Polite):
    """Returns whatever it is told to."""

    def __init__(self, reset="ok", step=None):
        super().__init__()
        self.values = reset, step

    def reset(self, seed, task):
        return self.values[0]

    def step(self, action):
        value = self.values[1]
        return tuple(value) if isinstance(value, list) else value


class NanReward(Polite):
    def step(self, action):
        return "ok", float("nan"), False, False, {}


class Silent:
    """Only what the interface requires."""

    def reset(self, seed, task):
        return "hello"

    def step(self, action):
        return "bye", 1, True, False, {}

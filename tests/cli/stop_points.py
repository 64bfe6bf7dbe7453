"""A run of the real command line that stands still at a chosen point, so that a signal can meet it there.

The run's environment and advantage function say over a socket where they are, and go on when they are answered; so no
test has to guess how long anything takes. Outside of such a run, as in one that is resumed in the test's own process,
they just go on: the port may be another's by then.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

SAFETY_SECONDS = 60.0
"""When a test gives up on something that takes seconds, also on a busy machine."""

MARK = "ROLLART_STOP_POINTS"
"""Environment variable that all processes of a run inherit."""

MODULE = """\
import os
import socket

from rollart.types import derive_seed


def at(point):
    if "{mark}" not in os.environ:
        return
    try:
        with socket.create_connection(("127.0.0.1", {port})) as connection:
            connection.sendall(point.encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    except OSError:
        pass


class Env:
    def reset(self, seed, task):
        self.purpose = "evaluation" if seed == derive_seed(0, "eval", "room", task) else "rollout"
        return "look"

    def step(self, action):
        at(self.purpose)
        return "done", 1.0, True, False, {{"success": True}}

    @staticmethod
    def words():
        at("start")
        return ["look", "done"]


def advantages(group, config):
    # Imported here, because environments have processes of their own that must start fast.
    from rollart.data_plane.training import checkpoint
    from rollart.data_plane.training.advantages import group_relative

    write_tensors = checkpoint.write_tensors
    if write_tensors.__module__ != __name__:

        def slow_write(tensors, path):
            at("save")
            write_tensors(tensors, path)

        checkpoint.write_tensors = slow_write
    at("train")
    return group_relative(group, config)
"""

CONFIG = """\
run: {{name: {name}, iterations: 4, runtime: {runtime}, mode: sync}}
model: {{tiny: {{hidden: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, intermediate: 64, max_length: 64}}}}
domains: {{room: {{env: "stop_points_{name}:Env", max_turns: 2, max_context: 32, max_new_tokens: 1}}}}
rollout: {{groups_per_batch: 1, group_size: 2, max_environments: 4}}
training: {{algorithm: "stop_points_{name}:advantages", checkpoint: {{every: 2}}}}
evaluation: {{instances: 1, every: 1, random_policy: false}}
"""


class Run:
    """A run in the working folder that stops for a moment at each point, for as long as it is entered.

    Args:
        name: Of the run, unlike any other's.
        runtime: ``run.runtime``.
    """

    def __init__(self, name: str, runtime: str = "in_process") -> None:
        self.folder = Path("runs") / name
        self._name = name
        self._mark = f"{name}-{os.getpid()}"  # another test session may run the same test
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._points: queue.SimpleQueue[tuple[str, socket.socket]] = queue.SimpleQueue()
        module = MODULE.format(mark=MARK, port=self._server.getsockname()[1])
        Path(f"stop_points_{name}.py").write_text(module)
        Path("CONFIG.yaml").write_text(CONFIG.format(name=name, runtime=runtime))

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollart.cli.main", "train", "CONFIG.yaml"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: self._mark},
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens; closing alone would not
        self._server.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def reach(self, *points: str) -> socket.socket:
        """Let the run go on until it has been at all these points, in this order; it stands still at the last.

        Returns:
            What keeps it there; closing it lets it go on.
        """
        to_come = list(points)
        while True:
            point, connection = self._points.get(timeout=SAFETY_SECONDS)
            if point == to_come[0]:
                del to_come[0]
                if not to_come:
                    return connection
            connection.close()

    def go_on(self) -> None:
        """Let everything pass from now on but what is held."""
        threading.Thread(target=self._pass, daemon=True).start()

    def interrupt(self) -> None:
        """Ctrl-C: a terminal sends it to all processes in the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def line(self, text: str) -> str:
        """Wait for the next line on standard error with this text."""
        while text not in (line := self._lines.get(timeout=SAFETY_SECONDS)):
            assert line, f"standard error has ended without a line with {text!r}"
        return line

    def end(self) -> tuple[int, str]:
        """Wait for the end: exit code, and what was left on standard error."""
        code = self.process.wait(timeout=SAFETY_SECONDS)
        return code, "".join(iter(lambda: self._lines.get(timeout=SAFETY_SECONDS), ""))

    def remains(self) -> list[str]:
        """Processes and shared memory that have outlived the run."""
        left = [f"{path}" for path in Path("/dev/shm").glob(f"*{self._name}-{self.process.pid}*")]
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self._mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    left.append((path / "cmdline").read_text().replace("\0", " "))
            except OSError:  # it has just ended, or is another user's
                continue
        return left

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection.makefile() as text:
                point = text.read()
            self._points.put((point, connection))

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _pass(self) -> None:
        while True:
            self._points.get()[1].close()

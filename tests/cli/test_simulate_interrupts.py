"""Ctrl-C and SIGTERM while ``rollart simulate --jobs 2`` simulates: it ends at once and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_simulate import EXPERIMENT, RUN

SAFETY_SECONDS = 60.0
"""When the test gives up on something that takes seconds, also on a busy machine."""

ENDLESS = {
    "sync_plus: {run.mode: sync_plus}": "short: {}",
    "rollart: {run.mode: rollart}": "long: {run.iterations: 1000000}",
}


@pytest.mark.parametrize(
    ("signalled", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_process_outlives_the_command(signalled: signal.Signals, code: int, tmp_path: Path) -> None:
    """Every process has the command's output open, so its end is the end of them all."""
    text = EXPERIMENT.format(base="\n".join(f"  {line}" for line in RUN.splitlines()))
    text = text[: text.index("compare:")]
    for axis_point, endless in ENDLESS.items():
        text = text.replace(axis_point, endless)
    (tmp_path / "two.yaml").write_text(text)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "rollart.cli.main", "simulate", "two.yaml", "--jobs", "2"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    ) as process:
        assert process.stdout is not None
        title, first = process.stdout.readline(), process.stdout.readline()
        assert (title, first.split()[0]) == ("Two modes\n", "short")
        process.send_signal(signalled)
        _, error = process.communicate(timeout=SAFETY_SECONDS)
    assert process.returncode == code
    assert "Traceback" not in error
    assert signalled == signal.SIGKILL or not any(scratch.iterdir())

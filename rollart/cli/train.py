"""``rollart train``: runs a configuration with live progress; ends with the table, the checkpoint and the report."""

from __future__ import annotations

import argparse
import errno
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.cli.arguments import Commands, add_config, command_parser
from rollart.cli.errors import FAILED, INTERRUPTED, OK, UserError
from rollart.cli.inputs import load_checked
from rollart.cli.report import conclude
from rollart.cli.run_folder import EVENTS, existing_run_folder, new_run_folder, resumed_run_folder
from rollart.config.config import Config

if TYPE_CHECKING:
    from rollart.cli.progress import OptionalSink

ERROR_LOG = "error.log"

_DETAILS = """\
The run goes to run.dir/run.name: configuration, event log, checkpoints (Hugging Face model folders),
trajectories, summary.json and report.html. An earlier run of the same name moves to NAME.1, NAME.2, ...
Ctrl-C stops the run within seconds and leaves a usable checkpoint; a second Ctrl-C does not wait for it."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "train", "train the policy of a configuration", _DETAILS)
    add_config(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder at its checkpoint")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Train, and conclude with summary and report, also after a failure or an interruption."""
    config = load_checked(parsed)
    if parsed.resume is not None:
        _refuse_unless_resumable(parsed.resume, config)
        with resumed_run_folder(parsed.resume, config) as folder:
            return _run_in(folder, config, resume=True)
    with new_run_folder(config) as (folder, moved):
        if moved is not None:
            print(f"the earlier run is kept as {moved}")
        return _run_in(folder, config, resume=False)


def _refuse_unless_resumable(folder: Path, config: Config) -> None:
    """Before anything is started or written."""
    from rollart.control_plane.checkpoints import CheckpointError, resumable

    existing_run_folder(folder)
    try:
        state = resumable(folder, config)
    except (FileNotFoundError, CheckpointError) as error:
        raise UserError(f"--resume {folder}: {error}") from error
    print(f"going on from {state.checkpoint}: {state.version} of {config.run.iterations} iterations are done")


def _run_in(folder: Path, config: Config, resume: bool) -> int:
    code = _train(folder, config, resume)
    if not any((folder / EVENTS).glob("*.jsonl")):
        return code
    try:
        concluded = conclude(folder)
    except UserError as error:
        # The run's own outcome comes first: a log without a start, or a full disk, cannot be summed up.
        print(f"rollart: no summary: {error}", file=sys.stderr)
        return code or FAILED
    except SystemExit:
        # The console's way to end where nobody reads standard output any more; the files are written by then.
        return code
    return code or concluded


def _train(folder: Path, config: Config, resume: bool) -> int:
    """Run to the end and return the exit code; a failure is one line, its traceback goes to ``error.log``."""
    from rollart.cli.launch import launch
    from rollart.cli.progress import live_display
    from rollart.events import Tee

    try:
        with ExitStack() as stack:
            scalars = [stack.enter_context(closing(sink)) for sink in _scalar_sinks(folder, config)]
            display = stack.enter_context(live_display(config.run.max_train_seconds))
            result = launch(config, folder, Tee(display, *scalars), resume)
    except KeyboardInterrupt:
        print(f"rollart: interrupted at once; {_how_to_go_on(folder)}", file=sys.stderr)
        return INTERRUPTED
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the run's boundary: whatever ended it becomes one line and a code
        return _failed(folder, error)
    if result.interrupted:
        print(f"rollart: interrupted; {_how_to_go_on(folder)}", file=sys.stderr)
        return INTERRUPTED
    return OK


def _how_to_go_on(folder: Path) -> str:
    """Whether a run that ended early can be resumed, and how."""
    from rollart.control_plane.checkpoints import newest

    try:
        checkpoint = newest(folder)
    except FileNotFoundError:
        return "it has no checkpoint yet, so start it anew"
    return f"its newest checkpoint is {checkpoint}; to go on: rollart train CONFIG.yaml --resume {folder}"


def _failed(folder: Path, error: Exception) -> int:
    what = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what += ": free some space"
    where = ""
    try:
        (folder / ERROR_LOG).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        where = f" (details: {folder / ERROR_LOG})"
    except OSError as unwritable:
        where = f" (no details: {folder / ERROR_LOG} cannot be written: {unwritable.strerror})"
    print(f"rollart: the run failed: {what}{where}; {_how_to_go_on(folder)}", file=sys.stderr)
    return FAILED


def _scalar_sinks(folder: Path, config: Config) -> Iterator[OptionalSink]:
    """The sinks that section ``log`` asks for, each made when it is taken.

    Raises:
        MissingPackage, OSError: one cannot be made; the run has not started yet.
    """
    from rollart.cli.progress import OptionalSink
    from rollart.observability.scalar_sinks import TensorBoardSink, WandbSink

    if config.log.tensorboard:
        board = TensorBoardSink(folder / "tensorboard")
        yield OptionalSink("log.tensorboard", board, board.close)
    if config.log.wandb is not None:
        wandb = WandbSink(config.log.wandb, folder.name, folder, config.model_dump(mode="json"))
        yield OptionalSink("log.wandb", wandb, wandb.close)

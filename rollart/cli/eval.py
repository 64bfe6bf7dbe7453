"""``rollart eval``: held-out results of a model or checkpoint on the domains of a configuration."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.cli.arguments import Commands, add_config, command_parser
from rollart.cli.errors import FAILED, OK, RunFailed, UserError
from rollart.cli.inputs import load_checked
from rollart.config.config import Config
from rollart.events import Evaluated, MemorySink, Tee

if TYPE_CHECKING:
    from rich.table import Table

_DETAILS = """\
Plays evaluation.instances held-out instances of every domain (the same ones as in training with the same
run.seed) and prints success and reward beside a random policy's. DIR is a Hugging Face model folder, e.g.
runs/quickstart/checkpoints/step_000100, or a run folder, of which the newest checkpoint is taken."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "eval", "evaluate a model on held-out instances", _DETAILS)
    add_config(parser)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="model folder or run folder")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Evaluate and print the table; 1 if any instance of the model's failed for good.

    The random policy is there to compare with: environments need not offer one.
    """
    checkpoint = model_folder(parsed.checkpoint)
    parsed.overrides = [*parsed.overrides, f"model.path={json.dumps(str(checkpoint.resolve()))}"]
    config = load_checked(parsed)
    if config.evaluation.instances == 0:
        raise UserError(f"{parsed.config}: evaluation.instances is 0: add evaluation.instances=200")
    results = _evaluate(config, _version(checkpoint))
    from rich.console import Console

    Console(highlight=False).print(_table(checkpoint, results))
    return FAILED if any(result.failed for result in results if result.policy != "random") else OK


def model_folder(path: Path) -> Path:
    """The model folder that ``--checkpoint`` means.

    Raises:
        UserError: there is no model.
    """
    if (path / "config.json").is_file():
        return path
    checkpoints = sorted((path / "checkpoints").glob("step_*/config.json"))
    if checkpoints:
        return checkpoints[-1].parent
    raise UserError(f"--checkpoint {path}: no model there: give a Hugging Face model folder, or a run with checkpoints")


def _version(checkpoint: Path) -> int:
    found = re.fullmatch(r"step_(\d+)", checkpoint.name)
    return int(found[1]) if found else 0


def _evaluate(config: Config, version: int) -> list[Evaluated]:
    from rollart.cli.launch import evaluate
    from rollart.cli.progress import live_display

    memory = MemorySink()
    try:
        with live_display() as display:
            evaluate(config, version, Tee(display, memory))
    except Exception as error:
        raise RunFailed(f"the evaluation failed: {error or type(error).__name__}") from error
    return [event for event in memory.events if isinstance(event, Evaluated)]


def _table(checkpoint: Path, results: Iterable[Evaluated]) -> Table:
    """One row for each domain and policy, in the order of play."""
    from rich.table import Table

    table = Table(title=f"held-out results of {checkpoint}", title_justify="left")
    for title in ("domain", "policy", "success", "reward", "instances", "failed"):
        table.add_column(title, justify="left" if title in ("domain", "policy") else "right")
    for result in results:
        numbers = ["-" if value is None else f"{value:.3f}" for value in (result.success, result.reward)]
        table.add_row(result.domain, result.policy, *numbers, str(result.instances), str(result.failed))
    return table

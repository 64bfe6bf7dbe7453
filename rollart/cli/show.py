"""``rollart show``: the trajectories that a run kept, as the policy saw and wrote them."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path

from rollart.cli.arguments import Commands, command_parser
from rollart.cli.errors import OK, UserError

_DETAILS = """\
Without TRAJECTORY it lists the kept ones (log.trajectories of each batch). With an id as the list shows it,
it prints every turn decoded from the token ids that were trained: '|' marks observations, which the loss
masks, '>' marks generated text, with the version of the weights that produced it."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "show", "show the trajectories of a run", _DETAILS)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, e.g. runs/quickstart")
    parser.add_argument("trajectory", nargs="?", metavar="TRAJECTORY", help="domain/task/group/member/attempt")
    parser.add_argument("--batch", type=int, help="list only this batch")
    parser.add_argument("--domain", help="list only this domain")
    parser.add_argument("--texts", action="store_true", help="texts of the environment instead of decoded tokens")
    parser.add_argument("--tokens", action="store_true", help="one line a token: id, mask, version, log-probability")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """List the kept trajectories, or print one."""
    from msgspec import DecodeError

    if not parsed.run.is_dir():
        raise UserError(f"{parsed.run}: no such run folder: give runs/NAME")
    try:
        lines = _list(parsed) if parsed.trajectory is None else _show(parsed)
        for line in lines:
            print(line)
    except FileNotFoundError as error:
        raise UserError(str(error)) from error
    except DecodeError as error:
        raise UserError(f"{parsed.run}: a trajectory file is damaged: {error}") from error
    return OK


def _list(parsed: argparse.Namespace) -> Iterator[str]:
    from rollart.observability.trajectory_log import read_all

    yield f"{'batch':>6}  {'reward':>8}  {'success':>7}  {'turns':>5}  {'tokens':>6}  {'version':>7}  trajectory"
    shown = 0
    for batch, trajectory in read_all(parsed.run):
        if parsed.batch not in (None, batch) or parsed.domain not in (None, trajectory.id.domain):
            continue
        shown += 1
        score = trajectory.score
        reward = "-" if score is None else f"{score.value:.3f}"
        version = "-" if trajectory.start_version is None else str(trajectory.start_version)
        yield (
            f"{batch:>6}  {reward:>8}  {_verdict(score.success if score else None):>7}  "
            f"{sum(1 for _ in trajectory.turns()):>5}  {trajectory.total_tokens:>6}  {version:>7}  {trajectory.id}"
        )
    if not shown:
        raise UserError(f"{parsed.run}: no kept trajectory matches --batch and --domain: list all without them")


def _show(parsed: argparse.Namespace) -> Iterator[str]:
    from rollart.observability.trajectory_log import find, read_all
    from rollart.observability.transcript import Decoder, token_lines, transcript
    from rollart.types import TrajectoryId

    try:
        batch, trajectory = find(parsed.run, TrajectoryId.parse(parsed.trajectory))
    except (KeyError, ValueError):
        ids = [str(kept.id) for _, kept in read_all(parsed.run)]
        near = difflib.get_close_matches(parsed.trajectory, ids, n=1, cutoff=0.0)
        raise UserError(
            f"{parsed.run} keeps no trajectory '{parsed.trajectory}': did you mean '{near[0]}'? "
            f"(rollart show {parsed.run} lists all {len(ids)})"
        ) from None
    decoder = Decoder.of_run(parsed.run)
    yield from transcript(batch, trajectory, decoder, parsed.texts)
    if parsed.tokens:
        yield from token_lines(trajectory, decoder)


def _verdict(success: bool | None) -> str:
    return "-" if success is None else "yes" if success else "no"

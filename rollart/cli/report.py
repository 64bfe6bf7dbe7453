"""``rollart report``: the summary and the HTML report of a run, rebuilt from its event log at any time."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from rollart.cli.arguments import Commands, command_parser
from rollart.cli.errors import FAILED, OK, UserError
from rollart.cli.run_folder import existing_run_folder

_DETAILS = """\
Prints the table of held-out success and writes RUN/summary.json and RUN/report.html (one self-contained
file). Works while the run is still going."""


def add_parser(commands: Commands) -> None:
    parser = command_parser(commands, "report", "build the report of a run", _DETAILS)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, e.g. runs/quickstart")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Rebuild the files and print where they are."""
    return conclude(existing_run_folder(parsed.run))


def conclude(folder: Path) -> int:
    """Write summary and report of a run, print the table and the paths; 1 if the books do not balance.

    Raises:
        UserError: the event log cannot be read or the files cannot be written.
    """
    from rich.console import Console

    from rollart.control_plane.checkpoints import newest
    from rollart.observability.report import write_report
    from rollart.observability.summary import AccountingError, write_summary
    from rollart.observability.table import result_table

    console = Console(highlight=False)
    try:
        summary = write_summary(folder)
        report = write_report(folder, summary)
    except AccountingError as error:
        console.print(f"{folder}: the event log breaks the accounting of trajectories: {error}", soft_wrap=True)
        return FAILED
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: {error}") from error
    if any(
        domain.success_before is not None or domain.success_random is not None for domain in summary.domains.values()
    ):
        console.print(result_table(summary))
    else:
        why = "evaluation.instances is 0, or the run ended before the first pass"
        console.print(f"no held-out results: {why}", soft_wrap=True)
    with contextlib.suppress(FileNotFoundError):
        console.print(f"checkpoint  {newest(folder)}", soft_wrap=True)
    console.print(f"summary     {folder / 'summary.json'}", soft_wrap=True)
    console.print(f"report      {report}", soft_wrap=True)
    return OK

"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollart.cli.errors import EXIT_CODES_HELP

Commands = Any
"""What ``ArgumentParser.add_subparsers`` returns; argparse keeps its type private."""


def command_parser(commands: Commands, name: str, summary: str, details: str = "") -> argparse.ArgumentParser:
    """A command's parser with the help text's common form."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{details}".rstrip(),
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_config(parser: argparse.ArgumentParser) -> None:
    """``CONFIG.yaml [section.key=value ...]``."""
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="configuration file (docs/configuration.md)")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="replace single values, e.g. rollout.group_size=4"
    )

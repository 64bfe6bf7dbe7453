"""Entry point of ``rollart``: picks the command, turns errors into one line on stderr and an exit code.

Bad input never shows a traceback. An error that no command expects is a defect and keeps its traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rollart.cli import check_env, eval, plan, report, show, simulate, train
from rollart.cli.errors import BAD_INPUT, EXIT_CODES_HELP, FAILED, INTERRUPTED, OK, RunFailed, UserError
from rollart.config.errors import ConfigError

_DESCRIPTION = """\
Train one LLM policy on several agentic tasks at once by reinforcement learning.

  rollart plan CONFIG.yaml        what would run, without running it
  rollart train CONFIG.yaml       train, with live progress; the run goes to runs/NAME
  rollart simulate EXPERIMENT     the same control plane in virtual time on modelled hardware
  rollart report runs/NAME        the report of a run as one HTML file
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each parsed result has ``command``, a function that runs it."""
    parser = argparse.ArgumentParser(
        prog="rollart",
        description=_DESCRIPTION,
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (train, eval, plan, simulate, check_env, show, report):
        module.add_parser(commands)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line; overrides may stand before, between and after the options.

    Raises:
        SystemExit: the command line is wrong; usage and reason went to stderr.
    """
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if len(overrides) < len(rest) or (rest and not hasattr(parsed, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides += overrides
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    parsed = parse(arguments)
    try:
        code: int = parsed.command(parsed)
        sys.stdout.flush()
    except ConfigError as error:
        return _bad_input(*error.problems)
    except UserError as error:
        return _bad_input(str(error))
    except RunFailed as error:
        print(f"rollart: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("rollart: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (`rollart show ... | head`) has seen enough; nothing is left to flush to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


def _bad_input(*lines: str) -> int:
    for line in lines:
        print(f"rollart: {line}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())

"""Exit codes of the command line, and the error that a command raises for bad input.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | the run started and failed |
| 2 | bad input: nothing was started |
| 130 | interrupted by Ctrl-C; the newest checkpoint is usable |
"""

from __future__ import annotations

OK = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

EXIT_CODES_HELP = "exit codes: 0 done, 1 the run failed, 2 bad input (nothing was started), 130 interrupted"


class UserError(Exception):
    """Bad input, in one line: what, where, what to do. Ends the command with code 2."""


class RunFailed(Exception):
    """Something that was started failed, in one line. Ends the command with code 1."""

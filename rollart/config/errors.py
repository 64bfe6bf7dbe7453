"""How bad configuration is reported: every problem at once, each in one line of what, where and what to do.

Raised by the loader and the checks; the command line prints the lines and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """The configuration cannot be run.

    Attributes:
        problems: One line each, ``where: key: what, what to do``.
    """

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

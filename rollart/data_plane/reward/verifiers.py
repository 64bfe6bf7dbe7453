"""Verifiers: does a response give the expected answer?

A verifier is a function ``(response, expected) -> bool | float`` (a number is partial credit, 1 is success).
It never raises for what a model wrote. Environments name one in the configuration: ``exact``, ``numeric``,
``choice``, ``contains``, or ``module:function``.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from decimal import Decimal

from rollart.registry import Registry

Verifier = Callable[[str, str], bool | float]

VERIFIERS: Registry[Verifier] = Registry(
    "verifier", {name: f"{__name__}:{name}" for name in ("exact", "numeric", "choice", "contains")}
)

_LONGEST = 20_000
"""Characters at the end of a response that are searched for an answer."""

RELATIVE_TOLERANCE = Decimal("1e-6")

_CONTEXT = decimal.Context(prec=50, traps=[])

_NUMBER = re.compile(
    r"""(?<![\w.])            # not inside a word or another number
    [-+−]?\s?[$€£]?\s?        # sign and currency
    (?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?   # with or without thousands separators
    (?:\.\d+)?                # decimals
    (?:[eE][-+]?\d{1,6})?     # exponent
    (?:\s?/\s?\d+(?:\.\d+)?)? # a fraction's denominator""",
    re.VERBOSE,
)
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_MARKED = re.compile(r"####\s*([^\n]*)")
_STATED = re.compile(r"answer\s*(?:is|=|:)\s*:?\s*([^\n]*)", re.IGNORECASE)
_CHOICE = re.compile(r"(?<![\w'])\(?([A-Ha-h])\)?(?![\w'])")
_CAPITAL = re.compile(r"\(([A-Ha-h])\)|(?<![\w'])([A-H])(?![\w'])")


def exact(response: str, expected: str) -> bool:
    """Equal up to case and white space; a marked final answer counts instead of the whole response."""
    return _folded(expected) in (_folded(response), _folded(final_answer(response) or ""))


def contains(response: str, expected: str) -> bool:
    """The expected text appears in the response as a whole word or phrase, up to case and white space."""
    wanted = re.escape(_folded(expected))
    return bool(wanted) and re.search(rf"(?<!\w){wanted}(?!\w)", _folded(response)) is not None


def numeric(response: str, expected: str) -> bool:
    """The numbers are equal within a relative tolerance of 1e-6.

    The response's number is that of its final answer (see :func:`final_answer`), else its last number; units and
    percent signs are ignored. The expected text may be a worked solution that ends with ``#### 42``.
    """
    wanted = extract_number(expected)
    found = extract_number(response)
    if wanted is None or found is None:
        return False
    allowed = _CONTEXT.multiply(RELATIVE_TOLERANCE, _CONTEXT.abs(wanted))
    return bool(_CONTEXT.abs(_CONTEXT.subtract(found, wanted)) <= allowed)


def choice(response: str, expected: str) -> bool:
    """The letter, A to H, of a multiple-choice answer: the first of the final answer (see :func:`final_answer`),
    else the last in the response that is a capital or in parentheses.
    """
    wanted = expected.strip(" ().").upper()
    marked = _CHOICE.search(final_answer(response) or "")
    if marked is not None:
        return marked.group(1).upper() == wanted
    letters = _CAPITAL.findall(response[-_LONGEST:])
    return bool(letters) and "".join(letters[-1]).upper() == wanted


def final_answer(response: str) -> str | None:
    r"""What a response marks as its answer: the last ``\boxed{...}``, else the text after the last ``####``,
    else after the last "answer is" or "answer:"; ``None`` if it marks nothing.
    """
    text = response[-_LONGEST:]
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    for pattern in (_MARKED, _STATED):
        marked = pattern.findall(text)
        if marked:
            return str(marked[-1]).strip()
    return None


def extract_number(text: str) -> Decimal | None:
    """The number of the final answer, else the last number in the text."""
    answer = final_answer(text)
    if answer is not None and (number := _last_number(answer)) is not None:
        return number
    return _last_number(text[-_LONGEST:])


def _last_number(text: str) -> Decimal | None:
    found = None
    for match in _NUMBER.finditer(_FRACTION.sub(r"\1/\2", text)):
        piece = match.group()
        if any(character.isdigit() for character in piece):
            found = piece
    return None if found is None else _decimal(found)


def _decimal(piece: str) -> Decimal | None:
    """A matched number as a decimal: never raises, and never builds a huge integer."""
    top, _, bottom = re.sub(r"[\s,$€£+]", "", piece.replace("−", "-")).partition("/")
    value = _CONTEXT.create_decimal(top)
    if bottom:
        value = _CONTEXT.divide(value, _CONTEXT.create_decimal(bottom))
    return value if value.is_finite() else None


def _last_boxed(text: str) -> str | None:
    """What stands in the last box whose brace is closed, in one pass."""
    found = None
    open_braces: list[tuple[bool, int]] = []
    for match in _BRACE.finditer(text):
        if match.group() != "}":
            open_braces.append((match.group() != "{", match.end()))
        elif open_braces:
            boxed, start = open_braces.pop()
            found = text[start : match.start()] if boxed else found
    return found


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()

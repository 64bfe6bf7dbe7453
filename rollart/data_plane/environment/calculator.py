"""A calculator for text that a model wrote: arithmetic only, bounded in time and memory.

The expression is parsed to a syntax tree and only numbers, the operators below, parentheses and a few named
functions are evaluated; nothing of Python is reachable. Values are exact (integers and fractions) and may
not grow beyond a fixed number of digits.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

MAX_LENGTH = 200
"""Characters of an expression."""

MAX_BITS = 512
"""Bits of a numerator or denominator."""

_DECIMALS = 10

# What may reach Python's parser at all; possessive, so that no text makes the match slow.
_LEXICON = re.compile(r"(?:[\d.]++(?:[eE][-+]?\d++)?|abs|max|min|[-+*/%(),\s])++", re.ASCII)

_NO_EXPRESSION = "this is not an arithmetic expression"

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {"max": max, "min": min, "abs": abs}


class CalculatorError(ValueError):
    """The expression cannot be evaluated; the message is what the calculator shows."""


@lru_cache(maxsize=4096)
def evaluate(expression: str) -> Fraction:
    """The value of an arithmetic expression.

    Raises:
        CalculatorError: it is none, divides by zero, or is too long or too large.
    """
    text = expression.strip().replace("×", "*").replace("÷", "/").replace("−", "-").replace("^", "**")
    if len(text) > MAX_LENGTH:
        raise CalculatorError(f"the expression is longer than {MAX_LENGTH} characters")
    if not _LEXICON.fullmatch(text):
        raise CalculatorError(_NO_EXPRESSION)
    try:
        return _value(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, CalculatorError):
            raise
        raise CalculatorError(_NO_EXPRESSION) from None


def shown(value: Fraction) -> str:
    """A value as a calculator shows it: an integer, or a decimal of at most ten places."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**_DECIMALS)
    whole, rest = divmod(abs(scaled), 10**_DECIMALS)
    decimals = f"{rest:0{_DECIMALS}d}".rstrip("0")
    return f"{'-' if scaled < 0 else ''}{whole}" + (f".{decimals}" if decimals else "")


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(Fraction(str(number)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_value(argument) for argument in args])
    raise CalculatorError(_NO_EXPRESSION)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CalculatorError("only whole exponents")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent) > MAX_BITS:
        raise CalculatorError("the number is too large")
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("the number is too large")
    return value

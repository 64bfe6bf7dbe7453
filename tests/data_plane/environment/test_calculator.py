import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollart.data_plane.environment.calculator import CalculatorError, evaluate, shown


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", "7"),
        ("-(4 - 10) / 4", "1.5"),
        ("1/3", "0.3333333333"),
        ("-1/3", "-0.3333333333"),
        ("2/3", "0.6666666667"),
        ("2 ^ 10", "1024"),
        ("10 ** -3", "0.001"),
        ("7 // 2 + 7 % 2", "4"),
        ("0.1 + 0.2", "0.3"),
        ("3 × 4 ÷ 2 − 1", "5"),
        ("max(1, 2, 3) - min(4, 5)", "-1"),
        ("abs(-3)", "3"),
        ("1e3", "1000"),
        ("0", "0"),
        ("-0.00000000001", "0"),
    ],
)
def test_arithmetic(expression, result):
    assert shown(evaluate(expression)) == result


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("9" * 199, "too large"),
        ("1e199", "too large"),
        ("1" * 201, "longer than"),
        ("2 ** 0.5", "whole exponents"),
        ("", "not an"),
        ("1 +", "not an"),
        ("1, 2", "not an"),
        ("()", "not an"),
        ("max()", "not an"),
        ("__import__('os')", "not an"),
        ("(1).real", "not an"),
        ("True", "not an"),
        ("1 if 1 else 2", "not an"),
        ("1e99999", "not an"),
        ("max", "not an"),
        ("[1]", "not an"),
        ("1 < 2", "not an"),
        ("(" * 150, "not an"),
        ("1_0", "not an"),
        ("max(*[1])", "not an"),
    ],
)
def test_refusals(expression, message):
    with pytest.raises(CalculatorError, match=message):
        evaluate(expression)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=60), st.text(alphabet="0123456789.+-*/%() e,maxbin", max_size=60)))
@example("1" * 150 + "x")
def test_any_text_gives_a_value_or_a_refusal(text):
    with contextlib.suppress(CalculatorError):
        shown(evaluate(text))

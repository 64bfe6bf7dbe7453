import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.data_plane.reward.verifiers import (
    VERIFIERS,
    choice,
    contains,
    exact,
    extract_number,
    final_answer,
    numeric,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", 18),
        ("The answer is 1,234.50.", "1234.50"),
        (r"so \boxed{\frac{3}{4}}", "0.75"),
        (r"\boxed{3/4} or 5", "0.75"),
        ("it is $5 and 20%", 20),
        ("−7", -7),
        ("x=-3", -3),
        ("1e5", 100000),
        ("costs $ 1,000,000 in all", 1000000),
        ("5.", 5),
        ("answer: 42 apples, not 43", 43),
        ("first 3, then 4", 4),
        (r"\boxed{1} no, \boxed{2}", 2),
        (r"\boxed{2} and \boxed{", 2),
        ("12, 3/0", None),
        ("none", None),
        ("", None),
        ("v1.2.3", None),
        (r"\boxed{x}, I mean 3", 3),
        ("3 #### 4\n5", 4),
    ],
)
def test_the_number_of_a_text(text, number):
    expected = None if number is None else Decimal(number)
    assert extract_number(text) == expected


def test_numeric():
    worked = "Each has 3 * 4 = <<3*4=12>>12.\n#### 12"
    assert numeric("12", worked)
    assert numeric(r"Thus \boxed{12.0}", worked)
    assert numeric("The answer is 12 dollars", worked)
    assert not numeric("12 or rather 13", worked)
    assert not numeric("", worked)
    assert not numeric("3", "none")
    assert numeric("0.333333333", "1/3")
    assert not numeric("0.3333", "1/3")
    assert not numeric("1e999999", "1")
    assert numeric("0", "0")


def test_exact():
    assert exact("  New   York\n", "new york")
    assert exact(r"I think \boxed{New York}", "New York")
    assert exact("The answer is: Paris", "paris")
    assert not exact("Paris, I think", "Paris")
    assert exact("", "")


def test_contains():
    assert contains("It is New\nYork, of course", "new york")
    assert not contains("Yorkshire", "york")
    assert not contains("anything", "")
    assert contains("a+b (c)", "(c)")


def test_choice():
    assert choice("Therefore (B).", "B")
    assert choice("The answer is c because A is wrong", "(C)")
    assert choice("either (a) or (b)", "B")
    assert not choice("a dog", "A")
    assert choice(r"A? B? \boxed{C}", "c")
    assert not choice("It's hard", "S")
    assert not choice("", "A")


def test_final_answer():
    assert final_answer("nothing marked") is None
    assert final_answer(r"\boxed{a \text{b}}") == r"a \text{b}"
    assert final_answer("#### 1\n#### 2") == "2"


@pytest.mark.parametrize("name", list(VERIFIERS))
@settings(max_examples=30, deadline=None)
@given(response=st.text(max_size=60), expected=st.text(max_size=20))
def test_verifiers_never_raise(name, response, expected):
    assert VERIFIERS.get(name)(response, expected) in (True, False)


@pytest.mark.parametrize("name", list(VERIFIERS))
@pytest.mark.parametrize("piece", ["1 ", r"\boxed{", "(1,111", "1", " ", "- ", "answer is ", "#### ", "{}", "a. "])
def test_long_texts_are_judged_quickly(name, piece):
    """No text makes a pattern slow: process time, not wall time."""
    began = time.process_time()
    VERIFIERS.get(name)(piece * 100_000, "3")
    assert time.process_time() - began < 1.0

"""Distributions: what is drawn, its mean, its upper end, and what is refused."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollart.config.base import Section
from rollart.config.draw import Draw, draw, mean_of, multiplied, sampler, upper_end

NUMBERS = st.floats(0.0, 1e6, allow_nan=False)


def distributions():
    pairs = st.tuples(NUMBERS, NUMBERS).map(sorted)
    plain = st.one_of(
        NUMBERS,
        pairs,
        st.builds(lambda m, s: {"median": m, "sigma": s}, NUMBERS, st.floats(0, 2)),
        st.builds(lambda m, s, x: {"median": m, "sigma": s, "max": x}, NUMBERS, st.floats(0, 2), NUMBERS),
        st.builds(lambda m, s: {"mean": m, "std": s}, NUMBERS, NUMBERS),
        st.builds(lambda m, s, p: {"mean": m, "std": s, "min": p[0], "max": p[1]}, NUMBERS, NUMBERS, pairs),
        st.lists(NUMBERS, min_size=1, max_size=9).map(lambda values: {"sample": values}),
    )
    return st.recursive(plain, lambda parts: st.lists(parts, min_size=1, max_size=4).map(lambda v: {"values": v}))


@given(distributions(), st.integers(0, 2**32))
def test_draws_are_bounded_and_repeat(distribution, seed):
    compiled = sampler(distribution)
    source, again = random.Random(seed), random.Random(seed)
    values = [compiled(source) for _ in range(20)]
    assert values == [draw(distribution, again) for _ in range(20)]
    # Six deviations are exceeded once in a billion draws.
    assert all(0 <= value <= upper_end(distribution) * (1 + 1e-9) for value in values)
    assert 0 <= mean_of(distribution) <= upper_end(distribution) * (1 + 1e-9)


@pytest.mark.parametrize(
    "distribution",
    [
        3.5,
        [2, 9],
        {"median": 4.0, "sigma": 0.8},
        {"median": 4.0, "sigma": 1.2, "max": 6.0},
        {"mean": 10, "std": 7, "min": 0},
        {"mean": 10, "std": 10},
        {"mean": 10, "std": 5, "min": 8, "max": 11},
        {"values": [1, [10, 20], {"median": 3, "sigma": 0.5}], "weights": [1, 0, 3]},
        {"sample": [1, 1, 2, 50]},
    ],
)
def test_the_mean_is_that_of_the_draws(distribution):
    source, compiled = random.Random(11), sampler(distribution)
    values = [compiled(source) for _ in range(60_000)]
    error = statistics.pstdev(values) / math.sqrt(len(values))
    assert mean_of(distribution) == pytest.approx(statistics.fmean(values), abs=4.5 * error + 1e-12)


def test_cut_values_are_set_to_the_bound():
    source = random.Random(0)
    assert {draw({"mean": 5, "std": 0, "min": 6}, source), draw({"median": 5, "sigma": 0, "max": 4}, source)} == {6, 4}
    assert min(draw({"mean": 1, "std": 5}, source) for _ in range(100)) == 0


def test_a_mixture_draws_by_weight():
    source = random.Random(5)
    compiled = sampler({"values": [1, 2, 3], "weights": [6, 0, 2]})
    values = [compiled(source) for _ in range(8_000)]
    assert 5_800 < values.count(1) < 6_200
    assert values.count(2) == 0
    assert {draw({"values": [7, 8], "weights": [0, 1]}, source) for _ in range(50)} == {8}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, "0 or more"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (True, "not a number"),
        ("fast", "not a number"),
        (None, "not a number"),
        ([], r"\[low, high\]"),
        ([1, 2, 3], r"\[low, high\]"),
        ([3, 1], r"write \[1, 3\]"),
        ([-1, 1], "0 or more"),
        ({}, "no distribution"),
        ({"median": 1}, "lacks 'sigma'"),
        ({"median": 1, "sigm": 1}, "did you mean 'sigma'"),
        ({"median": 1, "sigma": 1, "min": 0}, "leave it out"),
        ({"median": 1, "sigma": 40}, "10 or less"),
        ({"median": 1, "mean": 1}, "no distribution"),
        ({"mean": 1, "std": -1}, "'std' is -1"),
        ({"mean": 1, "std": 1, "min": 3, "max": 2}, "above its 'max'"),
        ({"mean": "x", "std": 1}, "'mean' is 'x'"),
        ({"values": []}, "one entry or more"),
        ({"values": 3}, "one entry or more"),
        ({"values": [1, -2]}, "0 or more"),
        ({"values": [1, 2], "weights": [1]}, "one for each"),
        ({"values": [1, 2], "weights": [0, 0]}, "no weight above 0"),
        ({"values": [1, 2], "weights": [1, -1]}, "0 or more"),
        ({"sample": []}, "one entry or more"),
        ({"sample": [1, math.nan]}, "finite"),
        ({"sample": "12"}, "one entry or more"),
    ],
)
def test_refused(value, says):
    with pytest.raises(ValueError, match=says):
        sampler(value)


class Latency(Section):
    seconds: Draw = {"median": 3.0, "sigma": 0.5}


def test_in_a_section():
    latency = Latency.model_validate({"seconds": {"values": [1, [2, 3]], "weights": [1, 2]}})
    assert Latency.model_validate_json(latency.model_dump_json()) == latency
    assert mean_of(Latency().seconds) == pytest.approx(3.0 * math.exp(0.125))
    with pytest.raises(ValidationError, match=r"seconds\n.*lacks 'std'"):
        Latency.model_validate({"seconds": {"mean": 3}})


@given(distributions(), st.integers(0, 2**32), st.floats(0.01, 100))
def test_a_multiple_draws_the_multiple_of_each_value(distribution, seed, factor):
    larger = multiplied(distribution, factor)
    source, again = random.Random(seed), random.Random(seed)
    for _ in range(5):
        assert draw(larger, source) == pytest.approx(factor * draw(distribution, again), rel=1e-9, abs=1e-9)
    assert mean_of(larger) == pytest.approx(factor * mean_of(distribution), rel=1e-6, abs=1e-9)

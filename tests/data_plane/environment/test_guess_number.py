import pytest

from rollart.data_plane.environment.guess_number import GuessNumber


def middle(observation: str) -> str:
    _, low, high = observation.split()
    return str((int(low) + int(high)) // 2)


def test_halving_always_finds_the_number_and_earns_full_credit():
    for seed in range(100):
        game = GuessNumber()
        observation, total, terminated = game.reset(seed, 0), 0.0, False
        while not terminated:
            observation, reward, terminated, _, info = game.step(middle(observation))
            total += reward
        assert info["success"]
        assert total == pytest.approx(1.8)


def test_answers_say_higher_or_lower_and_the_range_that_is_left():
    game = GuessNumber(numbers=100, span=64, guesses=8)
    word, low, high = game.reset(3, 0).split()
    assert (word, int(high) - int(low)) == ("start", 63)
    number = game._secret.number
    for guess in (int(low), int(high)):
        observation, reward, terminated, _, info = game.step(str(guess))
        if terminated:
            return
        assert observation.split()[0] == ("higher" if guess < number else "lower")
        assert reward == 0.0  # an end of the interval splits nothing
    assert observation == f"lower {int(low) + 1} {int(high) - 1}"
    assert info == {
        "success": False,
        "is_action_valid": True,
        "metrics": {"guesses": 2.0, "invalid": 0.0, "outside": 0.0},
    }


def test_wasted_guesses():
    game = GuessNumber()
    first = game.reset(0, 0)
    bad = first.replace("start", "bad")
    for answer, reward, valid in (("x", -0.2, False), ("", -0.2, False), ("99", -0.1, True)):
        observation, paid, terminated, _, info = game.step(answer)
        assert (observation, paid, terminated, info["is_action_valid"]) == (bad, reward, False, valid)
    observation, _, terminated, _, info = game.step("3 4")
    assert terminated
    assert not info["success"]


def test_the_text_style():
    game = GuessNumber(style="text", show_range=False)
    assert "Answer with one number." in game.reset(0, 0)
    assert game.step("I have no idea")[0] == "That is no number I can use."
    low = game._secret.low
    observation, _, _, _, info = game.step(f"First I thought of 55, but I say {low}.")
    assert info["metrics"]["outside"] == 0
    assert observation in ("My number is higher.", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"span": 1}, "at least 2"),
        ({"span": [8, 30]}, "at most"),
        ({"guesses": 0}, "guesses"),
        ({"style": "x"}, "style"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GuessNumber(**arguments)

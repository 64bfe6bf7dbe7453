"""The lake is gymnasium's, the partial credit is the documented one."""

import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, is_valid
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.data_plane.environment.frozen_lake import ACTIONS, FrozenLake


def grid(observation: str) -> list[list[str]]:
    return [line.split() for line in observation.splitlines()]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), moves=st.lists(st.sampled_from(ACTIONS), max_size=30), size=st.integers(3, 7))
def test_it_moves_as_gymnasium_does(seed, moves, size):
    lake = FrozenLake(size=size)
    cells = grid(lake.reset(seed, 0))
    rows = ["".join(row).replace("P", "S").replace(".", "F") for row in cells]
    assert is_valid([list(row) for row in rows], size)
    reference = FrozenLakeEnv(desc=rows, is_slippery=False)
    state, _ = reference.reset()
    best = None
    for move in moves:
        observation, reward, terminated, _, info = lake.step(move)
        after, goal, ended, _, _ = reference.step(ACTIONS.index(move))
        assert grid(observation)[after // size][after % size] == "P"
        assert terminated == ended
        assert info["success"] == (goal == 1)
        if after == state:
            assert reward == -0.05
        elif terminated and not info["success"]:
            assert reward == -0.2
        else:
            best = reward if best is None else best + reward
        state = after
        if terminated:
            break
    if state == size * size - 1:
        assert best == pytest.approx(1.5)  # the goal, and all of the progress


def test_a_slippery_lake_goes_astray_as_often_as_gymnasiums():
    """Two moves in three go aside; at the start, two of the three possible ways lie along the border or into it."""
    astray = 0
    for seed in range(300):
        lake = FrozenLake(slippery=True, holes=0.0, size=5)
        lake.reset(seed, 0)
        observation = lake.step("down")[0]
        astray += grid(observation)[1][0] != "P"
    assert 0.55 < astray / 300 < 0.78


def test_invalid_answers_cost_a_turn():
    lake = FrozenLake()
    first = lake.reset(1, 0)
    for answer in ("", "north", "left right", "l"):
        observation, reward, terminated, truncated, info = lake.step(answer)
        assert (observation, reward, terminated, truncated) == (first, -0.1, False, False)
        assert not info["is_action_valid"]
    assert info["metrics"] == {"steps": 4.0, "invalid": 4.0, "wall": 0.0}
    assert lake.step(" LEFT\n")[4]["is_action_valid"]


def test_the_local_view_surrounds_the_player():
    lake = FrozenLake(view="local", sight=2)
    cells = grid(lake.reset(5, 0))
    assert [len(row) for row in cells] == [5] * 5
    assert cells[2][2] == "P"
    assert all(cells[row][column] == "#" for row in range(5) for column in range(5) if row < 2 or column < 2)


def test_the_text_style_explains_and_reads_answers_of_many_words():
    lake = FrozenLake(style="text")
    assert "Answer with one word: left, down, right, up" in lake.reset(1, 0)
    assert lake.step("Not left, so I take **Right**.")[4]["is_action_valid"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 2}, "side of 3 or more"),
        ({"size": [5, 4]}, "smallest, largest"),
        ({"size": "big"}, "smallest, largest"),
        ({"holes": 1.0}, "below 1"),
        ({"view": "local", "sight": 0}, "1 cell or more"),
        ({"view": "x"}, "view is"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        FrozenLake(**arguments)


def test_both_views_show_the_same_lake():
    whole, local = FrozenLake(size=5), FrozenLake(size=5, view="local", sight=4)
    around = grid(local.reset(11, 0))
    assert [row[4:] for row in around[4:]] == grid(whole.reset(11, 0))
    for move in ("right", "down", "down", "right"):
        seen, _, terminated, _, _ = whole.step(move)
        around = grid(local.step(move)[0])
        row, column = next((r, c) for r, line in enumerate(grid(seen)) for c, cell in enumerate(line) if cell == "P")
        assert [line[4 - column : 9 - column] for line in around[4 - row : 9 - row]] == grid(seen)
        if terminated:
            break

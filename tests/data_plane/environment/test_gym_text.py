import pytest

from rollart.data_plane.environment.gym_text import GymText
from rollart.data_plane.environment.registry import default_isolation


def corridor(**settings):
    return GymText("text_gyms:Corridor", actions=["left", "right"], **settings)


def test_texts_map_to_actions():
    env = corridor(instruction="Say left or right.")
    first = env.reset(2**62, 0)
    assert first.startswith("Say left or right.\nstart ")
    assert first == corridor(instruction="Say left or right.").reset(2**62, 0)
    assert env.step("Not left: RIGHT!") == ("place 1", 0.0, False, False, {"success": False})
    env.step("right")
    assert env.step("right") == ("place 3", 1.0, True, False, {"success": True})
    env.close()
    assert env._env.closed


def test_an_answer_without_an_action_is_told_so():
    env = corridor()
    env.reset(0, 0)
    seen, reward, terminated, _, info = env.step("rightwards")
    assert seen.endswith("That is no action. Answer with one of: left, right.")
    assert (reward, terminated, info) == (-0.1, False, {"is_action_valid": False})
    assert env.step("right")[0] == "place 1"


def test_named_actions_and_arguments():
    env = GymText("text_gyms:Corridor", {"length": 1}, {"go back": 0, "go": 1})
    env.reset(0, 0)
    assert env.step("go back")[0] == "place -1"
    assert {env.random_action(seed) for seed in range(20)} == {"go", "go back"}


def test_whole_texts_and_observations_of_any_kind():
    env = GymText("text_gyms:Numbers")
    assert env.reset(0, 0) == "[1, 2]"
    assert env.step("abc") == ("3", 1.0, True, False, {})
    assert isinstance(env.random_action(1), str)
    assert env.random_action(1) == env.random_action(1)
    env.close()


def test_it_is_users_code():
    assert default_isolation("gym_text", {"target": "text_gyms:Corridor"}) == "process"
    with pytest.raises(LookupError, match="did you mean 'Corridor'"):
        GymText("text_gyms:Coridor")
    with pytest.raises(ValueError, match="actions is empty"):
        GymText("text_gyms:Corridor", actions=[])

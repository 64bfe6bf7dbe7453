"""What every built-in text environment keeps to: seeds, splits, odd answers, random policy, closed vocabulary."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.data_plane.environment.calls import checked_observation, checked_step
from rollart.data_plane.environment.registry import make_env
from rollart.types import Purpose, derive_seed

VARIANTS = {
    "lake": ("frozen_lake", {}),
    "lake_local": ("frozen_lake", {"view": "local", "size": [3, 6]}),
    "lake_slippery": ("frozen_lake", {"slippery": True}),
    "lake_text": ("frozen_lake", {"style": "text", "view": "local", "sight": 2}),
    "guess": ("guess_number", {}),
    "guess_hidden": ("guess_number", {"show_range": False, "numbers": 100, "span": 64, "guesses": 7}),
    "guess_text": ("guess_number", {"style": "text"}),
    "keypad": ("math_tool", {}),
    "keypad_large": ("math_tool", {"numbers": 20}),
    "dialogue": ("math_tool", {"style": "text"}),
}
CLOSED = [name for name, (_, args) in VARIANTS.items() if args.get("style") != "text"]

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def make(variant: str, purpose: Purpose = Purpose.TRAIN):
    name, args = VARIANTS[variant]
    return make_env(name, args, purpose, episode=1)


def play(env, seed: int, turns: int = 12):
    """All that a random policy sees."""
    seen = [checked_observation(env.reset(seed, 0))]
    for turn in range(turns):
        result = checked_step(env.step(env.random_action(derive_seed(seed, turn))))
        seen.append(result)
        if result[2] or result[3]:
            break
    return seen


@every_variant
def test_equal_seeds_give_equal_episodes(variant):
    for seed in range(5):
        assert play(make(variant), seed) == play(make(variant), seed)


@every_variant
def test_instances_differ_and_held_out_ones_are_never_trained(variant):
    def instances(purpose):
        found = set()
        for seed in range(60):
            env = make(variant, purpose)
            env.reset(derive_seed(seed, purpose), 0)
            task = getattr(env, "_task", env)
            found.add(str(next(getattr(task, key) for key in ("_lake", "_secret", "_problem") if hasattr(task, key))))
        return found

    train, held_out = instances(Purpose.TRAIN), instances(Purpose.EVAL)
    assert len(train) > 25
    assert len(held_out) > 25
    assert not train & held_out


ODD = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "9" * 5000,
            "left " * 5000,
            "calc:",
            "calc: " + "9**9" * 40,
            "answer:",
            "answer: nan",
            "٣",
            "1e400",
        ]
    ),
    st.sampled_from(["left", "3", "add", "add 3", "answer: 3", "calc: 1/0"]),
)


@every_variant
@settings(max_examples=25, deadline=None)
@given(actions=st.lists(ODD, min_size=1, max_size=6), seed=st.integers(0, 2**63 - 1))
def test_whatever_a_model_writes_is_a_normal_step(variant, actions, seed):
    env = make(variant)
    env.reset(seed, 0)
    for action in actions:
        _, reward, terminated, truncated, info = checked_step(env.step(action))
        assert -1.0 <= reward <= 2.0
        assert isinstance(info["success"], bool)
        assert isinstance(info["is_action_valid"], bool)
        if terminated or truncated:
            break


@pytest.mark.parametrize("variant", CLOSED)
def test_the_declared_words_are_all_that_is_said(variant):
    _, args = VARIANTS[variant]
    env = make(variant)
    words = set(type(env).words(**args))
    for seed in range(40):
        env = make(variant)
        first, *results = play(env, seed)
        said = " ".join([first, *(result[0] for result in results), env.random_action(seed)])
        assert set(said.split()) <= words


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in CLOSED])
def test_text_styles_have_no_closed_vocabulary(variant):
    _, args = VARIANTS[variant]
    with pytest.raises(LookupError, match="use style 'words'"):
        type(make(variant)).words(**args)


@pytest.mark.parametrize(
    ("variant", "turns", "low", "high"),
    [("lake_local", 10, 0.0, 0.1), ("guess", 4, 0.1, 0.3), ("keypad", 3, 0.02, 0.2)],
)
def test_no_quickstart_domain_is_trivial_for_a_random_policy(variant, turns, low, high):
    episodes = [play(make(variant, Purpose.EVAL), seed, turns) for seed in range(150)]
    success = sum(episode[-1][4]["success"] for episode in episodes) / len(episodes)
    assert low <= success <= high


@every_variant
def test_observations_and_results_are_plain_data(variant):
    json.dumps(play(make(variant), 0))

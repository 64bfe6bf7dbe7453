import pytest

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.registry import DESCRIPTIONS, ENVIRONMENTS, check_domain, default_isolation


def refused(env: str, **args) -> str:
    with pytest.raises(ValueError) as caught:
        check_domain(DomainConfig(env=env, args=args))
    return str(caught.value)


def test_every_built_in_environment_is_described_and_can_be_found():
    assert set(ENVIRONMENTS) == set(DESCRIPTIONS)
    for name in ENVIRONMENTS:
        assert callable(ENVIRONMENTS.get(name))


@pytest.mark.parametrize("name", ["frozen_lake", "guess_number", "math_tool", "emulated"])
def test_defaults_are_accepted(name):
    check_domain(DomainConfig(env=name))


def test_users_environments_are_found_and_not_made():
    check_domain(DomainConfig(env="odd_envs:Polite", args={"goal": 2}))
    check_domain(DomainConfig(env="odd_envs:RaisesInConstructor"))
    check_domain(DomainConfig(env="gym_text", args={"target": "text_gyms:Corridor"}))


@pytest.mark.parametrize(
    ("env", "args", "message"),
    [
        ("frozen_lak", {}, "did you mean 'frozen_lake'?"),
        ("no_such_module:Env", {}, "no module named 'no_such_module'"),
        ("odd_envs:Polit", {}, "did you mean 'Polite'?"),
        ("odd_envs:created", {}, "is not a class or function"),
        ("broken_env:Env", {}, "cannot be imported: ValueError: broken on import"),
        ("frozen_lake", {"sise": 5}, "has no argument 'sise': did you mean 'size'?"),
        ("frozen_lake", {"size": 1}, "side of 3 or more"),
        ("odd_envs:Polite", {"xyz": 5}, "has no argument 'xyz': valid arguments: split, episode, goal"),
        ("gym_text", {}, "needs the argument 'target': add it under 'args'"),
        ("prompt_answer", {"path": "/nowhere/data.jsonl"}, "/nowhere/data.jsonl"),
        ("frozen_lake", {"size": "big"}, "environment 'frozen_lake': size is 'big'"),
    ],
)
def test_refusals_say_what_to_do(env, args, message):
    assert message in refused(env, **args)


def test_isolation_by_default():
    assert default_isolation("frozen_lake", {}) == "inline"
    assert default_isolation("odd_envs:Polite", {}) == "process"
    assert default_isolation("rollart.data_plane.environment.frozen_lake:FrozenLake", {}) == "inline"

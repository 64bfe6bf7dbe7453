"""The section ``simulation``: built-in workloads, the domains that follow from them, and what is refused."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from rollart.config.draw import mean_of, upper_end
from rollart.config.errors import ConfigError
from rollart.config.load import load_simulation, simulated_config
from rollart.config.simulation import SimulatedConfig, WorkloadConfig, mean_tokens
from rollart.config.workloads import BUILT_IN

MIXED = {"simulation": {"workloads": {"swe": {"like": "swe_bench", "weight": 3}, "math": {"like": "gem_math"}}}}


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_file(text):
        Path("SIM.yaml").write_text(text)
        return Path("SIM.yaml")

    return write_file


TEXT = """\
rollout: {groups_per_batch: 40}
simulation:
  workloads:
    swe: {like: swe_bench, weight: 3, step_seconds: {mean: 10, std: 7, min: 0}}
    math: {like: gem_math}
"""


def test_domains_follow_from_the_workloads(write):
    config = load_simulation(write(TEXT))
    assert list(config.domains) == ["swe", "math"]
    assert config.shares == {"swe": 0.75, "math": 0.25}
    swe, workload = config.domains["swe"], config.simulation.workloads["swe"]
    assert (swe.env, swe.max_turns, swe.max_context, swe.max_new_tokens) == ("emulated", 50, 32768, 1500)
    assert swe.args["step_seconds"] == {"mean": 10, "std": 7, "min": 0} == workload.step_seconds
    assert swe.args["turns"] == [30, 50]
    assert swe.args["reset_slow"]["tasks"] == 30  # its share of the 40 groups
    assert swe.step_timeout > upper_end(workload.step_seconds)
    assert workload.reset_slow is not None
    assert swe.reset_timeout > upper_end(workload.reset_seconds) + upper_end(workload.reset_slow.seconds)
    assert swe.reward.timeout > upper_end(workload.reward_seconds)
    assert "reset_slow" not in config.domains["math"].args


def test_the_section_domains_overrides_single_keys(write):
    text = TEXT + "domains:\n  math: {temperature: 0.7, weight: 1.5, args: {success: 0.9}}\n"
    config = load_simulation(write(text), ["domains.swe.step_timeout=11", "simulation.workloads.swe.turns=[3, 4]"])
    math_domain = config.domains["math"]
    assert (math_domain.temperature, math_domain.args["success"], math_domain.env) == (0.7, 0.9, "emulated")
    assert math_domain.args["turns"] == [1, 4]
    assert config.domains["swe"].args["reset_slow"]["tasks"] == 27  # 3 of 4.5 shares of 40 groups
    assert (config.domains["swe"].step_timeout, config.domains["swe"].max_turns) == (11, 4)


def test_it_survives_the_way_to_a_worker():
    config = simulated_config(MIXED)
    assert SimulatedConfig.model_validate_json(config.model_dump_json()) == config
    assert SimulatedConfig.model_validate(config.model_dump(exclude_unset=True)) == config


def test_settings_by_dotted_key():
    settings = {
        "run.seed": 7,
        "simulation.workloads.math.step_seconds": {"mean": 10, "std": 7},
        "simulation.workloads.math.step_seconds.std": 3,
        "simulation.workloads.game.like": "gem_game",
        "simulation.reward.kind": "free",
    }
    config = simulated_config(MIXED, settings)
    assert config.domains["math"].args["step_seconds"] == {"mean": 10, "std": 3}
    assert config.domains["game"].max_turns == 1
    assert config.domains["swe"].args["reset_slow"]["seed"] == 7
    assert list(MIXED["simulation"]["workloads"]) == ["swe", "math"]
    assert config.simulation.reward.kind == "free"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_workload_is_valid(name):
    workload = WorkloadConfig.model_validate({"like": name})
    config = simulated_config({"simulation": {"workloads": {name: {"like": name}}}})
    assert config.domains[name].max_turns == math.ceil(upper_end(workload.turns))
    by_hand = mean_of(workload.first_observation) - mean_of(workload.observation)
    by_hand += mean_of(workload.turns) * (mean_of(workload.observation) + mean_of(workload.action))
    assert mean_tokens(workload) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("swe_bench", "swe_bensh", "SIM.yaml:4: simulation.workloads.swe: like: no built-in workload 'swe_bensh': did"),
        ("mean: 10", "mean: -1", "SIM.yaml:4: simulation.workloads.swe.step_seconds: 'mean' is -1"),
        ("weight: 3", "wait: 3", "SIM.yaml:4: simulation.workloads.swe.wait: unknown key, did you mean 'simulation."),
        ("weight: 3", "weight: 0", "SIM.yaml:4: simulation.workloads.swe.weight: must be more than 0"),
        ("weight: 3", "reset_slow: {probability: 2}", "SIM.yaml:4: simulation.workloads.swe.reset_slow.probability"),
        ("gem_math", "gem_math, step_error: 0.6, step_hang: 0.6", "SIM.yaml:5: simulation.workloads.math: step_error"),
        ("simulation:", "domains: {other: {env: emulated}}\nsimulation:", "domains.other: there is no workload"),
        ("simulation:", "domains: {swe: {temprature: 1}}\nsimulation:", "did you mean 'domains.swe.temperature'?"),
        ("40", "40, hosts: 4}\nlog: {turns: true", None),
        ("simulation:", "simulation:\n  reward: {kind: dedicated, replicas: 2}", None),
        ("40", "fifty", "SIM.yaml:1: rollout.groups_per_batch: must be a whole number"),
        ("  workloads:", "  workload:", "SIM.yaml:3: simulation.workload: unknown key"),
    ],
)
def test_refused(write, old, new, says):
    path = write(TEXT.replace(old, new))
    if says is None:
        load_simulation(path)
        return
    with pytest.raises(ConfigError) as caught:
        load_simulation(path)
    assert any(says in problem for problem in caught.value.problems), caught.value.problems


def test_capacity_that_the_hosts_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"replicas is 2, which 4 environment hosts cannot share"):
        simulated_config(MIXED, {"simulation.reward": {"kind": "dedicated", "replicas": 2}, "rollout.hosts": 4})


@pytest.mark.parametrize(
    ("key", "value"),
    [("env", "frozen_lake"), ("isolation", "process"), ("reward.function", "my.rewards:score")],
)
def test_domains_that_are_not_emulated_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"domains\.math\.{key} is '{value}', but a simulation plays a model"):
        simulated_config(MIXED, {f"domains.math.{key}": value})


def test_without_workloads_there_is_nothing_to_simulate(write):
    with pytest.raises(ConfigError, match=r"simulation.*required"):
        load_simulation(write("domains: {lake: {env: frozen_lake}}\n"))
    with pytest.raises(ConfigError, match=r"simulation\.workloads"):
        simulated_config({"simulation": {"workloads": {}}})


def test_needs_neither_torch_nor_ray():
    code = "import rollart.config.load, sys; assert not {'torch', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""A run on a faster scale is the same run: everything that has seconds is divided, nothing else changes."""

import pytest

from rollart.config.load import simulated_config
from rollart.events import MemorySink, TrajectoryScored
from rollart.simulation.simulator import simulate
from rollart.simulation.time_scale import LEAST_DEADLINE, scaled

LATENCIES = {
    "reset_seconds": [1, 20],
    "step_seconds": {"mean": 10, "std": 5},
    "reward_seconds": {"median": 3, "sigma": 1},
}
INCIDENT = {"reset_slow": {"probability": 0.5, "share": 0.5, "seconds": [10, 100]}}


def configuration(**settings):
    data = {
        "run": {"iterations": 4},
        "rollout": {"groups_per_batch": 4, "group_size": 4, "retry_delay": 3},
        "engine": {"devices": 2},
        "training": {"devices": 8},
        "log": {"utilisation_seconds": 20},
        "placement": {"train": "train", "generate": ["rollout"], "environment": "hosts"},
        "pools": {
            "train": {"hardware": "H800", "devices": 8},
            "rollout": {"hardware": "H20", "devices": 4},
            "hosts": {"hardware": "CPU", "devices": 1},
        },
        "simulation": {
            "workloads": {
                "web": {**LATENCIES, **INCIDENT, "turns": [2, 6], "step_error": 0.01, "max_context": 4096},
                "math": {"action": {"median": 900, "sigma": 0.5, "max": 3000}, "max_context": 16384},
            },
            "reward": {"concurrency": 8, "keep_alive": 5},
        },
    }
    return simulated_config(data, settings)


def play(config, folder, sink=None):
    """Simulate in a run folder of its own."""
    folder.mkdir()
    return simulate(config, folder, log=False, sink=sink)


@pytest.mark.parametrize("mode", ["sync", "one_off", "rollart"])
@pytest.mark.parametrize("same_cluster", [True, False])
def test_every_second_of_a_scaled_run_is_divided(tmp_path, mode, same_cluster):
    config = configuration(**{"run.mode": mode, "simulation.network.same_cluster": same_cluster})
    plain, fast = play(config, tmp_path / "plain"), play(scaled(config, 50), tmp_path / "fast")
    for name in ("step_time_s", "rollout_s", "train_s", "exposed_update_s", "wait_s"):
        assert getattr(plain.measured, name) == pytest.approx(50 * getattr(fast.measured, name), rel=1e-6)
    for name in ("turns", "tokens", "outcomes", "staleness"):
        assert getattr(plain.measured, name) == getattr(fast.measured, name)
    assert plain.rewards[0].cold_starts == fast.rewards[0].cold_starts
    assert plain.seconds == pytest.approx(50 * fast.seconds, rel=1e-6)


def test_each_trajectory_is_the_same_in_both_runs(tmp_path):
    def scored(config, name):
        sink = MemorySink()
        play(config, tmp_path / name, sink)
        found = [event for event in sink.events if isinstance(event, TrajectoryScored)]
        return [(event.id, event.turns, event.total_tokens, event.reward) for event in found]

    config = configuration()
    assert scored(config, "plain") == scored(scaled(config, 10), "fast") != []


def test_deadlines_keep_what_a_busy_machine_needs():
    config = configuration(**{"engine.answer_timeout": 4.0})
    fast = scaled(config, 1000)
    assert config.domains["web"].step_timeout > LEAST_DEADLINE
    assert fast.domains["web"].step_timeout == LEAST_DEADLINE
    assert fast.engine.answer_timeout == 4.0


def test_settings_of_a_domain_are_scaled_too():
    config = configuration(**{"domains.web.args.step_seconds": 30})
    assert scaled(config, 10).domains["web"].args["step_seconds"] == pytest.approx(3)


def test_a_factor_must_be_positive():
    with pytest.raises(ValueError, match="above 0"):
        scaled(configuration(), 0)

"""The figures of the paper's profile that the model is fitted to come out of whole simulated runs.

Only runs that take seconds are repeated here; the page on the performance model has all of them with more iterations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollart.config.load import simulated_config
from rollart.simulation.experiments import Experiment, experiment_file, points
from rollart.simulation.measures import Measured
from rollart.simulation.simulator import simulate


def measured(tmp_path: Path, name: str, **only: str) -> Measured:
    """The first seed of one point of a shipped experiment."""
    data: dict[str, Any] = yaml.safe_load(experiment_file(name).read_text())
    experiment = Experiment.model_validate(data)
    (point,) = points(experiment, only)
    config = simulated_config(experiment.base, {"run.name": name, **point.settings, "run.seed": 0})
    folder = tmp_path / point.label
    folder.mkdir()
    return simulate(config, folder, experiment.skipped, log=False).measured


def test_a_clean_iteration_of_the_profile(tmp_path: Path) -> None:
    clean = measured(tmp_path, "profile", resets="clean")
    assert clean.step_time_s == pytest.approx(365.7, rel=0.05)
    assert clean.train_s == pytest.approx(0.231 * 365.7, rel=0.03)


def test_hardware_by_domain(tmp_path: Path) -> None:
    def rollout(domain: str, pool: str) -> float:
        return measured(tmp_path, "calibration", domain=domain, batch="128", pool=pool).rollout_s

    assert 0.49 <= rollout("gem_math", "6xH20") / rollout("gem_math", "2xH800") <= 0.79
    assert 0.5 <= rollout("frozen_lake", "2xH800") / rollout("frozen_lake", "6xH20") <= 0.7

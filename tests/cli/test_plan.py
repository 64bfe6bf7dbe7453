from __future__ import annotations

from pathlib import Path
from typing import Any


def test_the_plan_says_what_would_run(rollart: Any, folder: Path) -> None:
    ran = rollart("plan", "CONFIG.yaml", "--", "rollout.redundant_groups=1", "placement.train=local")

    assert ran.code == 0
    assert ran.err == ""
    for part in (
        "small in runs/small: 2 iterations, seed 0",
        "mode       rollart, alpha 1, update eager, on this process alone",
        "train-0        local (CPU), device 0\n",
        "generate-0     local (CPU), device 1  (wanted H20: there is no pool of class H20)",
        "environment-0  local (CPU), device 2",
        "reward-0       local (CPU), inline:// inside the environment hosts\n",
        "pool local     16 x CPU",
        "lake   50.0% of the trained groups, env frozen_lake (inline)",
        "4 trajectories = 2 groups of 2; groups a batch: lake 1.00, guess 1.00",
        "at most 5 groups live = (alpha 1 + 1) * 2 + 1 redundant, 10 trajectories",
        "at most 10 alive",
        "8 held-out instances, at the start and the end",
        "parameters (with a vocabulary of 256)",
        "GRPO: the advantage is",
        "at most 1 version before",
    ):
        assert part in ran.out, part
    assert not (folder / "runs").exists()


def test_overrides_may_stand_around_options(rollart: Any, folder: Path) -> None:
    ran = rollart("plan", "CONFIG.yaml", "run.seed=5")
    assert "seed 5" in ran.out

    from rollart.cli.main import parse

    parsed = parse(["train", "CONFIG.yaml", "run.seed=1", "--resume", "runs/x", "run.iterations=3"])
    assert parsed.overrides == ["run.seed=1", "run.iterations=3"]
    assert parsed.resume == Path("runs/x")


def test_a_model_whose_shape_is_unknown_has_no_estimate(rollart: Any, folder: Path) -> None:
    ran = rollart("plan", "CONFIG.yaml", "model.path=owner/name")
    assert ran.code == 0
    assert "unknown: owner/name is not a local folder" in ran.out

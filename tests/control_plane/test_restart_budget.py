"""When a lost worker is started again, and what is said when it is not."""

from __future__ import annotations

import pytest

from rollart.control_plane.restart_budget import RestartBudget
from rollart.runtime.runtime import WorkerLost


def test_restarts_are_numbered_and_bounded() -> None:
    budget = RestartBudget("environment-0", 2, "rollout.host_restarts")
    assert [budget.lost("killed on host a"), budget.lost("does not start")] == [1, 2]
    with pytest.raises(
        WorkerLost,
        match=r"^environment-0 was lost 3 times and rollout.host_restarts is 2; the first cause: killed on host a$",
    ):
        budget.lost("killed again")


def test_without_restarts_the_first_loss_is_the_last() -> None:
    with pytest.raises(WorkerLost, match=r"was lost once and .* is 0; the first cause: killed"):
        RestartBudget("environment-0", 0, "rollout.host_restarts").lost("killed")

"""A whole run on a Ray cluster that somebody else started, in another folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollart.control_plane.checkpoints import latest
from rollart.observability.summary import read_summary
from rollart.runtime.ray_cluster import RayCluster

CONFIG = """\
run: {name: guest, iterations: 1}
model: {tiny: {hidden: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, intermediate: 64, max_length: 256}}
domains: {lake: {env: frozen_lake, args: {size: 3}, max_turns: 4, max_context: 128, max_new_tokens: 2}}
rollout: {groups_per_batch: 2, group_size: 2, max_environments: 16}
pools: {small: {devices: 3}}
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_run_completes_and_leaves_its_files_in_its_own_folder(ray_cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "CONFIG.yaml").write_text(CONFIG)
    address = ray_cluster.ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rollart.cli.main", "train", "CONFIG.yaml", f"ray.address={address}"]

    for arguments in ([], ["--resume", "runs/guest", "run.iterations=2"]):  # the second finds the pool free again
        ran = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=140)
        assert ran.returncode == 0, ran.stderr

    run = tmp_path / "runs" / "guest"
    assert latest(run).version == read_summary(run).iterations == 2

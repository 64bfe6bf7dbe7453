"""The training Worker finds the model that ``model.path`` names: a folder, a home folder, or the hub's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PREPARE = """
import asyncio, json, sys
from rollart.data_plane.training.models import ModelError
from rollart.data_plane.training.worker import Learner

def prepared(path):
    config = {"domains": {"lake": {"env": "frozen_lake"}}, "model": {"path": path}}
    async def main():
        learner = Learner(json.dumps(config), "unused", "prepare-test", "unused-weights")
        try:
            return await learner.prepare()
        except ModelError as error:
            return f"ModelError: {error}"
        finally:
            await learner.stop()
    return asyncio.run(main())

print(json.dumps([prepared(path) for path in sys.argv[1:]]))
"""

REVISION = "0123456789abcdef0123456789abcdef01234567"


def cached(model: Path, cache: Path, owner: str, name: str) -> Path:
    """Lay a model into a hub cache, as a download does; returns its snapshot."""
    repository = cache / f"models--{owner}--{name}"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "blobs").mkdir()
    for file in model.iterdir():
        blob = repository / "blobs" / file.name
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blob)
    return snapshot


def test_the_model_is_found_wherever_it_is(model_folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "mine").symlink_to(model_folder)
    snapshot = cached(model_folder, tmp_path / "cache", "someone", "tiny-model")
    environment = os.environ | {"HOME": str(home), "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    paths = ["~/models/mine", "home/models/mine", "someone/tiny-model", "someone/absent", "./absent"]

    command = [sys.executable, "-c", PREPARE, *paths]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    home_folder, relative, of_hub, absent_of_hub, absent = json.loads(ran.stdout)
    assert home_folder == relative == str(home / "models" / "mine")
    assert of_hub == str(snapshot)
    assert absent_of_hub.startswith("ModelError: model someone/absent is no local folder, not in the hub's cache")
    assert "or set model.path to a model folder" in absent_of_hub
    assert (
        absent
        == f"ModelError: model folder {tmp_path / 'absent'} not found: give an existing folder, or a hub id owner/name"
    )

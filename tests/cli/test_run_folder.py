from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rollart.cli.errors import UserError
from rollart.cli.run_folder import new_run_folder, resumed_run_folder
from rollart.config.config import Config
from rollart.config.load import load_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"run": {"dir": str(tmp_path), "name": "a"}, "domains": {"lake": {"env": "x"}}})


def test_a_run_is_repeated_from_its_folder(config: Config) -> None:
    with new_run_folder(config) as (folder, moved):
        assert moved is None
    assert load_config(folder / "config.yaml") == config
    assert yaml.safe_load((folder / "config.yaml").read_text())["domains"]["lake"]["max_turns"] == 16


def test_earlier_runs_move_aside(config: Config, tmp_path: Path) -> None:
    for expected in (None, tmp_path / "a.1", tmp_path / "a.2"):
        with new_run_folder(config) as (folder, moved):
            assert folder == tmp_path / "a"
            assert moved == expected
            assert sorted(file.name for file in folder.iterdir()) == ["config.yaml", "lock"]


def test_a_run_that_goes_on_is_left_alone(config: Config, tmp_path: Path) -> None:
    with new_run_folder(config):
        with pytest.raises(UserError, match="going on in another process"), new_run_folder(config):
            pass
        with pytest.raises(UserError, match="going on"), resumed_run_folder(tmp_path / "a", config):
            pass
    assert not (tmp_path / "a.1").exists()


def test_what_is_no_run_is_left_alone(config: Config, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with new_run_folder(config):
        pass
    (tmp_path / "a" / "config.yaml").unlink()
    with pytest.raises(UserError, match="holds something that is no run"), new_run_folder(config):
        pass

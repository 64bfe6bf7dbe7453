from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.config.config import Config
from rollart.config.errors import ConfigError
from rollart.config.load import load_config

MINIMAL = """\
domains:
  lake:
    env: frozen_lake
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes ``CONFIG.yaml`` into the working folder and returns its relative path."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str) -> Path:
        Path("CONFIG.yaml").write_text(text)
        return Path("CONFIG.yaml")

    return write_file


def _problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def test_a_domain_is_all_that_is_needed(write: Write) -> None:
    assert load_config(write(MINIMAL)) == Config.model_validate({"domains": {"lake": {"env": "frozen_lake"}}})


def test_values_are_plain_yaml(write: Write) -> None:
    text = """\
run: {name: "1e3", seed: 3}
training: {learning_rate: 1e-3}
domains:
  2048: &base {env: gym_text, args: {p: 1e-3, when: 2024-01-01, on: yes, off: true, n: 010, none: }}
  copy: {<<: *base, weight: 2}
"""
    config = load_config(write(text))

    args = {"p": 0.001, "when": "2024-01-01", "on": "yes", "off": True, "n": 10, "none": None}
    assert config.domains["2048"].args == args
    assert (config.domains["copy"].env, config.domains["copy"].weight) == ("gym_text", 2.0)
    assert (config.run.name, config.training.learning_rate) == ("1e3", 0.001)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "rollout:\n  group_sise: 4\n",
            ["CONFIG.yaml:5: rollout.group_sise: unknown key, did you mean 'rollout.group_size'?"],
        ),
        ("group_size: 4\n", ["CONFIG.yaml:4: group_size: unknown key, did you mean 'rollout.group_size'?"]),
        ("run:\n  xyz: 4\n", ["CONFIG.yaml:5: run.xyz: unknown key, valid keys: alpha, dir, iterations, "]),
        (
            "    wieght: 2\n  math: {enw: x}\n",
            [
                "CONFIG.yaml:4: domains.lake.wieght: unknown key, did you mean 'domains.lake.weight'?",
                "CONFIG.yaml:5: domains.math.enw: unknown key, did you mean 'domains.math.env'?",
            ],
        ),
        ("  math: {weight: 1}\n", ["CONFIG.yaml:4: domains.math.env: is required, add it"]),
        ("rollout: {hosts: 0}\n", ["CONFIG.yaml:4: rollout.hosts: must be 1 or more, not 0"]),
        ("rollout: {hosts: many}\n", ["CONFIG.yaml:4: rollout.hosts: must be a whole number, not 'many'"]),
        (
            "run: {mode: fast}\n",
            ["CONFIG.yaml:4: run.mode: must be 'sync', 'sync_plus', 'one_off', 'areal' or 'rollart', not 'fast'"],
        ),
        ("run: {name: a/b}\n", ["CONFIG.yaml:4: run.name: must match"]),
        ("run: 3\n", ["CONFIG.yaml:4: run: must be a mapping of keys to values, not 3"]),
        ("run:\n  seed: 1\n  seed: 2\n", ["CONFIG.yaml:6: run.seed: given twice, keep one of them"]),
        ("run: [1\n", ["CONFIG.yaml:5: not valid YAML: expected ',' or ']'"]),
        ("run: !!python/object:os.system {}\n", ["CONFIG.yaml:4: tag 'tag:yaml.org,2002:python/object:os.system'"]),
        ("run: &a {x: *a}\n", ["CONFIG.yaml:4: run.x: an alias refers to the value that holds it"]),
    ],
)
def test_each_problem_of_a_file_is_one_line(write: Write, text: str, problems: list[str]) -> None:
    found = _problems(write(MINIMAL + text))

    assert len(found) == len(problems)
    for line, expected in zip(found, problems, strict=True):
        assert line.startswith(expected)
        assert "\n" not in line


def test_files_that_are_no_configuration(write: Write, tmp_path: Path) -> None:
    assert _problems(Path("absent.yaml")) == ["absent.yaml: no such file: give the path of a configuration file"]
    assert _problems(write("- a\n")) == [
        "CONFIG.yaml: a configuration is a mapping of sections (run, model, domains, ...)"
    ]
    assert _problems(write("")) == ["CONFIG.yaml: a configuration is a mapping of sections (run, model, domains, ...)"]
    assert _problems(write("run: {seed: 1}\n")) == ["CONFIG.yaml: domains: is required, add it"]
    assert _problems(write("domains: {}\n")) == ["CONFIG.yaml:1: domains: must have at least one entry, add one"]
    (tmp_path / "CONFIG.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as UTF-8" in _problems(Path("CONFIG.yaml"))[0]


def test_overrides_are_typed_as_in_a_file_and_the_last_one_wins(write: Write) -> None:
    overrides = (
        "rollout.group_size=4",
        "rollout.group_size=6",
        "training.learning_rate=3e-4",
        "run.name=two-words",
        "domains.lake.args.size=5",
        "domains.lake.args.deep.er=[1, x]",
        "pools.local.devices=3",
        "placement.affinity.lake=CPU",
        "run.max_train_seconds=",
    )
    config = load_config(write(MINIMAL), overrides)

    assert config.rollout.group_size == 6
    assert config.training.learning_rate == 3e-4
    assert config.run.name == "two-words"
    assert config.domains["lake"].args == {"size": 5, "deep": {"er": [1, "x"]}}
    assert config.pools["local"].devices == 3
    assert config.placement.affinity == {"lake": "CPU"}
    assert config.run.max_train_seconds is None


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("rollout.group_sise=4", "unknown key 'rollout.group_sise', did you mean 'rollout.group_size'?"),
        ("group_size=4", "unknown key 'group_size', did you mean 'rollout.group_size'?"),
        ("domains.lake.wieght=4", "unknown key 'domains.lake.wieght', did you mean 'domains.lake.weight'?"),
        ("domains.lak.weight=4", "no domain 'lak' in the file, did you mean 'domains.lake'?"),
        ("pools.gpu.devices=4", "no pool 'gpu' in the file, the file has: local"),
        ("rollout=4", "'rollout' is a section, set one of its keys: filter_zero_variance, "),
        ("domains.lake=4", "'domains.lake' is a section, set one of its keys: args, "),
        ("run.seed.deep=4", "'run.seed' is a single value and has no key 'deep'"),
        ("run.seed", "write it as section.key=value, e.g. rollout.group_size=8"),
        ("=4", "write it as section.key=value, e.g. rollout.group_size=8"),
        ("run.seed=x", "run.seed: must be a whole number, not 'x'"),
        ("run.seed=[1", "not valid YAML: expected ',' or ']'"),
    ],
)
def test_an_override_that_cannot_be_applied_says_why(write: Write, override: str, problem: str) -> None:
    (line,) = _problems(write(MINIMAL), override)

    assert line.startswith((f"command line '{override}': {problem}", f"command line '{override}':1: {problem}"))


def test_loading_needs_neither_torch_nor_ray(write: Write) -> None:
    code = (
        "import sys; from pathlib import Path; from rollart.config.load import load_config; "
        "load_config(Path('CONFIG.yaml')); "
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    write(MINIMAL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

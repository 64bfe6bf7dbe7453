"""The project as a whole: what imports what, pinned dependencies, licence, and nothing private in the tree."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rollart

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = sorted(module.name for module in pkgutil.walk_packages(rollart.__path__, "rollart."))
OPTIONAL_PACKAGES = {"wandb", "gguf", "accelerate"}
HEAVY_PACKAGES = {"torch", "transformers", "ray"}
LIGHT = (
    "rollart",
    "rollart.types",
    "rollart.codec",
    "rollart.events",
    "rollart.registry",
    "rollart.config",
    "rollart.runtime",
    "rollart.resource_plane",
    "rollart.control_plane",
    "rollart.observability",
    "rollart.data_plane.worker",
    "rollart.data_plane.cluster",
    "rollart.data_plane.environment",
    "rollart.data_plane.rendering",
    "rollart.data_plane.reward",
    "rollart.data_plane.weights",
    "rollart.data_plane.generation.engine",
    "rollart.data_plane.training.trainer",
)
"""What the driver and the environment, reward, proxy and buffer processes import."""
RAY_ADAPTERS = re.compile(r"^rollart\.(runtime|resource_plane)\.(.*_)?ray(_.*)?$")
"""The modules that exist to speak to Ray."""


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    texts = [
        *project["dependencies"],
        *(text for extra in ("torch", "ray", "tensorboard", "gguf", "test") for text in extras[extra]),
    ]
    return [Requirement(text) for text in texts]


def pins() -> dict[str, str]:
    files = ("requirements.lock", "requirements-gguf.txt")
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    exact = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9.]+)", line) for line in lines if line and line[0] != "#"]
    assert all(exact), f"{files}: every line is name==version"
    return {canonical(match[1]): match[2] for match in exact if match}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_and_says_what_it_is_for(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL_PACKAGES:
            pytest.skip(f"needs the optional package {error.name}")
        raise
    assert module.__doc__ or not source_of(module.__file__), f"{name} has code but no docstring"


def source_of(file: str | None) -> str:
    return Path(file).read_text().strip() if file else ""


def test_light_modules_load_no_heavy_package() -> None:
    light = [
        name
        for name in ["rollart", *MODULES]
        if not RAY_ADAPTERS.match(name)
        and any(name == root or (root != "rollart" and name.startswith(f"{root}.")) for root in LIGHT)
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = sorted({HEAVY_PACKAGES!r} & set(sys.modules))\n"
        "    assert not loaded, f'{name} loads {loaded}'\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_every_dependency_is_pinned_to_an_allowed_version() -> None:
    versions = pins()
    for requirement in requirements():
        pinned = versions.get(canonical(requirement.name))
        assert pinned is not None, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(pinned), f"pinned is {requirement.name}=={pinned}, but {requirement}"
    assert versions["torch"] == "2.13.0"


def test_licence_is_declared_and_complete() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "APPENDIX: How to apply the Apache License to your work" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_tree_names_no_machine_no_registry_and_no_unfinished_work() -> None:
    # Spelled in two parts, so that this file passes its own test.
    private = re.compile(
        r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|op" r"t|ho" r"me)/"
        r"|py" r"pi\.org|python" r"hosted\.org|download\.py" r"torch\.org"
        r"|\bTO" r"DO\b|\bFIX" r"ME\b|\bX" r"XX\b"
    )  # fmt: skip
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if match := private.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found, "\n".join(found)


def test_sessions_refuse_unexpected_skips_and_keep_ray_tests_on_one_worker(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    ray: as in pyproject.toml\n")
    (tmp_path / "test_session.py").write_text(
        "import os, pathlib, pytest\n"
        "def test_expected(): pytest.skip('needs a CUDA device')\n"
        "def test_unexpected(): pytest.skip('not today')\n"
        "@pytest.mark.ray\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_on_ray(number): (pathlib.Path(__file__).parent / os.environ['PYTEST_XDIST_WORKER']).touch()\n"
    )
    options = ["-p", "xdist.plugin", "-q", "--numprocesses=2", "--dist=loadgroup"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    only_xdist = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        command, cwd=tmp_path, env=only_xdist, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 1, result.stderr
    assert "1 failed, 6 passed, 1 skipped" in result.stdout.splitlines()[-1]
    assert "not today" in result.stdout
    assert len(list(tmp_path.glob("gw*"))) == 1

"""Names and import paths of extension points, and the messages when they do not exist."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rollart.registry import Registry, import_path


@pytest.fixture
def numbers() -> Registry[float]:
    return Registry("number", {"one": 1.0, "pi": "math:pi"})


def test_entries_are_objects_or_lazily_imported(numbers: Registry[float]) -> None:
    assert numbers.get("one") == 1.0
    assert numbers.get("pi") == math.pi
    assert numbers.get("math:tau") == math.tau
    assert list(numbers) == ["one", "pi"]
    assert "pi" in numbers


def test_registered_names_are_unique_and_never_import_paths(numbers: Registry[float]) -> None:
    numbers.register("two", 2.0)
    assert numbers.get("two") == 2.0
    with pytest.raises(ValueError, match="already a number named 'two'"):
        numbers.register("two", 3.0)
    with pytest.raises(ValueError, match="without ':'"):
        numbers.register("a:b", 3.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pii", "no number named 'pii': did you mean 'pi'"),
        ("zzz", "no number named 'zzz': there are: one, pi"),
        ("no_such_module_x:thing", "no module named 'no_such_module_x'; install"),
        ("math.nothing:thing", "no module named 'math.nothing'"),
        ("math:piz", "'math' has no 'piz', did you mean 'pi'"),
        ("math:", "not of the form 'module:attribute'"),
    ],
)
def test_unknown_names_say_what_is_near(numbers: Registry[float], name: str, message: str) -> None:
    with pytest.raises(LookupError) as error:
        numbers.get(name)
    assert message in str(error.value)


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A user's module that can be imported."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


def test_errors_inside_the_users_module_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, monkeypatch, "needs_missing_package", "import no_such_package_y\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package_y"):
        import_path("needs_missing_package:thing", "reward")


def test_a_module_that_exits_is_refused_like_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, monkeypatch, "exits_at_import", "raise SystemExit(3)\n")
    with pytest.raises(LookupError, match=r"importing 'exits_at_import' ended with SystemExit\(3\)"):
        import_path("exits_at_import:thing", "reward")

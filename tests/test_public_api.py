"""The public API: every name is there, lazily, and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollart


def test_every_public_name_exists() -> None:
    for name in rollart.__all__:
        assert getattr(rollart, name) is not None
    assert set(rollart.__all__) <= set(dir(rollart))
    with pytest.raises(AttributeError, match="has no attribute 'Workr'"):
        rollart.Workr  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(rollart.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    assert imported - {"TYPE_CHECKING", "Any"} == set(rollart.__all__)


LAZY = """
import sys
import rollart
first = sorted({"numpy", "pydantic", "msgspec"} & set(sys.modules))
from rollart import *
print(first, sorted({"torch", "ray", "transformers"} & set(sys.modules)), ActorTrain.role)
"""


def test_importing_the_package_is_cheap_and_using_it_loads_neither_torch_nor_ray() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] [] train\n"

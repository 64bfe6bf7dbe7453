"""What the README and docs/ say holds: commands, files, keys, configurations and code snippets.

* Shell commands in fenced blocks and in `code` that start with ``make`` or ``rollart`` parse;
* YAML blocks with ``domains`` are whole configurations and ``rollart plan`` takes them; others are parts of
  one with valid keys; a JSONL block is the data file that they read;
* Python blocks whose first line is ``# name.py`` are modules: written to a folder together, each imports,
  and whole configurations may name them;
* ``rollart check-env`` of such a module, and of a built-in environment, passes as written;
* dotted names in `code` whose first word is a section are keys of the configuration;
* relative links and paths in `code` exist; the generated pages are up to date.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollart.cli.main import build_parser, main
from rollart.config.config import Config
from rollart.config.load import load_config, simulated_config
from rollart.config.schema import leaf_paths, unknown_keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"^(?:docs|examples|scripts|tests|benchmarks|rollart)/[\w./-]*\w$")


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def inline(page: Path) -> list[str]:
    return CODE.findall(FENCE.sub("", page.read_text()))


def commands(page: Path) -> Iterator[list[str]]:
    """Each command line that starts with ``make`` or ``rollart``, as words."""
    lines = [
        line for block in blocks(page, "sh", "bash", "console") for line in block.replace("\\\n", " ").splitlines()
    ]
    for line in [*lines, *inline(page)]:
        words = shlex.split(line.removeprefix("$ "), comments=True) if line.count("'") % 2 == 0 else []
        if words and words[0] in ("make", "rollart"):
            yield words


def page_id(page: Path) -> str:
    return page.name


each_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


@each_page
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page):
        shown = " ".join(words)
        if words[0] == "make":
            dry_run = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
            assert dry_run.returncode == 0, f"{shown}: {dry_run.stderr}"
            continue
        assert rollart_takes(words[1:], capsys), f"{shown}: rollart does not take this command line"


def rollart_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the command line parses; a command that is only named may lack its arguments."""
    plain = [word for word in words if not word.startswith("[")]
    if not plain:
        return True
    try:
        build_parser().parse_args(plain)
    except SystemExit as stop:
        return stop.code == 0 or (len(plain) == 1 and "are required" in capsys.readouterr().err)
    return True


@each_page
def test_dotted_keys_exist(page: Path) -> None:
    known = {re.sub(r"<name>", "NAME", ".".join(path)) for path in leaf_paths(Config)}
    prefixes = {key.rsplit(".", depth)[0] for key in known for depth in range(key.count(".") + 1)}
    for code in inline(page):
        key = re.split(r"[:=]", code)[0].strip()
        if re.fullmatch(r"[a-z_]+(\.[A-Za-z0-9_<>]+)+", key) and key.split(".")[0] in Config.model_fields:
            if key.endswith((".py", ".md", ".yaml", ".json")):
                continue
            general = re.sub(r"^(domains|pools)\.[\w<>]+", r"\1.NAME", key)
            open_ended = general.startswith(("domains.NAME.args.", "placement.affinity."))
            assert open_ended or general in known | prefixes, f"{page.name}: no configuration key {key}"


@each_page
def test_named_files_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for link in LINK.findall(text):
        if "://" not in link and not link.startswith("mailto:"):
            assert (page.parent / link).exists(), f"{page.name}: {link} does not exist"
    for code in CODE.findall(text):
        if PATH.match(code):
            assert (ROOT / code).exists(), f"{page.name}: {code} does not exist"


@each_page
def test_named_benchmarks_exist(page: Path) -> None:
    for name in re.findall(r"python -m (benchmarks\.\w+)", page.read_text()):
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), f"{page.name}: no {name}"


@each_page
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    modules = []
    for block in blocks(page, "python"):
        if named := re.match(r"# (\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            modules.append(named[1])
        else:
            compile(block, page.name, "exec")
    for name in modules:
        import_module(name, tmp_path / f"{name}.py", monkeypatch)
    for block in blocks(page, "jsonl"):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "train.jsonl").write_text(block)
    for number, block in enumerate(blocks(page, "yaml")):
        check_yaml(yaml.safe_load(block), block, tmp_path / f"snippet{number}.yaml")
    for words in commands(page):
        if words[:2] == ["rollart", "check-env"] and "NAME" not in words:
            assert main(words[1:]) == 0, " ".join(words)


def import_module(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


def check_yaml(data: Any, text: str, file: Path) -> None:
    if "domains" in data and all("env" in domain for domain in data["domains"].values()):
        file.write_text(text)
        assert main(["plan", str(file)]) == 0
    elif "simulation" in data:
        simulated_config(data)
    else:
        assert not list(unknown_keys(data, Config, Config))


def test_examples_load() -> None:
    examples = sorted((ROOT / "examples").glob("*.yaml"))
    assert examples
    for example in examples:
        load_config(example)


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_docs.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=60)
    for fresh in tmp_path.iterdir():
        assert (ROOT / "docs" / fresh.name).read_text() == fresh.read_text(), f"docs/{fresh.name}: run `make docs`"

"""Reads YAML into plain data and remembers the line of every key. Called by the loader only.

Stricter and plainer than YAML 1.1: a key given twice is an error, only ``true`` and ``false`` are
booleans, ``1e-3`` is a number, dates stay texts, keys are always texts as written, and no tag can
construct an object.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rollart.config.errors import ConfigError

KeyPath = tuple[str, ...]
"""Keys from the root; the position in a list is a key too, as text."""

_INT = re.compile(r"[-+]?[0-9]{1,400}")
"""Longer ones count as infinite: no setting takes them, and Python refuses to read very long ones."""

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "+.Inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN"), float("nan")),
}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))


class YamlFile(NamedTuple):
    """A read file.

    Attributes:
        data: The root mapping.
        lines: 1-based line of each key by its path from the root.
    """

    data: dict[str, Any]
    lines: dict[KeyPath, int]


def read_yaml(path: Path) -> YamlFile:
    """Read a configuration file.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, not a mapping, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file: give the path of a configuration file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read as UTF-8 text: {error}"]) from error
    builder = _Builder(str(path))
    data = builder.build(text)
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: a configuration is a mapping of sections (run, model, domains, ...)"])
    return YamlFile(data, builder.lines)


def parse_value(text: str, where: str) -> Any:
    """The value of an override, typed by the same rules as in a file.

    Raises:
        ConfigError: ``text`` is not YAML; the message begins with ``where``.
    """
    return _Builder(where).build(text)


class _Builder:
    """Turns a composed YAML node tree into data, in one pass that records lines and refuses duplicates."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[KeyPath, int] = {}
        self._open: set[int] = set()

    def build(self, text: str) -> Any:
        try:
            node = yaml.compose(text, Loader=yaml.BaseLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            what = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise ConfigError([f"{self.where}{line}: not valid YAML: {what}"]) from error
        except RecursionError:
            raise ConfigError([f"{self.where}: is nested too deeply: write it flatter"]) from None
        return None if node is None else self._value(node, ())

    def _fail(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError([f"{self.where}:{node.start_mark.line + 1}: {what}"])

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if node.tag not in _PLAIN_TAGS:
            raise self._fail(node, f"tag '{node.tag}' is not supported: write plain values, lists and mappings")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self._open:
            raise self._fail(node, f"{'.'.join(path)}: an alias refers to the value that holds it")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self._value(item, (*path, str(index))) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._fail(key_node, f"{'.'.join(path)}: a key must be a plain text")
            key = str(key_node.value)
            if key == "<<" and key_node.style is None:
                merged = {**self._merge(value_node, path), **merged}
                continue
            if key in own:
                raise self._fail(key_node, f"{'.'.join((*path, key))}: given twice, keep one of them")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            own[key] = self._value(value_node, (*path, key))
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        for part in parts:
            value = self._value(part, path)
            if not isinstance(value, dict):
                raise self._fail(part, f"{'.'.join(path)}: '<<' takes a mapping")
            result = {**value, **result}
        return result


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style is not None:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text

"""A model's own chat template, compiled in a sandbox with what templates of the hub expect.

The same environment as the model library's: an immutable jinja2 sandbox that trims blocks, loop controls,
``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``, and the ``generation`` block (which
only marks text and prints it unchanged).
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollart.data_plane.environment.env import Message
from rollart.data_plane.rendering.renderer import RenderingError


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}``: the text inside, unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled template.

    Args:
        source: The template.
        special_tokens: ``bos_token``, ``eos_token``, ... as the template may use them.

    Raises:
        RenderingError: it is not a valid template.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        # One date for the whole run: a conversation that spans midnight keeps its first tokens.
        started = datetime.datetime.now()
        environment.globals["strftime_now"] = started.strftime
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RenderingError(f"the chat template is not valid: {error}") from error
        self._special_tokens = special_tokens

    def render(self, messages: list[Message], *, generate: bool) -> str:
        """The conversation as text; ``generate`` opens the assistant's next message at its end.

        Raises:
            RenderingError: the template refuses the messages; the message says why.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=generate,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RenderingError(f"the chat template refuses messages of roles {roles}: {error}") from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

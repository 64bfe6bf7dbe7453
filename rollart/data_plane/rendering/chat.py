"""Rendering with a model's own chat template, token-exact over the turns.

A history is append-only::

    begin    the template of [system, first messages], opened for the assistant
    action   what the model generated, its stop token included
    observe  [the stop token, if the action was cut without one] + what the template puts between
             an assistant's message and the opening of the next one, around the new messages

What lies between two generations is found by the template's difference: it renders a conversation with a
known assistant message before the new messages, and everything after that message is it. The model's own
tokens are never decoded and encoded again, so whatever it wrote (spaces at its ends, reasoning) stays in
its history as it wrote it, also where the template would strip or drop it from a past message.

For this to be the conversation that the template means, the template must have the prefix property: the
tokens of a conversation are a prefix of the tokens of a longer one. :class:`ChatRenderer` checks it when it is
made, over probe conversations, and refuses a template without it.
"""

from __future__ import annotations

from functools import lru_cache

from rollart import codec
from rollart.data_plane.environment.env import Message, Observation
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.data_plane.rendering.template import ChatTemplate
from rollart.data_plane.rendering.tokenizer import FolderTokenizer, ids_of, span_of, without_stop
from rollart.types import LengthSpan, Span, TokenSpan

_ANSWER = "The7answer"
"""A known assistant message. Plain, so that no template strips or parses anything of it."""

_PROBES = ("go", "You see:\n# . H\n. P .", "  spaces around, unicode é 漢字 🙂, and\n\n\nlines\n")
"""First and further observations of the conversations that the start-up check renders."""

_CACHED_TEXTS = 1024
"""Observations whose tokens are kept: members of a group see the same ones again and again."""


class ChatRenderer:
    """See the module docstring.

    Args:
        tokenizer: Of the model folder; it must have a chat template.
        system_prompt: Becomes the system message; empty for none.
        several_turns: False for domains of one turn, whose histories have nothing after the first action;
            they take any template.

    Raises:
        RenderingError: there is no template, it ends a message without a stop token, or it lacks the prefix
            property; the message says what to do.
    """

    def __init__(self, tokenizer: FolderTokenizer, system_prompt: str, *, several_turns: bool = True) -> None:
        source = tokenizer.chat_template
        if source is None:
            raise RenderingError(
                f"{tokenizer.folder} has no chat template: add a chat_template.jinja, or set model.rendering to 'words'"
            )
        self._tokenizer = tokenizer
        self._template = ChatTemplate(source, tokenizer.special_tokens)
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        try:
            self._stop = self._find_stop()
        except RenderingError:
            if several_turns or not tokenizer.stop_ids:
                raise
            self._stop = tokenizer.stop_ids[0]
        self.stop_token_ids = (self._stop, *(token for token in tokenizer.stop_ids if token != self._stop))
        self._begin = lru_cache(maxsize=_CACHED_TEXTS)(self._render_begin)
        self._between = lru_cache(maxsize=_CACHED_TEXTS)(self._render_between)
        if several_turns:
            self._check_prefix_property()

    def begin(self, observation: Observation) -> Span:
        return self._begin(_key(observation))

    def observe(self, observation: Observation, *, stopped: bool) -> Span:
        after_stop, whole = self._between(_key(observation))
        return after_stop if stopped else whole

    def parse(self, action: Span) -> str:
        ids = without_stop(ids_of(action), self.stop_token_ids)
        return self._tokenizer.core.decode(ids.tolist(), skip_special_tokens=False)

    def decode(self, tokens: Span) -> str:
        return self._tokenizer.decode(tokens)

    def _render_begin(self, key: str | bytes) -> TokenSpan:
        messages = self._opened(_messages(key))
        return span_of(self._tokenizer.encode(self._template.render(messages, generate=True)))

    def _render_between(self, key: str | bytes) -> tuple[TokenSpan, TokenSpan]:
        """What follows an action that ended with the stop token, and one that did not."""
        ids = self._tokenizer.encode(self._closing(_messages(key)))
        if self._stop not in ids:
            raise RenderingError(
                f"the chat template of {self._tokenizer.folder} lost its stop token before {key!r:.200}"
            )
        start = ids.index(self._stop)
        return span_of(ids[start + 1 :]), span_of(ids[start:])

    def _opened(self, first: list[Message]) -> list[Message]:
        """The conversation up to the first action. The domain's system prompt precedes the environment's own."""
        if self._system and first[0]["role"] == "system":
            joined = f"{self._system[0]['content']}\n\n{first[0]['content']}"
            return [{**first[0], "content": joined}, *first[1:]]
        return [*self._system, *first]

    def _closing(self, messages: list[Message]) -> str:
        """What the template writes between an assistant's message, ``messages``, and the next one of it."""
        conversation = [*self._opened([_user("go")]), _assistant(_ANSWER), *messages]
        _, found, rest = self._template.render(conversation, generate=True).partition(_ANSWER)
        if not found:
            raise RenderingError(
                f"the chat template of {self._tokenizer.folder} leaves out past assistant messages, so a history of "
                "several turns cannot be built with it: replace its chat_template.jinja, or use domains of one turn"
            )
        return rest

    def _find_stop(self) -> int:
        """The special token that closes an assistant's message, spaces before it aside."""
        closing = self._closing([_user("go")]).lstrip()
        ids = self._tokenizer.encode(closing)
        special = self._tokenizer.core.get_added_tokens_decoder()
        if ids and (ids[0] in special or ids[0] in self._tokenizer.stop_ids):
            return ids[0]
        raise RenderingError(
            f"the chat template of {self._tokenizer.folder} closes an assistant's message with {closing[:20]!r}, which "
            "does not start with a special token, so a generation would never end: let the template write eos_token "
            "after each assistant message"
        )

    def _check_prefix_property(self) -> None:
        """Compare what is appended with the template's own rendering of the whole conversation.

        The border between an opening and an action is compared as text only: the model starts from the
        opening's tokens, whatever a tokenizer would make of both together.
        """
        for first in _PROBES:
            messages = self._opened([_user(first)])
            for observation in _PROBES:
                opening = self._template.render(messages, generate=True)
                messages = [*messages, _assistant(_ANSWER), _user(observation)]
                whole = self._template.render(messages, generate=True)
                closing = self._closing([_user(observation)])
                answer = whole[len(opening) : len(whole) - len(closing)]
                if answer.lstrip() != _ANSWER or opening + answer + closing != whole:
                    self._refuse(opening + _ANSWER + closing, whole)
                appended = ids_of(self.observe(observation, stopped=False)).tolist()
                if self._tokenizer.encode(whole)[-len(appended) :] != appended:
                    self._refuse(self._tokenizer.decode(span_of(appended)), closing)

    def _refuse(self, appended: str, whole: str) -> None:
        same = next((i for i, pair in enumerate(zip(appended, whole, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(appended), len(whole)) if same is None else same
        raise RenderingError(
            f"the chat template of {self._tokenizer.folder} lacks the prefix property: a conversation of several turns "
            f"does not begin with the tokens of its earlier turns. Appending turn by turn gives "
            f"...{appended[max(0, at - 40) : at + 40]!r}, the template writes ...{whole[max(0, at - 40) : at + 40]!r}. "
            "Give the model folder a chat_template.jinja that writes past messages exactly as they were generated "
            "(often it is enough to remove what rewrites, strips or drops past assistant messages, or what the "
            "generation prompt adds), or set model.rendering to 'words'"
        )


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _key(observation: Observation) -> str | bytes:
    """A hashable form of an observation, for the caches."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, LengthSpan):
        raise RenderingError("rendering 'chat' needs texts or messages: lengths belong to env 'emulated'")
    return codec.encode(observation)


def _messages(key: str | bytes) -> list[Message]:
    return [_user(key)] if isinstance(key, str) else codec.decode(key, list[Message])

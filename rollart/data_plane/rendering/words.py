"""Rendering of texts as they are: for tiny word-level models, and for base models without a chat template.

A history is ``bos, system prompt, observation, [act], action, observation, [act], action, ...``. ``bos``
and ``act`` (which tells a model that it is its turn) are there if the tokenizer has them. Nothing marks
the end of an action that was cut by its length: the next observation follows, so that one-word actions
need no stop token at all.

The vocabulary of a tiny model is derived from its domains: :func:`vocabulary_of` collects the words that
each environment declares, :func:`save_word_tokenizer` makes the tokenizer of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.env import Observation
from rollart.data_plane.environment.registry import ENVIRONMENTS
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.data_plane.rendering.tokenizer import FolderTokenizer, ids_of, span_of, without_stop
from rollart.types import LengthSpan, Span, TokenSpan

PAD, BOS, STOP, ACT = "<pad>", "<bos>", "<eos>", "<act>"
SPECIAL_WORDS = (PAD, BOS, STOP, ACT)

_CACHED_TEXTS = 4096
"""Observations whose tokens are kept: members of a group see the same ones again and again."""


class WordsRenderer:
    """Appends texts. See the module docstring for the form of a history.

    Args:
        tokenizer: Of the model folder.
        system_prompt: Comes before the first observation.

    Raises:
        RenderingError: the tokenizer has no end-of-sequence token, or cannot encode the system prompt.
    """

    def __init__(self, tokenizer: FolderTokenizer, system_prompt: str) -> None:
        if not tokenizer.stop_ids:
            raise RenderingError(
                f"the tokenizer of {tokenizer.folder} names no eos_token, so an action could never end: "
                "add it to tokenizer_config.json"
            )
        self._tokenizer = tokenizer
        self.stop_token_ids = tokenizer.stop_ids
        bos, act = tokenizer.special_id("bos_token"), tokenizer.core.token_to_id(ACT)
        system = tokenizer.encode(_separated(system_prompt)) if system_prompt.strip() else []
        self._start = [*([] if bos is None else [bos]), *system]
        self._opening = [] if act is None else [act]
        self._begin = lru_cache(maxsize=_CACHED_TEXTS)(self._render_begin)
        self._observe = lru_cache(maxsize=_CACHED_TEXTS)(self._render)
        self._parse = lru_cache(maxsize=_CACHED_TEXTS)(self._text)

    def begin(self, observation: Observation) -> Span:
        return self._begin(_plain(observation))

    def observe(self, observation: Observation, *, stopped: bool) -> Span:
        return self._observe(_plain(observation))

    def parse(self, action: Span) -> str:
        return self._parse(tuple(without_stop(ids_of(action), self.stop_token_ids).tolist()))

    def decode(self, tokens: Span) -> str:
        return self._tokenizer.decode(tokens)

    def _render_begin(self, text: str) -> TokenSpan:
        return span_of([*self._start, *self._tokenizer.encode(_separated(text)), *self._opening])

    def _render(self, text: str) -> TokenSpan:
        return span_of([*self._tokenizer.encode(_separated(text)), *self._opening])

    def _text(self, ids: tuple[int, ...]) -> str:
        return self._tokenizer.core.decode(list(ids), skip_special_tokens=False)


def _separated(text: str) -> str:
    """Texts stand on lines of their own, so that a subword tokenizer cannot join one to the next."""
    return text if text.endswith("\n") else text + "\n"


def _plain(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    if isinstance(observation, LengthSpan):
        raise RenderingError("rendering 'words' needs texts: lengths belong to env 'emulated'")
    return "\n".join(message["content"] for message in observation)


def vocabulary_of(domains: Mapping[str, DomainConfig]) -> list[str]:
    """Every word that the domains' system prompts and environments can emit or accept, sorted.

    Raises:
        RenderingError: an environment has no closed vocabulary; the message says what to do.
    """
    words: set[str] = set()
    for name, domain in domains.items():
        words.update(domain.system_prompt.split())
        declared = getattr(ENVIRONMENTS.get(domain.env), "words", None)
        if declared is None:
            raise RenderingError(
                f"domain '{name}': environment '{domain.env}' does not declare its words, so a tiny model cannot get a "
                "vocabulary: set model.path to a pretrained model, or give the factory a function 'words'"
            )
        try:
            words.update(declared(**domain.args))
        except (LookupError, ValueError) as error:
            raise RenderingError(f"domain '{name}': {error}") from error
    broken = [word for word in words if word.split() != [word] or word in SPECIAL_WORDS]
    if broken:
        raise RenderingError(f"a word is one piece without spaces and none of {SPECIAL_WORDS}: {broken[0]!r} is not")
    return sorted(words)


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """A tokenizer with one id for each word: the special words first, then ``words`` in their order."""
    vocabulary = {word: position for position, word in enumerate([*SPECIAL_WORDS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_WORDS))
    return tokenizer


def save_word_tokenizer(folder: Path, words: Iterable[str], max_length: int) -> int:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, as the model library also reads them.

    Returns:
        The size of the vocabulary.
    """
    tokenizer = word_tokenizer(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": STOP,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return tokenizer.get_vocab_size()

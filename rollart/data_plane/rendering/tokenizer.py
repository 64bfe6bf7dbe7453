"""What a renderer needs of a Hugging Face model folder: the tokenizer, its special tokens, its template.

Reads ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json``, ``generation_config.json``
and ``chat_template.jinja`` without the model library, so that environment hosts stay light.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rollart.data_plane.rendering.renderer import RenderingError
from rollart.types import Span, TokenSpan

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class FolderTokenizer:
    """The tokenizer of one model folder.

    Raises:
        RenderingError: the folder has no ``tokenizer.json``, or a file of it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise RenderingError(
                f"{folder} has no tokenizer.json: save the model with a fast tokenizer "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            self.core = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise RenderingError(f"{path} cannot be read: {error}") from error
        self._config = _read_json(folder / "tokenizer_config.json")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it stands: nothing is added at its ends, special tokens in it are found.

        Raises:
            RenderingError: the vocabulary lacks a word of the text.
        """
        try:
            return self.core.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises plain Exception
            raise RenderingError(f"the tokenizer of {self.folder} cannot encode {text!r:.200}: {error}") from error

    def decode(self, span: Span) -> str:
        """The text of tokens, special ones included."""
        return self.core.decode(ids_of(span).tolist(), skip_special_tokens=False)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """Name to text, e.g. ``eos_token`` to ``</s>``."""
        declared = {**_read_json(self.folder / "special_tokens_map.json"), **self._config}
        texts = {name: declared.get(name) for name in _SPECIAL}
        texts = {name: text.get("content") if isinstance(text, dict) else text for name, text in texts.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    def special_id(self, name: str) -> int | None:
        """Id of a special token, e.g. ``bos_token``; ``None`` if there is none."""
        text = self.special_tokens.get(name)
        return None if text is None else self.core.token_to_id(text)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """What ends a generation by the folder's own settings: the tokenizer's and the generation config's."""
        declared = _read_json(self.folder / "generation_config.json").get("eos_token_id")
        ids = declared if isinstance(declared, list) else [declared]
        ids = [self.special_id("eos_token"), *ids]
        return tuple(dict.fromkeys(token for token in ids if isinstance(token, int)))

    @cached_property
    def chat_template(self) -> str | None:
        """The chat template; of several named ones the default."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        declared = self._config.get("chat_template")
        if isinstance(declared, list):
            named = {item.get("name"): item.get("template") for item in declared if isinstance(item, dict)}
            declared = named.get("default")
        return declared if isinstance(declared, str) else None


def ids_of(span: Span) -> np.ndarray:
    """The token ids of a span.

    Raises:
        RenderingError: it has only a length.
    """
    if isinstance(span, TokenSpan):
        return span.ids
    raise RenderingError("a renderer of texts got a span without tokens: an emulated engine needs env 'emulated'")


def span_of(ids: list[int]) -> TokenSpan:
    """An observation span."""
    return TokenSpan.of(ids)


def without_stop(ids: np.ndarray, stop_ids: tuple[int, ...]) -> np.ndarray:
    """An action's tokens without the stop token at its end."""
    return ids[:-1] if len(ids) and int(ids[-1]) in stop_ids else ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RenderingError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}

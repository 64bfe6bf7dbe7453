"""Chooses and makes the renderer of a domain. Called by the environment host and by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rollart.config.domains import DomainConfig
from rollart.data_plane.rendering.chat import ChatRenderer
from rollart.data_plane.rendering.lengths import LengthRenderer
from rollart.data_plane.rendering.renderer import Renderer
from rollart.data_plane.rendering.tokenizer import FolderTokenizer
from rollart.data_plane.rendering.words import WordsRenderer


def build_renderer(
    model_folder: Path | None, rendering: Literal["auto", "words", "chat"], domain: DomainConfig
) -> Renderer:
    """The renderer of one domain.

    Args:
        model_folder: A Hugging Face model folder; ``None`` for emulated engines.
        rendering: ``auto`` takes the chat template if the folder has one.
        domain: Its system prompt is rendered.

    Raises:
        RenderingError: the folder's tokenizer or template cannot be used; the message says what to do.
    """
    if model_folder is None:
        return LengthRenderer()
    tokenizer = FolderTokenizer(model_folder)
    if rendering == "chat" or (rendering == "auto" and tokenizer.chat_template is not None):
        return ChatRenderer(tokenizer, domain.system_prompt, several_turns=domain.max_turns > 1)
    return WordsRenderer(tokenizer, domain.system_prompt)
